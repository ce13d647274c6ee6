"""A server that others wrote as an engine of ours: started, asked, loaded through the client, and stopped.

Starts nothing where the profile has a URL. What the server says of itself is checked against what was asked for: its
model by name, and that it still lives. Caches are emptied before every load. Knows no server's words; adapters do.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from pathlib import Path

import structlog

from engine.errors import (
    EngineDied,
    EngineError,
    InvalidSettings,
    NotEnoughMemory,
    NotScored,
    RequestRefused,
    ServerNotHealthy,
    WrongModel,
)
from engine.load import Load, LoadReport, Observer
from engine.request import FinishReason, RequestRecord
from engine.servers.adapter import ADAPTERS
from engine.servers.client import LoadClient
from engine.servers.endpoint import TIMEOUT_S, Endpoint, ServedModel
from engine.servers.metrics import ServerCounters, change, counters_of, samples_of
from engine.servers.process import ServerProcess, free_port, leak_words, log_name, new_server_id, require_free
from engine.servers.profile import Place, ServerProfile
from engine.servers.texts import Texts
from engine.serving import TokenScores
from engine.settings import EngineInfo, EngineSettings

#: How often emptying the caches is tried: requests that were cut off may hold their blocks for a moment.
_RESET_TRIES = 20
_RESET_PAUSE_S = 0.1
#: Of an answer of logprobs for a long text.
_SCORE_TIMEOUT_S = 600.0

_log = structlog.get_logger()


class ServerEngine:
    """A server behind the OpenAI API; implements `ServingEngine`."""

    def __init__(
        self,
        settings: EngineSettings,
        profile: ServerProfile,
        *,
        model: str,
        model_hash: str = "",
        tokenizer_folder: Path | None = None,
    ) -> None:
        """Start the server, unless the profile says where one runs, and wait until it serves the model.

        Raises InvalidSettings for what the server cannot be set to, PortInUse, PackageMissing, WrongFlag, WrongModel,
        UnknownModel, NotEnoughMemory, ServerNotHealthy, and EngineDied for an end that its log does not explain.
        """
        began_s = time.monotonic()
        self._settings = settings
        self._profile = profile
        self._adapter = ADAPTERS[profile.kind]
        self._name = self._adapter.served_name(model, profile)
        self._process: ServerProcess | None = None
        self._client: LoadClient | None = None
        self._report: LoadReport | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="wattfront-server-"))
        port = profile.port or free_port()
        place = Place(port=port, folder=self._folder, server_id=new_server_id())
        self._endpoint = Endpoint(
            profile.url or place.url,
            self._adapter.paths(profile),
            api_key=_api_key(profile),
            timeout_s=min(TIMEOUT_S, profile.start_timeout_s),
        )
        try:
            if profile.url is None:
                self._start(model, place)
            served = self._wait()
            self._texts = self._texts_of(tokenizer_folder)
            self._client = self._connect()
            self._info = self._describe(model, model_hash, served, time.monotonic() - began_s)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> EngineInfo:
        """What was opened, with the processes that are alive now."""
        pids = () if self._process is None else self._process.pids
        return dataclasses.replace(self._info, pids=pids)

    @property
    def address(self) -> str:
        """Where the server listens."""
        return self._endpoint.url

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's token ids, without special tokens added; word numbers where nobody has a tokenizer."""
        return self._texts.encode(text)

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        """Ask how likely the tokens are; see `ServingEngine.score`. `keep` and `against` have no use here.

        Raises NotScored of a server that does not tell, RequestRefused for fewer than two tokens.
        """
        count = len(token_ids)
        first = 0 if num_last is None else max(0, count - 1 - num_last)
        if count - 1 - first < 1:
            raise RequestRefused(f"{count} tokens to score; give at least 2, of which at least 1 is scored")
        asked = self._adapter.score_request(token_ids, self._name)
        if asked is None:
            raise NotScored(f"{self._profile.kind} gives no probabilities of a prompt; tune it without a quality gate")
        answer = self._endpoint.ask(*asked, timeout_s=_SCORE_TIMEOUT_S)
        try:
            scores = self._adapter.scores_of(answer, count)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise self._died_or(NotScored(f"{asked[0]} answers without probabilities of the prompt")) from error
        if len(scores.logprobs) != count - 1:
            raise NotScored(f"{asked[0]} answers {len(scores.logprobs)} probabilities for {count - 1} tokens")
        return TokenScores(top_token_ids=scores.top_token_ids[first:], logprobs=scores.logprobs[first:])

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Do nothing for the chunk it was started with. Raises InvalidSettings for another: it takes a new launch."""
        if prefill_chunk != self._settings.prefill_chunk:
            raise InvalidSettings(
                f"prefill_chunk is {prefill_chunk}: {self._profile.kind} was started with "
                f"{self._settings.prefill_chunk}, and takes another one only when it is started again"
            )

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Empty the caches and serve the load; see `ServingEngine.run`.

        Raises what the log of a server tells that ended meanwhile: NotEnoughMemory, else EngineDied.
        """
        assert self._client is not None
        self._reset_caches()
        before = self._counters()
        try:
            records = self._client.run(load, observer)
        except EngineDied as error:
            raise self._died_or(error) from error
        if any(record.finish_reason is FinishReason.ERROR for record in records):
            self._require_alive()
        self._report = _merged(self._client.report(), before, self._counters())
        return records

    def report(self) -> LoadReport | None:
        """Return what client and server say of the last load; None before the first."""
        return self._report

    def close(self) -> None:
        """End the client, and the server with everything it started. Idempotent."""
        if self._client is not None:
            self._client.close()
        self._endpoint.close()
        if self._process is not None:
            left = self._process.stop(self._profile.stop_timeout_s)
            if left:
                _log.warning("server_processes_left", pids=[one.pid for one in left], kind=self._profile.kind)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, model: str, place: Place) -> None:
        start = self._adapter.start(self._settings, self._profile, model=model, place=place)
        require_free(place.port)
        for path, text in start.files:
            path.write_text(text, encoding="utf-8")
        log = self._folder / log_name(place.server_id)
        self._process = ServerProcess(start.commands, server_id=place.server_id, log=log, port=place.port)

    def _wait(self) -> ServedModel:
        """Return the model once the server is healthy and lists it."""
        if self._process is None:
            return self._require_served()
        try:
            self._process.wait_until(self._missing, self._profile.start_timeout_s)
        except NotEnoughMemory as error:
            raise NotEnoughMemory(f"{error}{leak_words()}") from error
        return self._require_served()

    def _missing(self) -> str | None:
        """Say what a starting server lacks. Raises WrongModel when another model answers at its address."""
        lacking = self._endpoint.health()
        if lacking is not None:
            return lacking
        models = self._endpoint.models()
        if isinstance(models, str):
            return models
        if not models:
            return "the list of models is empty"
        self._served(models)
        return None

    def _require_served(self) -> ServedModel:
        models = self._endpoint.models()
        if isinstance(models, str):
            raise self._died_or(ServerNotHealthy(f"{self._endpoint.url}: {models}"))
        return self._served(models)

    def _served(self, models: tuple[ServedModel, ...]) -> ServedModel:
        found = next((one for one in models if one.name == self._name), None)
        if found is None:
            names = ", ".join(one.name for one in models) or "no model"
            raise WrongModel(
                f"model is {self._name!r}, but the server at {self._endpoint.url} has {names}; "
                "set served_model to one of them, or end the server that is in the way"
            )
        return found

    def _texts_of(self, folder: Path | None) -> Texts:
        takes_ids = self._adapter.dialect(self._profile).takes_token_ids
        return Texts(lambda text: self._endpoint.tokens_of(text, model=self._name), folder, takes_token_ids=takes_ids)

    def _connect(self) -> LoadClient:
        dialect = self._adapter.dialect(self._profile)
        if dialect.takes_token_ids and self._texts.is_words:
            dialect = dataclasses.replace(dialect, takes_token_ids=False)
        return LoadClient(
            self._endpoint.url,
            model=self._name,
            dialect=dialect,
            api_key=_api_key(self._profile),
            text_of=self._texts.decode,
            is_alive=None if self._process is None else self._process.death,
        )

    def _describe(self, model: str, model_hash: str, served: ServedModel, start_s: float) -> EngineInfo:
        samples = samples_of(self._endpoint.metrics())
        return EngineInfo(
            engine=self._profile.kind,
            version=self._endpoint.version(),
            model=model,
            model_hash=model_hash,
            precision=self._settings.precision,
            device=self._settings.device,
            max_context=served.max_context or self._settings.max_context or 0,
            num_kv_blocks=self._adapter.num_kv_blocks(samples) or 0,
            num_parameters=0,
            start_s=start_s,
            isa="",
            pids=(),
        )

    def _counters(self) -> ServerCounters:
        return counters_of(samples_of(self._endpoint.metrics()), self._adapter.metrics)

    def _reset_caches(self) -> None:
        for _ in range(_RESET_TRIES):
            is_done = self._endpoint.reset_caches()
            if (
                is_done is not False
            ):  # one that cannot leaves it to the load, whose prompts differ from window to window
                return
            time.sleep(_RESET_PAUSE_S)
        _log.warning("caches_not_reset", kind=self._profile.kind, url=self._endpoint.url)

    def _require_alive(self) -> None:
        """Raise what the server died of, if it did: requests that failed may be its end, or their own fault."""
        lacking = self._endpoint.health()
        if lacking is None:
            return
        if self._process is None:
            raise EngineDied(f"{self._endpoint.url}: {lacking} after failed requests")
        raise _of_load(self._process.failure(f"the server failed under load: {lacking}"))

    def _died_or(self, other: EngineError) -> EngineError:
        """Return what the log of a server tells that has ended; `other` of one that has not, or is not ours."""
        if self._process is None or self._process.death() is None:
            return other
        return _of_load(self._process.failure("the server ended under load"))


def _of_load(told: EngineError) -> EngineError:
    """Return an end under load: for lack of memory, or for whatever else its log has, which is no fault of a flag."""
    return told if isinstance(told, NotEnoughMemory) else EngineDied(str(told))


def _merged(report: LoadReport, before: ServerCounters, after: ServerCounters) -> LoadReport:
    """Return the client's report with what the server counted meanwhile."""
    told = change(before, after)
    return dataclasses.replace(
        report,
        prefix_hit_share=told.prefix_hit_share,
        num_preemptions=told.num_preemptions,
        has_restarted=told.has_restarted,
    )


def _api_key(profile: ServerProfile) -> str | None:
    """Return the key that a server asks for. Raises InvalidSettings when its variable is not set."""
    if profile.api_key_env is None:
        return None
    found = os.environ.get(profile.api_key_env)
    if not found:
        raise InvalidSettings(
            f"api_key_env is {profile.api_key_env!r}: that variable is not set; set it, or leave it out"
        )
    return found
