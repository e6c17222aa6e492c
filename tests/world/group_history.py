"""Histories of a group's world: rows of actions, each with its own dice, so the others stay when one is left out."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.simulator.mutation import NONE, Mutation

WEIGHTS = {
    "broadcast": 14,
    "network": 22,
    "resend": 6,
    "member_read": 10,
    "member_crash": 2,
    "poison": 1,
    "add_partition": 1,
    "start": 4,
    "race": 3,
    "sequence": 36,
    "job_crash": 3,
    "task_failure": 4,
    "leftover": 4,
    "broken_write": 3,
    "deliver": 7,
    "deliverer_crash": 3,
    "ledger": 6,
    "ledger_commit": 2,
    "ledger_crash": 1,
}
WORK = ("broadcast", "network", "resend", "member_read", "sequence", "deliver", "ledger")
"""Actions that are no faults: they happen in every history."""
COUNT = 160
POWERS = ((), (), (), ("clock", "away", "marker"))


class Action(NamedTuple):
    """An action: its target (modulo the number of targets), and the seed of its dice."""

    kind: str
    who: int = 0
    dice: int = 0


class Shape(NamedTuple):
    """The size of a world."""

    members: int = 2
    partitions: int = 1
    deliverers: int = 2
    outboxes: int = 0b01
    batch_rows: int = 8
    bad_network: int = 12
    """Percent of the records that are lost, late, and repeated."""
    steps: int = 10
    """Most calls of a job at once: the fewer, the more two of them mix."""
    depth: int = 1
    """Batches of a job that may be in flight."""
    haste: float = 0.5
    """See `WiredKafka.haste`."""
    later: int = 0
    """Percent of batches in which the jobs, of a later version, write a record of an unknown kind."""
    packs: int = 0
    """The most messages of a pack, in a group that is given the format of packs; 0 in any other."""
    columns_from: int = 1 << 30
    """The smallest batch that is decided by columns."""
    snapshot_every: int = 8
    window: int = 2048
    powers: tuple[str, ...] = ()
    standbys: int = 0
    """Percent of the jobs that stand by; at the end, any is one."""
    ledger: bool = False
    """Whether starting jobs compare DATA with a ledger."""


class History(NamedTuple):
    """The whole history of a seed."""

    seed: int
    shape: Shape
    actions: tuple[Action, ...]
    world: Any = None
    """The class of its world; None for a group's."""


def history(seed: int, mutation: Mutation = NONE) -> History:
    """Return the history of a seed. A broken rule has the features that it needs, and no others of later versions."""
    dice = random.Random(seed)
    shape = Shape(
        members=dice.randint(1, 3),
        partitions=dice.randint(1, 3),
        deliverers=dice.randint(1, 3),
        outboxes=dice.randrange(8),
        batch_rows=dice.choice((3, 8, 30)),
        bad_network=dice.choice((0, 5, 20)),
        steps=dice.choice((6, 15, 40)),
        depth=dice.choice((1, 1, 2, 4)),
        haste=dice.choice((0.3, 0.7)),
        snapshot_every=dice.choice((3, 8, 30, 1000)),
        window=dice.choice((1, 5, 2048)),
    )
    # A fault is absent, rare or common in a whole history: what needs one fault often and another never happens, too.
    weights = [weight if kind in WORK else weight * dice.choice((0, 1, 1, 4)) for kind, weight in WEIGHTS.items()]
    kinds = dice.choices(list(WEIGHTS), weights, k=COUNT)
    # In most histories one job does the work; the others come, pause and go.
    who = dice.choice(((0, 0, 0, 0, 1, 2), (0, 0, 0, 1, 1, 2), (0, 1, 2)))
    actions = [Action(kind, dice.choice(who), dice.getrandbits(48)) for kind in kinds]
    for extra, times in (("backup", (0, 0, 2, 6)), ("restore", (0, 0, 2, 6)), ("forget", (0, 0, 6))):
        for _ in range(dice.choice(times)):
            actions.insert(dice.randrange(len(actions)), Action(extra, dice.choice(who), dice.getrandbits(48)))
    purges = random.Random(f"purges {seed}")
    for _ in range(purges.choice((0, 3, 12)) if mutation.has("purge") else 0):
        actions.insert(purges.randrange(len(actions)), Action("purge", 0, purges.getrandbits(48)))
    later, columns_from, powers = dice.choice((0, 0, 10, 60)), dice.choice((1, 1 << 30)), dice.choice(POWERS)
    if mutation is NONE:
        shape = shape._replace(columns_from=columns_from, powers=powers)
    standbys = random.Random(f"standbys {seed}").choice((0, 0, 50, 100)) if mutation.has("standbys") else 0
    asks = random.Random(f"handovers {seed}")
    for kind, most in (("hand_over", 6), ("repeat_request", 2)) if standbys else ():
        for _ in range(asks.choice((0, 2, most))):
            actions.insert(asks.randrange(len(actions)), Action(kind, 0, asks.getrandbits(48)))
    upgrade = random.Random(f"packs {seed}")
    packs = upgrade.choice((0, 0, 2, 5)) if mutation.has("packs") else 0
    if packs:
        actions.insert(upgrade.randrange(COUNT // 4), Action("upgrade"))
    shape = shape._replace(later=later if mutation.has("later") else 0, standbys=standbys, packs=packs)
    return History(seed, shape, (Action("start"), *actions))
