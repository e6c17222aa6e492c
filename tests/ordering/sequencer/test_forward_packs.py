"""Packs in FORWARD: the order has the same messages as if each had come alone, however packs are cut and repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.packs import NO_PACKS, decode_pack, rest_of, unpacked
from ordering.base.records import MESSAGE, MESSAGES, Data, DeadLetter, Forward, Source
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.sequencer import absorb, missing_before, next_accepted, seal, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import TOPIC, Log, cut, forward, logs, opened

PACKED = opened(of_format=3)


class Place(NamedTuple):
    """The place of a message in the order, without the place of its record in FORWARD."""

    seqno: int
    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes


def ordered(state: SequencerState, log: Log, at: list[int]) -> tuple[SequencerState, list[Data], list[Place]]:
    """Decide the log in batches; return the state, DATA, and the messages in it."""
    data: list[Data] = []
    for batch in cut(log, at):
        state, outputs = step(state, batch)
        data += [output for output in outputs if isinstance(output, Data)]
    messages = (each for record in data for each in unpacked(record))
    return state, data, [Place(each.seqno, *each.id, each.payload) for each in messages]


def alone(log: Log) -> Log:
    """Return the log with each message of a pack as a record."""
    made: Log = []
    for record in log:
        place = record.source._replace(offset=10 * record.source.offset)
        if not isinstance(record, Forward):
            made.append(replace(record, source=place))
            continue
        for n in range(record.count):
            source = place._replace(offset=place.offset + n)
            made.append(forward(record.sender, record.incarnation, record.local_seqno + n, source))
    return made


@given(logs(packs=True), st.lists(st.integers(0, 40), max_size=4))
def test_the_order_is_that_of_single_messages(log: Log, at: list[int]) -> None:
    packed, _, in_packs = ordered(PACKED, log, at)
    single, _, one_by_one = ordered(PACKED, alone(log), [])
    assert in_packs == one_by_one
    assert (packed.received, packed.seqno, packed.own_seqno) == (single.received, single.seqno, single.own_seqno)
    assert packed.duplicates == single.duplicates


@given(logs(packs=True), st.lists(st.integers(0, 40), max_size=4), st.integers(0, 40))
def test_a_successor_goes_on_from_any_prefix_of_data(log: Log, at: list[int], written: int) -> None:
    """A pack is one record, so DATA has it whole or not at all. A successor drops what it reads again."""
    state, data, in_packs = ordered(PACKED, log, at)
    assert absorb(PACKED, data).received == state.received
    again = absorb(PACKED, [*data[:written], seal(2, 3)])
    _, rest, _ = ordered(again, log, [])
    messages = [each for record in (*data[:written], *rest) for each in unpacked(record)]
    assert [each.seqno for each in messages] == list(range(1, len(messages) + 1))
    assert {each[1:] for each in in_packs} <= {(*each.id, each.payload) for each in messages}
    last: dict[str, ReceivedRow] = {}
    for each in messages:
        row = last.get(each.sender, ReceivedRow(0, 0))
        assert next_accepted(row, each.incarnation, each.local_seqno)
        last[each.sender] = ReceivedRow(each.incarnation, each.local_seqno)


def test_an_overlap_is_cut_at_the_row() -> None:
    log: Log = [
        forward("s/a", 1, 1, Source(TOPIC, 0, 0), 3),
        forward("s/a", 1, 2, Source(TOPIC, 0, 1), 4),
        forward("s/a", 1, 2, Source(TOPIC, 0, 2), 4),
        forward("s/a", 1, 7, Source(TOPIC, 0, 3), 2),
        forward("s/a", 1, 5, Source(TOPIC, 0, 4), 2),
    ]
    state, outputs = step(PACKED, log)
    found = [output for output in outputs if isinstance(output, Data)]
    assert [(each.kind, each.seqno, each.local_seqno, each.count) for each in found] == [
        (MESSAGES, 1, 1, 3),
        (MESSAGES, 4, 4, 2),
        (MESSAGES, 6, 6, 1),
    ]
    assert [str(each.source) for each in found] == [f"{TOPIC}-0:{offset}" for offset in (0, 1, 4)]
    assert state.received["s/a"] == ReceivedRow(1, 6)
    assert state.duplicates == 2 + 4 + 2 + 1
    early = forward("s/a", 1, 8, Source(TOPIC, 0, 5), 2)
    assert missing_before(state, early) == 7
    assert missing_before(state, forward("s/a", 1, 5, Source(TOPIC, 0, 5), 3)) is None


@pytest.mark.parametrize("of_format", [1, 2])
def test_a_group_without_packs_refuses_them(of_format: int) -> None:
    """Its readers may be of a version that knows none. Sites that agree sequence in the first format."""
    state, outputs = step(opened(of_format=of_format), [forward("s/a", 1, 1, Source(TOPIC, 0, 0), 3)])
    assert outputs == (DeadLetter(Source(TOPIC, 0, 0), NO_PACKS),)
    assert state.received == {}


@given(st.lists(st.binary(max_size=5), min_size=2, max_size=9), st.integers(1, 9))
def test_the_rest_of_a_pack(payloads: list[bytes], taken: int) -> None:
    pack = forward("s/a", 1, 11, Source(TOPIC, 0, 0), len(payloads))
    taken = min(taken, len(payloads))
    rest = rest_of(pack, taken)
    assert (rest.count, rest.last_local_seqno) == (taken, pack.last_local_seqno)
    assert decode_pack(rest.payload, rest.count) == decode_pack(pack.payload, pack.count)[-taken:]
    single = forward("s/a", 1, 1, Source(TOPIC, 0, 0))
    assert single.kind == MESSAGE
    assert rest_of(single, 1) == single
