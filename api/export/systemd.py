"""A point's clocks and power limit as a systemd unit: set when it starts, put back when it stops.

What is put back is the power limit that was found, not the board's default: whoever set it meant it. For locked clocks
the driver has no getter, so they are reset. Persistence mode is switched on, since without it the driver forgets both
when the last program leaves the GPU. The engine is not started here.
"""

from __future__ import annotations

from api.export.command import comments
from api.export.recipe import NotExportable, Recipe, nvidia_smi

NAME = "systemd"
UNIT = "wattfront-point.service"
_FOLDER = "wattfront-point"
_SMI = "/usr/bin/nvidia-smi"
_CPU_FILES = "/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"


def render(recipe: Recipe) -> bytes:
    """Return the unit. Raises NotExportable for a point that leaves the device as it is."""
    if recipe.device.is_empty:
        raise NotExportable(
            f"form is {NAME!r}: trial {recipe.result.number} sets neither clocks nor a power limit, so there is "
            "nothing to set; choose another form, or another point with number=N"
        )
    notes = [f"Save as /etc/systemd/system/{UNIT}, then: systemctl enable --now {UNIT}"]
    if not recipe.gpu_uuids and nvidia_smi(recipe):
        notes.append("No GPU of yours was measured, so this sets every GPU; add --id=UUID for some of them.")
    return (comments([*recipe.remarks(runs=recipe.result.evidence.engine), *notes]) + unit_of(recipe)).encode()


def unit_of(recipe: Recipe) -> str:
    """Return the unit without comments."""
    lines = [
        "[Unit]",
        f"Description=Clocks and power of Wattfront job {recipe.result.job_id[:8]}, trial {recipe.result.number}",
        "After=nvidia-persistenced.service",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"RuntimeDirectory={_FOLDER}",
        *(f"ExecStart={command}" for command in starts(recipe)),
        *(f"ExecStop={command}" for command in stops(recipe)),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def starts(recipe: Recipe) -> list[str]:
    """Return what sets the point; what was found is kept first, and limits come before clocks."""
    commands = []
    if nvidia_smi(recipe):
        commands.append(f"{_SMI}{_which(recipe)} --persistence-mode=1")
    if recipe.device.power_cap_w is not None:
        commands.append(_shell(_keep_limits(recipe)))
    by_hand = nvidia_smi(recipe)
    commands += [command.replace("nvidia-smi", _SMI, 1) for command in reversed(by_hand)]
    if recipe.device.cpu_clock_cap_mhz is not None:
        commands.append(_shell(f"cd /run/{_FOLDER} && for f in {_CPU_FILES}; do cat $f; done > cpu"))
        khz = recipe.device.cpu_clock_cap_mhz * 1000
        commands.append(_shell(f"for f in {_CPU_FILES}; do echo {khz} > $f; done"))
    return commands


def stops(recipe: Recipe) -> list[str]:
    """Return what puts back what was found; a failure of one does not keep the others from being tried."""
    commands = []
    if recipe.device.sm_clock_cap_mhz is not None:
        commands.append(f"-{_SMI}{_which(recipe)} --reset-gpu-clocks")
    if recipe.device.power_cap_w is not None:
        read = "while IFS=', ' read -r gpu watts; do"
        commands.append("-" + _shell(f"{read} {_SMI} --id=$gpu --power-limit=$watts; done < /run/{_FOLDER}/limits"))
    if recipe.device.cpu_clock_cap_mhz is not None:
        commands.append(
            "-" + _shell(f"for f in {_CPU_FILES}; do read -r khz && echo $khz > $f; done < /run/{_FOLDER}/cpu")
        )
    return commands


def _which(recipe: Recipe) -> str:
    return f" --id={','.join(recipe.gpu_uuids)}" if recipe.gpu_uuids else ""


def _keep_limits(recipe: Recipe) -> str:
    query = "--query-gpu=uuid,power.limit --format=csv,noheader,nounits"
    return f"{_SMI}{_which(recipe)} {query} > /run/{_FOLDER}/limits"


def _shell(script: str) -> str:
    """Return a line for sh as systemd takes it, whose own `$` and `%` are doubled."""
    escaped = script.replace("$", "$$").replace("%", "%%").replace('"', '\\"')
    return f'/bin/sh -c "{escaped}"'
