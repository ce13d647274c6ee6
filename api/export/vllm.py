"""A point as `vllm serve`. The flags themselves are `engine.servers.vllm`'s."""

from __future__ import annotations

from api.export.command import command, script
from api.export.recipe import Recipe, power_remarks, unsaid_gaps
from engine.servers.vllm import flags_of, gaps_of

NAME = "vllm"


def render(recipe: Recipe) -> bytes:
    """Return a script that starts vLLM at the point."""
    settings = recipe.settings
    body = command(["vllm", "serve", recipe.model], flags_of(settings))
    notes = [*unsaid_gaps(gaps_of(settings)), *power_remarks(recipe)]
    return script(recipe.remarks(runs=NAME), body, notes=notes).encode()
