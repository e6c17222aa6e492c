"""Every row of the participant's table: the way into the phase, the event, and its effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from ordering.base.records import FORGET, JOIN, SETTINGS
from ordering.membership.flush import NO_FLUSH
from ordering.membership.forgetting import SenderRow, to_payload
from ordering.membership.membership import NO_MEMBERS, MemberIncarnation, Membership, ReceivedRow
from ordering.participant.participant_events import Answered, Asked, Began, CaughtUp, Renewed
from ordering.participant.participant_table import TRANSITIONS, Cause, ParticipantPhase
from tests.ordering.participants import ALICE, BOB, CLOSED, OPEN, Bench, Watched, state

P, C = ParticipantPhase, Cause
FLUSH = 7
EARLIER = MemberIncarnation(ALICE.address, 4)


def of_strangers(*, closed: bool = False, joins: bool = False) -> Bench:
    return Bench(replace(NO_MEMBERS, settings=CLOSED if closed else OPEN), joins=joins)


def of_members() -> Bench:
    bench = Bench()
    bench.view(BOB, ALICE)
    return bench


def in_a_flush(bench: Bench) -> Bench:
    bench.start()
    return bench


def answering(bench: Bench) -> Bench:
    bench.tell(Answered(bench.now.known.flush_id))
    return bench


def admitted_in_a_flush() -> Bench:
    bench = Bench(joins=True)
    bench.view(BOB, ALICE, flush=FLUSH)
    return bench


def ask(cause: Cause, bench: Bench) -> Bench:
    bench.tell(Asked(cause))
    return bench


def put_out(bench: Bench) -> Bench:
    bench.view(BOB)
    return bench


def put_out_for_good(bench: Bench) -> Bench:
    bench.feed(SETTINGS, BOB, b'{"flush":true}')
    bench.view(BOB, suspected=(ALICE.address,))
    return bench


def forgotten(bench: Bench) -> Bench:
    bench.feed(FORGET, BOB, to_payload([SenderRow(*ALICE, 3)]))
    return bench


def unheard(*, joins: bool = False) -> Bench:
    """Begin while a flush has an earlier start of the name."""
    bench = of_strangers(joins=joins)
    bench.view(BOB, EARLIER, flush=FLUSH)
    return bench


def returning(*, closed: bool = False) -> Bench:
    """Return a member with messages of its last incarnation."""
    bench = Bench(None)
    settings = replace(NO_MEMBERS, settings=CLOSED if closed else OPEN)
    bench.tell(Began(ALICE, state(settings), joins=True, returns=True))
    return bench


REACH: dict[ParticipantPhase, Callable[[], Bench]] = {
    P.BETWEEN: lambda: Bench(None),
    P.STRANGER: of_strangers,
    P.JOINING: lambda: of_strangers(joins=True),
    P.KEPT_OUT: lambda: of_strangers(closed=True),
    P.AWAITING: lambda: of_strangers(closed=True, joins=True),
    P.MEMBER: of_members,
    P.BLOCKING: lambda: in_a_flush(of_members()),
    P.QUIET: lambda: answering(in_a_flush(of_members())),
    P.BORN_QUIET: admitted_in_a_flush,
    P.ASKED_AGAIN: lambda: in_a_flush(answering(in_a_flush(of_members()))),
    P.LEAVING: lambda: ask(C.LEAVE, in_a_flush(of_members())),
    P.EXCLUDED: lambda: put_out(of_members()),
    P.OVER: lambda: put_out_for_good(of_members()),
    P.FORGOTTEN: lambda: forgotten(of_strangers()),
    P.GONE: lambda: ask(C.CLOSE, Bench()),
}


def begin(bench: Bench, membership: Membership = NO_MEMBERS, *, joins: bool = False, answered: int = 0) -> None:
    bench.tell(Began(ALICE, state(membership), joins, answered))


def begin_with_an_answer(bench: Bench, *, joins: bool) -> None:
    """Begin with a FLUSH_OK of the earlier start in the outbox."""
    flush = NO_FLUSH.start(FLUSH, BOB.address, requested=True)
    begin(bench, replace(NO_MEMBERS, members=(BOB, ALICE), flush=flush), joins=joins, answered=FLUSH)


def learn_that_it_is_over(bench: Bench) -> None:
    """Let retention drop its first view, and the one without it."""
    membership = replace(NO_MEMBERS, settings=bench.now.settings, members=(BOB,), incarnations_over=dict([ALICE]))
    bench.tell(CaughtUp(state(membership, received={ALICE.address: ReceivedRow(ALICE.incarnation, 1)})))


def learn_that_it_was_in(bench: Bench) -> None:
    """Let retention drop them, in a group that still orders its messages."""
    bench.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB,))), False))


def learn_that_it_is_in(bench: Bench, *, flush: int = 0) -> None:
    """Let retention drop its first view."""
    hand = NO_FLUSH.start(flush, BOB.address, requested=True) if flush else NO_FLUSH
    bench.tell(CaughtUp(state(replace(NO_MEMBERS, members=(BOB, ALICE), flush=hand))))


HAPPEN: dict[Cause, Callable[[Bench], object]] = {
    C.BEGIN: begin,
    C.BEGIN_JOINING: lambda bench: begin(bench, joins=True),
    C.RENEW: lambda bench: bench.tell(Renewed(9)),
    C.ANSWER: answering,
    C.FLUSH: in_a_flush,
    C.STOP: lambda bench: bench.stop(bench.now.known.flush_id),
    C.ADMITTED: lambda bench: bench.view(BOB, ALICE),
    C.ADMITTED_IN_FLUSH: lambda bench: bench.view(BOB, ALICE, flush=FLUSH),
    C.EXCLUDED: put_out,
    C.OVER: put_out_for_good,
    C.FORGOTTEN: forgotten,
    C.CLOSED: lambda bench: bench.feed(SETTINGS, BOB, b'{"closed":true}'),
    C.OPENED: lambda bench: bench.feed(SETTINGS, BOB, b'{"closed":false}'),
    **{cause: partial(ask, cause) for cause in (C.JOIN, C.LEAVE, C.CLOSE, C.HAND_OVER, C.STRANDED)},
    C.RETURNED: lambda bench: bench.feed(JOIN, ALICE, local_seqno=1),
}

OTHERWISE: dict[tuple[ParticipantPhase, Cause], tuple[Callable[[], Bench], Callable[[Bench], object]]] = {
    (P.STRANGER, C.ADMITTED_QUIET): (REACH[P.BETWEEN], lambda bench: begin_with_an_answer(bench, joins=False)),
    (P.JOINING, C.ADMITTED_QUIET): (REACH[P.BETWEEN], lambda bench: begin_with_an_answer(bench, joins=True)),
    (P.JOINING, C.OVER): (REACH[P.JOINING], learn_that_it_is_over),
    (P.AWAITING, C.OVER): (REACH[P.AWAITING], learn_that_it_is_over),
    (P.JOINING, C.EXCLUDED): (REACH[P.JOINING], learn_that_it_was_in),
    (P.AWAITING, C.EXCLUDED): (REACH[P.AWAITING], learn_that_it_was_in),
    (P.STRANGER, C.HEARD): (unheard, HAPPEN[C.STOP]),
    (P.JOINING, C.HEARD): (lambda: unheard(joins=True), HAPPEN[C.STOP]),
    (P.MEMBER, C.HEARD): (unheard, learn_that_it_is_in),
    (P.BLOCKING, C.HEARD): (unheard, lambda bench: learn_that_it_is_in(bench, flush=9)),
    (P.JOINING, C.RETURNED): (returning, HAPPEN[C.RETURNED]),
    (P.AWAITING, C.RETURNED): (lambda: returning(closed=True), HAPPEN[C.RETURNED]),
    (P.LEAVING, C.RETURNED): (lambda: ask(C.LEAVE, returning()), HAPPEN[C.RETURNED]),
    # It leaves before a view has it.
    (P.LEAVING, C.ADMITTED): (lambda: ask(C.LEAVE, Bench(joins=True)), HAPPEN[C.ADMITTED]),
    (P.LEAVING, C.ADMITTED_IN_FLUSH): (lambda: ask(C.LEAVE, Bench(joins=True)), HAPPEN[C.ADMITTED_IN_FLUSH]),
}
"""Rows that are reached in another way than others of their phase and cause."""

TABLE, AGAIN, ANEW = "send the table", "ask 3", "begin anew"
FOLLOWS: dict[tuple[ParticipantPhase, Cause], tuple[ParticipantPhase, list[str]]] = {
    (P.BETWEEN, C.BEGIN): (P.STRANGER, []),
    (P.BETWEEN, C.BEGIN_JOINING): (P.JOINING, []),
    (P.BETWEEN, C.LEAVE): (P.GONE, []),
    (P.STRANGER, C.RENEW): (P.STRANGER, []),
    (P.STRANGER, C.JOIN): (P.JOINING, ["join"]),
    (P.STRANGER, C.CLOSED): (P.KEPT_OUT, []),
    (P.STRANGER, C.LEAVE): (P.LEAVING, []),
    (P.STRANGER, C.ADMITTED): (P.MEMBER, []),
    (P.STRANGER, C.ADMITTED_IN_FLUSH): (P.BORN_QUIET, []),
    (P.STRANGER, C.ADMITTED_QUIET): (P.QUIET, []),
    (P.STRANGER, C.HEARD): (P.STRANGER, [TABLE]),
    (P.JOINING, C.JOIN): (P.JOINING, []),
    (P.JOINING, C.CLOSED): (P.AWAITING, []),
    (P.JOINING, C.LEAVE): (P.LEAVING, ["leave"]),
    (P.JOINING, C.ADMITTED): (P.MEMBER, []),
    (P.JOINING, C.ADMITTED_IN_FLUSH): (P.BORN_QUIET, []),
    (P.JOINING, C.ADMITTED_QUIET): (P.QUIET, []),
    (P.JOINING, C.EXCLUDED): (P.EXCLUDED, [ANEW]),
    (P.JOINING, C.OVER): (P.OVER, [ANEW]),
    (P.JOINING, C.HEARD): (P.JOINING, [TABLE]),
    (P.KEPT_OUT, C.RENEW): (P.KEPT_OUT, []),
    (P.KEPT_OUT, C.JOIN): (P.AWAITING, ["join"]),
    (P.KEPT_OUT, C.OPENED): (P.STRANGER, [TABLE]),
    (P.KEPT_OUT, C.LEAVE): (P.LEAVING, []),
    (P.KEPT_OUT, C.ADMITTED): (P.MEMBER, [TABLE]),
    (P.KEPT_OUT, C.ADMITTED_IN_FLUSH): (P.BORN_QUIET, []),
    (P.AWAITING, C.JOIN): (P.AWAITING, []),
    (P.AWAITING, C.OPENED): (P.JOINING, [TABLE]),
    (P.AWAITING, C.LEAVE): (P.LEAVING, ["leave"]),
    (P.AWAITING, C.ADMITTED): (P.MEMBER, [TABLE]),
    (P.AWAITING, C.ADMITTED_IN_FLUSH): (P.BORN_QUIET, []),
    (P.AWAITING, C.EXCLUDED): (P.EXCLUDED, [TABLE, ANEW]),
    (P.AWAITING, C.OVER): (P.OVER, [ANEW]),
    (P.AWAITING, C.STRANDED): (P.OVER, [ANEW]),
    (P.JOINING, C.RETURNED): (P.JOINING, [TABLE]),
    (P.AWAITING, C.RETURNED): (P.AWAITING, []),
    (P.LEAVING, C.RETURNED): (P.LEAVING, [TABLE]),
    (P.MEMBER, C.HEARD): (P.MEMBER, [TABLE]),
    (P.MEMBER, C.FLUSH): (P.BLOCKING, ["block", "ask 2"]),
    (P.MEMBER, C.LEAVE): (P.LEAVING, ["leave"]),
    (P.MEMBER, C.EXCLUDED): (P.EXCLUDED, [ANEW]),
    (P.MEMBER, C.OVER): (P.OVER, [ANEW]),
    (P.BLOCKING, C.HEARD): (P.BLOCKING, ["block", "ask 9", TABLE]),
    (P.BLOCKING, C.FLUSH): (P.BLOCKING, [AGAIN]),
    (P.BLOCKING, C.ANSWER): (P.QUIET, ["flush-ok 2"]),
    (P.BLOCKING, C.STOP): (P.MEMBER, ["unblock"]),
    (P.BLOCKING, C.LEAVE): (P.LEAVING, ["leave"]),
    (P.BLOCKING, C.EXCLUDED): (P.EXCLUDED, ["unblock", ANEW]),
    (P.BLOCKING, C.OVER): (P.OVER, ["unblock", ANEW]),
    (P.QUIET, C.FLUSH): (P.ASKED_AGAIN, [AGAIN]),
    (P.QUIET, C.STOP): (P.MEMBER, ["unblock"]),
    (P.QUIET, C.LEAVE): (P.LEAVING, ["leave"]),
    (P.QUIET, C.EXCLUDED): (P.EXCLUDED, ["unblock", ANEW]),
    (P.QUIET, C.OVER): (P.OVER, ["unblock", ANEW]),
    (P.BORN_QUIET, C.FLUSH): (P.ASKED_AGAIN, ["ask 2"]),
    (P.BORN_QUIET, C.STOP): (P.MEMBER, [TABLE]),
    (P.BORN_QUIET, C.LEAVE): (P.LEAVING, ["leave"]),
    (P.BORN_QUIET, C.EXCLUDED): (P.EXCLUDED, [TABLE, ANEW]),
    (P.BORN_QUIET, C.OVER): (P.OVER, [ANEW]),
    (P.ASKED_AGAIN, C.FLUSH): (P.ASKED_AGAIN, ["ask 4"]),
    (P.ASKED_AGAIN, C.ANSWER): (P.QUIET, [TABLE, "flush-ok 3"]),
    (P.ASKED_AGAIN, C.STOP): (P.MEMBER, ["unblock", TABLE]),
    (P.ASKED_AGAIN, C.LEAVE): (P.LEAVING, [TABLE, "leave"]),
    (P.ASKED_AGAIN, C.EXCLUDED): (P.EXCLUDED, ["unblock", TABLE, ANEW]),
    (P.ASKED_AGAIN, C.OVER): (P.OVER, ["unblock", ANEW]),
    (P.LEAVING, C.ADMITTED): (P.LEAVING, [TABLE]),
    (P.LEAVING, C.ADMITTED_IN_FLUSH): (P.LEAVING, []),
    (P.LEAVING, C.FLUSH): (P.LEAVING, [TABLE]),
    (P.LEAVING, C.STOP): (P.LEAVING, ["unblock", TABLE]),
    (P.LEAVING, C.LEAVE): (P.LEAVING, []),
    (P.LEAVING, C.EXCLUDED): (P.GONE, ["unblock"]),
    (P.LEAVING, C.OVER): (P.GONE, ["unblock"]),
    (P.STRANGER, C.FORGOTTEN): (P.FORGOTTEN, [ANEW]),
    (P.KEPT_OUT, C.FORGOTTEN): (P.FORGOTTEN, [ANEW]),
    (P.JOINING, C.FORGOTTEN): (P.OVER, [ANEW]),
    (P.AWAITING, C.FORGOTTEN): (P.OVER, [ANEW]),
    (P.LEAVING, C.FORGOTTEN): (P.GONE, ["unblock"]),
    (P.EXCLUDED, C.FORGOTTEN): (P.OVER, []),
    (P.FORGOTTEN, C.HAND_OVER): (P.BETWEEN, ["carry over"]),
    (P.FORGOTTEN, C.LEAVE): (P.GONE, []),
    (P.EXCLUDED, C.CLOSED): (P.OVER, []),
    (P.EXCLUDED, C.HAND_OVER): (P.BETWEEN, ["lose"]),
    (P.EXCLUDED, C.LEAVE): (P.GONE, []),
    (P.OVER, C.HAND_OVER): (P.BETWEEN, ["carry over"]),
    (P.OVER, C.LEAVE): (P.GONE, []),
    (P.GONE, C.LEAVE): (P.GONE, []),
    **{(phase, C.CLOSE): (P.GONE, []) for phase in ParticipantPhase},
    **{(phase, C.CLOSE): (P.GONE, ["unblock"]) for phase in (P.BLOCKING, P.QUIET, P.ASKED_AGAIN, P.LEAVING)},
}


def name_of(key: object) -> str:
    return key.name.lower() if isinstance(key, ParticipantPhase | Cause) else ""


@pytest.mark.parametrize(("phase", "cause"), FOLLOWS, ids=name_of)
def test_what_follows(phase: ParticipantPhase, cause: Cause, monkeypatch: pytest.MonkeyPatch) -> None:
    reach, happen = OTHERWISE[phase, cause] if (phase, cause) in OTHERWISE else (REACH[phase], HAPPEN[cause])
    bench = reach()
    bench.did.clear()
    table = Watched(TRANSITIONS)
    monkeypatch.setattr("ordering.participant.participant.TRANSITIONS", table)
    happen(bench)
    assert (phase, cause) in table.taken
    after, did = FOLLOWS[phase, cause]
    bench.expect(after, *did)


def test_every_row_is_taken() -> None:
    assert set(FOLLOWS) == set(TRANSITIONS)
