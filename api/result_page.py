"""What the store said of a model on a device, in few objects: Python's garbage collector walks over every one.

As dataclasses and models the points that were shown for 80 models and devices were 100,000 objects, and a full
collection, which stops every thread, took 80 to 100 ms. So what is shown of a point is kept as JSON, which is read anew
in 20 us, and of what is behind it only what an answer needs. Knows nothing of how points are chosen.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from api.export.recipe import load_words
from api.recommend import Field
from api.recommend_schemas import RecommendedOut
from db.result import Result
from db.results import Found, Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a point's figures come from, as far as answers tell or compare it."""

    #: In words.
    load: str
    device_uuids: tuple[str, ...]
    driver: str | None
    engine_version: str
    model_hash: str


@dataclass(slots=True, kw_only=True)
class Page:
    """What is remembered of a model on a device. Threads may share it."""

    #: Of the whole store when it was read, or found to be unchanged.
    newest_id: int | None
    read_s: float
    #: Of what was read.
    mark: Mark
    points: Field
    #: By engine.
    newest: dict[str, Found]
    origins: dict[int, Origin] = field(default_factory=dict)
    drivers: dict[str, str | None] = field(default_factory=dict)
    _shown: dict[int, bytes] = field(default_factory=dict)

    def has_shown(self, result_id: int) -> bool:
        """Tell whether a point's public form is remembered."""
        return result_id in self._shown

    def shown(self, result_id: int) -> RecommendedOut | None:
        """Return a point's public form if it is remembered, a new one each time."""
        known = self._shown.get(result_id)
        return None if known is None else RecommendedOut.model_validate_json(known)

    def keep_shown(self, result_id: int, point: RecommendedOut) -> None:
        """Remember a point's public form."""
        self._shown[result_id] = point.model_dump_json().encode()

    def still(self, newest_id: int | None, read_s: float) -> Page:
        """Return the page as of now, since what was read has not changed; of drivers nobody knows that."""
        return replace(self, newest_id=newest_id, read_s=read_s, drivers={})

    def take_over(self, before: Page, still_there: Collection[int]) -> None:
        """Keep what was read of results that are still there: a result never changes."""
        self.origins |= {number: one for number, one in before.origins.items() if number in still_there}
        self._shown |= {number: one for number, one in before._shown.items() if number in still_there}


def origin_of(result: Result) -> Origin:
    """Return where a point's figures come from."""
    evidence = result.evidence
    return Origin(
        load=load_words(evidence.workload),
        device_uuids=evidence.device_uuids,
        driver=evidence.driver,
        engine_version=evidence.engine_version,
        model_hash=evidence.model_hash,
    )
