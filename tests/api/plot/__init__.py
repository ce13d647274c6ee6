"""Tests of api/plot."""
