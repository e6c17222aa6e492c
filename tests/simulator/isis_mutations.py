"""Mutations of ISIS: each breaks a rule on purpose, and the simulator must name the violation.

A mutation replaces a piece of the core for the time of a run. The product can't reach any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ordering.agreement.ballots import Ballots
from ordering.agreement.deliveries import DeliveriesInView
from ordering.agreement.flush import next_view
from ordering.agreement.formation import ProcessIncarnation, View
from ordering.agreement.history import History
from ordering.agreement.hold_back import HeldRun, HoldBackQueue, Key
from ordering.agreement.isis import NO_KEY, Agreement
from ordering.agreement.messages import BallotPromise, DeliverRun, NextView, ViewReport
from ordering.agreement.state import Placed
from ordering.agreement.views import Process
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, GAP, LOST, VIEW_VIOLATION
from tests.simulator.mutation import Mutation


def impatient_head(queue: HoldBackQueue) -> HeldRun | None:
    """Let a run out before it is final."""
    return next(iter(queue), None)


def head_by_arrival(queue: HoldBackQueue) -> HeldRun | None:
    """Break ties by which run came first."""
    first = min(queue._held.values(), key=lambda held: held.key.number, default=None)
    return first if first is not None and first.is_final else None


def lower(best: Key, proposal: Key) -> Key:
    """The minimum of the proposals."""
    return proposal if best == NO_KEY else min(best, proposal)


def all_but_one(missing: int) -> bool:
    """Count one proposal more or less."""
    return missing & (missing - 1) == 0


_safe_row = DeliveriesInView._safe_row


def safe_for_two(deliveries: DeliveriesInView, sender: int) -> int:
    """Take two processes for a majority in a view of any size."""
    state = deliveries._state
    return state.finals[state.me][state.me] if sender == state.me else _safe_row(deliveries, sender)


def yes(*_: object) -> bool:
    return True


def anybody(who: Iterable[int], _size: int, _excluded: Iterable[int] = ()) -> bool:
    """Take a minority for a quorum."""
    return bool(set(who))


def go_on(_agreement: Agreement) -> None:
    """A process that has promised goes on in the old view."""


def purge_all(reports: Sequence[ViewReport]) -> tuple[Placed, ...]:
    """Purge final runs that are not delivered, too."""
    delivered = {placed.seqno: placed for report in reports for placed in report.recent}
    return tuple(delivered[seqno] for seqno in sorted(delivered))


def compute_nothing(_reports: Sequence[ViewReport]) -> list[Placed]:
    """A number that only all proposals tell is not kept."""
    return []


def without_rows(view: View, reports: Mapping[int, ViewReport], joiners: Iterable[ProcessIncarnation]) -> NextView:
    """The next view does not say which runs have been ordered."""
    value = next_view(view, reports, joiners)
    return value._replace(view=value.view._replace(rows=()))


def hide_vote(ballots: Ballots, agreement: Agreement) -> BallotPromise:
    """Hide the value that an earlier ballot accepted."""
    return _true_promise(ballots, agreement)._replace(vote=None)


def same_life(world: Any, node: Any) -> int:
    """Give a process without memory its old incarnation."""
    if not node.incarnation:
        world.lives += 1
    return int(node.incarnation or world.lives)


@property  # type: ignore[misc]
def own_incarnation(process: Process) -> int:
    """Return the process's own incarnation, whatever others have heard of."""
    return process.me.incarnation


def what_fits(message: bytes, room: int) -> Iterator[bytes]:
    """Lose a message that is longer than a datagram, as a socket does."""
    if len(message) <= room:
        yield message


def miss_nothing(_history: History, _last: int) -> None:
    """Let a returning process not ask for the messages that it has missed."""


_true_promise = Ballots._own_promise


def out_by_one(history: History, delivery: DeliverRun) -> tuple[DeliverRun, ...]:
    """Take one seqno for a run of several messages."""
    out = _true_out(history, delivery)
    history.last = delivery.seqno
    return out


_true_out = History._out
_AGREEMENT = "ordering.agreement.isis.Agreement"
_DELIVERIES = "ordering.agreement.deliveries.DeliveriesInView"
_HEAD = "ordering.agreement.hold_back.HoldBackQueue.head"
_ANY_NUMBER = (("ordering.agreement.deliveries.may_be_final", yes), ("ordering.agreement.hold_back.may_be_final", yes))
_UNSAFE = (f"{_DELIVERIES}._is_safe", yes)
MUTATIONS = (
    Mutation(
        "same-life",
        "A process without memory comes back under its old incarnation",
        DIVERGENT,
        (("tests.simulator.isis.World._next_life", same_life),),
    ),
    Mutation(
        "before-final",
        "A process delivers a run before it is final",
        DIVERGENT,
        ((_HEAD, impatient_head), _UNSAFE, *_ANY_NUMBER),
    ),
    Mutation(
        "forget-a-proposal",
        "A process computes a final number without one of the proposals",
        DIVERGENT,
        ((f"{_AGREEMENT}._is_complete", staticmethod(all_but_one)), *_ANY_NUMBER),
    ),
    Mutation(
        "minimum",
        "A process takes the lowest proposal for the final number",
        DIVERGENT,
        (("ordering.agreement.isis.higher", lower), *_ANY_NUMBER),
    ),
    Mutation(
        "no-tie-break",
        "A process breaks ties between numbers by arrival",
        DIVERGENT,
        ((_HEAD, head_by_arrival),),
    ),
    Mutation(
        "minority",
        "A minority goes on to the next view",
        DIVERGENT,
        (("ordering.agreement.ballots.is_quorum", anybody),),
    ),
    Mutation("unsafe", "A process delivers a run whose number no majority knows", DIVERGENT, (_UNSAFE,)),
    Mutation(
        "no-freeze",
        "A process that has promised goes on in the old view",
        DIVERGENT,
        ((f"{_AGREEMENT}.freeze", go_on),),
    ),
    Mutation(
        "purge-all",
        "A view change drops final numbers of undelivered runs",
        DIVERGENT,
        (("ordering.agreement.flush.settle", purge_all),),
    ),
    Mutation(
        "no-computing",
        "A view change drops numbers that only all proposals together tell",
        DIVERGENT,
        (("ordering.agreement.flush._computed", compute_nothing),),
    ),
    Mutation(
        "told-by-two",
        "A sender in a large view delivers a run that two processes know",
        DIVERGENT,
        ((f"{_DELIVERIES}._safe_row", safe_for_two),),
    ),
    Mutation(
        "no-rows",
        "The next view does not say which runs were ordered",
        DUPLICATE,
        (("ordering.agreement.ballots.next_view", without_rows),),
    ),
    Mutation(
        "hidden-vote",
        "A process hides the value that it accepted in an earlier ballot",
        VIEW_VIOLATION,
        (("ordering.agreement.ballots.Ballots._own_promise", hide_vote),),
    ),
    Mutation(
        "no-catching-up",
        "A returning process does not ask for the messages that it missed",
        GAP,
        (("ordering.agreement.history.History.miss", miss_nothing),),
    ),
    Mutation(
        "no-parts",
        "A process loses a message that is longer than a datagram",
        LOST,
        (("connectors.isis.wire._in_parts", what_fits),),
    ),
    Mutation(
        "an-earlier-life",
        "A process whose clock went back takes no later incarnation",
        DUPLICATE,
        (("ordering.agreement.views.Process.latest_incarnation", own_incarnation),),
    ),
    Mutation(
        "one-seqno",
        "A process counts one seqno for a run of several messages",
        LOST,
        (("ordering.agreement.history.History._out", out_by_one),),
    ),
)
