"""The energy of a stretch of time, from reads that are handed in; knows no driver.

- sampler: background readings with timestamps
- findings: from what a method found out to a Reading
- integral: energy from power readings, a pure function
- counting: energy from a counter, a pure function
- crosscheck: the one held against the other
- ticks: how long a counter's step is, and the instant of the next one
- meter: start, stop, Reading, from a counter
- conditions: what a device was like over a window, and what of it speaks against the figures
- gpu_watch: look at one GPU over and over, cheaply
- gpu_meter: start, stop, Reading, of one GPU
- together: several calls side by side
- group: several GPUs of one server as one device
- group_meter: their energy over the stretch that all of them measured
"""
