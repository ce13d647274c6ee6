"""Tests of probes.amd."""
