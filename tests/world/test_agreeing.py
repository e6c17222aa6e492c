"""Sites that agree, in a world: seeds keep the promises."""

from __future__ import annotations

import pytest

from tests.simulator.seeds import blocks
from tests.world import agreeing
from tests.world.kafka import partition

SEEDS = 500
FAST_SEEDS = 2
FOUND = (800_127, 3_000_027)
"""Seeds of histories that once broke a promise."""


def check(seeds: range) -> None:
    for seed in seeds:
        assert agreeing.run(seed) == [], f"python -m tests.simulator --isis-sites --seed {seed}"


@pytest.mark.slow
def test_every_promise_holds() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 3, SEEDS))
def test_every_promise_holds_for_longer(seeds: range) -> None:
    """Whatever is lost, repeated, cut off, killed between two records, started twice, or suspected wrongly."""
    check(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_every_promise_holds_where_one_did_not(seed: int) -> None:
    check(range(seed, seed + 1))


@pytest.mark.slow
def test_an_idle_group_goes_on_behind_a_retention() -> None:
    """Jobs have all of FORWARD, and stop. A retention then drops it at home and in copies, and relays start."""
    with agreeing.playing(3) as world:
        assert world.run() == []
        for name in world.names:
            world._stop(name)
        for name, at in world.sites.items():
            for place in (partition("forward", name), *(partition("relayed", name, other) for other in world.names)):
                if place in at.kafka.topics.partitions:
                    at.kafka.topics.drop(place.topic, len(at.kafka.topics.partitions[place]))
        world.relays.clear()
        for _ in range(5):
            world._send()
        assert world.end() == []
