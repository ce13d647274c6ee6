"""How a server has Python look for garbage that refers to itself: seldom, and never among what stays.

A full collection walks over every object, and every thread and request waits for it: with 140,000 objects for 80 to
170 ms, which was the p99 of an answer that takes 4. What nothing refers to any more is freed at once, whatever
is done here. Knows nothing of what a server remembers.
"""

from __future__ import annotations

import gc

#: New objects after which the youngest are looked through. With Python's 700 a request under way counts as old before
#: it is answered, and many old objects have all looked through again: 64 clients at 300 requests/s had it 138 times in
#: 15 s, with 5,000 four times, for a tenth less of the processor an answer and no more than 8 ms at once.
YOUNG = 5_000


def look_seldom() -> None:
    """Look for garbage from now on, after YOUNG new objects, in none that are there already."""
    gc.freeze()
    gc.set_threshold(YOUNG)
    gc.enable()


def leave_out_loaded() -> None:
    """Look through everything once more, and then never again at what is there: libraries that were loaded since."""
    gc.collect()
    gc.freeze()
