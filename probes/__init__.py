"""Read hardware; know nothing of tokens.

The seam
- errors: named reasons
- validity: every reason and note a reading can carry
- device: what a device can be asked; W, J, MHz, C

Energy of a stretch of time, from reads that are handed in
- clock: monotonic time, and waiting on it
- sampler: background readings with timestamps
- findings: from what a method found out to a Reading
- integral: energy from power readings, a pure function
- counting: energy from a counter, a pure function
- crosscheck: the one held against the other
- meter: start, stop, Reading

Where the reads come from
- nvml: NVIDIA GPUs, the only `import pynvml`
- nvml_values: what NVML's numbers mean
- cuda_visible: which GPUs CUDA would show, by UUID
- gpu: an NVIDIA GPU as a device
- paths: where the kernel keeps its figures
- rapl: CPU package and DRAM energy counters
- processes: CPU time of the engine, of ourselves and of everybody else
- cpu_estimate: a labelled estimate where nothing can be measured
- cpu: this machine's CPU as a device
- detect: which devices this machine has
- holder: one measuring process per device
"""
