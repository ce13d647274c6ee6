"""The child's side of `benchmarks.contender`: runs one peer and does what messages say.

Run by path, `PYTHON serve.py PEER.py`, with the interpreter of the peer's environment; needs nothing but the standard
library. A message is a JSON object a line on standard input: `op` names a method of the peer's class `Peer`, the other
fields are its arguments. The answer goes to standard output: `{"reply": ...}`, or `{"error": "CLASS: message"}`.
Whatever libraries print goes to standard error. Between messages the process sleeps in a read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve until `close` or the end of standard input."""
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.pop(0)  # this folder: nothing in it may be taken for somebody's module
    peer = _peer(Path(sys.argv[1]))
    for line in sys.stdin:
        message = json.loads(line)
        op = message.pop("op")
        if op == "close":
            return
        sink.write(json.dumps(_answer(peer, op, message)) + "\n")
        sink.flush()


def _peer(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Peer()


def _answer(peer: Any, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"reply": getattr(peer, op)(**arguments)}
    except Exception as error:  # whatever a foreign library raises ends this contender and nothing else
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
