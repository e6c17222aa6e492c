"""`python -m tests.simulator`: run many seeds, or one of them step by step."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.simulator import (
    cuts,
    hub,
    hub_mutations,
    isis,
    isis_mutations,
    isis_site_mutations,
    isis_sites,
    membership_mutations,
    mesh_mutations,
    mutations,
    sites_schedule,
)
from tests.simulator.orders import Orders
from tests.simulator.schedule import History, history, run, shrink

NO_MUTATION = "none"


class Simulation(NamedTuple):
    """A kind of simulation: `report` runs a seed with a mutation, and returns each violation in a line."""

    help: str
    report: Callable[[int, str], Sequence[str]]
    mutations: Sequence[str] = ()


def report_group(seed: int, name: str) -> list[str]:
    """A group with one sequencer at a time; with the shortest history that still breaks the same."""
    mutation = mutations.by_name(name)
    what = history(seed)
    anomalies = run(what, mutation)
    if not anomalies:
        return []
    shrunk = shrink(what, anomalies[0].name, mutation)
    return [*(f"{anomaly.name}: {anomaly.detail}" for anomaly in anomalies), *describe(shrunk, anomalies[0].name)]


def describe(what: History, name: str) -> list[str]:
    """A shrunk history, for a reader."""
    lines = [f"{name} needs no more than this ({what.shape}, a snapshot every {what.snapshot_every} records, "]
    lines += [f"  first window {what.window})"]
    return lines + [f"  {action.kind} {action.who} {action.dice}" for action in what.actions]


def report_mesh(seed: int, name: str) -> list[str]:
    """A mesh of sites."""
    known = (mesh_mutations.NONE, *mesh_mutations.MESH_MUTATIONS)
    mutation = {mutation.name: mutation for mutation in known}[name]
    what = sites_schedule.history(seed, busy=mutation.busy)
    anomalies = sites_schedule.run(what, mutation)
    if not anomalies:
        return []
    shrunk = sites_schedule.shrink(what, anomalies[0].name, mutation)
    found = [f"{anomaly.name}: {anomaly.detail}" for anomaly in anomalies]
    return [*found, sites_schedule.describe(shrunk, anomalies[0].name)]


def report_membership(seed: int, name: str) -> list[str]:
    """Joins, leaves, flushes."""
    return membership_mutations.run(seed, membership_mutations.by_name(name))


def report_orders(seed: int, _: str) -> list[str]:
    """FIFO, causal and total messages."""
    return [f"{name}: {detail}" for name, detail in Orders(seed).run()]


def report_hub(seed: int, name: str) -> list[str]:
    """A hub whose home is replaced."""
    found = hub.run(seed, next((each for each in hub_mutations.MUTATIONS if each.name == name), None))
    return [f"{anomaly.name}: {anomaly.detail}" for anomaly in found]


def report_cuts(seed: int, _: str) -> list[str]:
    """Logs that lose their ends, or all."""
    return [f"{anomaly.name}: {anomaly.detail}" for anomaly in cuts.run(seed)]


def report_isis(seed: int, name: str) -> list[str]:
    """Processes that agree without a sequencer."""
    return [f"{anomaly.name}: {anomaly.detail}" for anomaly in isis.run(seed, isis_mutations.by_name(name))]


def report_isis_sites(seed: int, name: str) -> list[str]:
    """Sites that agree without a home."""
    found = isis_sites.run(seed, isis_site_mutations.by_name(name))
    return [f"{anomaly.name}: {anomaly.detail}" for anomaly in found]


GROUP = Simulation("a group", report_group, [mutation.name for mutation in mutations.MUTATIONS])
SIMULATIONS: Mapping[str, Simulation] = {
    "sites": Simulation("meshes of sites", report_mesh, [mutation.name for mutation in mesh_mutations.MESH_MUTATIONS]),
    "hub": Simulation(
        "hubs whose home is replaced", report_hub, [mutation.name for mutation in hub_mutations.MUTATIONS]
    ),
    "membership": Simulation(
        "histories of joins, leaves and flushes",
        report_membership,
        [mutation.name for mutation in membership_mutations.MEMBER_MUTATIONS],
    ),
    "orders": Simulation("histories of fifo, causal and total messages", report_orders),
    "cuts": Simulation("histories of logs that are cut and made anew", report_cuts),
    "isis": Simulation(
        "histories of processes that agree without a sequencer",
        report_isis,
        [mutation.name for mutation in isis_mutations.MUTATIONS],
    ),
    "isis-sites": Simulation(
        "histories of sites that agree without a home",
        report_isis_sites,
        [mutation.name for mutation in isis_site_mutations.MUTATIONS],
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (default 1000)")
    parser.add_argument("--from-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--mutation", default=NO_MUTATION, metavar="NAME", help="break a rule of what is simulated")
    which = parser.add_mutually_exclusive_group()
    for name, simulation in SIMULATIONS.items():
        which.add_argument(
            f"--{name}", dest="what", action="store_const", const=name, help=f"{simulation.help} instead"
        )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of what ships, and is broken here on purpose
    simulation = SIMULATIONS.get(options.what, GROUP)
    if options.mutation not in (NO_MUTATION, *simulation.mutations):
        known = ", ".join(simulation.mutations) or "there is none"
        parser.error(f"--mutation {options.mutation} breaks no rule of what is simulated here: {known}")
    seeds = [options.seed] if options.seed is not None else range(options.from_seed, options.from_seed + options.seeds)
    again = f"python -m tests.simulator {f'--{options.what} ' if options.what else ''}--mutation {options.mutation}"
    started = time.perf_counter()
    for done, seed in enumerate(seeds):
        if broken := simulation.report(seed, options.mutation):
            print(f"seed {seed} broke a promise (again with: {again} --seed {seed}); {done} before it kept all.")
            for line in broken:
                print(f"  {line}")
            return 3
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} seeds kept every promise ({len(seeds) / seconds:.0f} seeds/s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
