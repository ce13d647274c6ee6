"""The temperature of the CPU packages, from the kernel's hwmon tree.

Knows the drivers of Intel (coretemp) and AMD (k10temp) CPUs; other boards' sensors have names of their own, and a
virtual machine has none. Layout: https://docs.kernel.org/hwmon/sysfs-interface.html.
"""

from __future__ import annotations

from pathlib import Path

MILLIDEGREES_PER_DEGREE = 1000
#: By driver, the label that means the whole package, the better one first: on some AMD CPUs Tctl has an offset.
PACKAGE_LABELS = {"coretemp": ("Package id",), "k10temp": ("Tdie", "Tctl")}


def package_temperature_c(hwmon: Path) -> float | None:
    """Return the temperature of the hottest package; None where no sensor of one can be read."""
    found = [
        temperature_c
        for folder in sorted(hwmon.glob("hwmon*"))
        for temperature_c in _packages_c(folder, PACKAGE_LABELS.get(_text(folder / "name"), ()))
    ]
    return max(found, default=None)


def _packages_c(folder: Path, labels: tuple[str, ...]) -> list[float]:
    """Return the temperatures under the first label that has any."""
    for label in labels:
        inputs = [
            file.with_name(file.name.removesuffix("label") + "input")
            for file in sorted(folder.glob("temp*_label"))
            if _text(file).startswith(label)
        ]
        found = [int(text) / MILLIDEGREES_PER_DEGREE for text in map(_text, inputs) if text.lstrip("-").isdecimal()]
        if found:
            return found
    return []


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
