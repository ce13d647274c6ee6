"""A simulated engine: the embedded engine's scheduler and block manager on a virtual clock, moving bytes on paper.

- `shapes`, `families`, `parts`, `catalogue`: what a model consists of, read from its config.json or a catalogue.
- `precision`, `sharding`, `traffic`, `layout`: how it is spread over GPUs, and what one step then asks of each.
- `work`, `machine`: that step, and what the engine is told of whatever runs it.
- `sequence`, `contexts`, `lane`, `fleet`, `engine`: the engine itself.
"""
