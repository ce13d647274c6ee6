"""Tests of probes.nvidia."""
