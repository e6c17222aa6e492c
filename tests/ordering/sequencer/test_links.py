"""Links between sites: a session's records are taken once, in order, by either form, and after any crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.canonical import canonical_json
from ordering.base.capacity import MAX_MEMBERS_BYTES, has_room_for_member
from ordering.base.kinds import COLUMN_KINDS
from ordering.base.names import relay_of
from ordering.base.records import (
    EPOCH,
    HEARTBEAT,
    JOIN,
    LINK_START,
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    MESSAGE,
    REMOTE_VIEW,
    SKIP,
    VIEW,
    Data,
    Forward,
    Link,
    Malformed,
    Source,
)
from ordering.membership.membership import remote_members
from ordering.sequencer.links import LinkRow, LinkStart, LinkTable, carry
from ordering.sequencer.sequencer import Step, absorb, seal, snapshot, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import opened
from tests.simulator.columns import step_by_columns

HERE = "abcast.g.forward.s"
NEIGHBOURS = ("a", "b")
ORIGINS = ("a", "b", "c")


def linked(
    neighbour: str,
    offset: int,
    link: tuple[int, int, int, int],
    origin: str = "a",
    kind: str = MESSAGE,
    payload: bytes = b"",
) -> Forward:
    """Return a record that the link from a neighbour has brought."""
    sender = f"{origin}/m" if kind == MESSAGE else relay_of(neighbour)
    source = Source(f"abcast.g.relayed-{neighbour}.s", 0, offset)
    return Forward(sender, 1, max(1, link[3]), payload, source, kind=kind, link=Link(*link))


def start(neighbour: str, offset: int, epoch: int = 1, seqno: int = 0, **origins: int) -> Forward:
    """Return the beginning of a session, whose name is its offset."""
    source = Source(f"abcast.g.relayed-{neighbour}.s", 0, offset)
    payload = LinkStart(epoch, seqno, origins).to_json()
    return Forward(relay_of(neighbour), 1, 1, payload, source, kind=LINK_START)


def ordered(outputs: Sequence[object]) -> list[tuple[str, int]]:
    """Return the origin and its seqno of each message that was taken."""
    return [
        (record.sender.partition("/")[0], record.link.origin_seqno)
        for record in outputs
        if isinstance(record, Data) and record.link and record.kind == MESSAGE
    ]


def test_a_session_is_taken_in_its_order_and_once() -> None:
    run = [linked("a", n, (0, 1, n, n)) for n in (1, 2, 3)]
    again = [replace(record, source=record.source._replace(offset=4 + n)) for n, record in enumerate(run)]
    state, outputs = step(opened(), [start("a", 0), *run, *again])
    assert ordered(outputs) == [("a", 1), ("a", 2), ("a", 3)]
    assert (state.links, state.origins) == ({"a": LinkRow(0, 1, 3)}, {"a": 3})
    assert state.duplicates == 3
    assert state.own_seqno == 0
    assert "a/m" not in state.received


def test_a_member_that_has_joined_leaves_no_hole_in_its_messages() -> None:
    """Its JOIN is a skip on the link, with a local seqno."""
    joined = Data(JOIN, 1, 1, sender="a/m", incarnation=1, local_seqno=1)
    said = Data(MESSAGE, 1, 2, sender="a/m", incarnation=1, local_seqno=2, payload=b"x")
    records = [start("a", 0)]
    for offset, data in enumerate((joined, said), start=1):
        told = carry(data, "a", 0, lambda _: True)
        source = Source("abcast.g.relayed-a.s", 0, offset)
        records.append(
            Forward(
                told.sender, told.incarnation, told.local_seqno, told.payload, source, kind=told.kind, link=told.link
            )
        )
    assert [record.kind for record in records] == [LINK_START, SKIP, MESSAGE]
    assert ordered(step(opened(), records).outputs) == [("a", 2)]


@pytest.mark.parametrize(("known", "accepted"), [(2, True), (3, False)])
def test_a_session_that_begins_too_late_is_not_accepted(known: int, accepted: bool) -> None:
    """The site must have all that the neighbour knew at the beginning of the session."""
    state, _ = step(opened(), [start("a", 0), *(linked("a", n, (0, 1, n, n)) for n in (1, 2))])
    state, outputs = step(state, [start("a", 3, seqno=known, a=known), linked("a", 4, (3, 1, known + 1, known + 1))])
    assert ordered(outputs) == ([("a", known + 1)] if accepted else [])
    assert state.links["a"].session == (3 if accepted else 0)


def test_records_of_a_session_that_was_replaced_are_dropped() -> None:
    """The second relay does not carry c, the first one does: its c-2 would come without c-1."""
    state, outputs = step(
        opened(),
        [
            start("a", 0),
            start("a", 1),
            linked("a", 2, (1, 1, 1, 0), kind=SKIP),
            linked("a", 3, (0, 1, 1, 1), "c"),
            linked("a", 4, (0, 1, 2, 2), "c"),
        ],
    )
    assert ordered(outputs) == []
    assert state.origins == {}


def test_what_a_fenced_sequencer_left_is_not_taken() -> None:
    run = [
        start("a", 0),
        linked("a", 1, (0, 1, 1, 1)),
        linked("a", 2, (0, 2, 0, 0), kind=SKIP),
        linked("a", 3, (0, 1, 2, 2), payload=b"left"),
        linked("a", 4, (0, 2, 2, 2), payload=b"right"),
    ]
    _, outputs = step(opened(), run)
    assert [record.payload for record in outputs if isinstance(record, Data)] == [b"", b"right"]


def test_what_stands_behind_a_hole_is_not_taken() -> None:
    _, outputs = step(opened(), [start("a", 0), linked("a", 1, (0, 1, 1, 1)), linked("a", 2, (0, 1, 3, 3))])
    assert ordered(outputs) == [("a", 1)]


@pytest.mark.parametrize("decide", [step, step_by_columns])
def test_a_session_is_over_where_retention_has_made_a_hole(decide: Callable[..., Step]) -> None:
    """The hole has a seal and the right a-2: otherwise a leftover of a fenced sequencer would be taken for it."""
    state, _ = decide(opened(), [start("a", 0), linked("a", 1, (0, 1, 1, 1))])
    beat = replace(linked("a", 4, (0, 0, 0, 0), kind=HEARTBEAT), link=None)
    state, outputs = decide(state, [beat, linked("a", 5, (0, 1, 2, 2)), linked("a", 6, (0, 2, 3, 3))])
    assert ordered(outputs) == []
    assert (state.links, state.origins) == ({}, {"a": 1})
    _, outputs = decide(state, [start("a", 7, a=1), linked("a", 8, (7, 2, 1, 2))])
    assert ordered(outputs) == [("a", 2)]


def test_two_links_may_bring_the_same_origin() -> None:
    _, outputs = step(
        opened(),
        [
            start("a", 0),
            linked("a", 1, (0, 1, 1, 1), "c"),
            linked("a", 2, (0, 1, 2, 4), "c"),
            start("b", 0),
            linked("b", 1, (0, 1, 1, 1), "c"),
            linked("b", 2, (0, 1, 2, 4), "c"),
            linked("b", 3, (0, 1, 3, 7), "c"),
        ],
    )
    assert ordered(outputs) == [("c", 1), ("c", 4), ("c", 7)]


def test_a_closed_group_takes_what_links_bring() -> None:
    """The message was ordered while its sender might send; without it the row would be false."""
    membership = opened().membership
    closed = replace(opened(), membership=replace(membership, settings=replace(membership.settings, closed=True)))
    for decide in (step, step_by_columns):
        _, outputs = decide(closed, [start("a", 0), linked("a", 1, (0, 1, 1, 1))])
        assert ordered(outputs) == [("a", 1)]


def test_a_message_without_a_number_is_none() -> None:
    """No relay writes such a message; both forms drop it, and learn nothing of its origin."""
    records = [linked("a", 1, (0, 1, 1, 0), "c")]
    state, _ = step(opened(), [start("a", 0)])
    assert step(state, records) == step_by_columns(state, records)
    assert step(state, records).state.origins == {}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"epoch":1,"seqno":1,"origins":[1]}',
        b'{"epoch":1,"seqno":-1,"origins":{}}',
        b'{"epoch":true,"seqno":1,"origins":{}}',
        b'{"epoch":1,"seqno":1.5,"origins":{}}',
        b'{"epoch":1,"seqno":1,"origins":{"a":"1"}}',
        b'{"epoch":1,"seqno":%d,"origins":{}}' % (MAX_NUMBER + 1),
        b'{"epoch":1,"seqno":1,"origins":{"a":%d}}' % (MAX_NUMBER + 1),
        b"[" * 100_000,
    ],
)
def test_what_is_no_link_start_begins_nothing(payload: bytes) -> None:
    assert LinkStart.from_json(payload) is None
    state, outputs = step(opened(), [replace(start("a", 0), payload=payload)])
    assert (state.links, outputs) == ({}, ())


def test_a_link_start_round_trips() -> None:
    one = LinkStart(3, 7, {"a": 5, "c": MAX_NUMBER})
    assert LinkStart.from_json(one.to_json()) == one


def test_what_a_relay_says() -> None:
    """A relay writes messages, views, and a skip for each other record."""

    def said(data: Data, carries: bool = True) -> tuple[str, str, tuple[int, ...]]:
        told = carry(data, "a", 5, lambda _: carries)
        return told.kind, told.sender, tuple(told.link)

    own = Data(MESSAGE, 2, 9, sender="a/m", incarnation=1, local_seqno=4)
    others = replace(own, sender="c/m", link=Link(1, 1, 30, 17))
    assert said(own) == (MESSAGE, "a/m", (5, 2, 9, 9))
    assert said(others) == (MESSAGE, "c/m", (5, 2, 9, 17))
    assert said(others, carries=False) == (SKIP, relay_of("a"), (5, 2, 9, 0))
    assert said(Data(VIEW, 2, 9, view=3)) == (REMOTE_VIEW, relay_of("a"), (5, 2, 9, 0))
    assert said(snapshot(opened(4))) == (SKIP, relay_of("a"), (5, 4, 0, 0))
    assert said(replace(own, kind=JOIN)) == (SKIP, relay_of("a"), (5, 2, 9, 0))


@pytest.mark.parametrize("length", [9, 40, 128])
def test_the_view_of_the_largest_group_is_a_good_record(length: int) -> None:
    """DATA has larger ones. The neighbour would refuse such a record, and take nothing of the session behind it."""
    names = [f"a/{number:0{length - 2}}" for number in range(MAX_MEMBERS_BYTES // (64 + 2 * length))]
    assert has_room_for_member(names[:-1], names[-1])
    assert not has_room_for_member(names, f"a/{'x' * (length - 2)}")
    view = {"members": [[name, MAX_NUMBER] for name in names], "joined": names, "left": [], "suspected": [], "flush": 0}
    data = Data(VIEW, 2, 9, view=3, payload=canonical_json(view))
    assert len(data.payload) > MAX_PAYLOAD_BYTES
    told = carry(data, "a", 5, lambda _: True)
    assert len(told.payload) <= MAX_PAYLOAD_BYTES
    assert [member.address for member in remote_members(told.sender, told.payload) or ()] == names


@pytest.mark.parametrize("payload", [b"", b"[" * 100_000, b"[1]", b'{"joined":[]}', b'{"members":NaN}', b"\xff"])
def test_a_view_that_is_none_is_left_to_the_neighbour(payload: bytes) -> None:
    assert carry(Data(VIEW, 2, 9, view=3, payload=payload), "a", 5, lambda _: True).payload == payload


# Any log.


@st.composite
def link_logs(draw: st.DrawFn) -> list[Forward | Malformed]:
    """Draw the records of two links and two members: runs, repeats, holes, stale epochs, sessions that come and go."""
    records: list[Forward | Malformed] = []
    for neighbour in NEIGHBOURS[: draw(st.integers(1, 2))]:
        records += draw(_link(neighbour))
    local: dict[str, int] = {}
    for offset in range(draw(st.integers(0, 8))):
        sender = draw(st.sampled_from(("s/x", "s/y", "bad")))
        local[sender] = local.get(sender, 0) + draw(st.sampled_from((1, 1, 1, 1, 0, 2)))
        source = Source(HERE, 0, offset)
        kind = draw(st.sampled_from((MESSAGE,) * 6 + (JOIN,)))
        records.append(Forward(sender, 1, max(1, local[sender]), b"", source, kind=kind))
    return sorted(records, key=lambda record: record.source)


@st.composite
def _link(draw: st.DrawFn, neighbour: str) -> list[Forward | Malformed]:
    log: list[tuple[int, int, str, int]] = []  # the neighbour's DATA: epoch, seqno, origin (or kind), seqno there
    epoch, seqno, stale = 1, 0, 0
    numbers = dict.fromkeys(ORIGINS, 0)
    for _ in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from((*ORIGINS, *ORIGINS, SKIP, REMOTE_VIEW, EPOCH, "stale")))
        if what == EPOCH:
            epoch += 1
            log.append((epoch, 0, SKIP, 0))
        elif what == "stale":
            stale = draw(st.integers(1, epoch))
            log.append((stale, seqno + draw(st.integers(0, 2)), "c", draw(st.integers(0, 20))))
        else:
            seqno += 1
            if what in ORIGINS:
                numbers[what] += draw(st.integers(1, 3))
            log.append((epoch, seqno, what, numbers.get(what, 0)))
    sessions: list[int] = []
    records: list[Forward | Malformed] = []
    for _ in range(draw(st.integers(1, 4))):
        known = dict.fromkeys(draw(st.sets(st.sampled_from(ORIGINS))), draw(st.integers(0, 4)))
        begins = draw(st.integers(0, len(log)))
        at_epoch = max((row[0] for row in log[:begins]), default=1)
        at_seqno = max((row[1] for row in log[:begins]), default=0)
        if draw(st.integers(0, 9)):
            sessions.append(len(records))
            records.append(start(neighbour, len(records), at_epoch, at_seqno, **known))
        for _ in range(draw(st.integers(0, 3))):
            session = draw(st.sampled_from(sessions or [0]))
            first = draw(st.sampled_from((begins, begins, draw(st.integers(0, len(log))))))
            for row_epoch, row_seqno, what, number in log[first : draw(st.integers(first, len(log)))]:
                kind = what if what in (SKIP, REMOTE_VIEW) else MESSAGE
                payload = b'{"members":[]}' if kind == REMOTE_VIEW else b""
                link = (session, row_epoch, row_seqno, number)
                record = linked(neighbour, len(records), link, what, kind, payload)
                records.append(replace(record, local_seqno=max(1, row_seqno)) if kind == REMOTE_VIEW else record)
        if not draw(st.integers(0, 5)):
            records.append(Malformed(Source(f"abcast.g.relayed-{neighbour}.s", 0, len(records)), "a reason"))
    first, count = draw(st.integers(0, 3 * len(records))), draw(st.integers(1, 3))
    return records[:first] + records[first + count :]


def decided(state: SequencerState) -> SequencerState:
    """Return the part of the state that DATA tells."""
    return replace(
        state,
        positions={},
        decided={},
        duplicates=0,
        unsnapped=0,
        links={},
        membership=state.membership.without_time(),
    )


@given(link_logs(), st.lists(st.integers(0, 60), max_size=4), st.sets(st.integers(0, 60), max_size=3))
def test_both_forms_take_the_same_and_data_tells_it(
    log: list[Forward | Malformed], at: list[int], gone: set[int]
) -> None:
    """After each batch a successor knows the decisions; records that it reads again lead to the same rows.

    `gone`: records that the log has no more at the end, when it is read again from its beginning.
    """
    state, written = opened(), [seal(1)]
    bounds = sorted({0, len(log), *(min(where, len(log)) for where in at)})
    for first, end in pairwise(bounds):
        rows, columns = step(state, log[first:end]), step_by_columns(state, log[first:end])
        assert columns == rows
        state = rows.state
        written += [record for record in rows.outputs if isinstance(record, Data)]
        told = absorb(SequencerState("g"), written)
        assert decided(told) == decided(state)
        from_snapshot = absorb(SequencerState("g"), [snapshot(state)])
        assert (from_snapshot.links, from_snapshot.origins) == (state.links, state.origins)
    left = [record for row, record in enumerate(log) if row not in gone]
    again = [record for record in left if isinstance(record, Malformed) or record.kind in COLUMN_KINDS]
    assert step_by_columns(state, again) == step(state, again)


@given(link_logs(), st.integers(0, 60), st.integers(0, 60))
def test_every_row_is_true(log: list[Forward | Malformed], cut: int, crash: int) -> None:
    """Each origin's messages are taken in its order and once, also by a successor that reads FORWARD again."""
    _, outputs = step(opened(), log[:cut])
    written = [seal(1), *(record for record in outputs if isinstance(record, Data))][: 1 + crash]
    successor = absorb(SequencerState("g"), [*written, seal(2)])
    after, more = step(successor, log)
    taken = ordered([*written, *more])
    for origin in ORIGINS:
        numbers = [number for name, number in taken if name == origin]
        assert numbers == sorted(set(numbers))
        assert after.origins.get(origin, 0) == max(numbers, default=0)


def test_the_table_does_not_change_what_it_was_made_from() -> None:
    rows, origins = {"a": LinkRow(0, 1, 0)}, {"a": 0}
    assert LinkTable(rows, origins).take(linked("a", 1, (0, 1, 1, 1)))
    assert (rows, origins) == ({"a": LinkRow(0, 1, 0)}, {"a": 0})
