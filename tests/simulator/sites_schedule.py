"""A seed's mesh: its shape, what happens in it, how to run it, and how to shrink it when a promise is broken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import NamedTuple
from unittest.mock import patch

from ordering.checker.anomalies import Anomaly
from tests.simulator.mutation import NONE, Mutation
from tests.simulator.sites import Mesh, MeshShape, hang_together
from tests.world.shrinking import drop_actions

WEIGHTS = {
    "broadcast": 12,
    "member": 14,
    "sequence": 34,
    "relay_start": 9,
    "relay": 24,
    "roll_out": 3,
    "time": 3,
    "start": 2,
    "race": 1,
    "sequencer_fault": 3,
    "leftover": 3,
    "relay_fault": 5,
    "member_fault": 1,
    "settings": 1,
    "retention": 1,
    "relayed_retention": 1,
    "ledger": 1,
    "change_links": 1,
    "new_site": 0.5,
    "retire": 0.3,
}
WORK = ("broadcast", "member", "sequence", "relay_start", "relay", "roll_out", "time")
"""Actions that are no faults: they happen in every run."""
ACTIONS = 80
BUSY = {
    "relay_start": 30,
    "relay": 40,
    "sequencer_fault": 8,
    "leftover": 10,
    "race": 3,
    "retention": 0,
    "ledger": 0,
    "retire": 0,
    "change_links": 4,
    "roll_out": 8,
    "new_site": 1,
}
BUSY_ACTIONS = 140
"""In a busy mesh relays of several files run side by side."""


class MeshHistory(NamedTuple):
    """The whole history of a seed."""

    shape: MeshShape
    snapshot_every: int
    actions: tuple[tuple[str, int], ...]


def history(seed: int, *, busy: bool = False) -> MeshHistory:
    """The mesh of a seed; the same on every machine."""
    of_kind, count = ({**WEIGHTS, **BUSY}, BUSY_ACTIONS) if busy else (WEIGHTS, ACTIONS)
    rng = random.Random(seed)
    names = "abcdefg"[: rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 6, 7))]
    joining = rng.choice((0, 0, 1, 2))
    shape = MeshShape(
        names,
        graph(names, rng),
        senders=rng.randint(1, 2),
        joining=joining,
        flush=bool(joining) and rng.random() < 0.3,
        partitions=rng.choice((1, 1, 2)),
        batch_rows=rng.choice((3, 10, 40)),
        coded=rng.random() < 0.1,
        later=random.Random(f"later {seed}").choice((0, 0, 10, 60)),  # other dice: seeds stay valid
    )
    weights = [weight if kind in WORK else weight * rng.choice((0, 1, 1, 4)) for kind, weight in of_kind.items()]
    actions = [(kind, rng.getrandbits(40)) for kind in rng.choices(list(of_kind), weights, k=count)]
    return MeshHistory(shape, rng.choice((3, 10, 40, 1000)), tuple(actions))


def graph(names: str, rng: random.Random) -> tuple[str, ...]:
    """The links of a tree, a ring, a clique, or of anything that hangs together."""
    order = "".join(rng.sample(names, len(names)))
    kind = rng.choice(("tree", "ring", "clique", "any"))
    if kind == "clique" and len(names) <= 5:
        return tuple(one + other for one, other in combinations(names, 2))
    if kind == "ring" and len(names) > 2:
        return tuple(one + other for one, other in zip(order, order[1:] + order[0], strict=True))
    links = {frozenset((name, rng.choice(order[:index]))) for index, name in enumerate(order) if index}
    if kind == "any":
        links |= {frozenset(rng.sample(names, 2)) for _ in range(rng.randint(1, 3))}
    assert hang_together(names, links)
    return tuple(sorted("".join(sorted(link)) for link in links))


def run(what: MeshHistory, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run it in a fresh mesh; return the violations."""
    with ExitStack() as stack:
        for module in ("ordering.sequencer.sequencer", "connectors.relay.link_start"):
            stack.enter_context(patch(f"{module}.SNAPSHOT_EVERY_RECORDS", what.snapshot_every))
        stack.enter_context(patch("ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER", 1))
        stack.enter_context(patch("connectors.kafka.log.log_state._FIRST_WINDOW", 16))
        stack.enter_context(patch("connectors.kafka.log.seqno_search._FIRST_STEP", 16))
        stack.enter_context(mutation.broken())
        shape = what.shape if mutation.has("later") else what.shape._replace(later=0)
        mesh = Mesh(shape, mutation.rules)
        for kind, dice in what.actions:
            mesh.apply(kind, dice)
        mesh.heal()
        return mesh.anomalies()


def shrink(what: MeshHistory, name: str, mutation: Mutation = NONE) -> MeshHistory:
    """Drop as many actions as can be dropped while the anomaly `name` stays."""

    def fails(actions: Sequence[tuple[str, int]]) -> bool:
        return any(found.name == name for found in run(what._replace(actions=tuple(actions)), mutation))

    return what._replace(actions=tuple(drop_actions(what.actions, fails)))


def describe(what: MeshHistory, name: str) -> str:
    """A shrunk history, for a reader."""
    lines = [f"  {name} needs no more than this ({what.shape}, a snapshot every {what.snapshot_every} records):"]
    return "\n".join([*lines, *(f"    {kind} {dice}" for kind, dice in what.actions)])
