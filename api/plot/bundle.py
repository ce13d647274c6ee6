"""Vega, Vega-Lite and vega-embed as one JavaScript module, out of vl-convert: nothing is fetched from elsewhere.

Bundling takes seven seconds and a hundred megabytes in V8, so that a process of its own does it, once for each version;
what it makes is kept in the cache folder. Knows nothing of charts, nor of HTTP.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import structlog

from api.plot.theme import SCHEMES

log = structlog.get_logger()

#: What the module gives to js/charts.mjs. vega-embed has the interpreter in it that needs no `unsafe-eval`.
_EXPORTS = "export { vegaEmbed };"
_MAKE = f"import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle({_EXPORTS!r}))"
#: Of this version of vl-convert, whose Vega is a fixed one; raise the last number with every change of the exports.
VERSION = f"{version('vl-convert-python')}-1"
NAME = f"vega-{VERSION}.mjs"

#: Where pages find it.
PATH = f"/static/{NAME}"
#: A server that lives shorter, as in tests, spends nothing on charts that nobody asks for.
WARM_AFTER_S = 2.0


class BundleError(Exception):
    """Install this version's vl-convert-python; the log has what it said."""


class Bundle:
    """The module, made when it is first asked for. For several threads."""

    def __init__(self, cache_dir: Path) -> None:
        #: Where it is kept between runs.
        self.path = cache_dir / f"{NAME}.gz"
        self._lock = threading.Lock()
        self._packed: bytes | None = None
        self._child: subprocess.Popen[bytes] | None = None
        #: Set when nobody will ask any more.
        self.closed = threading.Event()

    def packed(self) -> bytes:
        """Return the module as gzip: 0.3 MB. Raises BundleError where it cannot be made."""
        with self._lock:
            if self._packed is None:
                self._packed = self._kept() or self._made()
            return self._packed

    def close(self) -> None:
        """End the child that is making it, if one is; whoever waits for it gets a BundleError."""
        self.closed.set()
        if self._child is not None:
            self._child.kill()

    def _kept(self) -> bytes | None:
        try:
            packed = self.path.read_bytes()
            gzip.decompress(packed)
        except (OSError, EOFError, gzip.BadGzipFile):  # not there, or cut off by a full disk
            return None
        return packed

    def _made(self) -> bytes:
        self._child = subprocess.Popen([sys.executable, "-c", _MAKE], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.closed.is_set():
            self._child.kill()
        made, complaint = self._child.communicate()
        code, self._child = self._child.returncode, None
        if code != 0:
            if not self.closed.is_set():
                log.error("vega_not_bundled", code=code, error=complaint.decode(errors="replace")[-500:])
            raise BundleError("the charts' JavaScript could not be made; see the log of the service")
        packed = gzip.compress(made, mtime=0)
        self._keep(packed)
        return packed

    def _keep(self, packed: bytes) -> None:
        """Write the module as a whole or not at all; a cache that cannot be written to stops nobody."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{NAME}")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(packed)
                os.replace(name, self.path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            log.warning("vega_not_kept", path=str(self.path), error=str(error))


def warm(bundle: Bundle, then: Callable[[], object] = lambda: None) -> None:
    """Make the module and load Altair in the background, so that the first page with a chart waits for neither.

    Calls `then` when both are there.
    """

    def make() -> None:
        if bundle.closed.wait(WARM_AFTER_S):
            return
        with contextlib.suppress(BundleError):  # logged where it happened, and told to who asks for it
            bundle.packed()
            if not bundle.closed.is_set():
                # Not with the module: see there.
                from api.plot.specs import Asked, spec_json

                for scheme in SCHEMES:
                    spec_json("front", Asked(scheme=scheme))
                then()

    threading.Thread(target=make, name="warm-charts", daemon=True).start()
