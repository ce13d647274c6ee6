"""`wattfront front JOB --plot FILE`."""

from __future__ import annotations

from pathlib import Path

from api.stores import Stores
from tests.api.conftest import Main
from tests.api.test_fronts import store_job, trial_of


def test_a_front_is_drawn_into_a_file(main_with: Main, stores: Stores, tmp_path: Path) -> None:
    """The file's ending says in which form; what was written is named."""
    job = store_job(stores, [trial_of(0), trial_of(1, tok_per_j=3.0, latency_ms=40.0)])
    ended = main_with("front", job[:8], "--plot", str(tmp_path / "out.svg"), "--scheme", "dark")
    assert (ended.code, ended.out) == (0, f"drawn: {tmp_path / 'out.svg'}\n")
    assert "tokens per joule" in (tmp_path / "out.svg").read_text(encoding="utf-8")


def test_files_that_cannot_be_pictures_are_refused(main_with: Main, stores: Stores, tmp_path: Path) -> None:
    """Another ending, a folder that is not there and one that cannot be written to are named with the remedy."""
    job = store_job(stores, [trial_of(0)])
    wrong = main_with("front", job, "--plot", str(tmp_path / "out.pdf"))
    assert (wrong.code, "ends in .png or .svg" in wrong.err) == (2, True)
    nowhere = main_with("front", job, "--plot", str(tmp_path / "none" / "out.png"))
    assert (nowhere.code, "there is no folder" in nowhere.err) == (2, True)
