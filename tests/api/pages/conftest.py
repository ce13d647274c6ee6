"""For the pages: a server on a store of its own, and a browser that is started once for this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from playwright.sync_api import Browser

from api.plot.bundle import Bundle
from api.settings import Settings
from api.stores import Stores
from tests.api.pages.browser import Pages, chromium
from tests.api.servers import serving


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. It goes before tests of other folders run: its event loop is the main thread's as long as it lives."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def bundled() -> Path:
    """The charts' JavaScript, made once for each machine: it takes seven seconds."""
    bundle = Bundle(platformdirs.user_cache_path("wattfront"))
    bundle.packed()
    return bundle.path


@pytest.fixture
def vega(bundled: Path, settings: Settings) -> None:
    """That JavaScript where a server started now looks for it."""
    settings.cache_dir.mkdir(exist_ok=True)
    shutil.copy(bundled, settings.cache_dir)


@pytest.fixture
def site(stores: Stores, vega: None) -> Iterator[str]:
    """The URL of a server on this test's store."""
    with serving(stores, Settings(nightly=False, rate_limit_reads_per_s=0, rate_limit_writes_per_s=0)) as url:
        yield url


@pytest.fixture
def open_page(browser: Browser, site: str) -> Iterator[Pages]:
    """Open a page of that server; a complaint of any page fails the test."""
    pages = Pages(browser, site)
    yield pages
    pages.close()
    assert pages.complaints == []
