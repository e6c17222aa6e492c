"""Logs that are cut and made anew, in the simulator: nobody goes on in silence; without a rule, that is found out."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.topics.data_purge import purge_data
from tests.simulator.cuts import DATA, FORWARD, GROUP, SITE, playing
from tests.simulator.seeds import blocks

SEEDS = 1_000
FAST_SEEDS = 10


def check(seeds: range) -> set[str]:
    seen: set[str] = set()
    for seed in seeds:
        with playing(seed) as world:
            assert world.run() == [], f"python -m tests.simulator --cuts --seed {seed}"
            seen |= world.seen
    return seen


def test_nobody_goes_on_in_silence() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 100, SEEDS))
def test_nobody_goes_on_in_silence_in_many_histories(seeds: range) -> None:
    seen = check(seeds)
    assert {
        "a reader: HistoryChanged",
        "a start: HistoryChanged",
        "a job: HistoryChanged",
        "a batch: InputLost",
    } <= seen


@pytest.mark.parametrize("seed", [700_297, 700_885, 712_200, 714_211])
def test_what_seeds_have_found(seed: int) -> None:
    check(range(seed, seed + 1))


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_reader_of_a_lost_record_begins_anew_if_it_cannot_tell(is_purged: bool) -> None:
    """The reader compares the record at that offset, unless that is purged before it looks."""
    with playing(0) as world:
        world.has_ledger = False
        world.start()
        world.topics.append(TopicPartition(*FORWARD), b"s/a", b"", forward_headers(1, 1))
        world.decide_for_good()
        log = world.follow(0)
        assert log is not None
        assert [told.sender for told in log.given] == ["s/a"]
        world.readers.append(log)
        world.kill()
        world.damaged(DATA.topic)
        world.topics.truncate(DATA.topic, log.cursor.position - 1)
        world.topics.make_anew([FORWARD.topic])
        world.topics.append(TopicPartition(*FORWARD), b"s/b", b"", forward_headers(2, 1))
        world.start()
        world.clock.sleep(1)
        world.decide_for_good()
        if is_purged:
            purge_data(world.connection, GROUP, SITE, kept_s=0.0, in_ledger=1, lacking=lambda *_: "")
            world.end_the_incomparable()
        for _ in range(3):
            world.take(log)
        assert (log.is_told, world.anomalies) == ("incomparable" if is_purged else "HistoryChanged", [])
