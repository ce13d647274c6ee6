"""Tests of the probes: no GPU, no RAPL and no waiting needed."""
