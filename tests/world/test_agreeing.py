"""Sites that agree, in a world: seeds keep the promises."""

from __future__ import annotations

import pytest

from tests.simulator.seeds import blocks
from tests.world import agreeing

SEEDS = 500
FAST_SEEDS = 5


def check(seeds: range) -> None:
    for seed in seeds:
        assert agreeing.run(seed) == [], f"python -m tests.simulator --isis-sites --seed {seed}"


def test_every_promise_holds() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 20, SEEDS))
def test_every_promise_holds_for_longer(seeds: range) -> None:
    """Whatever is lost, repeated, cut off, killed between two records, started twice, or suspected wrongly."""
    check(seeds)
