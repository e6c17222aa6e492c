"""Columns of many messages have the same numbers as each message by itself, so a cursor's result is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.client.deliveries.deliveries import delivery_of, places_of
from connectors.kafka.codec import codec
from connectors.kafka.codec.message_columns import MIN_RECORDS, messages_numbers
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective, Messages
from ordering.base.reader import Reader
from tests import data_corpus

DATA = TopicPartition("abcast.g.data.sfo", 0)
Headers = list[tuple[str, Any]]

number = st.integers(0, 10**18 - 1)
from_1 = st.integers(1, 10**18 - 1)
topic = st.sampled_from(["t", "abcast.g-1.forward.n-y-c", "abcast.g.relayed-sfo.nyc", "0-1"])
text_of_message = st.builds(
    "2 message {} {} {} {} {} {}-{}:{} {}".format,
    *(from_1, from_1, from_1, number, number, topic, st.integers(0, 3), number, number),
)
more = st.sampled_from([[], [], [("mine", b"1")], [("null", None)]])
message: st.SearchStrategy[Headers] = st.builds(
    lambda text, more: [("abcast", text.encode()), *more], text_of_message, more
)
messages = st.lists(message, min_size=MIN_RECORDS, max_size=MIN_RECORDS + 5)


def _each(keys: Sequence[bytes | None], headers: Sequence[Headers]) -> list[tuple[int, ...]]:
    return [codec.message_numbers(key, of_record) for key, of_record in zip(keys, headers, strict=True)]


@pytest.mark.slow
@settings(max_examples=30)
@given(messages)
def test_the_numbers_of_all_are_those_of_each(headers: list[Headers]) -> None:
    keys = [b"sfo/alice", b"nyc/bob"] * len(headers)
    numbers = messages_numbers(keys[: len(headers)], headers)
    assert numbers is not None
    assert list(zip(*numbers.tolist(), strict=True)) == _each(keys[: len(headers)], headers)


@pytest.mark.parametrize("case", data_corpus.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("place", [0, MIN_RECORDS // 2, MIN_RECORDS - 1])
def test_among_messages_any_record_is_as_it_is_by_itself(case: data_corpus.Case, place: int) -> None:
    keys: list[bytes | None] = [data_corpus.ALICE] * MIN_RECORDS
    headers: list[Headers] = [[("abcast", data_corpus.MESSAGE)] for _ in keys]
    keys[place], headers[place] = case.key, list(case.headers)
    numbers = messages_numbers(keys, headers)
    if numbers is not None:
        assert list(zip(*numbers.tolist(), strict=True)) == _each(keys, headers)
    else:
        assert codec.message_numbers(case.key, case.headers) == () or b"t-0:1 0 " in case.headers[0][1]


@pytest.mark.parametrize("between", [b"\n", b"\n2 message 1 1 1 1 0 t-0:1 0\n"])
def test_a_header_that_looks_like_two_is_none(between: bytes) -> None:
    headers: list[Headers] = [[("abcast", data_corpus.MESSAGE)] for _ in range(MIN_RECORDS)]
    headers[3] = [("abcast", data_corpus.MESSAGE + between + data_corpus.MESSAGE)]
    assert messages_numbers([data_corpus.ALICE] * MIN_RECORDS, headers) is None


def test_sources_may_be_many() -> None:
    headers: list[Headers] = [[("abcast", f"2 message 1 1 1 1 0 t-{n}:1 0".encode())] for n in range(MIN_RECORDS)]
    assert messages_numbers([data_corpus.ALICE] * MIN_RECORDS, headers) is None
    assert messages_numbers([data_corpus.ALICE] * MIN_RECORDS, [*headers[:15], *[headers[0]] * 17]) is not None


class _Polls:
    """A consumer that returns its records a piece at a time."""

    def __init__(self, pieces: Iterable[Sequence[PlainRecord]]) -> None:
        self._pieces = list(pieces)

    def assign(self, _: object) -> None: ...

    def seek(self, *_: object) -> None: ...

    def poll(self, **_: object) -> Mapping[TopicPartition, Sequence[PlainRecord]]:
        return {DATA: self._pieces.pop(0)}


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(-2, 2)), min_size=MIN_RECORDS, max_size=50).map(
        lambda steps: steps * 3
    ),
    st.booleans(),
)
def test_however_a_cursor_polls_it_takes_the_same(steps: list[tuple[int, int]], has_seal: bool) -> None:
    """Duplicates, holes, records of past epochs and a seal between them: the cursor takes the same in any pieces."""
    seqno, records = 0, []
    for offset, (epoch, off) in enumerate(steps):
        seqno = max(1, seqno + 1 + (off if offset % 5 == 0 else 0))
        text = f"2 message 7 {offset + 1} {seqno} {max(1, epoch - 1)} 2 t-0:{offset} 9"
        if has_seal and offset == len(steps) // 2:
            text = "2 epoch - - - 2 - - -"
        key = None if text.startswith("2 epoch") else b"sfo/alice"
        records.append(PlainRecord(DATA.topic, 0, offset, 5, key, b"x", [("abcast", text.encode())]))
    taken = [_taken([records]), _taken([record] for record in records)]
    assert taken[0] == taken[1]


def test_by_columns_a_delivery_is_what_it_is_one_by_one() -> None:
    """Also for a part of the messages, for a null payload, and for headers of the application's own."""
    cursor = DataCursor(_Polls([[_message(offset) for offset in range(2500)]]), DATA, Start(0, Reader(1, 0)))  # type: ignore[arg-type]
    taken = cursor.poll(0.0)
    assert isinstance(taken, Messages)
    assert len(taken) == 2500
    one_by_one = list(taken)
    assert [taken[index] for index in (0, 1700, -1)] == [one_by_one[index] for index in (0, 1700, -1)]
    for part in (slice(None), slice(990, 1010), slice(2499, None), slice(7, 7)):
        assert list(taken[part]) == one_by_one[part]
        places = [(record.seqno, record.offset + 1, delivery_of(record)) for record in one_by_one[part]]
        assert list(places_of(taken[part])) == places
    assert [delivery.payload for _, _, delivery in places_of(taken[:3])] == [b"", b"1", b"2"]  # type: ignore[union-attr]
    assert one_by_one[5].headers == (("trace", b"7"),)


def test_a_seal_among_messages_costs_no_more_than_its_thousand() -> None:
    """The seal and its neighbours come one by one, all others by columns. The cursor's position is right then."""
    records = [_message(offset) for offset in range(5000)]
    records[2500] = PlainRecord(DATA.topic, 0, 2500, 5, None, b"", [("abcast", b"2 epoch - - - 2 - - -")])
    cursor = DataCursor(_Polls([records]), DATA, Start(0, Reader(1, 0)))  # type: ignore[arg-type]
    polled = [(cursor.poll(0.0), cursor.position, cursor.reader.epoch) for _ in range(3)]
    assert [(isinstance(taken, Messages), len(taken), *where) for taken, *where in polled] == [
        (True, 2000, 2000, 1),
        (False, 500, 3000, 2),
        (True, 0, 5000, 2),
    ]


def _message(offset: int) -> PlainRecord:
    text = f"2 message 7 {offset + 1} {offset + 1} 1 2 t-0:{offset} 9".encode()
    headers = [("abcast", text), *([("trace", b"7")] if offset % 5 == 0 else [])]
    value = str(offset).encode() if offset % 10 else None
    return PlainRecord(DATA.topic, 0, offset, 5, b"sfo/alice" if offset % 2 else b"nyc/bob", value, headers)


def _taken(pieces: Iterable[Sequence[PlainRecord]]) -> tuple[list[Effective], int, Reader]:
    polls = _Polls(pieces)
    cursor = DataCursor(polls, DATA, Start(0, Reader(1, 0)))  # type: ignore[arg-type]  # all that it asks of one
    taken: list[Effective] = []
    while polls._pieces or cursor._pending:
        taken += cursor.poll(0.0)
    return taken, cursor.position, cursor.reader
