"""Simulated accelerators: devices with a virtual clock, a power model and the sensors of real ones, always labelled.

- `accelerators`, `coefficients`: the figures of each, with their sources.
- `response`, `fit`: how long a step takes at a clock and what it draws; finding the coefficients of that.
- `clock`, `machine`, `lane`, `ledger`, `noise`, `thermal`, `faults`, `options`: the half of a device that works.
- `sensors`, `meter`, `watch`, `polling`: the half that is looked at.
- `device`, `description`, `names`: the whole device, what it says of itself and what it is called; `control` sets it.
"""
