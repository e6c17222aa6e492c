"""The agreement in one view, by the sections of its source."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.agreement.codec import decode, encode
from ordering.agreement.hold_back import Key, Run, RunId
from ordering.agreement.isis import MAX_BACKLOG_RUNS, Agreement
from ordering.agreement.state import (
    AgreementState,
    DeliverInView,
    Drop,
    Finals,
    Known,
    Message,
    Output,
    Propose,
    Refused,
    Send,
    Submit,
    Tell,
    Tick,
    ToAll,
    begin,
)


class Received(NamedTuple):
    """A message from the process at the place `sender` of the view."""

    sender: int
    message: Message


Event = Submit | Received | Tick


def take(agreement: Agreement, events: Iterable[Event]) -> tuple[Output, ...]:
    """Take events as one batch."""
    for event in events:
        if isinstance(event, Received):
            agreement.receive(event.sender, event.message)
        elif isinstance(event, Submit):
            agreement.submit(event.run)
        else:
            agreement.tick(event.now_ms)
    return agreement.end_batch()


class View:
    """Processes of one view, and the messages between them."""

    def __init__(self, size: int) -> None:
        self.processes = [Agreement(begin(1, me, (0,) * size)) for me in range(size)]
        self.delivered: list[list[DeliverInView]] = [[] for _ in range(size)]
        self.letters: list[tuple[int, int, Message]] = []
        self.refused: list[Run] = []

    def take(self, place: int, *events: Event) -> tuple[Output, ...]:
        outputs = take(self.processes[place], events)
        for output in outputs:
            if isinstance(output, ToAll):
                others = [other for other in range(len(self.processes)) if other != place]
                self.letters += [(place, other, output.message) for other in others]
            elif isinstance(output, Tell):
                self.letters.append((place, output.to, output.message))
            elif isinstance(output, DeliverInView):
                self.delivered[place].append(output)
            else:
                self.refused.append(output.run)
        return outputs

    def carry(self, dice: random.Random | None = None) -> None:
        """Deliver all letters, in their order or in any."""
        while self.letters:
            sender, receiver, message = self.letters.pop(dice.randrange(len(self.letters)) if dice else 0)
            self.take(receiver, Received(sender, message))


def order(deliveries: list[DeliverInView]) -> list[RunId]:
    return [delivery.id for delivery in deliveries]


# Process


def test_one_message_takes_the_states_of_the_diagram() -> None:
    """Data to all, a proposal from each, the maximum to all, and everybody delivers; of three the sender first."""
    view = View(3)
    assert view.take(0, Submit(Run(b"a"))) == (ToAll(Send(1, 1, (Run(b"a"),), (1,))),)
    view.letters.clear()
    data = Received(0, Send(1, 1, (Run(b"a"),), (1,)))
    assert view.take(1, data) == (Tell(0, Propose(1, 0, 1, (1,))),)
    view.processes[2] = Agreement(begin(1, 2, (0, 0, 0), counter=6))
    assert view.take(2, data) == (Tell(0, Propose(1, 0, 1, (7,))),)
    assert view.take(0, Received(1, Propose(1, 0, 1, (1,)))) == ()
    finals = Finals(1, 1, (Key(7, 2),))
    delivered = DeliverInView(1, RunId(0, 1), Run(b"a"), Key(7, 2))
    known = Known(1, (1, 0, 0), 1)
    assert view.take(0, Received(2, Propose(1, 0, 1, (7,)))) == (delivered, ToAll(finals), ToAll(known))
    assert delivered in view.take(1, Received(0, finals))


def test_a_run_takes_as_many_seqnos_as_it_has_messages() -> None:
    view = View(2)
    view.take(0, Submit(Run(b"a", 3)), Submit(Run(b"b")))
    view.carry()
    assert [(delivery.seqno, delivery.run.reference) for delivery in view.delivered[1]] == [(1, b"a"), (4, b"b")]


@pytest.mark.parametrize("size", range(1, 8))
def test_all_deliver_the_same_in_any_order_of_arrival(size: int) -> None:
    view, dice = View(size), random.Random(size)
    for number in range(40):
        view.take(dice.randrange(size), Submit(Run(b"%d" % number)))
        for _ in range(dice.randrange(12)):
            if view.letters:
                sender, receiver, message = view.letters.pop(dice.randrange(len(view.letters)))
                view.take(receiver, Received(sender, message))
    view.carry(dice)
    for now_ms in range(0, 2_000, 20):
        for place in range(size):
            view.take(place, Tick(now_ms))
        view.carry(dice)
    assert [delivery.seqno for delivery in view.delivered[0]] == list(range(1, 41))
    assert all(deliveries == view.delivered[0] for deliveries in view.delivered)
    for sender in range(size):  # FIFO
        own = [run_id.number for run_id in order(view.delivered[0]) if run_id.sender == sender]
        assert own == list(range(1, len(own) + 1))


# Total Order Server


def test_a_replayed_message_gets_the_same_proposal_before_and_after_its_delivery() -> None:
    view = View(3)
    data = Received(0, Send(1, 1, (Run(b"a"),), (1,)))
    first = view.take(1, data)
    view.take(1, Received(2, Send(1, 1, (Run(b"b"),), (1,))))
    assert view.take(1, data) == first == (Tell(0, Propose(1, 0, 1, (1,))),)
    view.take(1, Received(0, Finals(1, 1, (Key(9, 2),))), Received(2, Finals(1, 1, (Key(8, 0),))))
    assert order(view.delivered[1]) == [RunId(2, 1), RunId(0, 1)]
    assert view.take(1, data) == first


def test_what_everybody_has_delivered_is_forgotten() -> None:
    view = View(3)
    view.take(0, Submit(Run(b"a")))
    view.carry()
    for now_ms in (1_000, 2_000):
        for place in range(3):
            view.take(place, Tick(now_ms))
        view.carry()
    states = [process.state for process in view.processes]
    assert not any(state.recent or state.proposals or state.own or len(state.held) for state in states)


def test_a_number_that_no_majority_knows_is_not_delivered() -> None:
    """Beyond the source: sender and receiver could be cut off together, and nobody else would know the number."""
    view = View(5)
    view.take(1, Received(0, Send(1, 1, (Run(b"a"),), (1,))), Received(0, Finals(1, 1, (Key(5, 4),))))
    assert view.delivered[1] == []
    view.take(1, Received(2, Known(1, (1, 0, 0, 0, 0), 0)))
    assert order(view.delivered[1]) == [RunId(0, 1)]


def test_a_sender_among_many_waits_until_a_majority_knows_the_number() -> None:
    """Both of two others that know each proposal may be cut off from the five."""
    view = View(5)
    view.take(0, Submit(Run(b"a")))
    view.take(0, *(Received(other, Propose(1, 0, 1, (1,))) for other in range(1, 5)))
    assert view.delivered[0] == []
    view.take(0, Received(1, Known(1, (1, 0, 0, 0, 0), 0)), Received(2, Known(1, (1, 0, 0, 0, 0), 0)))
    assert order(view.delivered[0]) == [RunId(0, 1)]


def test_a_proposal_that_is_overheard_lets_a_final_run_out() -> None:
    """The other run's number can't be below its proposal: the final run need not wait for that number."""
    view = View(3)
    view.take(0, Submit(Run(b"a")), Received(1, Send(1, 1, (Run(b"b"),), (1,))))
    view.take(0, Received(1, Propose(1, 0, 1, (3,))), Received(2, Propose(1, 0, 1, (2,))))
    assert view.delivered[0] == []
    view.take(0, Received(2, Propose(1, 1, 1, (4,))))
    assert order(view.delivered[0]) == [RunId(0, 1)]


def test_a_run_that_overtakes_waits_for_the_one_before_it() -> None:
    view = View(2)
    assert view.take(1, Received(0, Send(1, 2, (Run(b"b"),), (1,)))) == ()
    assert view.take(1, Received(0, Send(1, 1, (Run(b"a"),), (1,)))) == (Tell(0, Propose(1, 0, 1, (1, 2))),)


def test_what_is_not_answered_is_sent_again_to_those_who_have_not() -> None:
    view = View(3)
    view.take(0, Submit(Run(b"a")))
    view.letters.clear()
    view.take(0, Received(1, Propose(1, 0, 1, (1,))))
    assert Tell(2, Send(1, 1, (Run(b"a"),), (1,))) in view.take(0, Tick(1_000))
    assert not any(isinstance(output, Tell) for output in view.take(0, Tick(1_010)))


# Sequence Counter


def test_no_proposal_is_at_or_below_a_number_seen() -> None:
    view = View(3)
    view.take(1, Received(0, Send(1, 1, (Run(b"a"),), (1,))), Received(0, Finals(1, 1, (Key(41, 2),))))
    assert view.take(1, Received(2, Send(1, 1, (Run(b"b"),), (1,))))[0] == Tell(2, Propose(1, 2, 1, (42,)))


def test_the_final_number_is_the_maximum_and_the_proposer_breaks_ties() -> None:
    view = View(3)
    view.take(0, Submit(Run(b"a")))
    view.take(0, Received(2, Propose(1, 0, 1, (4,))), Received(1, Propose(1, 0, 1, (4,))))
    assert ToAll(Finals(1, 1, (Key(4, 2),))) in [ToAll(m) for _, _, m in view.letters]


# Bounds, and what can't be


def test_a_full_backlog_refuses() -> None:
    agreement = Agreement(begin(1, 0, (0, 0)))
    accepted = sum(agreement.submit(Run(b"a")) for _ in range(MAX_BACKLOG_RUNS + 1_000))
    assert accepted == MAX_BACKLOG_RUNS + agreement.state.window
    assert Refused(Run(b"a")) in agreement.end_batch()


def test_a_sender_that_keeps_to_no_window_meets_a_full_queue() -> None:
    """The named outcome: the run is not taken, nothing else changes, and the others' runs are."""
    agreement = Agreement(begin(1, 1, (0, 0)))
    for number in range(1, 3 * agreement.state.window):
        agreement.receive(0, Send(1, number, (Run(b"a"),), (1,)))
    agreement.receive(0, Send(1, 2 * agreement.state.window + 1, (Run(b"a"),), (1,)))
    assert agreement.state.dropped == {Drop.FULL.value: 2}
    agreement.receive(0, Send(1, 10_000, (Run(b"a"),), (1,)))
    assert agreement.state.dropped[Drop.EARLY.value] == 1


@pytest.mark.parametrize(
    ("sender", "message", "why"),
    [
        (0, Send(2, 1, (Run(b"a"),), (1,)), Drop.OLD_VIEW),
        (7, Send(1, 1, (Run(b"a"),), (1,)), Drop.INVALID),
        (0, Send(1, 1, (Run(b"a", 0),), (1,)), Drop.INVALID),
        (0, Send(1, 1, (Run(b"a"),), (0,)), Drop.INVALID),
        (0, Send(1, 1, (Run(b"a"),), ()), Drop.INVALID),
        (0, Finals(1, 1, (Key(5, 9),)), Drop.INVALID),
        (0, Finals(1, 1, (Key(5, 0),)), Drop.INVALID),
        (0, Finals(1, 5_000, (Key(5, 0),)), Drop.EARLY),
        (0, Known(1, (1,), 1), Drop.INVALID),
        (0, Propose(1, 1, 1, (1,)), Drop.REPEATED),
        (0, Propose(1, 2, 1, (9,)), None),
        (0, Propose(1, 700, 1, (9,)), None),
    ],
)
def test_what_can_not_be_is_counted_and_changes_nothing(sender: int, message: Message, why: Drop | None) -> None:
    after = begin(1, 1, (0, 0, 0))
    assert take(Agreement(after), [Received(sender, message)]) == ()
    assert after.dropped == ({} if why is None else {why.value: 1})
    assert not len(after.held)
    assert not after.early_finals
    assert after.counter == 0


# The state


def history(seed: int) -> list[Event]:
    """Return the events of one process of three in a random run."""
    view, dice, taken = View(3), random.Random(seed), list[Event]()
    for number in range(30):
        view.take(dice.randrange(1, 3), Submit(Run(b"%d" % number, dice.choice((1, 3)))))
        event: Event = Submit(Run(b"own %d" % number)) if dice.random() < 0.4 else Tick(20 * number)
        taken.append(event)
        view.take(0, event)
        for _ in range(dice.randrange(10)):
            if view.letters:
                sender, receiver, message = view.letters.pop(dice.randrange(len(view.letters)))
                if receiver == 0:
                    taken.append(Received(sender, message))
                view.take(receiver, Received(sender, message))
    return taken


@given(st.integers(0, 50), st.lists(st.integers(0, 120), max_size=8))
def test_however_events_are_cut_into_batches_the_state_and_the_deliveries_are_the_same(
    seed: int, cuts: list[int]
) -> None:
    events = history(seed)
    expected, state = begin(1, 0, (0, 0, 0)), begin(1, 0, (0, 0, 0))
    outputs, delivered = take(Agreement(expected), events), list[Output]()
    bounds = sorted({0, len(events), *(min(cut, len(events)) for cut in cuts)})
    for start, end in pairwise(bounds):
        state = decode(AgreementState, encode(state))
        more = take(Agreement(state), events[start:end])
        delivered += [output for output in more if isinstance(output, DeliverInView)]
    assert delivered == [output for output in outputs if isinstance(output, DeliverInView)]
    assert without_time(state) == without_time(expected)


def without_time(state: AgreementState) -> AgreementState:
    """Drop the times of the last report, which follow the batches."""
    return replace(state, known_at_ms=0, told=0)


@given(st.integers(0, 50), st.integers(0, 120))
def test_the_codec_round_trips(seed: int, length: int) -> None:
    state = begin(1, 0, (0, 0, 0))
    take(Agreement(state), history(seed)[:length])
    assert decode(AgreementState, encode(state)) == state
    assert encode(decode(AgreementState, encode(state))) == encode(state)
