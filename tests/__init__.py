"""Mirrors the packages; tests/tiny_model.py makes the checkpoint that needs no download."""
