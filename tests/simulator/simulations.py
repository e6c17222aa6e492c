"""The list of all worlds, each with its mutations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ordering.base.errors import AbcastError
from ordering.checker.anomalies import Anomaly
from tests.simulator import isis, isis_mutations
from tests.simulator.mutation import NONE, Mutation
from tests.world import (
    agreeing,
    agreeing_mutations,
    casts,
    casts_mutations,
    cuts,
    cuts_mutations,
    group,
    group_mutations,
    groups,
    groups_mutations,
    hub,
    hub_mutations,
    membership,
    membership_mutations,
    mesh,
    mesh_mutations,
    restores,
    restores_mutations,
)


def telling(playing: Callable[[int, Mutation], Any]) -> Callable[[int, Mutation, str], str]:
    """Return a function that tells a history, event by event, of the world that `playing` provides."""

    def explain(seed: int, mutation: Mutation, _: str) -> str:
        with playing(seed, mutation) as world:
            world.run()
        return "\n".join(world.story)

    return explain


class Simulation(NamedTuple):
    """A world: `run` plays a seed's history with a mutation, and returns the violations."""

    name: str
    help: str
    run: Callable[[int, Mutation], list[Anomaly]]
    mutations: Sequence[Mutation]
    seeds_for_a_mutation: int
    """In so many seeds from its first one, each mutation must show."""
    explain: Callable[[int, Mutation, str], str] | None = None

    def mutation(self, name: str) -> Mutation:
        """Return the mutation of that name. Raise KeyError."""
        return {mutation.name: mutation for mutation in (NONE, *self.mutations)}[name]

    def first_seed(self, mutation: Mutation, seeds: Iterable[int]) -> int | None:
        """Return the first of the seeds in which the mutation shows, or None. A run that an error ends shows none."""
        for seed in seeds:
            with suppress(AbcastError):
                if not mutation.anomalies.isdisjoint(found.name for found in self.run(seed, mutation)):
                    return seed
        return None


SIMULATIONS: Mapping[str, Simulation] = {
    each.name: each
    for each in (
        Simulation(
            "group", "groups with one sequencer at a time", group.run, group_mutations.MUTATIONS, 200, group.explain
        ),
        Simulation("sites", "meshes of sites", mesh.run, mesh_mutations.MUTATIONS, 60, mesh.explain),
        Simulation("hub", "hubs whose home is replaced", hub.run, hub_mutations.MUTATIONS, 60, telling(hub.playing)),
        Simulation(
            "membership",
            "histories of joins, leaves and flushes",
            membership.run,
            membership_mutations.MUTATIONS,
            40,
            telling(membership.playing),
        ),
        Simulation(
            "casts",
            "histories of members that send in all orders, as they ship",
            casts.run,
            casts_mutations.MUTATIONS,
            200,
            telling(casts.playing),
        ),
        Simulation(
            "cuts",
            "histories of logs that are cut and made anew",
            cuts.run,
            cuts_mutations.MUTATIONS,
            100,
            cuts.explain,
        ),
        Simulation(
            "isis",
            "histories of processes that agree without a sequencer",
            isis.run,
            isis_mutations.MUTATIONS,
            150,
            isis.explain,
        ),
        Simulation(
            "isis-sites",
            "histories of sites that agree without a home",
            agreeing.run,
            agreeing_mutations.MUTATIONS,
            60,
            telling(agreeing.playing),
        ),
        Simulation(
            "groups",
            "groups that share a job, one of them in trouble",
            groups.run,
            groups_mutations.MUTATIONS,
            60,
            telling(groups.playing),
        ),
        Simulation(
            "restores",
            "groups whose Kafka is wiped, restored from a ledger",
            restores.run,
            restores_mutations.MUTATIONS,
            60,
        ),
    )
}


def chosen(names: Sequence[str]) -> list[tuple[Simulation, Mutation]]:
    """Return mutations by names, such as `hub` for a world or `hub/no-fence`; all without names. Raise KeyError."""
    every = [(each, mutation) for each in SIMULATIONS.values() for mutation in each.mutations]
    known = {name for each, mutation in every for name in (each.name, f"{each.name}/{mutation.name}")}
    if unknown := set(names) - known:
        raise KeyError(*sorted(unknown))
    return [
        (each, mutation)
        for each, mutation in every
        if not names or each.name in names or f"{each.name}/{mutation.name}" in names
    ]
