"""What launches the engine of a prepared request, whichever it is. Knows nothing of what is measured."""

from __future__ import annotations

from api.prepare import Prepared
from engine.host import EngineHost
from engine.servers.server_engine import ServerEngine
from tuner.bench import OpenEngine


def engine_opener(prepared: Prepared) -> OpenEngine:
    """Return an opener of the real engine that a request asks for; of a simulated one the simulation has its own."""
    launch = prepared.server
    if launch is not None:
        return lambda settings: ServerEngine(
            settings,
            launch.profile,
            model=launch.model,
            model_hash=launch.model_hash,
            tokenizer_folder=launch.tokenizer_folder,
        )
    files = prepared.files
    assert files is not None  # a request of our own engine that is not simulated has them
    return lambda settings: EngineHost(settings, files.folder, model_hash=files.model_hash)
