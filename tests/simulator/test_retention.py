"""`tests.simulator.retention`: a whole DATA always starts, and no number is given twice, whatever was deleted when."""

from __future__ import annotations

import pytest

from tests.simulator.retention import playing

SEEDS = 300


@pytest.mark.slow
def test_a_whole_data_always_starts() -> None:
    purged = lost = 0
    for seed in range(SEEDS):
        with playing(seed) as history:
            assert history.run() == [], f"python -m tests.simulator --retention --seed {seed}"
            purged += history.purged
            lost += not history.is_whole
    assert purged > SEEDS / 2
    assert lost > SEEDS / 20
