"""Views of neighbouring sites: their relays' reports, a relay's silence, and the traces in DATA."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.records import (
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    LEAVE,
    MESSAGE,
    REFUSED,
    REMOTE_VIEW,
    SETTINGS,
    START_FLUSH,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Malformed,
    Source,
)
from ordering.checker.checker import Checker
from ordering.membership.membership import MemberIncarnation, Membership, RemoteSite, remote_members
from ordering.participant.events import EventReader, RemoteView
from ordering.sequencer.sequencer import absorb, begin_batch, end_batch, snapshot, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import TOPIC, opened
from tests.simulator.columns import step_by_columns

RELAYED = "abcast.g.relayed-far.s"
RELAY = "far/abcast.relay"
TICK = "far/abcast.tick"
BOB, CAROL = MemberIncarnation("far/bob", 1), MemberIncarnation("far/carol", 2)


def view(*members: MemberIncarnation) -> bytes:
    return json.dumps({"members": members, "joined": [], "left": [], "suspected": [], "flush": 0}).encode()


class Site:
    """A site that has one forward partition and one that the relay from `far` fills, decided batch by batch."""

    def __init__(self, **settings: object) -> None:
        self.state = opened()
        self.now = 1_000
        self.offsets = {TOPIC: 0, RELAYED: 0}
        self.dead: list[DeadLetter] = []
        self.data: list[Data] = []
        self.batch(("s/admin", SETTINGS, 1, 1, json.dumps({"suspect_after_ms": 3_000, **settings}).encode()))

    def batch(self, *records: tuple[str, str, int, int, bytes], after_ms: int = 0) -> list[Data]:
        """Decide `(sender, kind, incarnation, local seqno, payload)` records; return the DATA."""
        self.now += after_ms
        rows: list[Forward | Malformed] = []
        for sender, kind, incarnation, local, payload in records:
            topic = TOPIC if sender.startswith("s/") else RELAYED
            self.offsets[topic] += 1
            source = Source(topic, 0, self.offsets[topic])
            rows.append(Forward(sender, incarnation, local, payload, source, kind=kind, timestamp_ms=self.now))
        rows.sort(key=lambda row: row.source)
        by_rows = step(self.state, rows)
        assert step_by_columns(self.state, rows) == by_rows
        self.state, closing = end_batch(by_rows.state)
        written = [record for record in by_rows.outputs if isinstance(record, Data)]
        self.dead += [record for record in by_rows.outputs if isinstance(record, DeadLetter)]
        self.data += [*written, *closing]
        return [*written, *closing]

    def tell(self, epoch: int, view_id: int, *members: MemberIncarnation) -> list[Data]:
        return self.batch((RELAY, REMOTE_VIEW, epoch, view_id, view(*members)))

    def wait(self, after_ms: int, *, beats: bool = False) -> list[Data]:
        """Let time pass: the job ticks each second, and in the end the relay may beat."""
        seconds = (after_ms - 1) // 1_000
        found = [data for _ in range(seconds) for data in self.stand_still(1_000)]
        return found + self.stand_still(after_ms - 1_000 * seconds, beats=beats)

    def stand_still(self, after_ms: int, *, beats: bool = False) -> list[Data]:
        """Let time pass without a record; then write a tick."""
        ticks = [(TICK, HEARTBEAT, 1, 1, b""), ("s/abcast.tick", HEARTBEAT, 1, 1, b"")]
        return self.batch(*ticks, *([(RELAY, HEARTBEAT, 1, 1, b"")] if beats else []), after_ms=after_ms)

    def take_over(self) -> None:
        self.state = absorb(SequencerState("g"), [Data("epoch", 1), *self.data])

    @property
    def far(self) -> RemoteSite | None:
        return self.state.membership.remote.get("far")

    def events(self) -> list[tuple[tuple[str, ...], bool]]:
        reader = EventReader()
        found = [reader.accept(d.kind, d.seqno, d.view, d.sender, d.payload) for d in self.data]
        return [(event.members, event.reachable) for event in found if isinstance(event, RemoteView)]


def test_the_newest_view_counts() -> None:
    """Views go by (epoch, view id), with gaps; repeats and leftovers of a fenced sequencer do not count."""
    site = Site()
    [told] = site.tell(2, 7, BOB)
    assert (told.kind, told.sender, told.incarnation, told.local_seqno) == (REMOTE_VIEW, RELAY, 2, 7)
    assert site.tell(2, 7, BOB) == site.tell(2, 6) == site.tell(1, 99, CAROL) == []
    assert site.far == RemoteSite((BOB,))
    assert site.tell(2, 9, BOB, CAROL)
    assert site.tell(3, 1, CAROL)
    assert site.far == RemoteSite((CAROL,))
    assert site.state.duplicates == 3
    assert site.state.membership.members == ()


def test_silence_empties_the_remote_view_and_the_relay_brings_it_back() -> None:
    site = Site()
    site.tell(1, 1, BOB)
    assert site.wait(3_000) == site.wait(1_000, beats=True) == site.wait(3_000) == []
    [gone] = site.wait(1)
    assert (gone.kind, gone.sender, json.loads(gone.payload)) == (
        REMOTE_VIEW,
        "",
        {"site": "far", "members": [], "silent": True},
    )
    assert site.wait(60_000) == []
    [back] = site.wait(1_000, beats=True)
    assert json.loads(back.payload) == {"site": "far", "members": [list(BOB)], "silent": False}
    assert site.far == RemoteSite((BOB,))
    assert site.events() == [(("far/bob",), True), ((), False), (("far/bob",), True)]


def test_a_view_brings_a_silent_site_back() -> None:
    site = Site()
    site.tell(1, 1, BOB)
    site.wait(1_000)
    site.wait(4_000)
    assert site.far == RemoteSite((BOB,), is_silent=True)
    assert len(site.tell(1, 2, BOB, CAROL)) == 1
    assert site.far == RemoteSite((BOB, CAROL))


def test_a_relay_that_takes_leave_is_missed_at_once() -> None:
    site = Site()
    site.tell(1, 1, BOB)
    site.wait(1_000, beats=True)
    [gone] = site.batch((RELAY, LEAVE, 1, 1, b""))
    assert json.loads(gone.payload)["silent"]
    assert site.wait(1_000) == []
    [back] = site.wait(1_000, beats=True)
    assert not json.loads(back.payload)["silent"]


def test_more_patience_brings_nobody_back() -> None:
    site = Site()
    site.tell(1, 1, BOB)
    site.wait(1_000, beats=True)
    assert len(site.wait(4_000)) == 1
    [change] = site.batch(("s/admin", SETTINGS, 2, 1, b'{"suspect_after_ms":60000}'))
    assert change.kind == SETTINGS
    assert site.far == RemoteSite((BOB,), is_silent=True)


def test_a_tick_speaks_for_nobody() -> None:
    """The neighbour's partition goes on, and its relay is missed."""
    site = Site()
    site.tell(1, 1, BOB)
    site.wait(1_000)
    assert [len(site.wait(1_000)) for _ in range(5)] == [0, 0, 0, 1, 0]


def test_after_a_takeover_the_relay_has_a_fresh_grace_period() -> None:
    site = Site()
    site.tell(1, 1, BOB)
    site.wait(3_000, beats=True)
    site.take_over()
    assert site.stand_still(60_000) == site.wait(3_000) == []
    assert len(site.wait(1)) == 1
    site.take_over()
    assert site.far == RemoteSite((BOB,), is_silent=True)
    assert site.wait(60_000) == []
    assert len(site.wait(1_000, beats=True)) == 1


def test_a_site_without_members_is_not_missed() -> None:
    """Its earlier silence is not held against it."""
    site = Site()
    site.tell(1, 1, BOB)
    site.wait(1_000, beats=True)
    site.tell(1, 2)
    assert not site.state.membership.is_watched
    assert site.wait(60_000) == []
    site.tell(1, 3, CAROL)
    assert site.stand_still(60_000) == []
    assert len(site.wait(3_001)) == 1


def test_remote_members_are_members_nowhere() -> None:
    """Remote members take no part in a view or a flush, and a closed group refuses their records."""
    site = Site(closed=True, flush=True)
    site.batch(("s/a", JOIN, 1, 1, b""))
    site.tell(1, 1, BOB)
    written = site.batch(("s/b", JOIN, 1, 1, b""), (BOB.address, MESSAGE, 1, 1, b"x"))
    assert [record.kind for record in written] == [JOIN, START_FLUSH]
    assert len(site.dead) == 1
    written = site.batch(("s/a", FLUSH_OK, 1, 2, b"%d" % written[-1].seqno), (RELAY, REMOTE_VIEW, 1, 2, view(CAROL)))
    assert [record.kind for record in written] == [FLUSH_OK, REMOTE_VIEW, VIEW, "stop-flush"]
    assert [member.address for member in site.state.membership.members] == ["s/a", "s/b"]
    assert site.far == RemoteSite((CAROL,))
    checker = Checker()
    for record in site.data:
        checker.data("s", record)
    assert checker.finish() == []


def test_a_high_floor_does_not_shut_a_relay_out() -> None:
    """Epochs are small numbers, and the floor is a time in ms."""
    state, _ = step(
        SequencerState("g", 1, membership=Membership(incarnation_floor=10**12)),
        [Forward(RELAY, 1, 1, view(BOB), Source(RELAYED, 0, 0), kind=REMOTE_VIEW)],
    )
    assert state.membership.remote == {"far": RemoteSite((BOB,))}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"7", b"[]", b"{}", b'{"members":7}', b'{"members":["ab"]}', b'{"members":[["far/a"]]}',
     b'{"members":[["s/a",1]]}', b'{"members":[["far/",1]]}', b'{"members":[["far/a",true]]}',
     b'{"members":[["far/a",0]]}', b'{"members":[["far/a",1],["far/a",2]]}', b'{"members":[[["far/a"],1]]}',
     b'{"members":' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_view_is_refused(payload: bytes) -> None:
    """The refused record gets a reason and keeps its place, as every control record."""
    assert remote_members(RELAY, payload) is None
    site = Site()
    [refused] = site.batch((RELAY, REMOTE_VIEW, 1, 1, payload))
    assert (refused.kind, json.loads(refused.payload)["reason"]) == (
        REFUSED,
        "the payload is not a view of the sender's site",
    )
    assert site.state.membership.remote == {}
    assert site.tell(1, 2, BOB)


def test_an_event_says_what_is_new() -> None:
    """A view that is reported again under a new epoch is no event; a reader may start anywhere, or from a state."""
    reader = EventReader()
    assert reader.accept(REMOTE_VIEW, 1, 0, RELAY, view(BOB)) == RemoteView(1, "far", ("far/bob",))
    assert reader.accept(REMOTE_VIEW, 2, 0, RELAY, view(BOB)) is None
    reader = EventReader()
    reader.know_remote(Membership(remote={"far": RemoteSite((BOB,), is_silent=True)}))
    assert reader.remote == {"far": RemoteView(0, "far", (), reachable=False)}
    assert reader.accept(REMOTE_VIEW, 3, 0, RELAY, view(BOB)) == RemoteView(3, "far", ("far/bob",))


members = st.lists(st.sampled_from((BOB, CAROL, MemberIncarnation("far/dan", 3))), max_size=2, unique=True)
records = st.one_of(
    st.builds(
        lambda epoch, view_id, members: (RELAY, REMOTE_VIEW, epoch, view_id, view(*members)),
        st.integers(1, 3),
        st.integers(1, 4),
        members,
    ),
    st.sampled_from(
        [
            (RELAY, HEARTBEAT, 1, 1, b""),
            (RELAY, LEAVE, 1, 1, b""),
            (RELAY, REMOTE_VIEW, 2, 2, b"no view"),
            (TICK, HEARTBEAT, 1, 1, b""),
            ("s/abcast.tick", HEARTBEAT, 1, 1, b""),
            ("s/a", JOIN, 1, 1, b""),
            ("s/a", MESSAGE, 1, 2, b"x"),
            ("s/a", LEAVE, 1, 2, b""),
            ("s/a", HEARTBEAT, 1, 1, b""),
            (BOB.address, MESSAGE, 1, 1, b"x"),
        ]
    ),
)


@given(st.lists(st.tuples(st.lists(records, max_size=6), st.sampled_from((0, 500, 2_000, 4_000))), max_size=12))
def test_data_tells_what_the_sequencer_knows(batches: list[tuple[list[tuple[str, str, int, int, bytes]], int]]) -> None:
    """Whatever relays report: columns decide the same (asserted by `batch`), and a successor's state is the same
    but for the time, wherever it begins. Every reader of DATA has the same remote members.
    """
    site = Site()
    for rows, after_ms in batches:
        site.batch(*rows, after_ms=after_ms)
        known = absorb(SequencerState("g"), [Data("epoch", 1), *site.data])
        assert known.membership == site.state.membership.without_time()
        assert (known.received, known.seqno) == (site.state.received, site.state.seqno)
        assert SequencerState.from_bytes(site.state.to_bytes()) == site.state
        assert absorb(SequencerState("g"), [snapshot(site.state)]).membership == known.membership
        reader = EventReader()
        for record in site.data:
            reader.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
        shown = EventReader()
        shown.know_remote(site.state.membership)
        assert {name: event[1:] for name, event in reader.remote.items()} == {
            name: event[1:] for name, event in shown.remote.items()
        }


@given(st.lists(records, max_size=12), st.integers(0, 12), st.booleans())
def test_a_batch_in_pieces_is_the_same_batch(
    told: list[tuple[str, str, int, int, bytes]], cut: int, known_before: bool
) -> None:
    site = Site()
    if known_before:
        site.tell(1, 1, BOB)
    rows: list[Forward | Malformed] = [
        Forward(sender, incarnation, local, payload, Source(RELAYED, 0, 10 + row), kind=kind, timestamp_ms=2_000 + row)
        for row, (sender, kind, incarnation, local, payload) in enumerate(told)
    ]
    state, _ = begin_batch(site.state)
    whole = step(state, rows)
    first = step(state, rows[:cut])
    second = step(first.state, rows[cut:])
    assert (second.state, (*first.outputs, *second.outputs)) == (whole.state, whole.outputs)
