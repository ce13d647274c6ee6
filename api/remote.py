"""A Wattfront server elsewhere, asked over its REST interface: the same records as from this machine's database.

The key travels in a header and never on a command line, where others could read it. Certificates are checked. Knows
nothing of terminals.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from api import schemas
from api.errors import UsageError
from api.explanation_schemas import ExplanationOut
from api.plot.render import Form
from api.plot.theme import Scheme
from api.recommend_schemas import RecommendationOut, RecommendationQuery
from api.schedule_schemas import DuesOut, NightOut, NightsOut, ScheduleOut, SchedulesOut
from api.settings import LOOPBACK_HOSTS
from db.job import ENDED

KEY_VARIABLE = "WATTFRONT_API_KEY"
#: For an answer to begin; a stream says something every 15 s.
_TIMEOUT_S = 30.0
_STREAM_TIMEOUT_S = 45.0
#: Times that a post is sent whose answer does not come: its idempotency key makes sure that it counts once.
_NUM_POSTS = 3
_MAX_WAIT_S = 10.0
_FIRST_WAIT_S = 0.5
#: Events that are lost for longer than this are given up; the job goes on.
_LOST_FOR_S = 300.0
_NUM_DUES = 5

Answer = TypeVar("Answer", bound=BaseModel)


class ServerUnreachable(UsageError):
    """Correct the URL, or start the server; the message names both."""


class ServerRefused(UsageError):
    """Correct what the server's sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEvent:
    """Something that happened to a job."""

    id: int
    #: job, trial_started or trial.
    kind: str
    data: Mapping[str, Any]

    @property
    def is_end(self) -> bool:
        """Whether it says that the job has ended: nothing comes after it."""
        return self.kind == "job" and self.data.get("state") in ENDED


def key_from(variable: str | None, file: Path | None) -> str | None:
    """Return the API key of an environment variable or of a file; None where none is set. Raises UsageError."""
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--key-file is {str(file)!r}: {error}; give a file with a key in it") from error
        if not key:
            raise UsageError(f"--key-file is {str(file)!r}: it is empty; give a file with a key in it")
        return key
    found = os.environ.get(variable or KEY_VARIABLE, "").strip()
    if variable is not None and not found:
        raise UsageError(f"--key-env is {variable!r}: that variable is not set; set it to a key of `wattfront keys`")
    return found or None


def is_readable_on_the_way(url: str) -> bool:
    """Tell whether what is sent to a URL can be read between here and there: no TLS, and not this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS


class Remote:
    """A server: see `api.place.Place` for what it is asked."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        """Note where it is; nothing is asked yet. Raises UsageError for a URL that cannot be one."""
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        except ValueError:
            is_url = False
        if not is_url:
            raise UsageError(f"--server is {url!r}: give a URL without a password, as in https://tuning.example.org")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("the API key holds what no key has; give one that `wattfront keys create` printed")
        self.url = url.rstrip("/")
        self._wait_s = wait_s
        headers = {"Accept": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        try:
            self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT_S, transport=transport)
        except httpx.InvalidURL as error:  # it looks closer than urlsplit, at the port for one
            raise UsageError(f"--server is {url!r}: {error}; give one as https://tuning.example.org") from error

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def jobs(self, limit: int) -> list[schemas.JobOut]:
        """Return jobs, newest first."""
        return self._get(schemas.JobsOut, "/v1/jobs", {"limit": limit}).items

    def job(self, job: str) -> schemas.JobOut:
        """Return one job."""
        return self._get(schemas.JobOut, f"/v1/jobs/{_part(job)}")

    def front(self, job: str) -> schemas.FrontOut:
        """Return a job's front as it is now."""
        return self._get(schemas.FrontOut, f"/v1/jobs/{_part(job)}/front")

    def picture(self, job: str, form: Form, scheme: Scheme) -> bytes:
        """Return a job's front as a picture."""
        return self._ask("GET", f"/v1/jobs/{_part(job)}/front.{form}", params={"scheme": scheme}).content

    def explanation(self, job: str) -> ExplanationOut:
        """Return what a job found."""
        return self._get(ExplanationOut, f"/v1/jobs/{_part(job)}/explanation")

    def cancel(self, job: str) -> schemas.JobOut:
        """Ask for a job's end."""
        return self._post(schemas.JobOut, f"/v1/jobs/{_part(job)}/cancel")

    def create_job(self, fields: Mapping[str, Any]) -> schemas.JobOut:
        """Store a job once, by the fields of a job file."""
        return self._post(schemas.JobOut, "/v1/jobs", fields)

    def recommendation(self, query: RecommendationQuery) -> RecommendationOut:
        """Return the stored point to use under given limits."""
        asked = query.model_dump(mode="json", exclude_none=True)
        return self._get(RecommendationOut, "/v1/recommendations", asked)

    def export(self, job: str, form: str, number: int | None) -> bytes:
        """Return a job's point as another program takes it."""
        asked = {"form": form} | ({} if number is None else {"number": number})
        return self._ask("GET", f"/v1/jobs/{_part(job)}/export", params=asked).content

    def schedules(self, limit: int) -> list[ScheduleOut]:
        """Return schedules, newest first."""
        return self._get(SchedulesOut, "/v1/schedules", {"limit": limit}).items

    def schedule(self, name: str) -> ScheduleOut:
        """Return one schedule."""
        return self._get(ScheduleOut, f"/v1/schedules/{_part(name)}")

    def dues(self, name: str) -> list[str]:
        """Return a schedule's next due times in its zone."""
        found = self._get(DuesOut, f"/v1/schedules/{_part(name)}/next", {"count": _NUM_DUES})
        return [due.due_local for due in found.items]

    def nights(self, name: str, limit: int, before: int | None) -> list[NightOut]:
        """Return what became of a schedule's nights, newest first."""
        asked = {"limit": limit} | ({} if before is None else {"before": before})
        return self._get(NightsOut, f"/v1/schedules/{_part(name)}/nights", asked).items

    def create_schedule(self, fields: Mapping[str, Any]) -> ScheduleOut:
        """Store a schedule once, by its fields."""
        return self._post(ScheduleOut, "/v1/schedules", fields)

    def pause_schedule(self, name: str) -> ScheduleOut:
        """Start nothing until the schedule is resumed."""
        return self._post(ScheduleOut, f"/v1/schedules/{_part(name)}/pause")

    def resume_schedule(self, name: str) -> ScheduleOut:
        """Start what is due from now on."""
        return self._post(ScheduleOut, f"/v1/schedules/{_part(name)}/resume")

    def run_schedule(self, name: str) -> NightOut:
        """Start a run beside the calendar, once."""
        return self._post(NightOut, f"/v1/schedules/{_part(name)}/run")

    def delete_schedule(self, name: str) -> str:
        """Delete a schedule and return its name."""
        found = self.schedule(name)
        self._ask("DELETE", f"/v1/schedules/{found.id}")
        return found.name

    def events(self, job: str) -> Iterator[RemoteEvent]:
        """Yield what happens to a job, from its first event to its last, over lost connections; each event once.

        Raises ServerUnreachable when nothing was heard for five minutes; ServerRefused.
        """
        last_id, wait_s, heard_s = 0, self._wait_s, time.monotonic()
        while True:
            try:
                for event in self._stream(job, last_id):
                    if event is None:
                        return
                    last_id, wait_s, heard_s = event.id, self._wait_s, time.monotonic()
                    yield event
                    if event.is_end:
                        return
            except (ServerUnreachable, httpx.TransportError) as error:
                if time.monotonic() - heard_s > _LOST_FOR_S:
                    raise ServerUnreachable(f"{self.url} was lost ({error}); the job goes on there") from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    def _stream(self, job: str, last_id: int) -> Iterator[RemoteEvent | None]:
        """Yield the events of one connection (WHATWG HTML, 9.2.6, as far as this server uses it); None when none come.

        That is so when the job has ended, and nothing came after the last event that is known.
        """
        path, asked = f"/v1/jobs/{_part(job)}/events", {"Last-Event-ID": str(last_id), "Accept": "text/event-stream"}
        with self._client.stream("GET", path, headers=asked, timeout=_STREAM_TIMEOUT_S) as answer:
            if answer.is_error:
                answer.read()
                self._refuse(answer)
            if answer.status_code == httpx.codes.NO_CONTENT:
                yield None
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(":")
                if name:
                    fields[name] = value.removeprefix(" ")
                elif not line and "data" in fields:
                    yield RemoteEvent(id=int(fields["id"]), kind=fields["event"], data=json.loads(fields["data"]))
                    fields = {}

    def _get(self, kind: type[Answer], path: str, params: Mapping[str, Any] | None = None) -> Answer:
        return self._parsed(kind, self._ask("GET", path, params=params))

    def _post(self, kind: type[Answer], path: str, fields: Mapping[str, Any] | None = None) -> Answer:
        """Send a post until its answer comes; its key makes one of all of them."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        for attempt in range(_NUM_POSTS):
            try:
                return self._parsed(kind, self._ask("POST", path, json=fields or {}, headers=headers))
            except ServerUnreachable:
                if attempt == _NUM_POSTS - 1:
                    raise
                time.sleep(self._wait_s)
        raise AssertionError("the last attempt answers or raises")

    def _ask(self, method: str, path: str, **asked: Any) -> httpx.Response:
        """Return an answer that is none of an error. Raises ServerUnreachable, ServerRefused."""
        try:
            answer = self._client.request(method, path, **asked)
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"{self.url} does not answer ({error}); is it the URL of `wattfront serve`?"
            ) from error
        except UnicodeEncodeError as error:  # an argument of other bytes, as a terminal of another encoding sends
            raise UsageError(f"{error.object!r} is no UTF-8 text, and nothing else can be sent; correct it") from error
        if not answer.is_success:
            self._refuse(answer)
        return answer

    def _refuse(self, answer: httpx.Response) -> None:
        """Raise what the server says is wrong."""
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = "it gives no reason; is it the URL of `wattfront serve`?"
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ServerUnreachable(f"{self.url} answers {answer.status_code}: {detail}")
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            detail += f"; here it is read from {KEY_VARIABLE}, --key-env or --key-file"
        raise ServerRefused(f"{self.url} answers {answer.status_code}: {detail}")

    def _parsed(self, kind: type[Answer], answer: httpx.Response) -> Answer:
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise UsageError(
                f"{self.url} answers in another form at {place or 'its start'}; use the server's version of wattfront"
            ) from error


def _part(name: str) -> str:
    """Return a name as one part of a path, whatever stands in it; what is no UTF-8 text names nothing there."""
    return quote(name if name.strip(".") else f"{name} ", safe="", errors="replace")
