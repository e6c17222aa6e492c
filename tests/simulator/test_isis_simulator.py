"""ISIS in the simulator: seeds keep the promises."""

from __future__ import annotations

import pytest

from tests.simulator import isis
from tests.simulator.seeds import blocks
from tests.simulator.simulations import SIMULATIONS

SEEDS = 2_000
FAST_SEEDS = 20


def check(seeds: range) -> None:
    for seed in seeds:
        assert isis.run(seed) == [], f"python -m tests.simulator --isis --seed {seed}"


@pytest.mark.slow
def test_every_promise_holds() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 20, SEEDS))
def test_every_promise_holds_for_longer(seeds: range) -> None:
    """Whatever is lost, repeated, cut off, or suspected wrongly."""
    check(seeds)


@pytest.mark.slow
def test_a_link_that_is_cut_under_load_heals_by_itself() -> None:
    """The reports of both its ends are then longer than a datagram."""
    seeds = range(12)
    assert [(seed, found) for seed in seeds if (found := isis.flood(seed))] == []
    broken = SIMULATIONS["isis"].mutation("no-parts")
    assert any(isis.flood(seed, broken) for seed in seeds)
