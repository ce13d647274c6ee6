"""How many sequences run at once at points that were not tried: where on its axis a batch size really lies.

A batch size that is never filled does nothing. Where 20 sequences ran at once, 24 and 256 are the same server, and so
most likely are they with another chunk or clock. Were a measured point put down at what ran there and its neighbour at
what may run, a surrogate would take them for strangers, and neither learn from the one nor know the other. So all
points lie at what is expected to run. Knows nothing of energy or latency.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.evidence import Observation
from tuner.grid import Grid
from tuner.pruning import BATCH
from tuner.surrogate import Surrogate

Array = NDArray[np.float64]


def filled_places(grid: Grid, same: Grid, observations: Sequence[Observation]) -> Array:
    """Return the places of `same` with each batch size no larger than what is expected to run.

    `same` is the grid as `tuner.pruning.merged`. Nothing is changed until a batch was seen that was not filled.
    """
    names = [knob.name for knob in grid.space.knobs]
    counted = [one for one in observations if one.peak_running is not None]
    if BATCH not in names or all(_is_full(one) for one in counted):
        return same.places
    column = names.index(BATCH)
    rows = np.array([grid.index[one.point] for one in counted])
    others = np.delete(same.places, column, axis=1)
    running = _expected_running(others, rows, np.delete(grid.is_word, column), counted)
    sizes = np.array([float(point[BATCH]) for point in grid.points])
    places = same.places.copy()
    places[:, column] = grid.scaled(BATCH, np.clip(running, sizes.min(), sizes))
    return places


def _expected_running(
    others: Array, rows: NDArray[np.intp], is_word: NDArray[np.bool_], counted: Sequence[Observation]
) -> Array:
    """Return how many sequences would run at each place if as many might as there are.

    A full batch tells only that no fewer would. It counts where it held more than any that was not full.
    """
    peaks = np.array([max(float(one.peak_running or 0), 1.0) for one in counted])
    is_full = np.array([_is_full(one) for one in counted])
    told = ~is_full | (peaks > peaks[~is_full].max())
    learned = Surrogate.fit(others[rows[told]], np.log(peaks[told]), is_word)
    distinct, which = np.unique(others, axis=0, return_inverse=True)
    running: Array = np.exp(learned.predict(distinct).mean)[which.reshape(-1)]
    return running


def _is_full(one: Observation) -> bool:
    return one.peak_running is not None and one.peak_running >= float(one.point[BATCH])
