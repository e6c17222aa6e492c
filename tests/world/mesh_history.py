"""The history of a seed: the shape of its mesh, and what happens there."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from tests.simulator.mutation import NONE, Mutation

Link = frozenset[str]
BY_ROWS = 1 << 30
"""The smallest batch that is decided by columns, if none is."""
TALK, BUSY, LATER = "talk", "busy", "later"
"""The features that a mutation may need."""

POWERS = (("marker", "away"), ("marker", "away", "clock"), ("marker", "away", "clock", "limit"))
WEIGHTS = {
    "broadcast": 12,
    "member": 14,
    "sequence": 24,
    "relay_start": 9,
    "relay": 24,
    "roll_out": 3,
    "time": 3,
    "start": 2,
    "sequencer_fault": 4,
    "leftover": 3,
    "relay_fault": 5,
    "rivals": 0.3,
    "blind": 1,
    "cut": 1,
    "member_fault": 1,
    "settings": 1,
    "purge": 2,
    "relayed_retention": 1,
    "ledger": 1,
    "change_links": 1,
    "new_site": 0.5,
    "retire": 0.3,
    "talk": 4,
}
WORK = ("broadcast", "member", "sequence", "relay_start", "relay", "roll_out", "time", "talk")
"""Actions that are no faults: they happen in every run."""
ACTIONS = 80
ROLLING = {"change_links": 8, "roll_out": 10, "new_site": 1}
"""The weights in a mesh whose relays carry letters and casts by files of different age."""
OFTEN = ROLLING | {
    "broadcast": 20,
    "rivals": 6,
    "relay_start": 30,
    "relay": 50,
    "purge": 0,
    "ledger": 0,
    "retire": 0,
    "new_site": 0.2,
}
BUSY_ACTIONS = 140
"""In a busy mesh, which is small, relays of several files run side by side."""


class MeshShape(NamedTuple):
    """The beginning of a mesh."""

    sites: str = "abc"
    links: tuple[str, ...] = ("ab", "bc")
    """Two letters each."""
    senders: int = 1
    """At each site."""
    joining: int = 0
    """Every how manieth sender joins (0: none)."""
    flush: bool = False
    partitions: int = 1
    later: int = 0
    """Percentage of batches in which sequencers, of a later version, write a record of an unknown kind."""
    talks: bool = False
    """Whether members write letters and casts, too."""
    powers: tuple[str, ...] = ()
    """The powers of the Kafkas (`tests.world.powers`)."""


class MeshHistory(NamedTuple):
    """The whole history of a seed. An action has a number for its dice."""

    seed: int
    shape: MeshShape
    snapshot_every: int
    columns_from: int
    """The smallest batch that is decided by columns."""
    actions: tuple[tuple[str, int], ...]


def history(seed: int, mutation: Mutation = NONE) -> MeshHistory:
    """Return the history of a seed; the same on every machine. A broken rule has the features that it needs only."""
    rng, is_whole = random.Random(seed), mutation is NONE
    is_busy = BUSY in mutation.needs or (is_whole and seed % 8 == 7)
    talks = TALK in mutation.needs or (is_whole and seed % 4 == 1)
    of_kind, count = (WEIGHTS | OFTEN, BUSY_ACTIONS) if is_busy else (WEIGHTS | (ROLLING if talks else {}), ACTIONS)
    names = "abcdefg"[: rng.choice((3, 3, 4) if is_busy else (2, 2, 3, 3, 3, 4, 4, 5, 6, 7))]
    joining = rng.choice((0, 0, 1, 2))
    shape = MeshShape(
        names,
        graph(names, rng),
        senders=rng.randint(1, 2),
        joining=joining,
        flush=bool(joining) and rng.random() < 0.3,
        partitions=rng.choice((1, 1, 2)),
        later=rng.choice((0, 0, 10, 60)) if mutation.has(LATER) else 0,
        talks=talks,
        powers=POWERS[seed // 4 % len(POWERS)] if is_whole and seed % 4 == 2 else (),
    )
    weights = [weight if kind in WORK else weight * rng.choice((0, 1, 1, 4)) for kind, weight in of_kind.items()]
    actions = tuple((kind, rng.getrandbits(40)) for kind in rng.choices(list(of_kind), weights, k=count))
    columns_from = rng.choice((1, 8, 64)) if is_whole else BY_ROWS
    return MeshHistory(seed, shape, rng.choice((3, 10, 40, 1000)), columns_from, actions)


def graph(names: str, rng: random.Random) -> tuple[str, ...]:
    """Return the links of a tree, a ring, a clique, or of anything that hangs together."""
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


def hang_together(names: Iterable[str], links: Iterable[Link]) -> bool:
    """Whether there is a way from each to each."""
    left = set(names)
    ends = [left.pop()] if left else []
    while ends:
        end = ends.pop()
        for link in links:
            if end in link:
                near = (link - {end}) & left
                left -= near
                ends += near
    return not left
