"""Logs that are cut and made anew, in the simulator: nobody goes on in silence; without a rule, that is found out."""

from __future__ import annotations

import pytest

from tests.simulator.seeds import blocks
from tests.world import cuts, group
from tests.world.group import DATA

SEEDS = 1_000
FAST_SEEDS = 3


def check(seeds: range) -> None:
    for seed in seeds:
        assert cuts.run(seed) == [], f"python -m tests.simulator --cuts --seed {seed}"


@pytest.mark.slow
def test_nobody_goes_on_in_silence() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 15, SEEDS))
def test_nobody_goes_on_in_silence_in_many_histories(seeds: range) -> None:
    check(seeds)


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_reader_of_a_lost_record_begins_anew_if_it_cannot_tell(is_purged: bool) -> None:
    """The reader compares the record at that offset, unless that is purged before it looks."""
    with group.playing(cuts.history(0)) as world:
        assert isinstance(world, cuts.CutsWorld)
        reader = world.readers[0]
        world._work(1)
        reader.resume(0)
        world.make_group_anew()
        world._work(5)
        if is_purged and reader.cursor is not None:
            world.kafka.log(*DATA).drop(reader.cursor.position)
            world.end_the_incomparable()
        for _ in range(3):
            assert not reader.read()
        assert [error.split(":")[0] for error in world.seen] == [cuts.INCOMPARABLE if is_purged else "HistoryChanged"]
        assert world.anomalies == []
