"""Read hardware, and set it where that is allowed; know nothing of tokens.

The seam
- errors: named reasons
- validity: every reason and note a reading can carry
- device: what a device can be asked; W, J, MHz, C
- settings: what can be set on a device, and the values it takes
- clock_events: why a GPU's clocks are low, in words

Shared by all of it
- clock: monotonic time, and waiting on it
- identity: which process somebody is
- holder: one measuring process per device
- settle: start delays, idle power, cool-down, steadiness
- detect: which devices this machine has

Packages
- metering: the energy of a stretch of time, from reads that are handed in
- nvidia, amd, cpu: where the reads come from, one package a vendor
- simulated: accelerators that are not there, always labelled
- control: set clocks and limits, and always give back what was found
"""
