"""The participant as a value: the effects of each event in each phase. `tests.world.membership` runs many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ordering.base.errors import ProtocolViolation
from ordering.base.records import (
    FLUSH_COMPLETED,
    FLUSH_OK,
    FORGET,
    JOIN,
    REFUSED,
    REMOTE_VIEW,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
)
from ordering.membership.flush import NO_FLUSH
from ordering.membership.forgetting import SenderRow, to_payload
from ordering.membership.membership import NO_MEMBERS, MemberIncarnation, Membership, ReceivedRow, RemoteSite
from ordering.membership.settings import Settings
from ordering.participant.forward_table import Pending, control_headers
from ordering.participant.participant import Participant, step
from ordering.participant.participant_events import (
    Answered,
    Asked,
    Began,
    CaughtUp,
    FloorKnown,
    FlushDone,
    FlushUnwanted,
    FlushWanted,
    Renewed,
)
from ordering.participant.participant_table import INSIDE, OUTSIDE, SILENT, TRANSITIONS, Cause, Do, ParticipantPhase
from ordering.participant.rejoin import begins_stranded, newest_answer, next_entries
from tests.ordering.participants import ALICE, BOB, CLOSED, OPEN, Bench, body, state


@pytest.fixture
def member() -> Bench:
    bench = Bench()
    bench.tell(Asked(Cause.JOIN))
    bench.view(BOB, ALICE)
    bench.expect(ParticipantPhase.MEMBER, "join")
    return bench


def test_block_then_the_answer_then_unblock(member: Bench) -> None:
    flush = member.start()
    member.expect(ParticipantPhase.BLOCKING, "block", f"ask {flush}")
    assert member.gates == (True, True)
    member.tell(Answered(flush))
    member.expect(ParticipantPhase.QUIET, f"flush-ok {flush}")
    assert member.gates == (False, True)
    member.view(BOB, ALICE, MemberIncarnation("nyc/carol", 1), flush=flush)
    member.expect(ParticipantPhase.QUIET)
    member.stop(flush)
    member.expect(ParticipantPhase.MEMBER, "unblock")


def test_a_flush_from_scratch_is_answered_without_a_second_block(member: Bench) -> None:
    first = member.start()
    again = member.start()
    member.expect(ParticipantPhase.BLOCKING, "block", f"ask {first}", f"ask {again}")
    member.tell(Answered(first))
    member.expect(ParticipantPhase.BLOCKING)
    member.tell(Answered(again))
    member.expect(ParticipantPhase.QUIET, f"flush-ok {again}")


def test_who_has_answered_stays_quiet_when_it_is_asked_again(member: Bench) -> None:
    member.tell(Answered(member.start()))
    again = member.start()
    assert member.now.is_silent
    assert not member.now.sends_messages
    member.did.clear()
    member.tell(Answered(again))
    member.expect(ParticipantPhase.QUIET, "send the table", f"flush-ok {again}")


@pytest.mark.parametrize("settings", [OPEN, CLOSED])
def test_who_is_admitted_within_a_flush_is_quiet_until_its_end(settings: Settings) -> None:
    bench = Bench(replace(NO_MEMBERS, settings=settings), joins=True)
    bench.view(ALICE, flush=7)
    bench.expect(ParticipantPhase.BORN_QUIET)
    assert not bench.now.sends_messages
    bench.stop(7)
    bench.expect(ParticipantPhase.MEMBER, "send the table")  # and no unblock(): there was no block()


def test_who_was_admitted_within_a_flush_says_what_it_has_when_that_runs_again() -> None:
    bench = Bench(replace(NO_MEMBERS, settings=CLOSED), joins=True)
    bench.view(BOB, ALICE, flush=7)
    flush = bench.start()
    bench.expect(ParticipantPhase.ASKED_AGAIN, f"ask {flush}")
    bench.tell(Answered(flush))
    bench.expect(ParticipantPhase.QUIET, "send the table", f"flush-ok {flush}")
    bench.stop(flush)
    bench.expect(ParticipantPhase.MEMBER)


def test_in_a_closed_group_messages_wait_for_the_view() -> None:
    bench = Bench(replace(NO_MEMBERS, settings=CLOSED))
    assert bench.gates == (True, False)
    bench.tell(Asked(Cause.JOIN))
    bench.expect(ParticipantPhase.AWAITING, "join")
    assert bench.gates == (True, False)
    bench.view(ALICE)
    bench.expect(ParticipantPhase.MEMBER, "send the table")
    assert bench.gates == (True, True)


def test_remote_views_are_those_of_the_state_and_what_came_since() -> None:
    known = {
        "sfo": RemoteSite((MemberIncarnation("sfo/bob", 1),)),
        "lax": RemoteSite((MemberIncarnation("lax/dan", 1),), is_silent=True),
    }
    bench = Bench(replace(NO_MEMBERS, remote=known))
    assert {site: view.members for site, view in bench.now.known.remote.items()} == {"sfo": ("sfo/bob",), "lax": ()}
    bench.feed(REMOTE_VIEW, MemberIncarnation("lax/abcast.relay", 1), body(members=[["lax/dan", 1], ["lax/eve", 2]]))
    bench.feed(REMOTE_VIEW, payload=body(site="sfo", members=[], silent=True))
    members = {site: view.members for site, view in bench.now.known.remote.items()}
    assert members == {"sfo": (), "lax": ("lax/dan", "lax/eve")}
    assert bench.now.known.view is None


class TestQuietPoints:
    def test_of_its_own(self, member: Bench) -> None:
        member.tell(FlushWanted(2))
        flush = member.start(ALICE, 2)
        member.tell(Answered(flush))
        member.feed(FLUSH_COMPLETED, payload=body(flush=flush))
        assert "is_quiet=True" in str(member.now.request)
        member.tell(FlushDone())
        member.feed(STOP_FLUSH, ALICE, b"%d" % flush, 4)
        assert "outcome='it was stopped'" in str(member.now.request)
        member.tell(FlushUnwanted())
        assert member.now.request is None
        stop = f"stop-flush {flush}"
        member.expect(
            ParticipantPhase.MEMBER, "start-flush", "block", f"ask {flush}", f"flush-ok {flush}", stop, "unblock"
        )

    @pytest.mark.parametrize("again", [False, True])
    def test_that_are_over_before_their_end(self, member: Bench, again: bool) -> None:
        """Others may have sent in it, so the member that asked for it has to know."""
        member.tell(FlushWanted(2))
        flush = member.start(ALICE, 2)
        member.feed(FLUSH_COMPLETED, payload=body(flush=flush))
        if again:
            member.start()
        else:
            member.stop(flush, "it took too long")
        member.did.clear()
        member.tell(FlushDone())
        assert member.now.request is not None
        assert ("ran it again" if again else "it took too long") in member.now.request.outcome
        assert member.did == []

    def test_that_are_refused(self, member: Bench) -> None:
        member.tell(FlushWanted(2))
        member.feed(REFUSED, ALICE, body(kind=START_FLUSH, reason="a flush runs already"), 2)
        assert "a flush runs already" in str(member.now.request)
        member.tell(FlushUnwanted())
        member.expect(ParticipantPhase.MEMBER, "start-flush")

    def test_that_are_given_up_at_once(self, member: Bench) -> None:
        """The flush is stopped as soon as it has a number; until then there can't be another one."""
        member.tell(FlushWanted(2))
        member.tell(FlushUnwanted())
        before = member.now
        with pytest.raises(ProtocolViolation):
            member.tell(FlushWanted(3))
        assert member.now == before
        flush = member.start(ALICE, 2)
        member.expect(ParticipantPhase.BLOCKING, "start-flush", "block", f"ask {flush}", f"stop-flush {flush}")
        member.tell(FlushWanted(3))

    def test_that_are_given_up_later(self, member: Bench) -> None:
        member.tell(FlushWanted(2))
        flush = member.start(ALICE, 2)
        member.tell(FlushUnwanted())
        assert member.did[-1] == f"stop-flush {flush}"

    def test_that_are_refused_when_given_up(self, member: Bench) -> None:
        member.tell(FlushWanted(2))
        member.tell(FlushUnwanted())
        member.feed(REFUSED, ALICE, body(kind=START_FLUSH, reason="x"), 2)
        assert member.now.request is None

    def test_of_a_killed_process_are_stopped_by_the_next(self) -> None:
        """With an outbox it continues its incarnation, in the same view."""
        flush = NO_FLUSH.start(7, ALICE.address, requested=True)
        bench = Bench(replace(NO_MEMBERS, members=(ALICE, BOB), flush=flush))
        bench.expect(ParticipantPhase.BLOCKING, "block", "ask 7", "stop-flush 7")

    def test_of_a_killed_process_that_were_not_ordered_yet(self, member: Bench) -> None:
        flush = member.start(ALICE, 2)
        member.expect(ParticipantPhase.BLOCKING, "block", f"ask {flush}", f"stop-flush {flush}")

    def test_whose_start_was_dropped_by_retention(self, member: Bench) -> None:
        member.tell(FlushWanted(2))
        received = {ALICE.address: ReceivedRow(5, 2)}
        member.tell(CaughtUp(state(replace(NO_MEMBERS, members=(ALICE, BOB)), 4, received)))
        assert member.now.request is not None
        assert "retention" in member.now.request.outcome

    def test_of_strangers_that_are_dead_or_gone(self, member: Bench) -> None:
        member.tell(Asked(Cause.LEAVE))
        with pytest.raises(ProtocolViolation):
            member.tell(FlushWanted(9))


class TestRestarts:
    """A process with an outbox continues its incarnation."""

    def test_quiet_if_its_answer_was_ordered(self) -> None:
        """The messages in its table all follow the answer, so it waits for the end."""
        flush = NO_FLUSH.start(7, BOB.address, requested=True).answer(ALICE.address)
        bench = Bench(replace(NO_MEMBERS, members=(ALICE, BOB), flush=flush))
        bench.expect(ParticipantPhase.BORN_QUIET)
        assert bench.gates == (False, False)
        bench.stop(7)
        bench.expect(ParticipantPhase.MEMBER, "send the table")

    def test_quiet_if_its_answer_is_on_its_way(self) -> None:
        """A message that it took now would follow its FLUSH_OK."""
        flush = NO_FLUSH.start(7, BOB.address, requested=True)
        pending = [Pending(1, b"x", ()), Pending(2, b"7", control_headers(FLUSH_OK))]
        bench = Bench(replace(NO_MEMBERS, members=(ALICE, BOB), flush=flush), answered=newest_answer(pending))
        bench.expect(ParticipantPhase.QUIET)
        assert bench.now.joined_at is not None
        assert bench.now.sends_messages  # x has to come before it
        bench.stop(7)
        bench.expect(ParticipantPhase.MEMBER)
        bench.view(BOB)
        bench.expect(ParticipantPhase.EXCLUDED, "begin anew")

    def test_asked_if_its_answer_was_to_another_flush(self) -> None:
        flush = NO_FLUSH.start(7, BOB.address, requested=True)
        bench = Bench(replace(NO_MEMBERS, members=(ALICE, BOB), flush=flush), answered=6)
        bench.expect(ParticipantPhase.BLOCKING, "block", "ask 7")

    def test_in_a_new_incarnation_if_the_old_one_would_not_be_heard(self) -> None:
        bench = Bench()
        bench.tell(Renewed(9))
        assert bench.now.member == MemberIncarnation(ALICE.address, 9)
        bench.expect(ParticipantPhase.STRANGER)


class TestRetention:
    """Retention has dropped unread records: a state takes their place."""

    def test_the_end_of_a_flush(self, member: Bench) -> None:
        member.tell(Answered(member.start()))
        member.did.clear()
        member.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB, ALICE)), 4)))
        member.expect(ParticipantPhase.MEMBER, "unblock")
        assert member.now.known.view is not None
        assert member.now.known.view.view_id == 4

    def test_not_the_end_of_a_flush(self, member: Bench) -> None:
        """A member that is quiet in the flush stays quiet."""
        flush = NO_FLUSH.start(member.start(), BOB.address, requested=True)
        member.tell(Answered(flush.id))
        member.did.clear()
        member.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB, ALICE), flush=flush), 4)))
        member.expect(ParticipantPhase.QUIET)

    def test_one_flush_and_the_next(self, member: Bench) -> None:
        member.tell(Answered(member.start()))
        member.did.clear()
        flush = NO_FLUSH.start(99, BOB.address, requested=True)
        member.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB, ALICE), flush=flush), 4)))
        member.expect(ParticipantPhase.BLOCKING, "unblock", "block", "ask 99")

    def test_its_first_view(self) -> None:
        bench = Bench(replace(NO_MEMBERS, settings=CLOSED), joins=True)
        bench.tell(CaughtUp(state(replace(NO_MEMBERS, settings=CLOSED, members=(ALICE,)), 4)))
        bench.expect(ParticipantPhase.MEMBER, "send the table")
        assert bench.now.joined_at is not None

    def test_its_first_view_within_a_flush(self) -> None:
        """Messages that were kept back wait, as if the view had been read."""
        flush = NO_FLUSH.start(7, BOB.address, requested=True).answer(ALICE.address)
        bench = Bench(replace(NO_MEMBERS, settings=CLOSED), joins=True)
        bench.tell(CaughtUp(state(replace(NO_MEMBERS, settings=CLOSED, members=(BOB, ALICE), flush=flush), 4)))
        bench.expect(ParticipantPhase.BORN_QUIET)

    def test_its_exclusion(self, member: Bench) -> None:
        member.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB,)), 5)))
        member.expect(ParticipantPhase.EXCLUDED, "begin anew")

    def test_the_same_where_its_life_is_not_over(self) -> None:
        """An open group without flush still orders messages of a member that it excludes."""
        received = {ALICE.address: ReceivedRow(ALICE.incarnation, 1)}
        bench = Bench(joins=True)
        bench.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB,)), 5, received), False))
        bench.expect(ParticipantPhase.EXCLUDED, "begin anew")

    @pytest.mark.parametrize("joining", [(), (ALICE,)])
    def test_not_its_first_view(self, joining: tuple[MemberIncarnation, ...]) -> None:
        """Its JOIN is not yet ordered; or it is ordered, and the view is not."""
        bench = Bench(joins=True)
        bench.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB,), joining=joining), 5), not joining))
        bench.expect(ParticipantPhase.JOINING)

    @pytest.mark.parametrize("joins", [False, True])
    def test_that_the_group_was_closed_and_opened(self, joins: bool) -> None:
        bench = Bench(joins=joins)
        bench.tell(CaughtUp(state(replace(NO_MEMBERS, settings=CLOSED))))
        bench.expect(ParticipantPhase.AWAITING if joins else ParticipantPhase.KEPT_OUT)
        bench.tell(CaughtUp(state()))
        bench.expect(ParticipantPhase.JOINING if joins else ParticipantPhase.STRANGER, "send the table")


class TestForgotten:
    """A record, or the state in its place, forgets the member."""

    FORGOTTEN = replace(NO_MEMBERS, incarnation_floor=ALICE.incarnation)

    def test_after_somebody_of_a_later_incarnation(self) -> None:
        """Its name had a row of an earlier incarnation when the floor rose above it; then that row is dropped."""
        bench = Bench(None)
        bench.tell(Began(ALICE, state(received={ALICE.address: ReceivedRow(ALICE.incarnation - 1, 1)})))
        bench.feed(FORGET, BOB, to_payload([SenderRow("nyc/carol", ALICE.incarnation + 1, 1)]))
        bench.expect(ParticipantPhase.STRANGER)
        bench.feed(FORGET, BOB, to_payload([SenderRow(ALICE.address, ALICE.incarnation - 1, 1)]))
        bench.expect(ParticipantPhase.FORGOTTEN, "begin anew")

    def test_with_the_floor_of_a_state(self) -> None:
        bench = Bench(None)
        row = {ALICE.address: ReceivedRow(ALICE.incarnation - 1, 1)}
        bench.tell(Began(ALICE, state(self.FORGOTTEN, received=row)))
        bench.feed(FORGET, BOB, to_payload([SenderRow(ALICE.address, ALICE.incarnation - 1, 1)]))
        bench.expect(ParticipantPhase.FORGOTTEN, "begin anew")

    def test_a_later_life_of_its_name_is_heard(self) -> None:
        """The dropped row and the floor are below the later incarnation."""
        bench = Bench(None)
        bench.tell(Began(ALICE, state(received={ALICE.address: ReceivedRow(ALICE.incarnation - 1, 1)})))
        bench.feed(FORGET, BOB, to_payload([SenderRow(ALICE.address, ALICE.incarnation - 1, 1)]))
        bench.expect(ParticipantPhase.STRANGER)

    def test_who_is_excluded_when_a_state_says_so(self, member: Bench) -> None:
        """The member waits no longer: none of its messages will be ordered."""
        member.view(BOB)
        member.expect(ParticipantPhase.EXCLUDED, "begin anew")
        member.tell(CaughtUp(state(self.FORGOTTEN)))
        member.expect(ParticipantPhase.OVER)

    @pytest.mark.parametrize(
        ("settings", "joins", "phase"),
        [
            (OPEN, False, ParticipantPhase.FORGOTTEN),
            (OPEN, True, ParticipantPhase.OVER),
            (CLOSED, False, ParticipantPhase.FORGOTTEN),
            (CLOSED, True, ParticipantPhase.OVER),
        ],
    )
    def test_by_a_floor_that_a_view_has_raised(self, settings: Settings, joins: bool, phase: ParticipantPhase) -> None:
        bench = Bench(replace(NO_MEMBERS, settings=settings), joins=joins)
        before = bench.now.phase
        bench.tell(FloorKnown(ALICE.incarnation - 1))
        bench.expect(before)
        bench.tell(FloorKnown(ALICE.incarnation))
        bench.expect(phase, "begin anew")

    def test_a_member_by_no_floor(self, member: Bench) -> None:
        member.tell(FloorKnown(ALICE.incarnation))
        member.expect(ParticipantPhase.MEMBER)

    def test_a_stranger_that_leaves_when_a_state_says_so(self) -> None:
        """The records that it waits for will never come."""
        bench = Bench()
        bench.tell(Asked(Cause.LEAVE))
        bench.tell(CaughtUp(state(self.FORGOTTEN)))
        bench.expect(ParticipantPhase.GONE)


class TestExclusion:
    @pytest.mark.parametrize(
        ("settings", "suspected", "phase"),
        [
            (b'{"flush":true}', True, ParticipantPhase.OVER),
            (
                b'{"flush":true}',
                False,
                ParticipantPhase.EXCLUDED,
            ),  # an earlier start has left: what it says is a stranger's now
            (b'{"closed":true}', False, ParticipantPhase.OVER),
            (b'{"suspect_after_ms":9}', True, ParticipantPhase.EXCLUDED),
        ],
    )
    def test_is_by_the_settings_at_the_view(
        self, member: Bench, settings: bytes, suspected: bool, phase: ParticipantPhase
    ) -> None:
        member.feed(SETTINGS, BOB, settings)
        member.view(BOB, suspected=(ALICE.address,) if suspected else ())
        member.feed(SETTINGS, BOB, b'{"flush":false,"closed":false}')
        member.expect(phase, "begin anew")
        assert member.now.is_dead

    def test_when_blocked_unblocks(self, member: Bench) -> None:
        flush = member.start()
        member.tell(Answered(flush))
        member.did.clear()
        member.view(BOB, flush=flush)
        member.expect(ParticipantPhase.EXCLUDED, "unblock", "begin anew")
        member.tell(Answered(flush))
        member.stop(flush)
        member.expect(ParticipantPhase.EXCLUDED)

    def test_leaves_messages_to_the_next_life_if_this_one_is_over(self, member: Bench) -> None:
        member.feed(SETTINGS, BOB, b'{"closed":true}')
        member.view(BOB)
        member.did.clear()
        member.tell(Asked(Cause.HAND_OVER))
        member.expect(ParticipantPhase.BETWEEN, "carry over")
        member.tell(
            Began(
                MemberIncarnation(ALICE.address, 6), state(replace(NO_MEMBERS, settings=CLOSED, members=(BOB,))), True
            )
        )
        member.expect(ParticipantPhase.AWAITING)
        assert (member.now.member.incarnation, member.now.joined_at, member.now.request) == (6, None, None)

    def test_while_it_leaves_is_the_end(self, member: Bench) -> None:
        member.tell(Asked(Cause.LEAVE))
        member.view(BOB)
        member.expect(ParticipantPhase.GONE, "leave")


X, ASKS, ANSWERS = (
    Pending(1, b"x", ()),
    Pending(2, b"", control_headers(JOIN)),
    Pending(1, b"7", control_headers(FLUSH_OK)),
)


class TestStranded:
    """A closed group takes only a stranger's JOIN, and not behind a gap."""

    @pytest.mark.parametrize(
        ("pending", "expected"),
        [([X, ASKS], True), ([ANSWERS, ASKS], True), ([ASKS, X], False), ([X], False), ([], False)],
    )
    def test_is_one_whose_join_stands_behind_what_is_not_taken(self, pending: list[Pending], expected: bool) -> None:
        bench = Bench()
        bench.tell(Asked(Cause.JOIN))
        assert not bench.now.is_stranded(pending)
        bench.feed(SETTINGS, BOB, b'{"closed":true}')
        bench.expect(ParticipantPhase.AWAITING, "join")
        assert bench.now.is_stranded(pending) is expected

    def test_is_not_one_that_may_send_as_an_earlier_start_is_in(self) -> None:
        """The member is not stranded as long as its earlier start is in the view."""
        bench = Bench()
        bench.view(BOB, MemberIncarnation(ALICE.address, 4))
        bench.tell(Asked(Cause.JOIN))
        bench.feed(SETTINGS, BOB, b'{"closed":true}')
        assert not bench.now.is_stranded([X, ASKS])
        bench.view(BOB)
        assert bench.now.is_stranded([X, ASKS])

    @pytest.mark.parametrize(
        ("membership", "pending", "expected"),
        [
            (NO_MEMBERS, [X], False),
            (replace(NO_MEMBERS, settings=CLOSED), [X], True),
            (replace(NO_MEMBERS, settings=CLOSED), [ANSWERS], True),
            (replace(NO_MEMBERS, settings=CLOSED), [ASKS, X], False),
            (replace(NO_MEMBERS, settings=CLOSED), [], False),
            (replace(NO_MEMBERS, settings=CLOSED, members=(ALICE,)), [X], False),
            (replace(NO_MEMBERS, settings=CLOSED, joining=(ALICE,)), [X], False),  # it has asked; its view comes
        ],
    )
    def test_at_its_begin(self, membership: Membership, pending: list[Pending], expected: bool) -> None:
        assert begins_stranded(ALICE, pending, state(membership)) is expected


class TestUnheard:
    """The view has an earlier start of its name, which may have answered the flush: its messages are dropped."""

    @pytest.fixture
    def bench(self) -> Bench:
        bench = Bench()
        bench.view(BOB, MemberIncarnation(ALICE.address, 4))
        bench.start()
        bench.expect(ParticipantPhase.STRANGER)
        assert bench.now.is_unheard
        return bench

    def test_until_it_runs_again(self, bench: Bench) -> None:
        bench.start()
        bench.expect(ParticipantPhase.STRANGER, "send the table")
        assert bench.now.is_unheard

    def test_until_a_view_comes_without_its_name(self, bench: Bench) -> None:
        bench.view(BOB, flush=2)
        bench.expect(ParticipantPhase.STRANGER, "send the table")

    def test_not_if_a_stranger_has_no_earlier_start_in_it(self) -> None:
        bench = Bench()
        bench.view(BOB)
        bench.stop(bench.start())
        bench.expect(ParticipantPhase.STRANGER)


def test_the_next_table_is_a_join_and_the_messages() -> None:
    pending = [
        Pending(4, b"4", control_headers(FLUSH_OK)),
        Pending(5, b"x", (("k", b"v"),)),
        Pending(6, b"", control_headers(START_FLUSH)),
        Pending(7, b"y", ()),
    ]
    messages = [(b"x", (("k", b"v"),)), (b"y", ())]
    assert list(next_entries(pending, joins=True)) == [(b"", control_headers(JOIN)), *messages]
    assert list(next_entries(pending, joins=False)) == messages


class TestTable:
    """The table's rules, read off its rows."""

    @pytest.mark.parametrize("phase", ParticipantPhase)
    def test_what_is_not_listed_raises_and_changes_nothing(self, phase: ParticipantPhase) -> None:
        now = Participant(ALICE, phase)
        for cause in Cause:
            if (phase, cause) not in TRANSITIONS:
                with pytest.raises(ProtocolViolation, match="can't"):
                    step(now, Asked(cause))
        assert now == Participant(ALICE, phase)

    def test_every_phase_can_be_reached_and_closed(self) -> None:
        assert {row.phase for row in TRANSITIONS.values()} == set(ParticipantPhase)
        assert all(TRANSITIONS[phase, Cause.CLOSE].phase is ParticipantPhase.GONE for phase in ParticipantPhase)

    def test_flush_ok_is_said_only_on_the_way_to_be_quiet(self) -> None:
        for (phase, _), row in TRANSITIONS.items():
            says_it = [action.kind for action in row.actions].count(FLUSH_OK)
            assert bool(says_it) == (row.phase is ParticipantPhase.QUIET and phase in INSIDE), (phase, row)

    def test_who_was_quiet_is_unblocked_on_its_way_out(self) -> None:
        for (phase, cause), row in TRANSITIONS.items():
            is_told = phase in (ParticipantPhase.BLOCKING, ParticipantPhase.QUIET, ParticipantPhase.ASKED_AGAIN)
            ends = row.phase not in SILENT | {ParticipantPhase.BLOCKING, ParticipantPhase.LEAVING}
            if is_told and ends:
                assert Do.UNBLOCK in [action.do for action in row.actions], (phase, cause)

    def test_what_was_kept_back_is_sent_when_it_may(self) -> None:
        for (phase, cause), row in TRANSITIONS.items():
            if Participant(ALICE, phase).sends_messages or not Participant(ALICE, row.phase).sends_messages:
                continue
            is_sent = Do.SEND_TABLE in [action.do for action in row.actions]
            is_for_later = row.phase in (
                ParticipantPhase.LEAVING,
                ParticipantPhase.OVER,
                ParticipantPhase.FORGOTTEN,
                ParticipantPhase.GONE,
                ParticipantPhase.BETWEEN,
            )
            assert is_sent or is_for_later, (phase, cause)

    def test_only_who_is_in_the_view_can_be_put_out_of_it(self) -> None:
        """A member that has asked to join may have been in a view that retention has dropped: it counts, too."""
        for phase in OUTSIDE:
            assert ((phase, Cause.EXCLUDED) in TRANSITIONS) is (
                phase in (ParticipantPhase.JOINING, ParticipantPhase.AWAITING)
            )
        for phase in INSIDE:
            assert {TRANSITIONS[phase, cause].phase for cause in (Cause.EXCLUDED, Cause.OVER)} == {
                ParticipantPhase.EXCLUDED,
                ParticipantPhase.OVER,
            }
