"""Tests of the OpenAI-compatible endpoint."""
