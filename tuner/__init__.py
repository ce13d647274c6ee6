"""Decide what to try and what it was worth.

TuneRequest -> SearchSpace -> OperatingPoint -> measure -> Measurement -> Trial -> Front

- errors: what a request can get wrong
- request: what is asked: model, engine, device, workload, SLA, knobs, budget
- workload: seeded prompts and lengths, cut from real text
- space: the knobs a job searches, and what engine and device allow
- point: one value for every knob
- bench: measure one point under the protocol of docs/measuring.md
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
