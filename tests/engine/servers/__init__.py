"""Tests of engine/servers."""
