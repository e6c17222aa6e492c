"""Digests of simulated histories, one for each world.

A digest covers all that the actors of a world write: each record of a partition, and each datagram of ISIS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any
from unittest.mock import patch

from connectors.testing.memory_topics import MemoryTopics
from tests.simulator import cuts, hub, isis, isis_sites, membership_mutations, schedule, sites_schedule
from tests.simulator.kafka import Log
from tests.simulator.orders import Orders
from tests.simulator.retention import Retained

WORLDS: dict[str, tuple[Sequence[int], Callable[[int], object]]] = {
    "group": ((0, 3), lambda seed: schedule.run(schedule.history(seed))),
    "sites": ((0, 1), lambda seed: sites_schedule.run(sites_schedule.history(seed))),
    "retention": ((0, 1), lambda seed: Retained(seed).run()),
    "membership": ((0, 2), membership_mutations.run),
    "orders": ((0, 1), lambda seed: Orders(seed).run()),
    "hub": ((0, 1), hub.run),
    "cuts": ((0, 1), cuts.run),
    "isis": ((0, 1), isis.run),
    "isis-sites": ((4,), isis_sites.run),
}
"""The seeds of each world, and the function that runs one."""


def digest(world: str) -> str:
    """Run the seeds of a world; return the number of writes, and a digest of them and of the violations."""
    seeds, run = WORLDS[world]
    content, count = blake2b(digest_size=16), 0

    def note(*written: object) -> None:
        nonlocal count
        count += 1
        content.update(repr(written).encode())

    def noting(write: Callable[..., Any], first: int) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            note(*arguments[first:])
            return write(*arguments)

        return noted

    with (
        patch.object(Log, "append", noting(Log.append, 1)),
        patch.object(MemoryTopics, "append", noting(MemoryTopics.append, 1)),
        patch.object(isis, "Letter", noting(isis.Letter, 0)),
        patch("os.getpid", lambda: 1),  # a claim names its process
    ):
        for seed in seeds:
            note(run(seed))
    return f"{count} {content.hexdigest()}"
