"""The forward table: never a hole, never over its bounds; checked against a plain list."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import ProtocolViolation
from ordering.base.records import JOIN
from ordering.participant.forward_table import (
    ForwardTable,
    Pending,
    carried_from,
    carried_over,
    control_headers,
    message_bytes,
    sent_headers,
)

payloads = st.binary(max_size=6)
headers = st.lists(st.tuples(st.text("hk", max_size=2), st.binary(max_size=3)), max_size=2).map(tuple)
operations = st.lists(st.one_of(st.tuples(payloads, headers), st.integers(0, 30)), max_size=40)


@given(operations, st.integers(1, 5), st.integers(1, 20), st.integers(0, 3))
def test_equals_a_list(script: list[object], max_records: int, max_bytes: int, last: int) -> None:
    """Broadcasts and acknowledgements in any order: the table is always what a list of the pending ones would be."""
    table = ForwardTable(max_records, max_bytes, last)
    model: list[Pending] = []
    given_out = last
    for operation in script:
        if isinstance(operation, tuple):
            payload, application = operation
            held = sum(message_bytes(entry.payload, entry.headers) for entry in model)
            size = message_bytes(payload, application)
            fits = not model or (len(model) < max_records and held + size <= max_bytes)
            assert fits == table.has_room(size)
            if fits:
                given_out += 1
                model.append(Pending(given_out, payload, application))
                assert model[-1] == table.append(payload, application)
        elif isinstance(operation, int) and operation <= given_out:
            before = len(model)
            model = [entry for entry in model if entry.local_seqno > operation]
            assert before - len(model) == table.acknowledge(operation)
        assert model == list(table.pending())
        assert len(model) == len(table)
        assert given_out - len(model) == table.acknowledged
        for begin, end in itertools.combinations(range(len(model) + 1), 2):
            kept = [[each.payload for each in model[begin:end]], [each.headers for each in model[begin:end]]]
            assert kept == [*table.between(model[begin].local_seqno, model[end - 1].local_seqno)]


def test_pending_is_in_increasing_order() -> None:
    """SEQUENCER (docs/sources.md), "Reliability on failover": sent again in increasing order of local seqnos."""
    table = ForwardTable(10, 100)
    for payload in (b"a", b"b", b"c"):
        table.append(payload, ())
    table.acknowledge(1)
    assert [Pending(2, b"b", ()), Pending(3, b"c", ())] == list(table.pending())


def test_data_of_a_message_never_sent_is_a_violation() -> None:
    """The record shows that another process sends under the same name and incarnation. The table is unchanged."""
    table = ForwardTable(10, 100)
    table.append(b"a", ())
    with pytest.raises(ProtocolViolation, match="local seqno 2"):
        table.acknowledge(2)
    assert len(table) == 1


def test_an_empty_table_takes_any_message() -> None:
    """Otherwise a message larger than the bound could never be sent."""
    table = ForwardTable(1, 1)
    assert table.has_room(1000)
    table.append(b"x" * 1000, ())
    assert not table.has_room(0)


class TestCarriedOver:
    """Messages that an incarnation takes over from the one before; some of them may be ordered after all."""

    @pytest.fixture
    def table(self) -> ForwardTable:
        table = ForwardTable(10, 100)
        table.append(b"", control_headers(JOIN))
        for number in (4, 6):
            carried = carried_over(Pending(number, b"%d" % number, (("k", b"v"),)), 7)
            table.append(carried.payload, carried.headers)
        table.append(b"new", ())
        return table

    def test_it_says_where_it_comes_from(self, table: ForwardTable) -> None:
        join, first, _, new = table.pending()
        assert [carried_from(join), carried_from(first), carried_from(new)] == [None, (7, 4), None]
        assert sent_headers(first) == (("k", b"v"),)
        again = carried_over(first, 8)
        assert (carried_from(again), sent_headers(again)) == ((8, 2), (("k", b"v"),))

    @pytest.mark.parametrize(
        ("ordered", "left"),
        [((7, 3), [b"", b"4", b"6", b"new"]), ((7, 5), [b"", b"6", b"new"]), ((7, 9), [b"", b"new"]), ((6, 9), None)],
    )
    def test_what_is_ordered_is_taken_out_and_the_others_move_up(
        self, table: ForwardTable, ordered: tuple[int, int], left: list[bytes] | None
    ) -> None:
        before = [entry.payload for entry in table.pending()]
        forgotten = table.take_out(*ordered)
        entries = [(entry.local_seqno, entry.payload) for entry in table.pending()]
        assert entries == list(enumerate(left or before, 1))
        assert (table.last, forgotten) == (len(entries), 4 - len(entries))

    def test_not_when_its_join_is_ordered(self, table: ForwardTable) -> None:
        table.acknowledge(1)
        with pytest.raises(ProtocolViolation):
            table.take_out(7, 4)
