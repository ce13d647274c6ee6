"""Tests of what benchmarks measure with; their figures are nobody's to assert."""
