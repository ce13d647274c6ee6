"""Pages in Debian's Chromium, and what they complain of: errors, faults of scripts, requests to other hosts.

Knows nothing of what a page shows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, sync_playwright

Scheme = Literal["light", "dark"]

_WITHOUT_CONTRAST = "rules: {'color-contrast': {enabled: false}}"
#: Phone, tablet, desk, and what axe-core looks at there.
VIEWS: tuple[tuple[int, Scheme, str], ...] = (
    (360, "light", _WITHOUT_CONTRAST),
    (768, "dark", _WITHOUT_CONTRAST),
    (1440, "light", ""),
    (1440, "dark", "runOnly: ['color-contrast']"),
)
EXECUTABLE = "chromium"
REQUIRED = "WATTFRONT_TESTS_NEED_BROWSER"
_HEIGHT = 900
#: Of anything that a page is waited for: far more than it takes, so that a hang fails one test.
_LONGEST_MS = 15_000
#: No sandbox: CI runs as root. No /dev/shm: containers give it 64 MB.
_FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
#: What a page makes itself goes to nobody.
_OWN_SCHEMES = ("data:", "blob:")


class Pages:
    """Opens pages of one server; whatever they complain of is kept until the test's end, where it must be nothing."""

    def __init__(self, browser: Browser, origin: str) -> None:
        self.origin = origin
        self.complaints: list[str] = []
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def __call__(
        self,
        path: str,
        width: int = 1440,
        scheme: Scheme = "light",
        *,
        has_scripts: bool = True,
        cookies: dict[str, str] | None = None,
        **options: Any,
    ) -> Page:
        """Open a page in a session of its own, and wait until it is loaded; the options are those of `new_context`."""
        context = self._browser.new_context(
            base_url=self.origin,
            viewport={"width": width, "height": _HEIGHT},
            color_scheme=scheme,
            java_script_enabled=has_scripts,
            **options,
        )
        self._contexts.append(context)
        context.set_default_timeout(_LONGEST_MS)
        context.add_cookies(
            [{"name": name, "value": value, "url": self.origin} for name, value in (cookies or {}).items()]
        )
        context.on("request", self._note_request)
        context.on("response", self._note_response)
        context.on("console", self._note_console)
        context.on("weberror", lambda error: self.complaints.append(f"script: {error.error}"))
        page = context.new_page()
        page.goto(path)
        return page

    def forgive(self, words: str) -> None:
        """Take back complaints that a test means to cause; there must be one."""
        self._settle()
        meant = [one for one in self.complaints if words in one]
        assert meant, f"no complaint has {words!r}: {self.complaints}"
        self.complaints = [one for one in self.complaints if words not in one]

    def close(self) -> None:
        """Close what was opened."""
        self._settle()
        for context in self._contexts:
            context.close()
        self._contexts.clear()

    def _settle(self) -> None:
        """Let what happened meanwhile be told: it is only between calls that the browser is listened to."""
        for context in self._contexts:
            for page in context.pages:
                page.evaluate("0")

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", *_OWN_SCHEMES)):
            self.complaints.append(f"request to another host: {request.url}")

    def _note_response(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status} for {response.url}")

    def _note_console(self, message: ConsoleMessage) -> None:
        # The browser's own line on a failed request names no address; _note_response does.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(f"console: {message.text}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. Without one the test fails where REQUIRED is set, as in CI, and is skipped elsewhere."""
    path = shutil.which(EXECUTABLE)
    if path is None:
        words = f"no {EXECUTABLE} on this machine; on Debian: apt-get install -y {EXECUTABLE}"
        if os.environ.get(REQUIRED):
            pytest.fail(words)
        pytest.skip(words)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


def axe(page: Page, options: str = "") -> list[str]:
    """Return what axe-core finds wrong with a page as it stands, with the elements; empty is good.

    The options are JavaScript, further ones of `axe.run`.
    """
    if not page.evaluate("'axe' in window"):  # half a megabyte; the content policy does not speak of what tests run
        page.evaluate(Axe().axe_script)
    found = page.evaluate(f"async () => (await axe.run({{resultTypes: ['violations'], {options}}})).violations")
    return [f"{one['id']}: {one['help']}: {', '.join(str(node['target']) for node in one['nodes'])}" for one in found]


def is_wider_than_window(page: Page) -> bool:
    """Tell whether the page as a whole must be scrolled sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def faults_in_every_view(page: Page) -> list[str]:
    """Return what is wrong with a page at every width and in both schemes; opening it once is what makes it cheap.

    Contrast takes most of the time and is looked at on desks alone, where everything is shown; colours do not depend
    on the width.
    """
    faults = []
    for width, scheme, options in VIEWS:
        page.set_viewport_size({"width": width, "height": _HEIGHT})
        page.emulate_media(color_scheme=scheme)
        if is_wider_than_window(page):
            faults.append(f"{width}: the page as a whole scrolls sideways")
        faults += [f"{width} {scheme}: {fault}" for fault in axe(page, options)]
    return faults
