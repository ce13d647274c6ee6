"""A draft of an MLPerf Endpoints bundle for a point: the files that say how it is to be run, and no result.

A result is what MLPerf's own client measures with its data set over ten or twenty minutes at a fixed concurrency, with
accuracy beside it. Ours are other windows under another load, so that no `result_summary.json` and no
`accuracy_results.json` is written here. Names and places of files are those of MLPerf Endpoints 1.0, as
endpoints-submission-cli 1.5.3.0 checks them.
"""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

from api.export import sglang, trtllm, vllm
from api.export.command import comments
from api.export.recipe import NotExportable, Recipe

NAME = "mlperf"
#: Endpoints asks for ten minutes up to this concurrency, and for twenty above.
_LOW_CONCURRENCY = 32
_SHORT_MS = 600_000
_LONG_MS = 1_200_000
_MAX_NAME = 64
#: Of every file, so that the same point makes the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
_README = """\
# A draft, not a result

These files say how to run a point that Wattfront found. Before they are a point of an MLPerf Endpoints submission:

- run MLPerf's client at this concurrency against a server started by one of `server_configs/`; it writes
  `config.yaml`, `result_summary.json`, `accuracy_results.json` and `system_desc.json`
- write `system_power.json` of the system: it asks for provisioned power, which no GPU counter tells
- fill in what is null in `point.yaml`: division, data set, seeds, cohort

Figures of Wattfront are of another client and load; none of them may stand in for a result.
"""


def render(recipe: Recipe) -> bytes:
    """Return the bundle as a ZIP file. Raises NotExportable for a load that is not of a fixed concurrency."""
    import yaml  # when it is needed: a service starts sooner

    folder = f"results/{slug(recipe.request.device)}/{slug(recipe.model)}/r{concurrency_of(recipe)}"
    remarks = comments(recipe.remarks(runs=recipe.result.evidence.engine))
    files = {
        "README.md": (_README + "\n" + remarks.replace("# ", "- ")).encode(),
        f"{folder}/point.yaml": (remarks + yaml.safe_dump(point_of(recipe), sort_keys=False)).encode(),
        f"{folder}/server_configs/vllm.sh": vllm.render(recipe),
        f"{folder}/server_configs/sglang.sh": sglang.render(recipe),
        f"{folder}/server_configs/trtllm.sh": trtllm.render(recipe),
    }
    return _zipped(files)


def concurrency_of(recipe: Recipe) -> int:
    """Return the requests that were in flight. Raises NotExportable where they were not fixed."""
    workload = recipe.result.evidence.workload
    if workload.scenario != "closed":
        raise NotExportable(
            f"form is {NAME!r}: the point was measured under a {workload.scenario} load, and MLPerf Endpoints wants a "
            "fixed concurrency; choose another form, or tune with workload.scenario closed"
        )
    return workload.concurrency or recipe.settings.max_batch * recipe.settings.data_parallel


def point_of(recipe: Recipe) -> dict[str, Any]:
    """Return `point.yaml` as plain data; what only a submitter knows is null."""
    concurrency = concurrency_of(recipe)
    return {
        "concurrency": concurrency,
        "runtime_settings": {
            "load_pattern": "concurrency",
            "min_duration_ms": _SHORT_MS if concurrency <= _LOW_CONCURRENCY else _LONG_MS,
            "runtime": {},
        },
        "model_name": slug(recipe.model),
        "model_precision": recipe.settings.precision,
        "link_to_model": f"https://huggingface.co/{recipe.model}" if is_hugging_face_id(recipe.model) else None,
        "model_notes": recipe.label or "found with Wattfront",
        **dict.fromkeys(("division", "max_supported_concurrency", "dataset_name", "dataset_type", "dataset_link")),
        **dict.fromkeys(("shared_src", "shared_docs", "seed_set", "target_cohort")),
    }


def slug(name: str) -> str:
    """Return a name as MLPerf's checker spells it in folders: its last part, other signs as underscores."""
    part = re.sub(r"[^\w-]+", "_", name.rstrip("/").split("/")[-1], flags=re.ASCII).strip("_")
    return re.sub(r"_+", "_", part)[:_MAX_NAME] or "unnamed"


def is_hugging_face_id(model: str) -> bool:
    """Tell whether a model's name is an owner and a name, and no path."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model, flags=re.ASCII) is not None


def _zipped(files: dict[str, bytes]) -> bytes:
    """Return files as a ZIP, not compressed: they are small, and a label in them is found by looking."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return made.getvalue()
