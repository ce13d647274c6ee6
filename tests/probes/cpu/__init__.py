"""Tests of probes.cpu."""
