"""Digests of simulated histories, one for each world.

A digest covers all that the actors of a world write: each record of a partition, and each datagram of ISIS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any
from unittest.mock import patch

from connectors.testing.memory_topics import MemoryTopics
from tests.simulator import isis
from tests.simulator.mutation import NONE
from tests.simulator.simulations import SIMULATIONS

SEEDS: dict[str, Sequence[int]] = {
    "group": (0, 3),
    "sites": (0, 1),
    "membership": (0, 2),
    "casts": (1, 3),
    "hub": (0, 1),
    "cuts": (0, 1),
    "isis": (0, 1),
    "isis-sites": (4,),
}
"""The seeds of each world."""


def digest(world: str) -> str:
    """Run the seeds of a world; return the number of writes, and a digest of them and of the violations."""
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
        patch.object(MemoryTopics, "append", noting(MemoryTopics.append, 1)),
        patch.object(isis, "Letter", noting(isis.Letter, 0)),
        patch("os.getpid", lambda: 1),  # a claim names its process
    ):
        for seed in SEEDS[world]:
            note(SIMULATIONS[world].run(seed, NONE))
    return f"{count} {content.hexdigest()}"
