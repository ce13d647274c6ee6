"""Benchmarks: each prints a human table and, as its last line, one JSON object of figures. Run as modules."""
