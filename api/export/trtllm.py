"""A point as `trtllm-serve` with its YAML file. The options themselves are `engine.servers.trtllm`'s."""

from __future__ import annotations

from api.export.command import command, script
from api.export.recipe import Recipe, power_remarks, unsaid_gaps
from engine.servers.trtllm import FILE_NAME, flags_of, gaps_of, options_of

NAME = "trtllm"


def render(recipe: Recipe) -> bytes:
    """Return a script that writes the YAML file and starts TensorRT-LLM at the point."""
    import yaml  # when it is needed: a service starts sooner

    settings = recipe.settings
    options = yaml.safe_dump(options_of(settings), sort_keys=False)
    file = f"cat > {FILE_NAME} <<'END_OF_YAML'\n{options}END_OF_YAML\n"
    start = command(["trtllm-serve", recipe.model], flags_of(settings))
    notes = [*unsaid_gaps(gaps_of(settings)), *power_remarks(recipe)]
    return script(recipe.remarks(runs=NAME), file + start, notes=notes).encode()
