"""Become another command once told to: run by `api.measure`, so that a meter can start before the command does.

    python launcher.py GO_FD REPORT_FD COMMAND [ARG...]

Says `ready` by one byte, waits until the other end of GO_FD gives one, and becomes COMMAND, found as a shell finds it.
Only a reason why it cannot follows on REPORT_FD, which the command never sees; it has this process's id. Without a
byte on GO_FD, since whoever wanted to measure is gone, it ends. Imports little: it starts before every measured run.
"""

from __future__ import annotations

import os
import signal
import sys

READY = b"."
CANNOT_START = 127


def main() -> int:
    """Run the launcher; returns only where the command did not start."""
    go, report = int(sys.argv[1]), int(sys.argv[2])
    command = sys.argv[3:]
    os.set_inheritable(report, False)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a Ctrl-C before the command shall leave no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.write(report, READY)
    if not os.read(go, 1):
        return CANNOT_START
    os.close(go)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores these, and that would be inherited
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(report, (error.strerror or str(error)).encode())
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
