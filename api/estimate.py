"""What a job would search and cost, before it is posted: from the product's own planning constants and past jobs.

Device time is windows, warm-ups and launches as the search plans them; energy is that time at the mean power which past
jobs of the same model and device had. An estimate, and labelled so. Knows nothing of HTTP but how a job is posted.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
from dataclasses import dataclass

from api.estimate_schemas import JobEstimateOut
from api.job_fields import yaml_of
from api.operator_file import Operator
from api.stores import Stores
from api.submit import PostedJob, most_repeats, searched
from api.workload_cache import uploaded_trace
from db.past_costs import PastCost, PastCosts
from engine.errors import InvalidSettings
from engine.simulated.layout import WorkModel
from engine.simulated.shapes import load_shape
from probes.settings import POWER_CAP
from probes.simulated.device import SimulatedDevice
from probes.simulated.names import is_simulated_name, parse_name
from tuner.errors import InvalidRequest
from tuner.knobs import LAYOUT_KNOBS, launch_s, rules_of
from tuner.layout import MAX_CHECKED, limits_of, require_room
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.space import Knob, SearchSpace, settings_of

_S_PER_HOUR = 3600.0
#: Fields of a post that no job file has.
_NOT_IN_FILES = ("priority", "previous_job")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a job is going to do, as far as its request and its space tell."""

    request: TuneRequest
    num_points: int
    num_possible: int | None
    #: Combinations of the knobs that need a launch.
    num_combinations: int
    #: W, of all GPUs together; None where nobody knows the limit.
    limit_w: float | None

    @property
    def num_trials(self) -> int:
        """Points that are measured."""
        return min(self.request.budget.trials, self.num_points if self.num_possible is None else self.num_possible)

    @property
    def num_repeats(self) -> int:
        """Windows of the finals at most, each in a launch of its own."""
        repeats = self.request.repeats
        return most_repeats(repeats.windows - 1, min(repeats.finalists, self.num_trials))

    @property
    def num_launches(self) -> int:
        """Launches, if each combination is launched once."""
        return min(self.num_trials, self.num_combinations) + self.num_repeats

    @property
    def device_s(self) -> float:
        """Seconds of the device with warm-ups and windows of their usual length."""
        window = self.request.window
        return self._within_budget(self._taken_s(window.warmup_s + window.window_s, self.num_launches))

    @property
    def device_s_at_most(self) -> float:
        """Seconds of the device if every window is as long as it may be, and every trial needs a launch."""
        window = self.request.window
        most_s = self._taken_s(window.max_warmup_s + window.max_window_s, self.num_trials + self.num_repeats)
        return self._within_budget(most_s)

    def _taken_s(self, trial_s: float, num_launches: int) -> float:
        windows_s = (self.num_trials + self.num_repeats) * trial_s
        return windows_s + num_launches * launch_s(self.request.engine) + self.request.window.idle_s

    def _within_budget(self, device_s: float) -> float:
        hours = self.request.budget.device_hours
        return device_s if hours is None else min(device_s, hours * _S_PER_HOUR)


def estimate(
    posted: PostedJob, request: TuneRequest, operator: Operator, stores: Stores, *, url: str
) -> JobEstimateOut:
    """Return what a checked job would search and cost. `url` is where it would be posted: the service's own."""
    plan = _plan(request, operator, stores)
    past = PastCosts(stores.database).of(request.model, request.device)
    joules = None if past is None else _within(past.mean_power_w * plan.device_s, request.budget.joules)
    most_j = None if plan.limit_w is None else _within(plan.limit_w * plan.device_s_at_most, request.budget.joules)
    fields = posted.model_dump(mode="json", exclude_unset=True)
    return JobEstimateOut(
        is_simulated=is_simulated_name(request.device),
        num_points=plan.num_points,
        num_possible=plan.num_possible,
        num_trials=plan.num_trials,
        num_repeats=plan.num_repeats,
        num_launches=plan.num_launches,
        device_s=plan.device_s,
        device_s_at_most=plan.device_s_at_most,
        joules=joules,
        joules_from=_joules_words(request, past),
        joules_at_most=most_j,
        how=_how(plan),
        yaml=yaml_of({name: value for name, value in fields.items() if name not in _NOT_IN_FILES}),
        curl=_curl(fields, url),
        command=f"wattfront --server {shlex.quote(url)} tune job.yaml",
    )


def _within(joules: float, budget_j: float | None) -> float:
    return joules if budget_j is None else min(joules, budget_j)


def _plan(request: TuneRequest, operator: Operator, stores: Stores) -> _Plan:
    found = searched(request, operator, uploaded_trace(request.workload, stores.workloads))
    if found is None:
        return _plan_of_a_real_device(request)
    space, device = found
    settable = next((one for one in device.settables() if one.name == POWER_CAP), None)
    num_gpus = parse_name(request.device).num_gpus
    return _Plan(
        request=request,
        num_points=space.size,
        num_possible=_num_possible(request, space, device),
        num_combinations=math.prod(len(knob.values) for knob in space.knobs if knob.needs_launch),
        limit_w=None if settable is None else float(settable.highest) * num_gpus,
    )


def _plan_of_a_real_device(request: TuneRequest) -> _Plan:
    """Return what can be known before a worker opens the device: by the values that are named, or the engine's own.

    The device's own knobs are not among them where the job names none.
    """
    rules = rules_of(request.engine)
    values = {knob.name: knob.values for knob in request.knobs}
    values = values or {name: rule.tried for name, rule in rules.items() if rule.tried}
    of_launch = [values[name] for name in values if name in rules and rules[name].needs_launch]
    return _Plan(
        request=request,
        num_points=math.prod(map(len, values.values())),
        num_possible=None,
        num_combinations=math.prod(map(len, of_launch)),
        limit_w=None,
    )


def _num_possible(request: TuneRequest, space: SearchSpace, device: SimulatedDevice) -> int:
    """Return how many points are left without those whose layout the device has no room for.

    What else fails, as too little memory for the requests of a batch, only trials tell.
    """
    checked = [knob for knob in space.knobs if knob.name in (*LAYOUT_KNOBS, "precision", "kv_precision")]
    num_others = space.size // math.prod(len(knob.values) for knob in checked)
    if math.prod(len(knob.values) for knob in checked) > MAX_CHECKED:
        return space.size
    return num_others * sum(
        _has_room(request, checked, values, device) for values in itertools.product(*(knob.values for knob in checked))
    )


def _has_room(
    request: TuneRequest, knobs: list[Knob], values: tuple[int | float | str, ...], device: SimulatedDevice
) -> bool:
    limits = limits_of(device)
    assert limits is not None  # it is simulated
    point = OperatingPoint.of({knob.name: value for knob, value in zip(knobs, values, strict=True)})
    try:
        settings = settings_of(request, point, num_gpus=limits.num_gpus)
        require_room(settings, limits)
        work = WorkModel(load_shape(request.model), settings, limits)
    except (InvalidRequest, InvalidSettings):
        return False
    return work.weight_bytes_resident <= limits.memory_bytes


def _how(plan: _Plan) -> list[str]:
    """Say what the figures rest on."""
    request, window = plan.request, plan.request.window
    launches = plan.num_launches - plan.num_repeats
    words = [
        f"{plan.num_trials} trials of {window.warmup_s:g} s warm-up and a {window.window_s:g} s window, and "
        f"{launches} launch{'es' if launches != 1 else ''} of the engine at about {launch_s(request.engine):g} s. "
        f"At most: {window.max_warmup_s:g} s and {window.max_window_s:g} s, and a launch for every trial."
    ]
    if plan.num_possible is not None and plan.num_possible < plan.num_points:
        words.append(
            f"{plan.num_points - plan.num_possible} of {plan.num_points} points are left out: the weights do not fit."
        )
    if plan.num_possible is None:
        words.append("What this device cannot do is known when its worker opens it.")
    if plan.num_repeats:
        words.append(f"Up to {plan.num_repeats} windows of the finals, each in a launch of its own.")
    if window.idle_s:
        words.append(f"Idle power is measured once, for {window.idle_s:g} s.")
    if request.budget.device_hours is not None and plan.device_s_at_most == request.budget.device_hours * _S_PER_HOUR:
        words.append(f"The budget of {request.budget.device_hours:g} device-hours may end it before all trials.")
    return words


def _joules_words(request: TuneRequest, past: PastCost | None) -> str:
    if past is None:
        return f"no past job of {request.model} on {request.device} to go by"
    jobs = "1 past job" if past.num_jobs == 1 else f"{past.num_jobs} past jobs"
    kind = "simulated" if is_simulated_name(request.device) else "mean"
    return f"{kind} power of {past.mean_power_w:.0f} W, of {past.num_trials} trials of {jobs} of this model and device"


def _curl(fields: dict[str, object], url: str) -> str:
    """Return the post as a command; the key is read from the environment, so that it is in no history."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    data = "{\n" + ",\n".join(lines) + "\n}"
    return (
        f"curl -X POST {shlex.quote(url + '/v1/jobs')} \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        '  -H "Authorization: Bearer $WATTFRONT_API_KEY" \\\n'
        '  -H "Idempotency-Key: $(uuidgen)" \\\n'
        f"  -d {shlex.quote(data)}"
    )
