"""Logs that are cut and made anew, in the simulator: nobody goes on in silence; without a rule, that is found out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.kafka.topics.data_purge import purge_data
from ordering.checker.anomalies import GAP, LOST
from tests.simulator import cuts
from tests.simulator.cuts import DATA, FALSE_ALARM, FORWARD, GIVEN_AGAIN, GROUP, SILENT, SITE, playing
from tests.simulator.mutations import CountlessReader
from tests.simulator.seeds import blocks

SEEDS = 1_000
FAST_SEEDS = 10
SEEDS_FOR_A_MUTATION = 100


class Mutation(NamedTuple):
    """A broken rule: the violation that must show, and the patch."""

    name: str
    expected: Collection[str]
    target: str
    replacement: Any
    from_seed: int = 0
    has_later: bool = False
    """Whether jobs may write records of a later kind."""


def followed(_: SameLogConsumer, polled: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return polled


def from_there_on(log: SameLogConsumer, positions: Mapping[Any, int]) -> None:
    _true_read(log, positions)
    log._begun = set()
    for place, offset in positions.items():
        log._consumer.seek(place, offset)


_true_read = SameLogConsumer.read
_LOG = "connectors.kafka.log.same_log_consumer.SameLogConsumer"
MUTATIONS = (
    Mutation("compares-nothing", (SILENT, LOST), f"{_LOG}._doubt", lambda _: None),
    Mutation("looks-at-no-end", (SILENT, LOST), f"{_LOG}._look_at_ends", lambda *_: None),
    Mutation("begins-with-nothing", (SILENT, LOST), f"{_LOG}.read", from_there_on),
    Mutation("doubts-all", (FALSE_ALARM,), "tests.simulator.cuts.Cuts.damaged", lambda *_: None),
    Mutation("no-ledger", (GIVEN_AGAIN,), "connectors.takeover.survey._check_ledger", lambda *_: None, 5_061),
    Mutation("no-watchdog", (LOST,), "connectors.takeover.watchdog.Watchdog.look", lambda *_: None, 600),
    Mutation(
        "count-unread", (GAP, LOST, SILENT), "connectors.kafka.log.data_cursor.data_count", lambda _: 1, has_later=True
    ),
    Mutation(
        "count-not-absorbed",
        (SILENT, LOST),
        "ordering.sequencer.sequencer.Reader",
        CountlessReader,
        has_later=True,
    ),
)


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
    assert {"HistoryChanged", "a start: HistoryChanged", "a job: HistoryChanged", "FORWARD is another"} <= seen


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_rule_is_found_out(mutation: Mutation) -> None:
    with patch(mutation.target, mutation.replacement):
        for seed in range(mutation.from_seed, mutation.from_seed + SEEDS_FOR_A_MUTATION):
            if {anomaly.name for anomaly in cuts.run(seed, has_later=mutation.has_later)} & {*mutation.expected}:
                return
    pytest.fail(f"{SEEDS_FOR_A_MUTATION} seeds without {mutation.expected}")


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
        world.clock += 1
        world.decide_for_good()
        if is_purged:
            purge_data(world.connection, GROUP, SITE, kept_s=0.0, in_ledger=1, lacking=lambda *_: "")
            world.end_the_incomparable()
        for _ in range(3):
            world.take(log)
        assert (log.is_told, world.anomalies) == ("incomparable" if is_purged else "HistoryChanged", [])
