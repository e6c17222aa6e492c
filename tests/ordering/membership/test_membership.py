"""Views: what a batch of joins, leaves and silences gives. `tests.world.membership` has the random histories."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import MappingProxyType
from unittest.mock import patch

import pytest

from ordering.base.errors import UsageError
from ordering.base.records import (
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    LEAVE,
    MESSAGE,
    REFUSED,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Partition,
    Source,
)
from ordering.membership import membership as core
from ordering.membership.failure_detector import FailureDetector, LastHeard
from ordering.membership.membership import NOT_A_MEMBER, FormerMember, MemberIncarnation, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer.sequencer import absorb, end_batch, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import TOPIC, opened
from tests.simulator.columns import step_by_columns


class Log:
    """A FORWARD log of one partition, decided batch by batch."""

    def __init__(self, **settings: object) -> None:
        self.state = opened()
        self.offset = self.now = 0
        self.known = 0  # what the job knows to be written, if not all
        self.locals: dict[tuple[str, int], int] = {}
        self.dead: list[DeadLetter] = []
        self.data: list[Data] = []
        if settings:
            self.batch(("s/admin", SETTINGS, json.dumps(settings).encode()))

    def forward(self, sender: str, kind: str, payload: bytes = b"", incarnation: int = 1) -> Forward:
        local = self.known or max(1, self.state.seqno)
        if kind != HEARTBEAT:
            local = self.locals[sender, incarnation] = self.locals.get((sender, incarnation), 0) + 1
        self.offset += 1
        source = Source(TOPIC, 0, self.offset)
        return Forward(sender, incarnation, local, payload, source, kind=kind, timestamp_ms=self.now)

    def batch(self, *records: tuple[object, ...], after_ms: int = 0) -> list[Data]:
        """Decide `(sender, kind, payload, incarnation)` records; return the DATA. A tick comes every second."""
        ticks = []
        for _ in range((after_ms - 1) // 1_000):
            self.now += 1_000
            ticks.append(self.forward("s/abcast.tick", HEARTBEAT))
        self.now += after_ms - 1_000 * len(ticks)
        forward = [*ticks, *(self.forward(*record) for record in records)]  # type: ignore[arg-type]
        columnwise, (state, outputs) = step_by_columns(self.state, forward), step(self.state, forward)
        assert columnwise == (state, outputs)
        self.state, closing = end_batch(state)
        written = [record for record in outputs if isinstance(record, Data)]
        self.dead += [record for record in outputs if isinstance(record, DeadLetter)]
        self.data += [*written, *closing]
        return [*written, *closing]

    def stand_still(self, after_ms: int) -> list[Data]:
        """Let no record be written for so long; then write a tick."""
        self.now += after_ms
        return self.batch(("s/abcast.tick", HEARTBEAT))

    def tick(self, after_ms: int, *alive: str) -> list[Data]:
        return self.batch(*((name, HEARTBEAT) for name in ("s/abcast.tick", *alive)), after_ms=after_ms)

    @property
    def members(self) -> list[str]:
        return [member.address for member in self.state.membership.members]


def taken_over(state: SequencerState, horizon: int) -> SequencerState:
    """Return the log of a successor that knows the ledger only: it reads all of FORWARD again, up to `horizon`."""
    membership = replace(state.membership.without_time(), horizon={Partition(TOPIC, 0): horizon})
    return replace(state, positions={}, membership=membership)


def kinds(records: list[Data]) -> list[str]:
    return [record.kind for record in records]


def test_a_batch_gives_one_view() -> None:
    """FLUSH (docs/sources.md), "view bundling": V2 = M - S - L + J, oldest member first."""
    log = Log(suspect_after_ms=5_000)
    log.batch(*((f"s/{name}", JOIN) for name in "cbad"))
    log.tick(1_000, "s/a", "s/b", "s/c", "s/d")
    log.tick(4_000, "s/a", "s/b", "s/c")
    written = log.batch(
        ("s/e", JOIN), ("s/b", LEAVE), ("s/a", MESSAGE), ("s/f", JOIN), ("s/c", HEARTBEAT), after_ms=2_000
    )
    assert kinds(written) == [JOIN, LEAVE, MESSAGE, JOIN, VIEW]
    assert json.loads(written[-1].payload) == {
        "members": [["s/c", 1], ["s/a", 1], ["s/e", 1], ["s/f", 1]],
        "joined": ["s/e", "s/f"],
        "left": ["s/b"],
        "suspected": ["s/d"],
        "flush": 0,
    }
    assert [record.view for record in written] == [1, 1, 1, 1, 2]


def test_a_hundred_joins_are_one_view() -> None:
    log = Log()
    written = log.batch(*((f"s/m{n}", JOIN) for n in range(100)))
    assert kinds(written) == [JOIN] * 100 + [VIEW]
    assert len(log.members) == 100


def test_with_flush_a_view_waits_for_the_last_messages() -> None:
    log = Log(flush=True)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    start = log.batch(("s/c", JOIN), ("s/a", MESSAGE))
    assert kinds(start) == [JOIN, MESSAGE, START_FLUSH]
    flush = b"%d" % start[-1].seqno
    assert kinds(log.batch(("s/a", MESSAGE), ("s/a", FLUSH_OK, flush))) == [MESSAGE, FLUSH_OK]
    written = log.batch(("s/b", MESSAGE), ("s/b", FLUSH_OK, flush))
    assert kinds(written) == [MESSAGE, FLUSH_OK, VIEW, STOP_FLUSH]
    assert [record.view for record in written] == [1, 1, 2, 2]


def test_who_does_not_answer_in_time_leaves_the_view() -> None:
    """Time is the log's; the member's messages of the old view are then in no view that it shares."""
    log = Log(flush=True, flush_timeout_ms=4_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.tick(1_000, "s/a", "s/b")
    start = log.batch(("s/c", JOIN))
    log.batch(("s/a", FLUSH_OK, b"%d" % start[-1].seqno))
    log.tick(1)
    assert log.tick(4_000, "s/a", "s/b") == []
    assert kinds(log.tick(1, "s/a", "s/b")) == [VIEW, STOP_FLUSH]
    assert log.members == ["s/a", "s/c"]


def test_a_quiet_point() -> None:
    """FLUSH (docs/sources.md), phases 1 to 4: START_FLUSH, FLUSH_OK, FLUSH_COMPLETED, STOP_FLUSH, with views
    between.
    """
    log = Log()
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    (start,) = log.batch(("s/b", START_FLUSH))
    flush = b"%d" % start.seqno
    log.batch(("s/c", JOIN))
    written = log.batch(("s/a", FLUSH_OK, flush), ("s/a", MESSAGE), ("s/b", FLUSH_OK, flush))
    assert [record.kind for record in written] == [FLUSH_OK, FLUSH_OK, "flush-completed", VIEW]
    assert kinds(log.batch(("s/c", STOP_FLUSH, flush))) == [REFUSED]
    assert kinds(log.batch(("s/b", STOP_FLUSH, flush))) == [STOP_FLUSH]
    assert kinds(log.batch(("s/b", STOP_FLUSH, flush))) == [REFUSED]


def test_the_next_member_runs_the_flush_again_if_the_requester_dies() -> None:
    log = Log(suspect_after_ms=2_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN), ("s/c", JOIN))
    (start,) = log.batch(("s/a", START_FLUSH))
    log.batch(("s/b", FLUSH_OK, b"%d" % start.seqno))
    log.tick(1_000, "s/b", "s/c")
    (again,) = log.tick(3_000, "s/b", "s/c")
    assert (again.kind, json.loads(again.payload)["requester"]) == (START_FLUSH, "s/b")
    written = log.batch(*((name, FLUSH_OK, b"%d" % again.seqno) for name in ("s/b", "s/c")))
    assert kinds(written) == [FLUSH_OK, FLUSH_OK, VIEW, STOP_FLUSH]
    assert log.members == ["s/b", "s/c"]


def test_a_flush_cannot_hang() -> None:
    log = Log(flush_timeout_ms=3_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.batch(("s/a", START_FLUSH))
    log.tick(1)
    assert log.tick(3_000, "s/a", "s/b") == []
    (stop,) = log.tick(1, "s/a", "s/b")
    assert (stop.kind, json.loads(stop.payload)["reason"]) == (
        STOP_FLUSH,
        "the flush took longer than flush_timeout_ms",
    )


def test_a_closed_group_takes_members_only() -> None:
    log = Log(closed=True)
    log.batch(("s/a", JOIN))
    written = log.batch(("s/a", MESSAGE), ("s/x", MESSAGE), ("s/x", HEARTBEAT))
    assert kinds(written) == [MESSAGE]
    assert [letter.reason for letter in log.dead] == [NOT_A_MEMBER]


def test_a_partition_that_is_read_late_accuses_nobody() -> None:
    """Silence is measured in the partition where a member was heard."""
    state = replace(
        opened(),
        membership=Membership(
            members=(MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)),
            detector=FailureDetector(
                heard={"s/a": LastHeard(Partition("p", 0), 10_000), "s/b": LastHeard(Partition("p", 1), 10_000)},
                clock={Partition("p", 0): 10_500, Partition("p", 1): 90_000},
            ),
        ),
    )
    state, (view,) = end_batch(state)
    assert json.loads(view.payload)["suspected"] == ["s/b"]


def test_a_backlog_gives_a_flush_the_time_to_be_answered() -> None:
    """Its timeout begins when members can read it, not at the log's time in the backlog."""
    log = Log(flush=True, flush_timeout_ms=4_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.known = log.state.seqno
    begun = log.batch(("s/c", JOIN))[-1].seqno
    for _ in range(20):  # written before the START_FLUSH was: nobody could answer
        assert log.tick(1_000, "s/a", "s/b") == []
    log.known = begun
    log.tick(1_000, "s/a", "s/b")
    assert log.tick(4_000, "s/a", "s/b") == []
    written = log.batch(("s/a", FLUSH_OK, b"%d" % begun), ("s/b", FLUSH_OK, b"%d" % begun))
    assert kinds(written) == [FLUSH_OK, FLUSH_OK, VIEW, STOP_FLUSH]
    assert log.members == ["s/a", "s/b", "s/c"]


def test_a_standstill_is_nobodys_silence() -> None:
    """The broker was away for a minute, and the job's tick is the first record after it."""
    log = Log(flush=True, suspect_after_ms=5_000, flush_timeout_ms=6_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.tick(1_000, "s/a", "s/b")
    log.batch(("s/c", JOIN))
    log.tick(1_000, "s/a", "s/b")
    assert log.stand_still(60_000) == []
    assert log.tick(3_000) == []
    assert log.tick(1_000, "s/a") == []
    written = log.tick(1_000, "s/a")
    assert kinds(written) == [VIEW, STOP_FLUSH]
    assert json.loads(written[0].payload)["suspected"] == ["s/a", "s/b"]  # a has not answered in time


def test_a_standstill_of_one_partition_says_nothing_of_the_others() -> None:
    """A member that was not heard since the takeover is out once each partition has gone on without it for so long."""
    members = (MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1))
    state = replace(opened(), membership=Membership(settings=Settings(suspect_after_ms=5_000), members=members))
    now = {0: 0, 1: 0}
    offsets = {0: 0, 1: 0}

    def batch(*passed: tuple[int, int]) -> list[str]:
        nonlocal state
        rows = []
        for partition, after_ms in passed:
            now[partition] += after_ms
            offsets[partition] += 1
            source = Source(TOPIC, partition, offsets[partition])
            rows.append(Forward("s/abcast.tick", 1, 1, b"", source, kind=HEARTBEAT, timestamp_ms=now[partition]))
        assert step_by_columns(state, rows) == step(state, rows)
        state, closing = end_batch(step(state, rows).state)
        return [name for data in closing for name in json.loads(data.payload)["suspected"]]

    assert batch((0, 1_000), (1, 1_000)) == []
    assert batch((0, 60_000), (1, 1_000)) == []
    assert batch((0, 1_000), (1, 1_000), (1, 1_000)) == []
    assert batch((1, 60_000)) == []
    assert batch((0, 1_000), (1, 1_000)) == []
    assert batch((0, 1_500)) == ["s/a", "s/b"]


def test_a_new_life_does_not_inherit_the_silence_of_the_last_one() -> None:
    log = Log(suspect_after_ms=3_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.tick(1_000, "s/a", "s/b")
    log.tick(2_000, "s/b")
    (_, view) = log.batch(("s/b", HEARTBEAT), ("s/a", JOIN, b"", 2), after_ms=2_000)
    assert json.loads(view.payload)["members"] == [["s/b", 1], ["s/a", 2]]
    assert log.tick(1_000, "s/b") == []


def test_a_joiner_is_not_missed_by_a_partition_that_is_read_late() -> None:
    state = replace(
        opened(),
        membership=Membership(
            members=(MemberIncarnation("s/a", 1),),
            detector=FailureDetector(clock={Partition("p", 0): 90_000, Partition("p", 1): 10_000}),
        ),
    )
    state, closing = end_batch(state)
    assert (closing, state.membership.detector.heard) == ((), {"s/a": LastHeard(None, 90_000)})


def test_who_was_not_waited_for_is_out_whatever_happens_meanwhile() -> None:
    """a is overdue when the flush is completed. The sequencer dies before it writes the view, and a is heard again."""
    log = Log(suspect_after_ms=2_000)
    log.batch(("s/r", JOIN), ("s/a", JOIN))
    log.tick(1_000, "s/r", "s/a")
    (start,) = log.batch(("s/r", START_FLUSH))
    written = log.batch(("s/r", FLUSH_OK, b"%d" % start.seqno), after_ms=3_000)
    assert kinds(written) == [FLUSH_OK, "flush-completed", VIEW]
    log.state = absorb(opened(), log.data[:-1])
    written = log.batch(("s/a", MESSAGE), ("s/d", JOIN))
    assert kinds(written) == [JOIN, VIEW]
    assert log.members == ["s/r", "s/d"]


@pytest.mark.parametrize("settings", [{}, {"closed": True}, {"flush": True}])
def test_a_life_that_was_suspected_is_over(settings: dict[str, object]) -> None:
    """With flush or in a closed group, its messages of a view come in no later one. Otherwise they are a stranger's."""
    log = Log(suspect_after_ms=2_000, flush_timeout_ms=1_000, **settings)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.batch(("s/b", MESSAGE))
    log.tick(1_000, "s/a", "s/b")
    log.tick(3_000, "s/a")
    for record in [data for data in log.data if data.kind == START_FLUSH]:
        log.batch(("s/a", FLUSH_OK, b"%d" % record.seqno))
    assert log.members == ["s/a"]
    for state in (log.state, absorb(opened(), log.data)):
        assert state.ordered("s/b") == (1, 2)
        assert state.is_over("s/b", 1) == bool(settings)
    assert kinds(log.batch(("s/b", MESSAGE), ("s/b", JOIN))) == ([] if settings else [MESSAGE, JOIN, VIEW])
    assert log.dead == []
    assert JOIN in kinds(log.batch(("s/b", JOIN, b"", 2)))


def test_a_member_that_leaves_and_is_back_at_once_is_the_youngest() -> None:
    """A member with an outbox keeps its incarnation; both records may be in one batch."""
    log = Log()
    log.batch(("s/b", JOIN), ("s/a", JOIN))
    written = log.batch(("s/b", LEAVE), ("s/b", JOIN))
    assert kinds(written) == [LEAVE, JOIN, VIEW]
    told = json.loads(written[-1].payload)
    assert (told["members"], told["joined"], told["left"]) == ([["s/a", 1], ["s/b", 1]], ["s/b"], [])


def test_who_leaves_is_not_suspected_as_well() -> None:
    log = Log(suspect_after_ms=2_000)
    log.batch(("s/b", JOIN), ("s/a", JOIN))
    log.tick(1_000, "s/a", "s/b")
    leave = log.forward("s/b", LEAVE)
    log.now += 1_000
    late = [log.forward("s/abcast.tick", HEARTBEAT), log.forward("s/a", HEARTBEAT)]
    log.now += 2_000
    late += [log.forward("s/abcast.tick", HEARTBEAT), log.forward("s/a", HEARTBEAT)]
    state, _ = step(log.state, [leave, *late])
    _, (view,) = end_batch(state)
    told = json.loads(view.payload)
    assert (told["left"], told["suspected"]) == (["s/b"], [])


def test_after_a_takeover_everybody_has_a_fresh_grace_period() -> None:
    log = Log(suspect_after_ms=1_000)
    log.batch(("s/a", JOIN))
    log.tick(500, "s/a")
    log.state = absorb(opened(), log.data)
    assert log.stand_still(60_000) == []
    assert log.tick(1_000) == []
    assert kinds(log.tick(1)) == [VIEW]


def test_a_new_incarnation_takes_the_place_of_the_old_one() -> None:
    """A member that was suspected wrongly, or started again, is a new member: the youngest."""
    log = Log()
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.batch(("s/a", JOIN, b"", 2))
    assert log.state.membership.members == (MemberIncarnation("s/b", 1), MemberIncarnation("s/a", 2))


def test_rows_of_members_that_left_are_dropped_and_no_old_life_comes_back() -> None:
    with patch.object(core, "MAX_LEFT", 2):
        log = Log()
        for number in range(1, 5):
            log.batch((f"s/m{number}", JOIN, b"", number), (f"s/m{number}", MESSAGE, b"", number))
            log.batch((f"s/m{number}", LEAVE, b"", number))
    assert sorted(log.state.received) == ["s/m3", "s/m4"]
    assert log.state.membership.incarnation_floor == 2
    log.locals = {("s/m1", 1): 1}
    assert log.batch(("s/m1", MESSAGE, b"again", 1)) == []  # its local seqno 2
    log.locals = {}
    assert log.batch(("s/m1", JOIN, b"", 1), ("s/new", JOIN, b"", 2), ("s/m1", MESSAGE, b"", 1)) == []
    assert log.batch(("s/x", MESSAGE, b"", 2), ("s/y", MESSAGE, b"", 1)) == []
    assert kinds(log.batch(("s/m1", JOIN, b"", 3))) == [JOIN, VIEW]
    assert step_by_columns(log.state, []) == step(log.state, [])


def test_a_fold_leaves_the_received_table_as_it_is() -> None:
    """The fold names the rows to drop; its caller drops them."""
    members = (MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 5))
    before = Membership(Settings(closed=True), members, left=(FormerMember("s/x", 3, 2),), incarnation_floor=2)
    view = {"members": [["s/a", 1]], "joined": [], "left": [], "suspected": ["s/b"], "flush": 0}
    received = {"s/a": ReceivedRow(1, 1), "s/b": ReceivedRow(5, 4), "s/x": ReceivedRow(3, 2)}
    with patch.object(core, "MAX_LEFT", 1):
        after, dropped = core.fold(
            before, Data(VIEW, 1, 9, 2, payload=json.dumps(view).encode()), MappingProxyType(received)
        )
    assert dropped == ("s/x",)
    assert (after.left, after.incarnations_over, after.incarnation_floor) == (
        (FormerMember("s/b", 5, 4),),
        {"s/b": 5},
        3,
    )
    assert Membership.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_life_is_no_longer_over_when_a_later_one_begins() -> None:
    """Its entry is dropped with the new incarnation's view: there is one at most for each received row."""
    log = Log(closed=True, suspect_after_ms=2_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.tick(1_000, "s/a", "s/b")
    log.tick(3_000, "s/a")
    assert log.state.membership.incarnations_over == {"s/b": 1}
    log.batch(("s/b", JOIN, b"", 2))
    assert (log.members, log.state.membership.incarnations_over) == (["s/a", "s/b"], {})
    assert absorb(opened(), log.data).membership.incarnations_over == {}


def test_a_group_without_members_is_what_it_was() -> None:
    """A snapshot has no field for an empty membership."""
    state, _ = step(opened(), [Forward("s/a", 1, 1, b"", Source(TOPIC, 0, 0), timestamp_ms=5)])
    assert (end_batch(state), state.membership) == ((state, ()), core.NO_MEMBERS)
    assert SequencerState.from_bytes(state.to_bytes()) == state


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{}", b"[]", b"[" * 100_000),
        *(b'{"closed":1}', b'{"flush_timeout_ms":0}', b'{"suspect_after_ms":true}', b'{"other":1}'),
    ],
)
def test_what_is_no_setting(raw: bytes) -> None:
    with pytest.raises(UsageError):
        Settings().updated(raw)


def test_heartbeats_of_a_thousand_members_are_cheap() -> None:
    """Milliseconds a second: vectorised, no Python for a row."""
    members = tuple(MemberIncarnation(f"s/m{number}", 1) for number in range(1_000))
    state = replace(opened(), membership=Membership(members=members))
    rows = [
        Forward(member.address, 1, 1, b"", Source(TOPIC, 0, offset), kind=HEARTBEAT, timestamp_ms=offset)
        for offset, member in enumerate(members)
    ]
    from ordering.sequencer.columns import step_columns
    from tests.simulator.columns import to_columns

    columns = to_columns(rows)
    started = time.process_time()
    after, closing = end_batch(step_columns(state, columns).state)
    assert time.process_time() - started < 0.5
    assert len(after.membership.detector.heard) == 1_000
    assert closing == ()


class TestHorizon:
    """After a takeover from the ledger, FORWARD is read again from long before today's members joined."""

    def history(self) -> tuple[Log, list[Forward]]:
        """Return FORWARD and the ledger's rows after hours of ticks, then a JOIN and heartbeats of alice."""
        log = Log()
        forward = []
        for _ in range(1_000):
            log.now += 1_000
            forward.append(log.forward("s/abcast.tick", HEARTBEAT))
        forward.append(log.forward("s/alice", JOIN))
        log.state, _ = end_batch(step(log.state, forward).state)
        assert log.members == ["s/alice"]
        for _ in range(100):
            log.now += 1_000
            forward += [log.forward("s/abcast.tick", HEARTBEAT), log.forward("s/alice", HEARTBEAT)]
        return log, forward

    def read(self, state: SequencerState, forward: list[Forward]) -> tuple[SequencerState, list[Data]]:
        columnwise, (after, outputs) = step_by_columns(state, forward), step(state, forward)
        assert columnwise == (after, outputs)
        assert SequencerState.from_bytes(after.to_bytes()) == after
        state, closing = end_batch(after)
        return state, [*(record for record in outputs if isinstance(record, Data)), *closing]

    @pytest.mark.parametrize("rows", [50, 200, 5_000])
    def test_what_is_read_again_suspects_nobody(self, rows: int) -> None:
        log, forward = self.history()
        state = taken_over(log.state, forward[-1].source.offset + 1)
        for first in range(0, len(forward), rows):
            assert state.membership.horizon
            state, written = self.read(state, forward[first : first + rows])
            assert written == []
        assert not state.membership.horizon
        assert not state.membership.detector.clock

    def test_behind_it_time_goes_on(self) -> None:
        log, forward = self.history()
        log.state, _ = self.read(taken_over(log.state, forward[-1].source.offset + 1), forward)
        for _ in range(10):
            assert log.tick(1_000) == []
        assert kinds(log.tick(1_500)) == [VIEW]

    def test_who_joins_and_leaves_is_not_kept_waiting(self) -> None:
        log, forward = self.history()
        state = taken_over(log.state, forward[-1].source.offset + 1_000)
        log.now += 1
        state, written = self.read(state, [log.forward("s/bob", JOIN), log.forward("s/alice", LEAVE)])
        assert kinds(written) == [JOIN, LEAVE, VIEW]
        assert [member.address for member in state.membership.members] == ["s/bob"]
