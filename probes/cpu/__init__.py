"""This machine's CPU and what runs on it.

- paths: where the kernel keeps its figures
- processes: CPU time of the engine, of ourselves and of everybody else
- cgroups: how many cores a container may use
- rapl: package and DRAM energy counters
- cpufreq: clock caps and present clocks
- hwmon: package temperature
- cpu_estimate: a labelled estimate where nothing can be measured
- recent_power: power between two looks
- cpu_meter: clocks and caps beside a CPU's energy
- cpu_device: the CPU as a device
"""
