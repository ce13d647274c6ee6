"""Every form of export by name, and the way from a job's point to bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.export import csv_form, dynamo, json_form, mlperf, sglang, systemd, trtllm, vllm
from api.export.recipe import NotExportable, Recipe

_SHELL = "text/x-shellscript; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of export."""

    name: str
    description: str
    media_type: str
    suffix: str
    render: Callable[[Recipe], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export, ready to be sent or written."""

    content: bytes
    media_type: str
    file_name: str


FORMS = {
    form.name: form
    for form in (
        Form(name=vllm.NAME, description="`vllm serve`", media_type=_SHELL, suffix=".sh", render=vllm.render),
        Form(name=sglang.NAME, description="SGLang's server", media_type=_SHELL, suffix=".sh", render=sglang.render),
        Form(
            name=trtllm.NAME,
            description="`trtllm-serve` and its YAML file",
            media_type=_SHELL,
            suffix=".sh",
            render=trtllm.render,
        ),
        Form(
            name=dynamo.NAME,
            description="a DynamoGraphDeployment with the power cap",
            media_type="application/yaml",
            suffix=".yaml",
            render=dynamo.render,
        ),
        Form(
            name=systemd.NAME,
            description="a systemd unit for clocks and power limit",
            media_type="text/plain; charset=utf-8",
            suffix=".service",
            render=systemd.render,
        ),
        Form(
            name=json_form.NAME,
            description="everything, for programs",
            media_type="application/json",
            suffix=".json",
            render=json_form.render,
        ),
        Form(
            name=csv_form.NAME,
            description="a row for spreadsheets",
            media_type="text/csv; charset=utf-8",
            suffix=".csv",
            render=csv_form.render,
        ),
        Form(
            name=mlperf.NAME,
            description="a draft of an MLPerf Endpoints bundle, without results",
            media_type="application/zip",
            suffix=".zip",
            render=mlperf.render,
        ),
    )
}


#: Forms that start a server.
LAUNCHING = (vllm.NAME, sglang.NAME, trtllm.NAME, dynamo.NAME)


def export(recipe: Recipe, name: str) -> Exported:
    """Return a recipe in a form. Raises NotExportable for a form that there is not, or that cannot say the point."""
    form = FORMS.get(name)
    if form is None:
        raise NotExportable(f"form is {name[:40]!r}; choose {', '.join(FORMS)}")
    if name in LAUNCHING and not recipe.is_launchable:
        raise NotExportable(
            f"form is {name!r}: job {recipe.result.job_id[:8]} was measured on a server that ran already: its flags "
            f"are its operator's; choose {json_form.NAME} or {csv_form.NAME}"
        )
    return Exported(
        content=form.render(recipe),
        media_type=form.media_type,
        file_name=f"wattfront-{recipe.result.job_id[:8]}-{recipe.result.number}-{name}{form.suffix}",
    )
