"""One workload on simulated H100, H200, B200 and GB200 side by side: fronts, and what tuning gains over the defaults.

Every point of a stated grid is measured by the bench that real jobs use, without noise, so that the tuned point is the
grid's best and not a search's find. The default is the space's default point: highest clock, engine defaults, bf16.
Each gain is told twice: with every knob free, and with precision held at bf16, so that clocks are not credited with
what narrower arithmetic did. Precision's cost in quality is not simulated. SIMULATED throughout: no GPU was measured.

    python -m benchmarks.simulation_fronts                  # about five minutes on two cores; writes the picture
    python -m benchmarks.simulation_fronts --picture none   # the table alone
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import structlog
import vl_convert

from benchmarks.machine import finish
from engine.simulated.shapes import load_shape
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.names import open_simulated
from tuner.bench import Bench
from tuner.pareto import ObjectivePair, non_dominated
from tuner.point import OperatingPoint
from tuner.request import KnobRange, Limit, TuneRequest, WindowRule, WorkloadSpec
from tuner.simulation import Simulation
from tuner.space import SearchSpace, search_space
from tuner.trial import TrialState

MODEL = "llama-3.3-70b"
NUM_GPUS = 4
KEYS = ("h100-sxm", "h200-sxm", "b200", "gb200-nvl72")
#: 20 tokens a second for each user, half a second to the first.
SLA_MS = {"ttft_p99_ms": 500.0, "tpot_p99_ms": 50.0}
WORKLOAD = WorkloadSpec(prompt_tokens=(100, 700), output_tokens=(100, 700))
MAX_BATCHES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CHUNKS = (2048, 8192)
PRECISIONS = ("bf16", "fp8", "nvfp4")
#: Clock caps as shares of the highest clock.
CLOCK_SHARES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0)
#: In virtual seconds; without noise no long warm-up is needed.
WINDOW = WindowRule(
    warmup_s=6, max_warmup_s=30, window_s=20, min_requests=60, max_window_s=90, idle_s=0, stops_early=False
)
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "simulated-fronts.png"
#: Points slower than this are left out of the picture, not of the table.
SLOWEST_SHOWN_MS = 120.0
_CHUNK = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A measured point and its figures; watts and tokens per second of all GPUs together."""

    key: str
    point: OperatingPoint
    is_inside: bool
    tok_per_j: float
    tpot_ms: float
    ttft_ms: float
    tok_s: float
    power_w: float

    @property
    def precision(self) -> str:
        """What weights are in."""
        return str(self.point["precision"])

    @property
    def clock_mhz(self) -> int:
        """The clock cap."""
        return int(self.point["sm_clock_cap_mhz"])

    def words(self) -> str:
        """Say what was chosen."""
        batch, chunk = self.point["max_batch"], self.point["prefill_chunk"]
        return f"{self.precision}, batch {batch}, chunk {chunk}, {self.clock_mhz} MHz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A device's default against what tuning finds inside the SLA."""

    key: str
    default: Place
    #: Default, or where it misses the SLA the most frugal point inside at the highest clock in bf16.
    reference: Place
    tuned: Place
    tuned_bf16: Place

    @property
    def gain(self) -> float:
        """Tokens per joule of the tuned point over the reference's."""
        return self.tuned.tok_per_j / self.reference.tok_per_j

    @property
    def bf16_gain(self) -> float:
        """The same by clock, batch and chunk alone."""
        return self.tuned_bf16.tok_per_j / self.reference.tok_per_j


def main() -> int:
    """Measure the grid on every device, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--picture", default=str(PICTURE), help="PNG to write; 'none' for none")
    arguments = parser.parse_args()
    places = measure_grids(arguments.workers)
    comparisons = [compare(key, [place for place in places if place.key == key]) for key in KEYS]
    print(f"SIMULATED: {MODEL} on {NUM_GPUS} GPUs, {len(places)} points, {limits_in_words()}")
    print(table(comparisons))
    if arguments.picture != "none":
        draw(places, comparisons, Path(arguments.picture))
    figures: dict[str, float] = {"points": len(places)}
    for one in comparisons:
        name = one.key.replace("-", "_")
        figures[f"{name}_gain"] = one.gain
        figures[f"{name}_bf16_gain"] = one.bf16_gain
        figures[f"{name}_tuned_tok_per_j"] = one.tuned.tok_per_j
    finish("simulation_fronts", figures)
    return 0


def measure_grids(num_workers: int) -> list[Place]:
    """Measure every point of every device's grid, in several processes."""
    jobs = [
        (key, points[start : start + _CHUNK])
        for key in KEYS
        for points in [list(_space(key).points())]
        for start in range(0, len(points), _CHUNK)
    ]
    places: list[Place] = []
    with ProcessPoolExecutor(num_workers) as pool:
        for done in pool.map(_measure, jobs):
            places.extend(done)
            print(f"\r{len(places)} points", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return places


def compare(key: str, places: Sequence[Place]) -> Comparison:
    """Pick default, reference and tuned points of one device out of all its places."""
    chosen = _space(key).default_point
    default = next(place for place in places if place.point == chosen)
    inside = [place for place in places if place.is_inside]
    in_bf16 = [place for place in inside if place.precision == "bf16"]
    highest_mhz = ACCELERATORS[key].clocks_mhz[-1]
    at_highest = [place for place in in_bf16 if place.clock_mhz == highest_mhz]
    return Comparison(
        key=key,
        default=default,
        reference=default if default.is_inside else _most_frugal(at_highest),
        tuned=_most_frugal(inside),
        tuned_bf16=_most_frugal(in_bf16),
    )


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the comparison as Markdown; watts are of one GPU."""
    rows = ["| device | point | knobs | tok/J | against reference | TPOT p99 | tok/s | W per GPU |", "|" + "---|" * 8]
    for one in comparisons:
        name = ACCELERATORS[one.key].name.removeprefix("NVIDIA ")
        default_name = "default" if one.default.is_inside else "default, misses the SLA"
        named = [(default_name, one.default)]
        if one.reference is not one.default:
            named.append(("best at highest clock, bf16", one.reference))
        named += [("tuned, bf16 held", one.tuned_bf16), ("tuned", one.tuned)]
        for words, place in named:
            ratio = place.tok_per_j / one.reference.tok_per_j
            compared = "-" if place is one.default and not place.is_inside else f"{ratio:.2f}x"
            rows.append(
                f"| {name} | {words} | {place.words()} | {place.tok_per_j:.2f} | {compared} | {place.tpot_ms:.1f} ms | "
                f"{place.tok_s:,.0f} | {place.power_w / NUM_GPUS:.0f} |"
            )
    return "\n".join(rows)


def limits_in_words() -> str:
    """Say the SLA as people do."""
    return ", ".join(f"{name.removesuffix('_ms').replace('_', ' ')} <= {bound:g} ms" for name, bound in SLA_MS.items())


def draw(places: Sequence[Place], comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw the fronts of all devices on the same axes."""
    panels = [_panel(one, [place for place in places if place.key == one.key], _top(places)) for one in comparisons]
    chart = (
        alt.vconcat(alt.hconcat(*panels[:2], spacing=30), alt.hconcat(*panels[2:], spacing=30), spacing=24)
        .properties(
            title=alt.TitleParams(
                text=f"SIMULATED, no GPU was measured: {MODEL} in chat on {NUM_GPUS} GPUs of each kind",
                subtitle=[
                    "Tokens per joule of the GPUs against p99 of the time per output token; each dot is a point of the "
                    f"grid inside TTFT p99 <= {SLA_MS['ttft_p99_ms']:g} ms. Up and left is better.",
                ],
                fontSize=20,
                subtitleFontSize=14,
                anchor="start",
                offset=14,
            ),
            padding=18,
        )
        .configure_axis(labelFontSize=13, titleFontSize=13, titleFontWeight="normal", gridColor="#ececec")
        .configure_view(stroke="#cccccc")
    )
    path.write_bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=1.0))


def _request(key: str) -> TuneRequest:
    highest_mhz = ACCELERATORS[key].clocks_mhz[-1]
    values: dict[str, tuple[Any, ...]] = {
        "max_batch": MAX_BATCHES,
        "prefill_chunk": CHUNKS,
        "precision": tuple(name for name in PRECISIONS if name in ACCELERATORS[key].flops),
        "sm_clock_cap_mhz": tuple(share * highest_mhz for share in CLOCK_SHARES),
        "tensor_parallel": (NUM_GPUS,),
    }
    return TuneRequest(
        model=MODEL,
        engine="simulated",
        device=f"simulated:{key}:{NUM_GPUS}",
        workload=WORKLOAD,
        sla=tuple(Limit(metric=metric, bound_ms=bound_ms) for metric, bound_ms in SLA_MS.items()),
        knobs=tuple(KnobRange(name=name, values=chosen) for name, chosen in values.items()),
        window=WINDOW,
    )


def _space(key: str) -> SearchSpace:
    return search_space(_request(key), open_simulated(_request(key).device))


def _measure(job: tuple[str, Sequence[OperatingPoint]]) -> list[Place]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    key, points = job
    request = _request(key)
    simulation = Simulation(device=open_simulated(request.device, noise=0.0), shape=load_shape(MODEL))
    bench = Bench(request, simulation.device, simulation.open_engine, rig=simulation.open_rig())
    return [place for point in points if (place := _place(key, point, bench)) is not None]


def _place(key: str, point: OperatingPoint, bench: Bench) -> Place | None:
    """Measure a point; None where it gave no figures, as when the model does not fit."""
    outcome = bench.measure(point)
    measured = outcome.measurement
    if measured is None or measured.tok_per_j is None or measured.mean_power_w is None:
        return None
    tpot, ttft = measured.latency("tpot_p99_ms"), measured.latency("ttft_p99_ms")
    if tpot is None or ttft is None:
        return None
    return Place(
        key=key,
        point=point,
        is_inside=outcome.state is TrialState.COMPLETE,
        tok_per_j=measured.tok_per_j.value,
        tpot_ms=tpot.value,
        ttft_ms=ttft.value,
        tok_s=measured.output_tok_s.value,
        power_w=measured.mean_power_w,
    )


def _most_frugal(places: Sequence[Place]) -> Place:
    """Return the place with the most tokens per joule, of equal ones that with the shortest TPOT."""
    return max(places, key=lambda place: (place.tok_per_j, -place.tpot_ms))


def _top(places: Sequence[Place]) -> float:
    return 1.08 * max(place.tok_per_j for place in places if place.tpot_ms <= SLOWEST_SHOWN_MS)


_COLORS = {"bf16": "#4c78a8", "fp8": "#f58518", "nvfp4": "#54a24b"}
_MARKED = {
    "default": "diamond",
    "best at highest clock, bf16": "square",
    "tuned, bf16 held": "triangle-up",
    "tuned": "circle",
}


def _panel(one: Comparison, places: Sequence[Place], top: float) -> alt.LayerChart:
    """Draw one device: dots and step fronts by precision, the SLA, and the points of the table."""
    bound_ms = SLA_MS["tpot_p99_ms"]
    shown = [p for p in places if p.tpot_ms <= SLOWEST_SHOWN_MS and p.ttft_ms <= SLA_MS["ttft_p99_ms"]]
    x = alt.X("ms:Q", title="TPOT p99, ms", scale=alt.Scale(domain=[0, SLOWEST_SHOWN_MS]))
    y = alt.Y("tok_per_j:Q", title="tokens per joule", scale=alt.Scale(domain=[0, top]))
    color = alt.Color(
        "precision:N",
        title="precision",
        scale=alt.Scale(domain=list(_COLORS), range=list(_COLORS.values())),
        legend=_legend(),
    )
    dots = alt.Chart(_rows(shown)).mark_circle(size=14, opacity=0.3).encode(x, y, color)
    lines = alt.Chart(_rows(_fronts(shown))).mark_line(interpolate="step-after", strokeWidth=2).encode(x, y, color)
    limit = alt.Chart(alt.InlineData(values=[{"ms": bound_ms}])).mark_rule(strokeDash=[6, 4], color="#888888").encode(x)
    limit_name = alt.Chart(alt.InlineData(values=[{"ms": bound_ms, "tok_per_j": 0.0, "text": f"SLA {bound_ms:g} ms"}]))
    limit_text = limit_name.mark_text(align="left", dx=5, dy=-8, fontSize=12, color="#666666").encode(
        x, y, text="text:N"
    )
    name = ACCELERATORS[one.key].name.removeprefix("NVIDIA ")
    title = alt.TitleParams(
        text=f"{name} (simulated): tuned {one.gain:.2f}x tok/J, with bf16 held {one.bf16_gain:.2f}x",
        fontSize=15,
        anchor="start",
    )
    layers = (dots, lines, limit, limit_text, *_marks(one, x, y))
    return alt.LayerChart(layer=list(layers), width=620, height=340, title=title)


def _marks(one: Comparison, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Mark the points of the table."""
    named = {"default": one.default, "tuned, bf16 held": one.tuned_bf16, "tuned": one.tuned}
    if one.reference is not one.default:
        named["best at highest clock, bf16"] = one.reference
    named = {words: place for words, place in named.items() if place.tpot_ms <= SLOWEST_SHOWN_MS}
    values = [{"ms": p.tpot_ms, "tok_per_j": p.tok_per_j, "point": words} for words, p in named.items()]
    shape = alt.Shape(
        "point:N",
        title="point",
        scale=alt.Scale(domain=list(_MARKED), range=list(_MARKED.values())),
        legend=_legend(),
    )
    marks = alt.Chart(alt.InlineData(values=values)).mark_point(size=150, filled=True, color="black", opacity=1)
    return [marks.encode(x, y, shape)]


def _legend() -> alt.Legend:
    return alt.Legend(
        orient="top", labelFontSize=14, titleFontSize=14, symbolOpacity=1, symbolSize=120, offset=8, labelLimit=300
    )


def _rows(places: Sequence[Place]) -> alt.InlineData:
    return alt.InlineData(
        values=[{"ms": p.tpot_ms, "tok_per_j": p.tok_per_j, "precision": p.precision} for p in places]
    )


def _fronts(places: Sequence[Place]) -> list[Place]:
    """Return each precision's front, fastest first."""
    fronts = []
    for precision in PRECISIONS:
        of_one = [place for place in places if place.precision == precision]
        kept = non_dominated([ObjectivePair(place.tok_per_j, place.tpot_ms) for place in of_one])
        fronts += sorted((of_one[i] for i in kept), key=lambda place: place.tpot_ms)
    return fronts


if __name__ == "__main__":
    sys.exit(main())
