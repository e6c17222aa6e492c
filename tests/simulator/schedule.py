"""A seed's history: its actions, how to run them, and how to shrink them when they break a promise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeVar
from unittest.mock import patch

from ordering.checker.anomalies import Anomaly
from tests.simulator.mutation import NONE, Mutation
from tests.simulator.rules import Rules
from tests.simulator.world import Action, Shape, World

T = TypeVar("T")

WEIGHTS = {
    "broadcast": 14,
    "network": 22,
    "resend": 6,
    "member_read": 10,
    "member_crash": 1,
    "poison": 1,
    "add_partition": 1,
    "start": 4,
    "race": 2,
    "sequence": 36,
    "sequencer_crash": 3,
    "task_failure": 4,
    "leftover": 4,
    "broken_write": 2,
    "deliver": 7,
    "deliverer_crash": 3,
    "ledger": 6,
    "ledger_commit": 2,
    "ledger_crash": 1,
}
ACTIONS = 160
WORK = ("broadcast", "network", "resend", "member_read", "sequence", "deliver", "ledger")
"""Actions that are no faults: they happen in every run."""


class History(NamedTuple):
    """The whole history of a seed."""

    shape: Shape
    snapshot_every: int
    window: int
    actions: tuple[Action, ...]


def history(seed: int) -> History:
    """The history of a seed; the same on every machine."""
    rng = random.Random(seed)
    shape = Shape(
        members=rng.randint(1, 3),
        partitions=rng.randint(1, 3),
        deliverers=rng.randint(1, 3),
        outboxes=rng.randrange(8),
        batch_rows=rng.choice((3, 8, 30)),
        bad_network=rng.choice((0, 3, 12)),
        steps=rng.choice((2, 5, 10)),
    )
    # A fault is absent, rare or common in a whole run: what needs one fault often and another never happens, too.
    weights = [weight if kind in WORK else weight * rng.choice((0, 1, 1, 4)) for kind, weight in WEIGHTS.items()]
    kinds = rng.choices(list(WEIGHTS), weights, k=ACTIONS)
    # In most runs one sequencer does the work; the others come, pause and go.
    who = rng.choice(((0, 0, 0, 0, 1, 2), (0, 0, 0, 1, 1, 2), (0, 1, 2)))
    actions = [Action(kind, rng.choice(who), rng.getrandbits(48)) for kind in kinds]
    snapshot_every, window = rng.choice((3, 8, 30, 1000)), rng.choice((1, 5, 2048))
    for _ in range(rng.choice((0, 0, 2, 6))):
        for kind in ("backup", "restore"):
            actions.insert(rng.randrange(len(actions)), Action(kind, rng.choice(who), rng.getrandbits(48)))
    shape = shape._replace(depth=rng.choice((1, 1, 2, 4)))
    for _ in range(rng.choice((0, 0, 0, 4))):
        actions.insert(rng.randrange(len(actions)), Action("forget", rng.choice(who), rng.getrandbits(48)))
    shape = shape._replace(later=random.Random(f"later {seed}").choice((0, 0, 10, 60)))  # other dice: seeds stay valid
    return History(shape, snapshot_every, window, (Action("start"), *actions))


def run(what: History, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run it in a fresh world; return the violations. Only mutations that ask for it have records of a later kind."""
    with ExitStack() as stack:
        stack.enter_context(patch("ordering.sequencer.sequencer.SNAPSHOT_EVERY_RECORDS", what.snapshot_every))
        stack.enter_context(patch("ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER", 1))
        stack.enter_context(patch("connectors.kafka.log.log_state._FIRST_WINDOW", what.window))
        stack.enter_context(patch("connectors.kafka.log.seqno_search._FIRST_STEP", what.window))
        stack.enter_context(mutation.broken())
        shape = what.shape if mutation.has("later") else what.shape._replace(later=0)
        world = World(shape, mutation.rules or Rules())
        for action in what.actions:
            world.apply(action)
        world.heal()
        return world.anomalies()


def shrink(what: History, name: str, mutation: Mutation = NONE) -> History:
    """Drop as many actions as can be dropped while the anomaly `name` stays."""

    def fails(actions: Sequence[Action]) -> bool:
        return any(found.name == name for found in run(what._replace(actions=tuple(actions)), mutation))

    return what._replace(actions=tuple(drop_actions(what.actions, fails)))


def describe(what: History, name: str) -> str:
    """A shrunk history, for a reader."""
    lines = [f"  {name} needs no more than this ({what.shape}, a snapshot every {what.snapshot_every} records, "]
    lines += [f"  first window {what.window})"]
    return "\n".join([*lines, *(f"    {action.kind} {action.who} {action.dice}" for action in what.actions)])


def drop_actions(all_actions: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return as few of the actions as still fail: leave out half of them at a time, then a quarter …"""
    actions = list(all_actions)
    size = max(1, len(actions) // 2)
    while True:
        index, before = 0, len(actions)
        while index < len(actions):
            shorter = actions[:index] + actions[index + size :]
            if fails(shorter):
                actions = shorter
            else:
                index += size
        if size == 1 and len(actions) == before:
            return actions
        size = max(1, size // 2)
