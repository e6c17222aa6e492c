"""A copy of another site's FORWARD is made anew: no record that must be read is skipped."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from kafka.structs import TopicPartition

from connectors.engine.agreeing import Agreeing
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.inputs import Input, original
from connectors.kafka.log.same_copy import changed_copies
from connectors.takeover.agreement import starts_of
from connectors.testing.memory_kafka import MemoryConnection
from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.group import after_takeover
from ordering.agreement.log import OrderedRun, Range, run_of
from ordering.agreement.site_state import CopyMark, Place, first_state
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState
from tests.engine.operator import next_run

HOME = f"{Topic('g', 'forward', 'nyc')}-0"
COPY = TopicPartition(str(Topic("g", "relayed", "sfo", "nyc")), 0)
SOURCE = Input("nyc", HOME, is_copy=True)


def carried(dice: random.Random, begin: int, end: int) -> list[int]:
    """Return home offsets as relays copy them that are killed now and then: records behind a repeat are repeated,
    too.
    """
    brought, at = list[int](), begin
    while at < end:
        until = min(end, at + dice.randint(1, 30))
        brought += range(at, until)
        at = max(begin, until - dice.choice((0, 0, dice.randint(0, 20)))) if until < end else end
    return brought


def fill(kafka: MemoryConnection, offsets: list[int]) -> None:
    kafka.topics.partitions[COPY] = []
    for offset in offsets:
        [(name, text)] = forward_headers(1, 1)
        mark = b" nyc/%s:%d - 5" % (HOME.encode(), offset)
        kafka.topics.append(COPY, b"nyc/m%d" % offset, b"", [(name, text + mark)])


def machine_at(mark: CopyMark, end: int) -> Agreeing:
    """Return sfo's machine with an ordered run of nyc's, from that mark to `end`, that is not yet in DATA."""
    run = OrderedRun(mark.end + 1, ProcessIncarnation("nyc"), run_of((Range(HOME, mark.end, end),)))
    first = first_state("g", "sfo", ["nyc", "sfo"])
    here = Place(HOME, end, end, end, (mark, CopyMark(end, mark.at + end - mark.end)))
    state = replace(
        first, position=run.last, sequenced=mark.end, since=deque([run]), number=9, base=9, places={HOME: here}
    )
    machine = Agreeing(after_takeover(state, SequencerState("g", epoch=2)))
    machine.sources[COPY] = SOURCE
    return machine


@pytest.mark.parametrize("seed", range(100))
def test_a_copy_that_was_made_anew(seed: int) -> None:
    """The run has all of its records, whatever repeats the old copy had and the new one has."""
    dice, kafka = random.Random(seed), MemoryConnection()
    end = dice.randint(20, 120)
    before = carried(dice, 0, end)
    at = dice.randrange(1, len(before))
    mark = CopyMark(max(before[:at]) + 1, at)
    if mark.end == end:
        return
    is_same = dice.random() < 0.3
    fill(kafka, before if is_same else carried(dice, 0, end))
    machine = machine_at(mark, end)
    changed = changed_copies(kafka, {COPY: (SOURCE, machine.group.mark(HOME))})
    assert not (is_same and changed)
    start = starts_of(kafka, machine.group, machine.sources, {COPY: 0})[COPY]
    log = kafka.topics.partitions[COPY]
    read = {record.offset for raw in log[start:] if (record := original(raw, "nyc", HOME))}
    assert read >= set(range(mark.end, end)), "it is passed over"
    for step in range(start, len(log), 7):
        machine.take(COPY, log[step : step + 7])
    assert len(next_run(machine)) == end - mark.end
