"""Which C++ compiler there is. Free of torch, so that `wattfront doctor` can tell."""

from __future__ import annotations

import os
import shlex
import shutil

from engine.errors import NativeKernelsMissing

#: Compilers that are tried in turn; CXX names another one.
_COMPILERS = ("c++", "g++", "clang++")


def find_compiler() -> tuple[str, ...]:
    """Return a compiler's command. Raises NativeKernelsMissing where there is none."""
    named = os.environ.get("CXX")
    for command in (named,) if named else _COMPILERS:
        name, *arguments = shlex.split(command)  # as in CXX="ccache g++"
        if found := shutil.which(name):
            return (found, *arguments)
    raise NativeKernelsMissing(
        f"no C++ compiler was found ({named or ', '.join(_COMPILERS)}); install one, such as Debian's package g++"
    )
