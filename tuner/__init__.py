"""Decide what to try and what it was worth.

TuneRequest -> SearchSpace -> OperatingPoint -> measure -> Measurement -> Trial -> Front

- errors: what a request can get wrong
- request: what is asked: model, engine, device, workload, SLA, knobs, budget
- workload, request_trace: seeded requests, or those of a trace, and when they arrive
- foreign_results, foreign: result files of other benchmark tools, read in our terms; never metered (pure)
- knobs: the knobs of each engine, their defaults and what is tried
- layout: which GPUs of a simulated device do what
- space: the knobs a job searches, and what engine and device allow
- point: one value for every knob
- bench: measure one point under the protocol of docs/measuring.md
- simulation, aic: a simulated engine on a simulated device, and kernel times from elsewhere
- observations, calibration: trials as what a simulated device can be fitted to
- rig: the device around a window: cool, set, verify, watch, meter, put back
- window: when a measured window opens and closes
- sequential: when it may end early: a limit is certainly missed, or a rival certainly better (pure)
- measurement: what a window showed, with intervals (pure statistics)
- repeats: repeated windows of one point as one figure, and comparisons with margins (pure)
- drift: the order of a block with a baseline in it, and the line of its drift (pure)
- baseline: a job's windows with the drift of its baseline divided out, or left out (pure)
- aggregates: all windows of a point as one observation (pure)
- finalists: which points are measured again after screening, and in which order (pure)
- quality: what a precision costs in output quality, from scores of a sample (pure)
- tasks, lm_tasks: tasks with known answers for that, and those of lm-eval; the only `import lm_eval`
- gauge: measure that once against the widest precision, remember it, reuse it
- objectives: a measurement as objective values and limit violations
- search: ask, measure, tell, stop
- samplers: which point is next, of the planner or of Optuna; the only `import optuna`
- planner: Wattfront's own choice: what follows, weighed against device time
- evidence, grid: what trials showed, and the space, as arrays
- pruning: points that cannot matter (pure)
- physics, surrogate: what trials say of other points, by bytes and joules and by statistics (pure)
- occupancy: how much of a batch will be filled, where that was not measured (pure)
- acquisition: expected gain of the front per device-second (pure)
- trial: a point with its outcome
- budget: what trials took of a budget, and whether that is a reason to stop (pure)
- influence, steps, explain: what a job found, and which knobs moved energy and latency
- pareto: dominance by value and beyond doubt, front with ties, hypervolume (pure)
- fingerprint: what figures must share to be compared, or to stand in for each other (pure)
- takeover: whether an earlier measurement will do, and what this job makes of it (pure)
- versions: which values of which knobs differ from an earlier job's (pure)
"""
