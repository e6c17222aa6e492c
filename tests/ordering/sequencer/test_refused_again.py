"""A successor reads FORWARD again and knows how DATA went on: it orders no record that was refused or dropped."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import pytest

from ordering.base.records import JOIN, LEAVE, MESSAGE, SETTINGS, Data, DeadLetter, Forward, Source
from ordering.sequencer import sequencer
from ordering.sequencer.sequencer import absorb, begin_batch, end_batch, seal, snapshot, step
from ordering.sequencer.state import SequencerState
from tests.simulator.columns import step_by_columns

TOPIC = "abcast.g.forward.s"


def forward(rng: random.Random, count: int) -> list[Forward]:
    """Return a log in which some join, leave and send, out of order, too, while an operator opens and closes the
    group.
    """
    last = {name: [1, 0] for name in "abc"}
    admin, ends, records = 0, [0, 0], list[Forward]()
    for _ in range(count):
        partition = rng.randrange(2)
        source = Source(TOPIC, partition, ends[partition])
        ends[partition] += 1
        at_ms = 10**12 + len(records)
        if rng.random() < 0.2:
            admin += 1
            payload = b'{"closed":%s}' % rng.choice((b"true", b"false"))
            records.append(Forward("s/abcast.admin", admin, 1, payload, source, (), SETTINGS, at_ms))
            continue
        name = rng.choice("abc")
        own = last[name]
        if rng.random() < 0.1:
            own[0], own[1] = own[0] + 1, 0
        own[1] += rng.choice((1, 1, 1, 2, -1))
        kind = rng.choice((JOIN, LEAVE, MESSAGE, MESSAGE, MESSAGE, MESSAGE))
        records.append(Forward(f"s/{name}", own[0], max(own[1], 1), b"x", source, (), kind, at_ms))
    return records


@pytest.mark.slow
@pytest.mark.parametrize("by", [step, step_by_columns], ids=["rows", "columns"])
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_what_was_considered_stays_as_it_was(first: int, by: sequencer.Step) -> None:
    refusals = 0
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        records = forward(rng, 40)
        state, log, refused = SequencerState("g", epoch=1), [seal(1), snapshot(SequencerState("g", epoch=1))], set()
        with patch.object(sequencer, "SNAPSHOT_EVERY_RECORDS", 10_000):
            for start in range(0, len(records), 5):
                state, opening = begin_batch(state)
                batch = sorted(records[start : start + 5], key=lambda record: record.source)
                state, outputs = by(state, batch)  # type: ignore[operator]
                state, closing = end_batch(state)
                log += [each for each in (*opening, *outputs, *closing) if isinstance(each, Data)]
                refused |= {each.source for each in outputs if isinstance(each, DeadLetter)}
        written = rng.randrange(2, len(log) + 1)
        after = replace(absorb(SequencerState("g"), log[:written]), epoch=2)
        _, again = by(after, sorted(records, key=lambda record: record.source))  # type: ignore[operator]
        for each in again:
            if isinstance(each, Data) and each.source is not None:
                assert each.source.offset >= after.decided.get(each.source.topic_partition, 0), (seed, each)
        refusals += len(refused)
    assert refusals > 20
