"""Views: what a batch of joins, leaves and silences gives. `tests.simulator.membership` has the random histories."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from ordering import membership as core
from ordering.errors import ProtocolViolation, UsageError
from ordering.membership import NOT_A_MEMBER, Accepted, Life, Membership, Settings
from ordering.records import (
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    LEAVE,
    MAX_NUMBER,
    MESSAGE,
    REFUSED,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Source,
)
from ordering.sequencer import SequencerState, absorb, end_batch, step
from ordering.view_change import Decision, _remote_view, next_decision
from tests.core.forwards import TOPIC, opened
from tests.simulator.columns import step_by_columns
from tests.simulator.membership import Group
from tests.simulator.neighbour import Relay


class Log:
    """A FORWARD log of one partition, decided batch by batch."""

    def __init__(self, **settings: object) -> None:
        self.state = opened()
        self.offset = self.now = 0
        self.locals: dict[tuple[str, int], int] = {}
        self.dead: list[DeadLetter] = []
        self.data: list[Data] = []
        if settings:
            self.batch(("s/admin", SETTINGS, json.dumps(settings).encode()))

    def forward(self, sender: str, kind: str, payload: bytes = b"", incarnation: int = 1) -> Forward:
        local = 1
        if kind != HEARTBEAT:
            local = self.locals[sender, incarnation] = self.locals.get((sender, incarnation), 0) + 1
        self.offset += 1
        source = Source(TOPIC, 0, self.offset)
        return Forward(sender, incarnation, local, payload, source, kind=kind, timestamp_ms=self.now)

    def batch(self, *records: tuple[object, ...], after_ms: int = 0) -> list[Data]:
        """Decide `(sender, kind, payload, incarnation)` records; the DATA."""
        self.now += after_ms
        state, outputs = step(self.state, [self.forward(*record) for record in records])  # type: ignore[arg-type]
        self.state, closing = end_batch(state)
        written = [record for record in outputs if isinstance(record, Data)]
        self.dead += [record for record in outputs if isinstance(record, DeadLetter)]
        self.data += [*written, *closing]
        return [*written, *closing]

    def tick(self, after_ms: int, *alive: str) -> list[Data]:
        return self.batch(*((name, HEARTBEAT) for name in ("s/abcast.tick", *alive)), after_ms=after_ms)

    @property
    def members(self) -> list[str]:
        return [life.address for life in self.state.membership.members]


def kinds(records: list[Data]) -> list[str]:
    return [record.kind for record in records]


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    """Joins, leaves, crashes of members, of requesters and of the sequencer, in every phase."""
    assert Group(seed).run() == []


def test_a_batch_gives_one_view() -> None:
    """FLUSH.txt "view bundling": V2 = M - S - L + J, oldest member first."""
    log = Log(suspect_after_ms=5_000)
    log.batch(*((f"s/{name}", JOIN) for name in "abcd"))
    log.tick(1_000, "s/a", "s/b", "s/c", "s/d")
    log.tick(4_000, "s/a", "s/b", "s/c")
    written = log.batch(
        ("s/e", JOIN), ("s/b", LEAVE), ("s/a", MESSAGE), ("s/f", JOIN), ("s/c", HEARTBEAT), after_ms=2_000
    )
    assert kinds(written) == [JOIN, LEAVE, MESSAGE, JOIN, VIEW]
    assert json.loads(written[-1].payload) == {
        "members": [["s/a", 1], ["s/c", 1], ["s/e", 1], ["s/f", 1]],
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
    """By the log's clock; its messages of the old view can then come in no view that it shares."""
    log = Log(flush=True, flush_timeout_ms=4_000)
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.tick(1_000, "s/a", "s/b")
    start = log.batch(("s/c", JOIN))
    log.batch(("s/a", FLUSH_OK, b"%d" % start[-1].seqno))
    assert log.tick(4_000, "s/a", "s/b") == []
    assert kinds(log.tick(1_000, "s/a", "s/b")) == [VIEW, STOP_FLUSH]
    assert log.members == ["s/a", "s/c"]


def test_a_quiet_point() -> None:
    """FLUSH.txt, phases 1 to 4: START_FLUSH, FLUSH_OK, FLUSH_COMPLETED, STOP_FLUSH; views meanwhile."""
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
    assert log.tick(3_000, "s/a", "s/b") == []
    (stop,) = log.tick(1_000, "s/a", "s/b")
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
            members=(Life("s/a", 1), Life("s/b", 1)),
            heard={"s/a": core.Heard("p-0", 10_000), "s/b": core.Heard("p-1", 10_000)},
            clock={"p-0": 10_500, "p-1": 90_000},
        ),
    )
    state, (view,) = end_batch(state)
    assert json.loads(view.payload)["suspected"] == ["s/b"]


def test_after_a_takeover_everybody_has_a_fresh_grace_period() -> None:
    log = Log(suspect_after_ms=1_000)
    log.batch(("s/a", JOIN))
    log.tick(500, "s/a")
    log.state = absorb(opened(), log.data)
    assert log.tick(60_000) == []
    assert log.tick(1_000) == []
    assert kinds(log.tick(1)) == [VIEW]


def test_a_new_incarnation_takes_the_place_of_the_old_one() -> None:
    """A member that was suspected wrongly, or started again, is a new member: the youngest."""
    log = Log()
    log.batch(("s/a", JOIN), ("s/b", JOIN))
    log.batch(("s/a", JOIN, b"", 2))
    assert log.state.membership.members == (Life("s/b", 1), Life("s/a", 2))


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
    assert log.batch(("s/m1", JOIN, b"", 1), ("s/new", JOIN, b"", 2)) == []
    assert kinds(log.batch(("s/m1", JOIN, b"", 3))) == [JOIN, VIEW]
    assert step_by_columns(log.state, []) == step(log.state, [])


def test_a_group_without_members_is_what_it_was() -> None:
    """Format 2 says nothing of a membership that is empty, and format 1 is read."""
    state, _ = step(opened(), [Forward("s/a", 1, 1, b"", Source(TOPIC, 0, 0), timestamp_ms=5)])
    assert (end_batch(state), state.membership) == ((state, ()), core.NO_MEMBERS)
    with patch("ordering.sequencer.json.dumps", side_effect=lambda body, **kw: _dumps({**body, "format": 1}, **kw)):
        raw = state.to_bytes()
    assert SequencerState.from_bytes(raw) == state


_dumps = json.dumps


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
    lives = tuple(Life(f"s/m{number}", 1) for number in range(1_000))
    state = replace(opened(), membership=Membership(members=lives))
    rows = [
        Forward(life.address, 1, 1, b"", Source(TOPIC, 0, offset), kind=HEARTBEAT, timestamp_ms=offset)
        for offset, life in enumerate(lives)
    ]
    from ordering.columns import step_columns
    from tests.simulator.columns import to_columns

    columns = to_columns(rows)
    started = time.perf_counter()
    after, closing = end_batch(step_columns(state, columns).state)
    assert time.perf_counter() - started < 0.5
    assert len(after.membership.heard) == 1_000
    assert closing == ()


def broken(seeds: int = 40) -> list[str]:
    """What the random histories show of a rule that is broken on purpose."""
    problems: list[str] = []
    for seed in range(seeds):
        try:
            problems += Group(seed).run()
        except ProtocolViolation as error:
            problems.append(str(error))
        if problems:
            break
    return problems


def test_the_simulator_sees_a_view_that_does_not_wait() -> None:
    def at_once(membership: Membership, received: Mapping[str, Accepted]) -> Decision | None:
        everybody = tuple(life.address for life in membership.members)
        return next_decision(replace(membership, flush=replace(membership.flush, answered=everybody)), received)

    with patch("ordering.sequencer.next_decision", at_once):
        assert any("was sent in view" in problem for problem in broken())


def test_the_simulator_sees_a_start_that_is_not_refused() -> None:
    with patch("ordering.sequencer.refusal", lambda membership, record: ""):
        assert broken()


def test_the_simulator_sees_answers_that_are_forgotten() -> None:

    with patch("ordering.membership.Flush.answer", lambda flush, address: replace(flush, answered=())):
        assert broken()


def test_the_simulator_sees_a_remote_view_that_is_not_told_again() -> None:
    """What a fenced sequencer of the other site has left would stay."""

    class Careless(Relay):
        def __init__(self, position: int) -> None:
            super().__init__(position, told_epoch=MAX_NUMBER)

    with patch("tests.simulator.neighbour.Relay", Careless):
        assert any("far has" in problem for problem in broken())


def test_the_simulator_sees_a_silence_that_does_not_end() -> None:
    def once(membership: Membership) -> Decision | None:
        decided = _remote_view(membership)
        return decided if decided and decided.payload["silent"] else None

    with patch("ordering.view_change._remote_view", once):
        assert any("known is" in problem for problem in broken())
