"""Compiling, keeping and doing without the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.embedded.native.library import kernels_for, library
from engine.errors import InvalidSettings, NativeKernelsMissing


@pytest.fixture(name="fresh", autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Forget the library for the test, which has a cache directory of its own."""
    monkeypatch.setenv("WATTFRONT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WATTFRONT_NATIVE", raising=False)
    library.cache_clear()
    yield tmp_path
    library.cache_clear()


def make_compiler(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler has no kernels and serves all the same."""
    monkeypatch.setenv("CXX", "no-such-compiler")

    assert library() is None
    assert kernels_for(torch.device("cpu")) is None


def test_kernels_may_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are required, their absence is an error that names the remedy."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("WATTFRONT_NATIVE", "require")

    with pytest.raises(NativeKernelsMissing, match=r"'require', but no C\+\+ compiler .*no-such-compiler.* g\+\+"):
        library()


def test_a_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CXX is a command, as `ccache g++`; what it is told first is its own."""
    compiler = tmp_path / "cxx"
    make_compiler(compiler, 'test "$2" = --version || { echo "told $1" >&2; exit 1; }')
    monkeypatch.setenv("CXX", f"{compiler} first")
    monkeypatch.setenv("WATTFRONT_NATIVE", "require")

    with pytest.raises(NativeKernelsMissing, match="told first"):
        library()


def test_an_unknown_wish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt WATTFRONT_NATIVE is named with what it may be, and not taken for `auto`."""
    monkeypatch.setenv("WATTFRONT_NATIVE", "of")

    with pytest.raises(InvalidSettings, match="WATTFRONT_NATIVE is 'of'; choose one of auto, off, require"):
        library()


def test_kernels_may_be_turned_off(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    """WATTFRONT_NATIVE=off compiles nothing."""
    monkeypatch.setenv("WATTFRONT_NATIVE", "off")

    assert library() is None
    assert list(fresh.iterdir()) == []


def test_a_failing_compiler_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, fresh: Path, tmp_path: Path) -> None:
    """A compiler that fails, or makes what cannot be loaded, costs the kernels and nothing else."""
    compiler = tmp_path / "cxx"
    make_compiler(compiler, 'test "$1" = --version || { echo "no such flag" >&2; exit 1; }')
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("WATTFRONT_NATIVE", "require")

    with pytest.raises(NativeKernelsMissing, match="no such flag"):
        library()
    assert [path.name for path in (fresh / "native").iterdir()] == ["building"]


def test_a_wrong_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the compiler made is refused where it is no library."""
    compiler = tmp_path / "cxx"
    make_compiler(compiler, 'for last; do :; done; test "$1" = --version || echo text > "$last"')
    monkeypatch.setenv("CXX", str(compiler))

    assert library() is None


def test_a_gpu_has_none() -> None:
    """The kernels are for CPUs."""
    assert kernels_for(torch.device("cuda")) is None
