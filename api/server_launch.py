"""The server that a job's engine is: the operator's profile of it, and the model as it is named there.

Starts nothing. Knows nothing of flags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api.operator_file import load_operator
from api.settings import Settings
from engine.embedded.models import BUILT_IN, ModelFiles
from engine.servers.profile import ServerProfile
from tuner.errors import InvalidRequest
from tuner.knobs import OPENAI
from tuner.request import TuneRequest

_LLAMA_CPP = "llamacpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLaunch:
    """Everything that an adapter needs beside a point's settings."""

    profile: ServerProfile
    #: A folder or file of this machine, or a name that the server resolves itself.
    model: str
    #: SHA-256 over the weights where they lie here; else what the model is called, marked so.
    model_hash: str
    #: Has a tokenizer.json; None where no files of the model are here.
    tokenizer_folder: Path | None


def server_launch(request: TuneRequest, settings: Settings, model_files: Callable[[str], ModelFiles]) -> ServerLaunch:
    """Return what starts a job's server. Raises InvalidRequest for a profile that there is not, UsageError for a file.

    Models that lie here, and those that Wattfront brings, are given as paths; `model_files` finds them. Any other name
    is the server's own to resolve.
    """
    profile = _profile(request, settings)
    path = Path(request.model).expanduser()
    takes_file = request.engine == _LLAMA_CPP and path.is_file()
    is_here = path.exists() or request.model in BUILT_IN
    if request.engine == OPENAI or not is_here:
        return ServerLaunch(profile=profile, model=request.model, model_hash=f"by name: {request.model}",
                            tokenizer_folder=None)  # fmt: skip
    files = model_files(request.model)
    model = path if takes_file else files.folder
    return ServerLaunch(profile=profile, model=str(model), model_hash=files.model_hash, tokenizer_folder=files.folder)


def _profile(request: TuneRequest, settings: Settings) -> ServerProfile:
    operator = load_operator(settings.operator_file)
    entry = operator.server_of(request.server or request.engine, request.engine)
    if entry is not None:
        return entry.profile()
    if request.server or request.engine == OPENAI:
        known = ", ".join(sorted(operator.servers)) or "none"
        where = settings.operator_file or "the file of WATTFRONT_OPERATOR_FILE, which is not set,"
        raise InvalidRequest("server", request.server, f"{where} names {known}; add it there under `servers`")
    return ServerProfile(kind=request.engine)
