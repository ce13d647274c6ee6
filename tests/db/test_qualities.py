"""Quality figures are kept by everything that decides them, and the first measurement stays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from db.codec import decode, encode_fields
from db.database import Database
from db.errors import RecordNotStorable
from db.qualities import QualityStore
from db.tables import QualityRow
from tests.db.factories import START
from tests.db.strategies import finite
from tuner.gauge import QualityKey
from tuner.measurement import Quality, TaskScore

KEY = QualityKey(
    model_hash="a" * 64,
    engine="embedded",
    version="1+torch2.9.1",
    isa="AVX512",
    precision="int8",
    kv_precision="auto",
    reference="fp32",
    sample_hash="b" * 64,
)


def make_quality(**changes: Any) -> Quality:
    fields: dict[str, Any] = {
        "num_tokens": 128,
        "perplexity": 3.0,
        "perplexity_ratio": 1.01,
        "top1_agreement": 0.98,
        "kl": 0.002,
        "num_positions": 256,
        "num_prompts": 4,
        "measured_at": START,
    }
    return Quality(**fields | changes)


@pytest.fixture
def qualities(database: Database) -> QualityStore:
    return QualityStore(database)


def test_what_was_put_is_got(qualities: QualityStore) -> None:
    """A quality comes back as it was measured, with its time, and is not marked as reused by the store."""
    qualities.put(KEY, make_quality(is_reused=True, text_perplexity=27.5, num_text_tokens=1019))
    assert make_quality(text_perplexity=27.5, num_text_tokens=1019) == qualities.get(KEY)


def test_scores_of_tasks_come_back(qualities: QualityStore) -> None:
    """Every task's score, and the reference's beside it, is kept with the other figures."""
    one = TaskScore(task="facts", metric="acc", score=0.85, reference_score=0.9, num_documents=20, num_too_long=1)
    qualities.put(KEY, make_quality(tasks=(one,)))
    assert make_quality(tasks=(one,)) == qualities.get(KEY)


@pytest.mark.parametrize("field", QualityKey.__dataclass_fields__)
def test_every_part_of_the_key_counts(qualities: QualityStore, field: str) -> None:
    """Another model, engine, version, instruction set, precision, reference or text makes another measurement."""
    qualities.put(KEY, make_quality())
    other = replace(KEY, **{field: "other"})
    assert qualities.get(other) is None
    qualities.put(other, make_quality(kl=0.5))
    assert (qualities.get(KEY), qualities.get(other)) == (make_quality(), make_quality(kl=0.5))


def test_the_first_measurement_stays(qualities: QualityStore) -> None:
    """A second worker that measured the same changes nothing."""
    qualities.put(KEY, make_quality())
    qualities.put(KEY, make_quality(kl=0.5))
    assert make_quality() == qualities.get(KEY)


def test_what_cannot_be_read_is_measured_again(qualities: QualityStore, database: Database) -> None:
    """A record of another schema, or a damaged one, is none, and the former gives way to a new measurement."""
    qualities.put(KEY, make_quality())
    with database.transaction() as session:
        session.scalars(select(QualityRow)).one().record = {"schema": 1, "num_tokens": "many"}
    assert qualities.get(KEY) is None
    with database.transaction() as session:
        session.scalars(select(QualityRow)).one().record = {"schema": 99}
    assert qualities.get(KEY) is None
    qualities.put(KEY, make_quality())
    assert make_quality() == qualities.get(KEY)


@pytest.mark.parametrize("changes", [{"measured_at": None}, {"perplexity": math.inf}], ids=["no time", "infinite"])
def test_what_must_not_be_stored_is_refused(qualities: QualityStore, changes: dict[str, Any]) -> None:
    """A quality without a time, or with an infinity, is refused by the field's name."""
    with pytest.raises(RecordNotStorable, match=f"quality.{next(iter(changes))}"):
        qualities.put(KEY, make_quality(**changes))
    assert qualities.get(KEY) is None


@given(
    quality=st.builds(
        Quality,
        num_tokens=st.integers(0, 1000),
        perplexity=finite,
        perplexity_ratio=finite,
        top1_agreement=st.none() | finite,
        kl=st.none() | finite,
        reference=st.sampled_from(["fp32", "bf16"]),
        text_perplexity=st.none() | finite,
        is_reused=st.booleans(),
    )
)
def test_any_quality_survives_its_json(quality: Quality) -> None:
    """Whatever its figures are, a quality is the same after it went through JSON."""
    assert decode(Quality, encode_fields(quality, "quality"), "quality") == quality


def test_a_quality_of_before_is_read() -> None:
    """A record of the four figures that once were all says that it was told from no prompts, against fp32."""
    old = {"num_tokens": 383, "perplexity": 17.3, "perplexity_ratio": 1.01, "top1_agreement": 0.97}
    found = decode(Quality, old, "quality")
    assert (found.num_prompts, found.reference, found.kl, found.measured_at) == (0, "fp32", None, None)
