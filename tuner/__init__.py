"""Decide what to try and what it was worth.

TuneRequest -> SearchSpace -> OperatingPoint -> measure -> Measurement -> Trial -> Front

- errors: what a request can get wrong
- request: what is asked: model, engine, device, workload, SLA, knobs, budget
- workload, request_trace: seeded requests, or those of a trace, and when they arrive
- knobs: the knobs of each engine, their defaults and what is tried
- layout: which GPUs of a simulated device do what
- space: the knobs a job searches, and what engine and device allow
- point: one value for every knob
- bench: measure one point under the protocol of docs/measuring.md
- simulation, aic: a simulated engine on a simulated device, and kernel times from elsewhere
- observations, calibration: trials as what a simulated device can be fitted to
- rig: the device around a window: cool, set, verify, watch, meter, put back
- window: when a measured window opens and closes
- measurement: what a window showed, with intervals (pure statistics)
- repeats: repeated windows of one point as one figure (pure; not used by the search yet)
- drift: a baseline measured again and again, and what its drift does to figures (pure; not used yet either)
- quality: what a precision costs in output quality
- objectives: a measurement as objective values and limit violations
- search: ask, measure, tell, stop; the only `import optuna`
- trial: a point with its outcome
- pareto: dominance, front, hypervolume (pure)
"""
