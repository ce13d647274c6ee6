"""Tests of probes/control: no GPU, no root and no waiting needed."""
