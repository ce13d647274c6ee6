"""Tests of probes.metering."""
