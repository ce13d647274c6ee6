"""Vega as one module: made once, kept, and made again where what is kept cannot be used."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest

from api.plot import bundle as bundle_module
from api.plot.bundle import NAME, Bundle, BundleError, warm


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A child that writes a line instead of seven seconds of bundling, and a note of each time that it ran."""
    note = tmp_path / "made"
    monkeypatch.setattr(bundle_module, "_MAKE", f"open({str(note)!r}, 'a').write('x'); print('export {{}};')")
    return note


def test_it_is_made_once_for_a_machine(made: Path, tmp_path: Path) -> None:
    """The first who asks makes it; later ones, other processes included, find it in the cache."""
    one = Bundle(tmp_path / "cache")
    assert gzip.decompress(one.packed()) == b"export {};\n"
    assert one.packed() == Bundle(tmp_path / "cache").packed()
    assert made.read_text() == "x"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"{NAME}.gz"]


def test_what_was_cut_off_is_made_again(made: Path, tmp_path: Path) -> None:
    """A file that a full disk cut off is no module."""
    whole = Bundle(tmp_path)
    whole.packed()
    whole.path.write_bytes(whole.path.read_bytes()[:12])
    assert gzip.decompress(Bundle(tmp_path).packed()) == b"export {};\n"
    assert made.read_text() == "xx"


def test_a_cache_that_cannot_be_written_to_stops_nobody(made: Path, tmp_path: Path) -> None:
    """Where nothing can be kept the module is made for this process alone."""
    (tmp_path / "file").write_text("")
    assert gzip.decompress(Bundle(tmp_path / "file").packed()) == b"export {};\n"


def test_a_child_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a module there is an error, and nothing is kept."""
    monkeypatch.setattr(bundle_module, "_MAKE", "raise SystemExit(3)")
    with pytest.raises(BundleError):
        Bundle(tmp_path).packed()
    assert list(tmp_path.iterdir()) == []


def test_closing_ends_the_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that stops does not wait until the module is made, and starts no more making."""
    monkeypatch.setattr(bundle_module, "_MAKE", f"open({str(tmp_path / 'runs')!r}, 'w'); import time; time.sleep(60)")
    one = Bundle(tmp_path / "cache")
    failed = threading.Event()

    def make() -> None:
        with pytest.raises(BundleError):
            one.packed()
        failed.set()

    threading.Thread(target=make).start()
    one.close()
    assert failed.wait(10)
    warm(one)  # returns at once, and makes nothing
    assert not (tmp_path / "cache").exists()


def test_whoever_waits_is_told_that_charts_are_ready(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is to be done once all is loaded is done after the module is made."""
    monkeypatch.setattr(bundle_module, "WARM_AFTER_S", 0.0)
    found: list[bool] = []
    ready = threading.Event()

    def note() -> None:
        found.append(made.exists())
        ready.set()

    warm(Bundle(tmp_path / "cache"), then=note)
    assert ready.wait(60)
    assert found == [True]
