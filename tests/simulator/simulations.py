"""The list of all worlds, each with its mutations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ordering.base.errors import AbcastError
from ordering.checker.anomalies import Anomaly
from tests.simulator import (
    cuts,
    isis,
    isis_mutations,
    log_mutations,
    orders_mutations,
    retention,
)
from tests.simulator.mutation import NONE, Mutation
from tests.simulator.orders import Orders
from tests.world import (
    agreeing,
    agreeing_mutations,
    casts,
    casts_mutations,
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
)


def run_orders(seed: int, mutation: Mutation) -> list[Anomaly]:
    return [Anomaly(name, detail, ()) for name, detail in Orders(seed, mutation).run()]


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
        Simulation("hub", "hubs whose home is replaced", hub.run, hub_mutations.MUTATIONS, 60, hub.explain),
        Simulation(
            "membership",
            "histories of joins, leaves and flushes",
            membership.run,
            membership_mutations.MUTATIONS,
            40,
            membership.explain,
        ),
        Simulation(
            "orders", "histories of fifo, causal and total messages", run_orders, orders_mutations.MUTATIONS, 200
        ),
        Simulation(
            "casts",
            "histories of members that send in all orders, as they ship",
            casts.run,
            casts_mutations.MUTATIONS,
            200,
            casts.explain,
        ),
        Simulation("cuts", "histories of logs that are cut and made anew", cuts.run, log_mutations.CUTS, 100),
        Simulation(
            "retention", "histories of logs that are purged at any step", retention.run, log_mutations.RETENTION, 300
        ),
        Simulation(
            "isis", "histories of processes that agree without a sequencer", isis.run, isis_mutations.MUTATIONS, 150
        ),
        Simulation(
            "isis-sites",
            "histories of sites that agree without a home",
            agreeing.run,
            agreeing_mutations.MUTATIONS,
            60,
            agreeing.explain,
        ),
        Simulation(
            "groups",
            "groups that share a job, one of them in trouble",
            groups.run,
            groups_mutations.MUTATIONS,
            60,
            groups.explain,
        ),
    )
}
