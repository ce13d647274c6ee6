"""What a server died of, read out of what it logged: lines of real servers, each with the error it must become."""

from __future__ import annotations

import pytest

from engine.errors import (
    EngineDied,
    EngineError,
    NotEnoughMemory,
    PackageMissing,
    PortInUse,
    UnknownModel,
    WrongFlag,
)
from engine.servers.failure import exit_words, failure_of, last_words, plain

VLLM_END = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
LINES: tuple[tuple[str, type[EngineError]], ...] = (
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", NotEnoughMemory),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory", NotEnoughMemory),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", NotEnoughMemory),
    ("ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, "
     "which is larger than the available KV cache memory (3.2 GiB).", NotEnoughMemory),
    ("ValueError: Free memory on device (3.1/79.2 GiB) on startup is less than desired GPU memory utilization",
     NotEnoughMemory),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", NotEnoughMemory),
    ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 8589934592", NotEnoughMemory),
    ("RuntimeError: Worker failed with error 'Available memory on node 0 (20.02/22.84 GiB) on kv cache allocation is "
     "less than requested memory for kv (300.0 GiB).", NotEnoughMemory),
    ("Exception: Failed to start HTTP server: port 18300 already in use. Use --http-port", PortInUse),
    ("Unknown arguments specified: ['--no-such-flag']", WrongFlag),
    ("  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len", WrongFlag),
    ("Exception: Model snapshots for '/nonexistent/model' not found in cache", UnknownModel),
    ("OSError: [Errno 98] Address already in use", PortInUse),
    ("main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", PortInUse),
    ("ModuleNotFoundError: No module named 'vllm'", PackageMissing),
    ("/opt/venv/bin/python3: No module named sglang", PackageMissing),
    ("api_server.py: error: unrecognized arguments: --max-num-seq 8", WrongFlag),
    ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp3' (choose from auto, fp8)", WrongFlag),
    ("Error: No such option: --max_batch", WrongFlag),
    ("error: invalid argument: --nope", WrongFlag),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig", WrongFlag),
    ("OSError: nobody/nothing is not a local folder and is not a valid model identifier", UnknownModel),
    ("a wire came loose", EngineDied),
)  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_a_line_of_a_server_is_recognised(line: str, expected: type[EngineError]) -> None:
    """Each kind of end is told by its own error, with the line itself in the message."""
    error = failure_of(["loading weights", line, VLLM_END], 1, what="the server ended")
    assert type(error) is expected
    assert line.strip()[:60] in str(error)
    assert str(error).startswith("the server ended with exit code 1")


def test_a_warning_is_no_cause() -> None:
    """What a server only warns of, and goes on without, does not explain its end."""
    lines = ["WARNING 11-30 23:31:15 [importing.py:53] No module named 'triton'; using another kernel", "Killed"]
    assert type(failure_of(lines, 1, what="it ended")) is EngineDied


@pytest.mark.parametrize(
    ("code", "lines", "expected"),
    [
        (-9, [], NotEnoughMemory),
        (137, ["loading"], NotEnoughMemory),
        (127, ["sh: 1: vllm: not there"], PackageMissing),
        (2, ["usage: vllm serve [options]", "what is that"], WrongFlag),
        (2, ["what is that"], EngineDied),
        (None, [], EngineDied),
    ],
)
def test_an_exit_code_tells_where_the_log_does_not(
    code: int | None, lines: list[str], expected: type[EngineError]
) -> None:
    """A kill by the system, a command that is not there and a usage message have codes of their own."""
    assert type(failure_of(lines, code, what="it ended")) is expected


def test_exit_codes_have_words() -> None:
    """A signal is named, whether a shell stands between or not."""
    assert exit_words(3) == "exit code 3"
    assert exit_words(-11) == "SIGSEGV"
    assert exit_words(137) == "SIGKILL, possibly for lack of memory"
    assert exit_words(255) == "exit code 255"


def test_colours_are_no_part_of_a_line() -> None:
    """Escapes that colour a log are taken out before anything is looked for in it."""
    assert plain("\x1b[2m12:00\x1b[0m \x1b[32mINFO\x1b[0m ready") == "12:00 INFO ready"


def test_the_last_lines_are_short_and_few() -> None:
    """Of a long log the last lines are shown, each cut and without control characters; an empty log is said to be."""
    shown = last_words([f"line {i}" for i in range(50)] + ["\x1b[31m" + "x" * 1000, " "])
    assert "line 44" not in shown
    assert "line 45" in shown
    assert "\x1b" not in shown
    assert len(shown) < 500
    assert last_words(["cause", "    ^^^^^^"]) == "; its last log lines: cause"
    assert last_words([]) == "; it logged nothing"
