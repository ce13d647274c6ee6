"""How long the page of a job of 10,000 trials takes in a browser, and whether its table keeps up with fingers.

Fills a database (see `page_rows.py`), starts `wattfront serve` on it as a user would, and opens the job's page in
Debian's Chromium, each time with an empty cache. Interactive is a page whose front is drawn and whose table of trials
has its rows; both say so by a mark on the browser's own clock, which starts with the navigation. Server, browser and
this process share the machine's cores. Then the table is scrolled, sorted and filtered, and the browser tells its long
tasks: those that held its thread for more than 50 ms. < 1.5 s to an interactive page are asked for.

    python -m benchmarks.page_load
    python -m benchmarks.page_load --trials 1000 --repeats 3
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from api.stores import open_stores
from benchmarks.machine import ForeignLoad, finish
from benchmarks.page_rows import fill
from benchmarks.service_load import Server, serve

EXECUTABLE = "chromium"
_FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
_TIMEOUT_MS = 120_000
#: What js/job.mjs marks.
_DRAWN, _LISTED = "job-drawn", "job-listed"
_NUM_SCROLLS = 60
_SCROLL_PX = 900
_QUIET_MS = 400
_TELL_LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({type: "longtask"});
"""
_SCROLL = """async ([steps, pixels]) => {
  const region = document.querySelector("#trials .virtual-region");
  for (let i = 0; i < steps; i += 1) {
    region.scrollTop += pixels;
    await new Promise(requestAnimationFrame);
  }
}"""


def main() -> None:
    """Fill, load, scroll and filter; print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    executable = shutil.which(EXECUTABLE)
    if executable is None:
        raise SystemExit(f"no {EXECUTABLE} on this machine; on Debian: apt-get install -y {EXECUTABLE}")
    folder = Path(tempfile.mkdtemp(prefix="wattfront-page-"))
    try:
        url = f"sqlite:///{folder}/wattfront.db"
        started_s = time.perf_counter()
        job_id = fill(open_stores(url), options.trials)
        print(f"{options.trials} trials, filled in {time.perf_counter() - started_s:.0f} s")
        with serve(url) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=list(_FLAGS))
            figures = measured(browser, server, job_id, num_repeats=options.repeats)
            browser.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    finish("page_load", figures)


def measured(browser: Browser, server: Server, job_id: str, *, num_repeats: int) -> dict[str, float]:
    """Open the page again and again, then use its table; return the figures."""
    foreign = ForeignLoad()
    address = f"http://127.0.0.1:{server.port}/jobs/{job_id}"
    used_s = _cpu_s(server)
    first_s, _ = _opened(browser, address)
    first_cpu_s = _cpu_s(server) - used_s
    runs = [_opened(browser, address) for _ in range(num_repeats)]
    times_s = [interactive_s for interactive_s, _ in runs]
    figures = {
        "job_page_10k_s": statistics.median(times_s),
        "job_page_10k_worst_s": max(times_s),
        "job_page_10k_first_s": first_s,
        "server_first_cpu_s": first_cpu_s,
        "table_s": statistics.median(listed_s for _, listed_s in runs),
        **_table_used(browser, address),
    }
    print(f"load average {os.getloadavg()[0]:.1f}; cores used by others, server and browser {foreign.cores():.1f}")
    for name, value in figures.items():
        print(f"  {name:<28}{value:8.3f}")
    return figures


def _opened(browser: Browser, address: str) -> tuple[float, float]:
    """Open the page with an empty cache; return the seconds until it was interactive, and until its table was there."""
    page = _page(browser, address)
    drawn_s, listed_s = (_mark_s(page, name) for name in (_DRAWN, _LISTED))
    page.context.close()
    return max(drawn_s, listed_s), listed_s


def _page(browser: Browser, address: str) -> Page:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#job[data-drawn][data-listed]")
    return page


def _mark_s(page: Page, name: str) -> float:
    at_ms: float = page.evaluate(f"performance.getEntriesByName('{name}')[0].startTime")
    return at_ms / 1e3


def _table_used(browser: Browser, address: str) -> dict[str, float]:
    """Scroll, sort and filter the table; return the longest task of each in milliseconds, 0 for none above 50."""
    page = _page(browser, address)
    page.locator("#trials").scroll_into_view_if_needed()
    page.wait_for_timeout(1e3)  # what the page does after its first paint is over
    page.evaluate(_TELL_LONG_TASKS)
    text = page.locator("#f-trials")
    uses: dict[str, Callable[[], object]] = {
        "scroll": lambda: page.evaluate(_SCROLL, [_NUM_SCROLLS, _SCROLL_PX]),
        "sort": lambda: page.get_by_role("button", name="tok/J", exact=True).click(),
        "filter": lambda: text.press_sequentially("max_batch=64 fp8", delay=30),
        "clear": lambda: text.fill(""),
    }
    return {f"{name}_longest_task_ms": _longest_ms(page, use) for name, use in uses.items()}


def _longest_ms(page: Page, use: Callable[[], object]) -> float:
    page.evaluate("window.longTasks.length = 0")
    use()
    page.wait_for_timeout(_QUIET_MS)  # the observer is told a moment after
    longest_ms: float = page.evaluate("Math.max(0, ...window.longTasks)")
    return longest_ms


def _cpu_s(server: Server) -> float:
    times = server.process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
