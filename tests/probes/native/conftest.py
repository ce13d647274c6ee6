"""The fake driver for the tests of this folder."""

from __future__ import annotations

from tests.probes.native.fixtures import native_library, native_nvml

__all__ = ["native_library", "native_nvml"]
