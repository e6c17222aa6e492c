"""Messages that no correct process sends: a member counts them, or ends with a sentence about two orders."""

from __future__ import annotations

import random
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from ordering.agreement.formation import Formation, Hello, ProcessIncarnation, View, first_view
from ordering.agreement.history import Ask, History, MissedDeliveries
from ordering.agreement.hold_back import Places, Run
from ordering.agreement.messages import (
    Accept,
    BallotAccepted,
    BallotPromise,
    Beat,
    DecidedView,
    DeliverRun,
    Hears,
    Join,
    Missing,
    NextView,
    Prepare,
    Refuse,
)
from ordering.agreement.process import fresh, member
from ordering.agreement.state import Finals, Known, Propose, Send
from ordering.agreement.views import Process
from ordering.base.errors import ProtocolViolation

NAMES = ("a", "b", "c")
LIVES = [ProcessIncarnation(name, 5) for name in NAMES]
STRANGERS = [ProcessIncarnation("b", 6), ProcessIncarnation("z", 1)]
KINDS: tuple[Any, ...] = (
    *(
        Send,
        Propose,
        Finals,
        Known,
        Beat,
        Hello,
        Join,
        Hears,
        Prepare,
        BallotPromise,
        Refuse,
        Accept,
        BallotAccepted,
        DecidedView,
    ),
    *(Ask, MissedDeliveries),
)


class Babbler:
    """Makes values of any type, with meaningful numbers and names."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def value(self, kind: Any, view: View) -> Any:
        dice, kind = self.dice, int if kind is Places else kind
        if type(None) in (options := get_args(kind)) or get_origin(kind) is Union:
            chosen = dice.choice(options)
            return None if chosen is type(None) else self.value(chosen, view)
        if kind in (bytes, bool, int, str):
            return kind(dice.choice((0, 1, 1, 2, 3, 7))) if kind is not str else dice.choice((*NAMES, "z", ""))
        if get_origin(kind) is tuple:
            kinds = options[:1] * dice.choice((0, 1, 2, 3, 3)) if options[-1] is Ellipsis else options
            return tuple(self.value(each, view) for each in kinds)
        if kind is View and dice.random() < 0.7:
            members = tuple(sorted(dice.sample(view.members, dice.randrange(len(view.members) + 1))))
            rows = tuple((member, dice.randrange(4)) for member in view.members)
            return View(view.origin, view.id + dice.choice((0, 1, 1, 2)), members, dice.randrange(5), rows)
        hints = get_type_hints(kind)
        return kind(*(self.value(hints[field], view) for field in kind._fields))


@pytest.mark.slow
@pytest.mark.parametrize("is_fresh", [False, True], ids=["member", "fresh"])
def test_whatever_is_said(is_fresh: bool) -> None:
    first = first_view(LIVES)
    for seed in range(120):
        babbler, history, now_ms = Babbler(seed), History(), 0
        dice = babbler.dice
        process = Process(fresh(LIVES[0]), Formation(LIVES[0], NAMES)) if is_fresh else Process(member(LIVES[0], first))
        for _ in range(40):
            message = babbler.value(dice.choice(KINDS), process.view if process.view.members else first)
            sender = dice.choice((*LIVES, *STRANGERS))
            if isinstance(message, Ask):
                history.answer(message)
                continue
            if isinstance(message, MissedDeliveries):
                history.fill(sender, message, LIVES[1:])
                continue
            if dice.random() < 0.2:
                now_ms += dice.choice((10, 100, 1_000, 3_000))
                process.tick(now_ms)
                process.submit(Run(b"x", dice.choice((1, 3))))
            try:
                process.receive(sender, message)
            except ProtocolViolation as error:
                assert isinstance(message, DecidedView), f"seed {seed}: {error}"  # noqa: PT017 - it may come or not
                break
            for output in process.end_batch():
                if isinstance(output, DeliverRun):
                    history.add(output)
                elif isinstance(output, Missing):
                    history.miss(output.last)


def test_a_value_of_another_view_is_not_voted_for() -> None:
    """Neither is a view with unknown places, nor one whose members are in no order."""
    view = first_view(LIVES)
    process = Process(member(LIVES[0], view))
    after = View(view.origin, 2, (LIVES[0], LIVES[1]))
    for wrong in (after._replace(id=3), after._replace(members=(LIVES[1], LIVES[0]))):
        process.receive(LIVES[1], Accept(1, process.state.promised, NextView(wrong)))
    assert process.state.ignored == 2
    assert process.end_batch() == ()
    process.receive(LIVES[1], Accept(1, process.state.promised, NextView(after)))
    assert [type(output.message) for output in process.end_batch()] == [BallotAccepted]  # type: ignore[union-attr]
