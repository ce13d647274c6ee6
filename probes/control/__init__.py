"""Set clocks and power limits, and always give back what was found.

- seam: what whoever sets a device's knobs must promise
- actuator: one knob of one device, as the driver or the kernel knows it
- gpu_actuators: SM clock cap and power cap, through NVML
- cpu_actuators: the CPU's clock cap, through cpufreq
- actuators: the knobs of a device by its UUID
- change: one write to one knob: prepared, made, verified, undone
- trust: what root may believe of a folder and its files
- journal: what was found, on disk before anything is changed
- keeper: apply, roll back, restore, recover
- attain: whether a cap is kept under load
- shield: a restore that no signal interrupts
- local: control from within this process
- guard_wire: the lines between a worker and the guard
- guard_answers: what the guard answers on those lines
- guard_config: what the guard allows, and to whom
- leases: who holds what through the guard
- guard_place: the guard's folders, lock files and socket
- guard: the privileged helper: settings under a lease
- guard_link: one connection to the guard, with its heartbeats
- guard_client: control through the guard
- opening: the guard where there is one, else this process
"""
