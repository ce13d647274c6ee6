"""What templates of several pages share."""

from __future__ import annotations

import pytest

from api.pages.rendering import templates


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.01234, "0.0123"), (12.345, "12.3"), (999.4, "999"), (999.7, "1000"), (1234.5, "1234")],
)
def test_figures_have_no_exponents(value: float | None, shown: str) -> None:
    """Figures have three digits, from a thousand on all of them, also where rounding makes the thousand."""
    template = templates.env.from_string('{% from "macros.html" import number %}{{ number(value) }}')
    assert shown == template.render(value=value)
