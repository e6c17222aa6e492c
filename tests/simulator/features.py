"""The features that a seed's history has on, in each world, and how often two are on together.

    python -m tests.simulator.features  # the matrix of docs/proofs.md

A feature is on if the history may use it: its shape or its dice have it. `ALWAYS` has
the features of all seeds of a world; `DRAWN` looks at a history before it runs.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement

from tests.simulator import isis
from tests.simulator.simulations import SIMULATIONS
from tests.simulator.table import write
from tests.world import agreeing, casts, casts_actions, cuts, group, group_history, groups, hub, mesh, mesh_history
from tests.world import membership as members
from tests.world.guests import Guests
from tests.world.jobs import has_packs

FEATURES = {
    "takeover": "killed sequencers are replaced by others",
    "two": "two sequencers of a group run at a time, as one is fenced late",
    "flight": "several batches are on their way to DATA",
    "ledger": "a group has a ledger",
    "outbox": "a member's forward table is on disk, and may be restored from a copy",
    "forget": "the group forgets idle senders",
    "views": "members join, leave and are excluded",
    "flush": "view changes have a flush",
    "closed": "a group is closed, from the start or later",
    "casts": "members send fifo and causal messages beside total ones",
    "hostile": "a client counts casts that do not exist, or writes malformed records",
    "purge": "`abcast maintain` purges DATA or FORWARD",
    "retention": "Kafka deletes old records",
    "cut": "a log loses its end, or is recreated",
    "clocks": "brokers' clocks jump forwards and backwards",
    "away": "a partition has no leader for a while",
    "markers": "transactions leave offsets without a record",
    "limits": "a topic rejects large records",
    "answers": "records get no answer, so they are written again, or get lost",
    "packs": "a record of DATA may have several messages",
    "counts": "a later version writes records that take several seqnos",
    "versions": "jobs of other versions take over, or an upgrade raises the format",
    "own clock": "the clock of a job or a process jumps",
    "day": "nothing happens for a day",
    "groups": "a job has many groups, one of them in trouble",
    "hub": "sites share one order by relays",
    "promotion": "another site becomes the home",
    "mesh": "sites have an order each, and links",
    "files": "sites' files differ in age, and links are added and removed",
    "agree": "sites agree without a home",
    "isis": "processes agree without Kafka",
    "stored": "a state is stored and loaded between two steps, as on Spark",
}
ALWAYS: Mapping[str, frozenset[str]] = {
    "group": frozenset({"takeover", "two", "ledger", "purge", "answers"}),
    "sites": frozenset({"mesh", "takeover", "two", "answers"}),
    "hub": frozenset(
        ("hub", "takeover", "two", "promotion", "files", "retention", "purge", "ledger", "answers", "own clock")
    ),
    "membership": frozenset({"views", "takeover", "retention", "purge", "outbox", "answers"}),
    "casts": frozenset({"casts", "views", "takeover"}),
    "cuts": frozenset({"takeover", "two", "cut", "purge", "retention", "markers", "hostile"}),
    "isis": frozenset({"isis", "views"}),
    "isis-sites": frozenset({"agree", "takeover", "two", "retention", "purge", "own clock"}),
    "groups": frozenset({"groups", "takeover", "flight", "away", "cut", "retention", "hostile", "answers"}),
    "restores": frozenset(),  # about the restore alone
}
"""The features that each history of a world has."""
POWERS = {"clock": "clocks", "away": "away", "marker": "markers", "limit": "limits"}
"""The features that powers of a Kafka in memory are."""
GUESTS = POWERS | {name: name for name in FEATURES} | {"format": "versions"}
"""The features that guests of a world are."""


def invited(seed: int, guests: Sequence[str]) -> set[str]:
    """Return the features that guests bring to a seed of a world."""
    return {GUESTS[name] for name in Guests(seed, guests).names if name in GUESTS}


def of_kafka(powers: Sequence[str]) -> set[str]:
    """Return the features of a Kafka with these powers."""
    return {POWERS[power] for power in powers}


def a_group(seed: int) -> set[str]:
    what = group_history.history(seed)
    kinds = {action.kind for action in what.actions}
    powers = Guests(seed, group.GUESTS).powers(what.shape.powers)
    return (
        of_kafka(powers)
        | invited(seed, group.GUESTS)
        | on(
            flight=what.shape.depth > 1,
            outbox=what.shape.outboxes,
            forget="forget" in kinds,
            hostile="poison" in kinds,
            counts=what.shape.later,
            packs=what.shape.packs,
        )
    )


def a_mesh(seed: int) -> set[str]:
    shape, actions = (drawn := mesh_history.history(seed)).shape, drawn.actions
    kinds = {kind for kind, _ in actions}
    return (
        of_kafka(shape.powers)
        | invited(seed, mesh.GUESTS)
        | on(
            flight="away" in shape.powers,
            views=shape.joining,
            flush=shape.flush,
            counts=shape.later,
            packs=has_packs(seed),
            purge="purge" in kinds,
            retention="relayed_retention" in kinds,
            ledger="ledger" in kinds,
            files={"roll_out", "change_links", "new_site", "retire"} & kinds,
            closed="settings" in kinds and shape.joining,
        )
    )


def a_hub(seed: int) -> set[str]:
    with hub.playing(seed) as world:
        return (
            of_kafka(world.powers)
            | invited(seed, hub.GUESTS)
            | on(flight=True, cut=world.may_cut, packs=has_packs(seed), views=world.members.join)
        )


def membership(seed: int) -> set[str]:
    with members.playing(seed) as world:
        powers = world.kafka.powers
        return (
            of_kafka(powers)
            | invited(seed, members.GUESTS)
            | on(
                flight="away" in powers and "data" in world.roles,
                flush=world.with_flush,
                closed=world.settings.closed,
                mesh=world.neighbour,
                versions=world.versions,
                packs=has_packs(seed),
            )
        )


def sending(seed: int) -> set[str]:
    with casts.playing(seed) as world:
        powers = world.sites["n"].kafka.powers
        return (
            of_kafka(powers)
            | invited(seed, casts_actions.GUESTS)
            | on(
                flush=world.has_flush,
                hostile=world.lies,
                outbox=world.has_outboxes,
                packs=has_packs(seed),
                retention=powers,
                hub=len(world.sites) > 1,
            )
        )


def cut(seed: int) -> set[str]:
    shape = cuts.history(seed).shape
    return (
        of_kafka(shape.powers)
        | invited(seed, cuts.GUESTS)
        | on(
            ledger=shape.ledger,
            counts=shape.later,
            packs=shape.packs,
            flight=shape.depth > 1,
            outbox=shape.outboxes,
        )
    )


def many(seed: int) -> set[str]:
    return invited(seed, groups.GUESTS) | on(packs=has_packs(seed))


def processes(seed: int) -> set[str]:
    world = isis.World(seed)
    return on(stored=world.remembers, **{"own clock": world.has_bad_clocks}, limits=world.largest < 10_000)


def sites(seed: int) -> set[str]:
    with agreeing.playing(seed) as world:
        first = world.sites[world.names[0]]
        return (
            of_kafka(first.kafka.powers)
            | invited(seed, agreeing.GUESTS)
            | on(
                views=world.has_members or world.members.join,
                answers=world.members.members,
                cut=world.loses_a_log,
                stored=world.stores_state,
                counts=world.later,
                versions=len({site.format_2_from for site in world.sites.values()}) > 1,
            )
        )


def on(**features: object) -> set[str]:
    """Return the names of the true ones."""
    return {name for name, is_on in features.items() if is_on}


DRAWN: Mapping[str, Callable[[int], set[str]]] = {
    "group": a_group,
    "sites": a_mesh,
    "hub": a_hub,
    "membership": membership,
    "casts": sending,
    "cuts": cut,
    "isis": processes,
    "isis-sites": sites,
    "groups": many,
    "restores": lambda _: set(),
}


def features(world: str, seed: int) -> frozenset[str]:
    """Return the features that a seed of a world has on."""
    return ALWAYS[world] | DRAWN[world](seed)


def count(seeds: Iterable[int]) -> Counter[tuple[str, str]]:
    """Count the seeds of all worlds in which two features were on. A feature and itself are a pair, too."""
    place = {name: at for at, name in enumerate(FEATURES)}
    pairs: Counter[tuple[str, str]] = Counter()
    for world in SIMULATIONS:
        for seed in seeds:
            pairs.update(combinations_with_replacement(sorted(features(world, seed), key=place.__getitem__), 2))
    return pairs


def matrix(pairs: Counter[tuple[str, str]]) -> list[str]:
    """Return the lines of a table: a row and a column for each feature; an empty cell is a pair of no seed."""
    names = list(FEATURES)
    head = ["", *(short(name) for name in names)]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * len(names)}"]
    for number, name in enumerate(names):
        cells = [str(pairs[other, name] or "") for other in names[: number + 1]]
        lines.append(f"| {' | '.join([f'`{name}`', *cells, *[''] * (len(names) - number - 1)])} |")
    return lines


def short(name: str) -> str:
    """Return the head of a feature's column."""
    return "".join(word[:3] for word in name.split())


def explained() -> list[str]:
    """Return the lines of a table that explains the features."""
    rows = [f"| `{name}` | {short(name)} | {why} |" for name, why in FEATURES.items()]
    return ["| feature | column | a history may have it if |", "| --- | --- | --- |", *rows]


def empty(pairs: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs that no seed had."""
    return [pair for pair in combinations_with_replacement(FEATURES, 2) if not pairs[pair]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.features", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="seeds of each world (default 200)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    pairs = count(range(options.seeds))
    write("features", explained())
    write("pairs", matrix(pairs))
    for one, other in empty(pairs):
        print(f"no seed with {one} and {other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
