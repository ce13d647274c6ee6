"""What can go wrong in an engine.

EngineError
 |- InvalidSettings     a knob has a value the engine cannot take
 |   '- NotNative         a precision whose products the device lacks
 |- UnknownModel        a model name that resolves to nothing
 |- CheckpointError     model files that are incomplete, damaged or of another shape
 |- RequestRefused      a request that can never be served
 |   '- RequestTooLong
 |- NumericsError       logits that are not finite
 |- ReferenceUnreadable what one pass keeps for another to be compared with
 |- NotEnoughMemory     the settings do not fit this machine
 |- OutOfBlocks         more KV-cache blocks asked for than are free
 |- NativeKernelsMissing kernels that were required and cannot be built
 |- NotSimulated        something that only an engine with weights can do
 |- NotScored           a given text's probabilities, asked of a server that does not tell them
 |- EngineDied          the engine's process ended
 |- ServerNotHealthy    a server that did not become ready in time
 |- WrongFlag           a flag, or its value, that a server refuses
 |- WrongModel          a server that serves another model
 |- PackageMissing      a server's program or one of its packages is not installed
 '- PortInUse           another program listens where a server was to
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of everything an engine raises; `kind` is stored as a failed trial's reason."""

    kind = "engine_error"


class InvalidSettings(EngineError):
    """Choose a value the message lists."""

    kind = "invalid_settings"


class NotNative(InvalidSettings):
    """Choose a precision that the message lists; `benchmarks.precision_quality` tells what one would do to answers."""

    kind = "not_native"


class UnknownModel(EngineError):
    """Give a folder, a .gguf file, a Hugging Face id or a built-in name."""

    kind = "unknown_model"


class CheckpointError(EngineError):
    """Fetch the named file again, or correct the named field of the config."""

    kind = "checkpoint"


class RequestRefused(EngineError):
    """Shorten the request or give the engine more room; the message has both numbers."""

    kind = "request_refused"


class RequestTooLong(RequestRefused):
    """The prompt and the asked output do not fit the context; neither is ever truncated."""

    kind = "request_too_long"


class NumericsError(EngineError):
    """The precision overflows with this model; choose a wider one."""

    kind = "numerics"


class ReferenceUnreadable(EngineError):
    """Free space in the folder for temporary files, or let TMPDIR name another one."""

    kind = "reference_unreadable"


class NotEnoughMemory(EngineError):
    """Choose a smaller batch or context, or a narrower precision."""

    kind = "out_of_memory"


class OutOfBlocks(EngineError):
    """Give the engine more KV-cache blocks; the scheduler itself looks before it asks."""

    kind = "out_of_blocks"


class NativeKernelsMissing(EngineError):
    """Install a C++ compiler, or set WATTFRONT_NATIVE=off to compute without."""

    kind = "native_kernels_missing"


class NotSimulated(EngineError):
    """Ask a real engine: there is nothing behind a simulated one that could answer."""

    kind = "not_simulated"


class EngineDied(EngineError):
    """The engine's process ended; the message carries how, and the last lines it logged."""

    kind = "engine_died"


class NotScored(EngineError):
    """Take a server that gives logprobs of a prompt (vLLM, SGLang), or tune without a quality gate."""

    kind = "not_scored"


class ServerNotHealthy(EngineError):
    """Give the server more time (`start_timeout_s`), or mend what its last log lines tell of."""

    kind = "server_not_healthy"


class WrongFlag(EngineError):
    """Correct the profile's command and extra arguments, or choose a value that this version of the server takes."""

    kind = "wrong_flag"


class WrongModel(EngineError):
    """Name the model as the server does (`served_model`), or end the server that is in the way."""

    kind = "wrong_model"


class PackageMissing(EngineError):
    """Install the server, or let the profile's command begin with the interpreter that has it."""

    kind = "package_missing"


class PortInUse(EngineError):
    """End what listens on the port, or give the profile another one or none."""

    kind = "port_in_use"


def error_of_kind(kind: str, message: str) -> EngineError:
    """Rebuild an error that crossed a process border as its kind and message."""
    for cls in _subclasses(EngineError):
        if cls.kind == kind:
            return cls(message)
    return EngineError(message)


def _subclasses(root: type[EngineError]) -> list[type[EngineError]]:
    found = [root]
    for cls in root.__subclasses__():
        found.extend(_subclasses(cls))
    return found
