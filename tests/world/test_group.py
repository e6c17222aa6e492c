"""A group with one sequencer at a time, in a world: seeds keep the promises, and a failure can be read."""

from __future__ import annotations

import pytest

from ordering.checker.anomalies import FIFO_VIOLATION
from tests.simulator.seeds import blocks
from tests.world import group
from tests.world.group_history import history
from tests.world.group_mutations import MUTATIONS

SEEDS = 2_000
FAST_SEEDS = 3


def check(seeds: range) -> None:
    for seed in seeds:
        assert group.run(seed) == [], f"python -m tests.simulator --group --seed {seed}"


@pytest.mark.slow
def test_every_promise_holds() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [790016, 795011, 1195, 4003206])
def test_seeds_that_have_broken(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that rejoins waits for a partition. A survey compares DATA with the notes from before its end only, and
    begins again if a purge has passed that end. The first record of a window is judged with the window before it.
    """
    monkeypatch.setattr("tests.world.guests.SHARE", 0.0)  # as when they broke
    check(range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 10, SEEDS))
def test_every_promise_holds_for_longer(seeds: range) -> None:
    """Whatever crashes, repeats, comes late or comes twice."""
    check(seeds)


@pytest.mark.slow
def test_shrinking_keeps_the_anomaly_and_drops_the_rest() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "not-lower")
    seed = next(seed for seed in range(10) if FIFO_VIOLATION in {found.name for found in group.run(seed, mutation)})
    shrunk = group.shrink(history(seed, mutation), FIFO_VIOLATION, mutation)
    found, story = group.play(shrunk, mutation)
    assert FIFO_VIOLATION in {anomaly.name for anomaly in found}
    assert len(shrunk.actions) <= 12
    assert any("broadcast" in line for line in story)
