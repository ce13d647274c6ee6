"""Tests of simulated devices."""
