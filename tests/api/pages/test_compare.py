"""/compare: fronts side by side, as the server writes it and as a browser shows it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from api.app import create_app
from api.plot.theme import SCHEMES, Scheme
from api.settings import Settings
from api.stores import Stores
from tests.api.pages.browser import Pages, axe, is_wider_than_window
from tests.api.test_fronts import store_job, trial_of
from tuner.foreign.result import REPORTED_BY_AIPERF, ForeignLatency, ForeignResult, Tool

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def client(stores: Stores, settings: Settings) -> TestClient:
    return TestClient(create_app(stores, settings), base_url="http://localhost")


def two_nights(stores: Stores) -> list[str]:
    """Store two jobs that share an operating point, the second better at it; a limit of 35 ms lets one point in."""
    first = store_job(stores, [trial_of(0), trial_of(1, tok_per_j=3.0, latency_ms=40.0)], name=f"first {SCRIPT}")
    second = store_job(stores, [trial_of(0, tok_per_j=2.6), trial_of(1, tok_per_j=3.9, latency_ms=40.0)], name="second")
    return [first, second]


def cells(page: str, job: str) -> list[str]:
    """Return the texts of a job's line in the table."""
    (line,) = re.findall(rf'<tr data-job="{job}">(.*?)</tr>', page, flags=re.DOTALL)
    return [re.sub(r"<[^>]+>|\s+", " ", cell).strip() for cell in re.findall(r"<td.*?</td>", line, flags=re.DOTALL)]


def test_without_choice_the_page_says_how(client: TestClient, stores: Stores) -> None:
    """Without fronts there is the command that makes one; with some, they are offered."""
    assert "wattfront tune --device simulated:" in client.get("/compare").text
    job = store_job(stores, [trial_of(0)])
    page = client.get("/compare").text
    assert f'value="{job}"' in page
    assert "Nothing chosen yet" in page


def test_the_table_needs_no_scripts(client: TestClient, stores: Stores) -> None:
    """The best point of each front inside the limit stands in the page, with what it gains over the first."""
    first, second = two_nights(stores)
    page = client.get("/compare", params={"job": [first, second], "limit_ms": "35"}).text
    assert cells(page, first)[2].startswith("2 ")
    assert cells(page, second)[2].startswith("2.6 ")
    assert cells(page, second)[3] == "1.30×"
    wide = client.get("/compare", params={"job": [first, second], "limit_ms": "100"}).text
    assert cells(wide, second)[2].startswith("3.9 ")
    none = client.get("/compare", params={"job": [first, second], "limit_ms": "1"}).text
    assert "no point inside the limit" in cells(none, first)


def test_what_moved_between_nights_is_listed(client: TestClient, stores: Stores) -> None:
    """Settings that both jobs measured are listed with how far they moved, and whether beyond their intervals."""
    page = client.get("/compare", params={"job": two_nights(stores)}).text
    assert "+30.0 %" in page
    assert '<span class="state drifted">tokens per joule</span>' in page


def test_names_are_text(client: TestClient, stores: Stores) -> None:
    """A job's name with a script in it is shown, also in what the chart is drawn from, and runs nowhere."""
    page = client.get("/compare", params={"job": two_nights(stores)}).text
    assert SCRIPT not in page
    assert "first &lt;script&gt;" in page


def test_what_was_measured_is_not_called_simulated(client: TestClient, stores: Stores) -> None:
    """Beside a simulated front a measured one stays measured: the label names the simulated one alone."""
    simulated = store_job(stores, [trial_of(0)], engine="simulated", device="simulated:h100-sxm")
    measured = store_job(stores, [trial_of(0)])
    page = client.get("/compare", params={"job": [measured, simulated]}).text
    assert "Simulated, nothing was measured" not in page
    assert "Of B the table says what it is" in page
    assert page.count('"is_simulated": true') == page.count('"is_simulated": false') == 1
    assert "Simulated, nothing was measured" in client.get("/compare", params={"job": simulated}).text


def test_what_cannot_be_shown_is_said(client: TestClient, stores: Stores) -> None:
    """Unknown jobs are left out with a sentence, a limit that is none is named, and more than eight are cut."""
    first, second = two_nights(stores)
    page = client.get("/compare", params={"job": [first, "0" * 32, second, first], "limit_ms": "soon"}).text
    assert "Left out: there is no job" in page
    assert "The limit is &#39;soon&#39;" in page
    many = [f"{number:032x}" for number in range(9)]
    assert "9 jobs were given; shown are the first 8" in client.get("/compare", params={"job": many}).text


def test_different_latencies_share_no_axis(client: TestClient, stores: Stores) -> None:
    """Fronts over different latencies are not drawn in one chart, and the page says why."""
    other = store_job(stores, [trial_of(0)], latency_metric="tpot_p90_ms")
    page = client.get("/compare", params={"job": [store_job(stores, [trial_of(0)]), other]}).text
    assert "are over different latencies" in page
    assert 'id="comparison"' not in page


def import_run(stores: Stores) -> None:
    """Keep a result of AIPerf, with a power that it reports, and one of vLLM's without an answer."""
    reported = ForeignResult(
        tool=Tool.AIPERF,
        label=f"run {SCRIPT}",
        asked_concurrency=4,
        num_completed=40,
        output_tok_s=282.8,
        ttft_ms=ForeignLatency(p50=69.0, p99=94.1),
        reported_power_w=310.0,
        reported_power_scope=REPORTED_BY_AIPERF,
        notes=("AIPerf calls TPOT inter-token latency",),
        sha256="ab" * 32,
    )
    failed = ForeignResult(tool=Tool.VLLM, num_completed=0, num_failed=3, notes=("all failed",), sha256="cd" * 32)
    stores.imports.add("profile_export_aiperf.json", [reported], num_bytes=10)
    stores.imports.add("bench.json", [failed], num_bytes=10)


def test_imported_results_stand_apart(client: TestClient, stores: Stores) -> None:
    """What other tools measured has its own table and label, no tokens per joule, and is in no chart and no front."""
    assert 'id="imported"' not in client.get("/compare").text
    job = store_job(stores, [trial_of(0)])
    import_run(stores)
    page = client.get("/compare", params={"job": job}).text
    (table,) = re.findall(r'<table id="imported">.*?</table>', page, flags=re.DOTALL)
    assert "imported from AIPerf, not metered: no energy" in table
    assert "imported from vLLM bench serve, not metered: no energy" in table
    assert '310&nbsp;<span class="unit">W</span> reported by AIPerf, not by Wattfront' in table
    assert "tok/J" not in table
    assert SCRIPT not in page
    assert "AIPerf" not in page.replace(table, "")
    assert cells(page, job)[2].startswith("2 ")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing(open_page: Pages, stores: Stores, scheme: Scheme) -> None:
    """The page is accessible with its chart drawn, on a phone in the dark as at a desk in the light."""
    jobs = "&".join(f"job={job}" for job in two_nights(stores))
    import_run(stores)
    page = open_page(f"/compare?{jobs}", width=360 if scheme == "dark" else 1440, scheme=scheme)
    page.wait_for_selector("#chart canvas")
    assert axe(page) == []
    assert not is_wider_than_window(page)


def test_the_table_follows_the_limit_and_more_can_be_found(open_page: Pages, stores: Stores) -> None:
    """Typing a limit fills the table anew; the list of fronts is searched as one types."""
    first, second = two_nights(stores)
    page = open_page(f"/compare?job={first}&job={second}")
    page.wait_for_selector("#chart canvas")
    best = page.locator(f'#best tr[data-job="{second}"] [data-cell="tok_per_j"]')
    page.fill("#limit", "35")
    assert best.inner_text().startswith("2.6")
    page.fill("#limit", "")
    assert best.inner_text().startswith("3.9")
    page.fill("#search", "second")
    expect(page.locator("#picked")).to_have_text("1 front fits.")
