"""The kernels, or a reason for going without."""

from __future__ import annotations

import ctypes

import pytest

from engine.embedded.native.library import library


@pytest.fixture(scope="session", name="kernels")
def _kernels() -> ctypes.CDLL:
    """The compiled kernels."""
    found = library()
    if found is None:
        pytest.skip("there is no C++ compiler here, so there are no kernels to test")
    return found
