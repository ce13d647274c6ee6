"""Tests of tuner/."""
