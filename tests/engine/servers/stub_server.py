"""A program that pretends to be a server under test, and misbehaves as its `--mode` says.

Run as a script. It takes vLLM's flags, keeps to vLLM's paths and names of metrics, and needs nothing but Python.
Modes: `ok`; `not_healthy` (health is 503); `silent` (never listens); `no_models` (the list is 404); `other_model`;
`stubborn` (it, a child and a child in a session of its own ignore SIGTERM); `strict` (unknown flags are refused);
`keeps_cache` (no way to empty the prefix cache, and counters that begin anew with the tenth request); `oom:N`,
`crash:N` (it dies on the Nth request); `sick:N` (from then on it answers 500, and its health 503);
`log:FILE:CODE` (it prints a file and exits).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LONG_S = 60.0


class State:
    """What the server has seen."""

    def __init__(self, mode: str, model: str) -> None:
        self.mode, _, self.limit = mode.partition(":")
        self.model = "another-model" if self.mode == "other_model" else model
        self.lock = threading.Lock()
        self.num_requests = 0
        self.counts = {"queries": 0, "hits": 0, "prompt": 0, "generated": 0}
        self.cache: set[str] = set()

    def take(self, prompt: str, num_prompt: int, num_output: int) -> None:
        """Count a request; die of it where the mode says so."""
        with self.lock:
            self.num_requests += 1
            if self.mode in ("oom", "crash") and self.num_requests >= int(self.limit):
                words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
                say(words if self.mode == "oom" else "a wire came loose")
                os._exit(1)
            if self.mode == "keeps_cache" and self.num_requests == 10:
                self.counts = dict.fromkeys(self.counts, 0)
            hits = num_prompt if prompt in self.cache else 0
            self.cache.add(prompt)
            more = {"queries": num_prompt, "hits": hits, "prompt": num_prompt, "generated": num_output}
            self.counts = {name: value + more[name] for name, value in self.counts.items()}

    @property
    def is_sick(self) -> bool:
        """Whether it goes on only to say that it cannot."""
        return self.mode == "sick" and self.num_requests >= int(self.limit)

    def metrics(self) -> str:
        """Return the counters as vLLM tells them."""
        names = {
            "queries": "vllm:prefix_cache_queries_total",
            "hits": "vllm:prefix_cache_hits_total",
            "prompt": "vllm:prompt_tokens_total",
            "generated": "vllm:generation_tokens_total",
        }
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = [f"{names[name]}{labels} {float(value)}" for name, value in self.counts.items()]
        lines.append('vllm:cache_config_info{block_size="16",num_gpu_blocks="1024"} 1.0')
        return "\n".join(["vllm:num_requests_running 0.0", f"vllm:num_preemptions_total{labels} 0.0", *lines]) + "\n"


class Handler(BaseHTTPRequestHandler):
    """Answers as vLLM does."""

    protocol_version = "HTTP/1.1"
    state: State

    def do_GET(self) -> None:
        """Answer the short questions."""
        match self.path:
            case "/health":
                self.answer("", status=503 if self.state.mode == "not_healthy" or self.state.is_sick else 200)
            case "/v1/models" if self.state.mode != "no_models":
                self.answer({"object": "list", "data": [{"id": self.state.model, "max_model_len": 512}]})
            case "/version":
                self.answer({"version": "0.0.1"})
            case "/metrics":
                self.answer(self.state.metrics())
            case _:
                self.answer({"error": "no such path"}, status=404)

    def do_POST(self) -> None:
        """Answer completions, tokenisation, and the reset of the cache."""
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        match self.path:
            case "/v1/completions" if body.get("echo"):
                self.answer({"choices": [{"logprobs": logprobs_of(body["prompt"])}]})
            case "/v1/completions":
                self.stream(body)
            case "/tokenize":
                self.answer({"tokens": [ord(letter) for letter in body["prompt"]]})
            case "/reset_prefix_cache" if self.state.mode != "keeps_cache":
                self.state.cache.clear()
                self.answer({"success": True})
            case _:
                self.answer({"error": "no such path"}, status=404)

    def stream(self, body: dict[str, Any]) -> None:
        """Stream as many tokens as were asked for, with their count in every piece."""
        prompt, count = body["prompt"], int(body["max_tokens"])
        size = len(prompt)
        self.state.take(json.dumps(prompt), size, count)
        if self.state.is_sick:
            self.answer({"error": {"message": "the engine is dead"}}, status=500)
            return
        pieces = []
        for i in range(1, count + 1):
            choice = {"index": 0, "text": "x ", "finish_reason": "length" if i == count else None}
            pieces.append({"choices": [choice], "usage": {"prompt_tokens": size, "completion_tokens": i}})
        pieces.append({"choices": [], "usage": {"prompt_tokens": size, "completion_tokens": count}})
        text = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"
        self.answer(text, kind="text/event-stream")

    def answer(self, content: str | dict[str, Any], *, status: int = 200, kind: str = "text/plain") -> None:
        """Send one answer."""
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if isinstance(content, dict) else kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep the log to what the modes print."""


def logprobs_of(prompt: list[int]) -> dict[str, Any]:
    """Return logprobs of a prompt's tokens: -1 each, and token 7 the most likely one everywhere."""
    tops = [None, *({f"token_id:{token}": -1.0, "token_id:7": -0.5} for token in prompt[1:])]
    return {"token_logprobs": [None, *(-1.0 for _ in prompt[1:])], "top_logprobs": tops}


def say(words: str) -> None:
    """Log a line."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def hold_on() -> None:
    """Ignore SIGTERM here, in a child, and in a child with a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep({LONG_S})"
    for is_apart in (False, True):
        subprocess.Popen([sys.executable, "-c", code], start_new_session=is_apart)


def main() -> int:
    """Serve as the mode says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="ok")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    options, rest = parser.parse_known_args()
    if options.mode == "strict" and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.mode.startswith("log:"):
        _, file, code = options.mode.split(":")
        say(Path(file).read_text(encoding="utf-8"))
        return int(code)
    if options.mode == "stubborn":
        hold_on()
    say(f"serving {options.model} on {options.port}")
    if options.mode == "silent":
        time.sleep(LONG_S)
    Handler.state = State(options.mode, options.model)
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
