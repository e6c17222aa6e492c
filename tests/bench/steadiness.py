"""Whether a series of samples stays where it is: what grows without need shows in the second half of a run.

The rule: a straight line is laid through the second half (least squares). What it gains from the half's begin to its
end may be ROOM of the half's mean, or the slack of its unit if that is more. A saw tooth passes, as long as its teeth
do not grow; a leak does not, however slow, if the run is long enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

ROOM = 0.1
SLACK = {"mib": 24.0, "files": 40.0, "records": 200_000.0, "ratio": 0.0}
"""In the unit with which a series' name ends: a JVM's heap breathes, a commit a second makes files between two merges,
and FORWARD waits for the next purge."""


class Trend(NamedTuple):
    """A trend of the second half: its mean, the gain of the line through it, and the limit of the gain."""

    mean: float
    gain: float
    limit: float

    @property
    def is_steady(self) -> bool:
        """Whether it does not grow."""
        return self.gain <= self.limit


def trend(at_s: Sequence[float], values: Sequence[float], slack: float) -> Trend:
    """Return the trend of a series. Raise ValueError for fewer than six samples."""
    if len(values) < 6 or len(at_s) != len(values):
        raise ValueError(f"{len(values)} samples are too few.")
    half = len(values) // 2
    times, ours = np.asarray(at_s[half:], float), np.asarray(values[half:], float)
    slope = float(np.polyfit(times - times[0], ours, 1)[0])
    mean = float(ours.mean())
    return Trend(mean, slope * float(times[-1] - times[0]), max(ROOM * abs(mean), slack))


def trends(at_s: Sequence[float], series: Mapping[str, Sequence[float]]) -> dict[str, Trend]:
    """Return each series's trend by its name, whose last word is the unit."""
    return {name: trend(at_s, values, SLACK[name.rpartition("_")[2]]) for name, values in series.items()}
