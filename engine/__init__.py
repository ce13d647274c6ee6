"""Serve token sequences; know nothing of watts, SLAs or SQL.

- errors: what can go wrong, each with its remedy
- request: a request in, its token times out
- settings: the knobs an engine understands
- load: requests and how they arrive
- serving: the seam every engine implements
- serve: let requests in as they arrive and step until enough was seen
- host, child, supply, feed: run an engine in a process of its own, and send it a load
- embedded: our PyTorch engine
- simulated: its scheduler on a virtual clock, moving bytes on paper
"""
