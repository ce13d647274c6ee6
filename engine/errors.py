"""What can go wrong in an engine.

EngineError
 |- InvalidSettings     a knob has a value the engine cannot take
 |- UnknownModel        a model name that resolves to nothing
 |- CheckpointError     model files that are incomplete, damaged or of another shape
 |- RequestRefused      a request that can never be served
 |   '- RequestTooLong
 |- NumericsError       logits that are not finite
 |- ReferenceUnreadable what one pass keeps for another to be compared with
 |- NotEnoughMemory     the settings do not fit this machine
 |- OutOfBlocks         more KV-cache blocks asked for than are free
 |- NotSimulated        something that only an engine with weights can do
 '- EngineDied          the engine's process ended
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of everything an engine raises; `kind` is stored as a failed trial's reason."""

    kind = "engine_error"


class InvalidSettings(EngineError):
    """Choose a value the message lists."""

    kind = "invalid_settings"


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


class NotSimulated(EngineError):
    """Ask a real engine: there is nothing behind a simulated one that could answer."""

    kind = "not_simulated"


class EngineDied(EngineError):
    """The engine's process ended; the message carries how, and the last lines it logged."""

    kind = "engine_died"


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
