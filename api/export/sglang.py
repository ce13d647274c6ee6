"""A point as SGLang's server. The flags themselves are `engine.servers.sglang`'s."""

from __future__ import annotations

from api.export.command import command, script
from api.export.recipe import Recipe, power_remarks, unsaid_gaps
from engine.servers.sglang import flags_of, gaps_of

NAME = "sglang"


def render(recipe: Recipe) -> bytes:
    """Return a script that starts SGLang at the point."""
    settings = recipe.settings
    body = command(["python3", "-m", "sglang.launch_server"], [("--model-path", recipe.model), *flags_of(settings)])
    notes = [*unsaid_gaps(gaps_of(settings)), *power_remarks(recipe)]
    return script(recipe.remarks(runs=NAME), body, notes=notes).encode()
