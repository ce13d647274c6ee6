"""Which C++ compiler there is. Free of torch, so that `wattfront doctor` can tell."""

from __future__ import annotations

import os
import shutil

from engine.errors import NativeKernelsMissing

#: Compilers that are tried in turn; CXX names another one.
_COMPILERS = ("c++", "g++", "clang++")


def find_compiler() -> str:
    """Return a compiler's path. Raises NativeKernelsMissing where there is none."""
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        if found := shutil.which(name):
            return found
    raise NativeKernelsMissing(
        f"no C++ compiler was found ({named or ', '.join(_COMPILERS)}); install one, such as Debian's package g++"
    )
