"""The guards around pages in a browser notice what they are there for."""

from __future__ import annotations

import pytest

from tests.api.pages.browser import Pages, axe, is_wider_than_window


def test_complaints_are_noticed(open_page: Pages) -> None:
    """An error on the console, a script's fault, a request elsewhere and a failed one are each held against a page."""
    page = open_page("/login")
    with page.expect_response("**/v1/jobs/zzzz"):
        page.evaluate("""() => {
            console.error('bad words');
            setTimeout(() => { throw new Error('bad script'); });
            const image = new Image();
            image.src = 'http://elsewhere.example/dot.png';
            fetch('/v1/jobs/zzzz');
        }""")
    for words in ("bad words", "bad script", "elsewhere.example", "404 for"):
        open_page.forgive(words)


def test_what_did_not_happen_cannot_be_forgiven(open_page: Pages) -> None:
    """A test that expects a complaint fails where there is none."""
    with pytest.raises(AssertionError, match="no complaint"):
        open_page.forgive("never said")


def test_faults_of_access_and_width_are_noticed(open_page: Pages) -> None:
    """A field without a label and a box that is too wide are found."""
    page = open_page("/login", 360)
    assert (axe(page), is_wider_than_window(page)) == ([], False)
    page.evaluate("""() => {
        document.querySelector('label').remove();
        const box = document.createElement('div');
        box.style.width = '900px';
        box.textContent = 'wide';
        document.querySelector('main').append(box);
    }""")
    assert [fault.partition(":")[0] for fault in axe(page)] == ["label"]
    assert is_wider_than_window(page)
