"""What holds for every test and every process that a test starts: torch's threads sleep while they wait.

By default they spin, and on a machine that does something else besides, each step of a model waits for a thread that
has no core: tiny models took 20 times as long there. No figure that a test looks at depends on it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # here, not in a fixture: it is read once, when torch is loaded
