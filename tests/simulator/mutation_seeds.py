"""A cheap seed in which each mutation was found last. Its test begins with that one.

    python -m tests.simulator.mutation_seeds                        # all worlds
    python -m tests.simulator.mutation_seeds hub casts/torn-state   # these

If a world changes, so does what its seeds draw. Its tests then try more seeds, until this has run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.simulator.mutation import Mutation
from tests.simulator.simulations import SIMULATIONS, Simulation, chosen

FIRST = 12
"""The number of seeds to compare with the known one. A cheap seed has few sites or members."""
FILE = Path(__file__).with_suffix(".json")


def read() -> dict[str, int]:
    """Return the seeds, by world and mutation."""
    seeds: dict[str, int] = json.loads(FILE.read_text(encoding="utf-8"))
    return seeds


def seeds_to_try(simulation: Simulation, mutation: Mutation, known: Mapping[str, int]) -> range:
    """Return the seeds in which a mutation must show, from the known one on: rare ones have others near."""
    first = known.get(key(simulation, mutation), 0)
    return range(first, first + simulation.seeds_for_a_mutation)


def key(simulation: Simulation, mutation: Mutation) -> str:
    """Return the name under which its seed is kept."""
    return f"{simulation.name}/{mutation.name}"


def _find(world: str, name: str, known: Mapping[str, int]) -> int | None:
    logging.disable(logging.WARNING)  # of what ships, and is broken here on purpose
    simulation = SIMULATIONS[world]
    mutation = simulation.mutation(name)
    seeds, costs = seeds_to_try(simulation, mutation, known), dict[float, int]()
    for seed in {seeds.start, *range(FIRST)}:
        began = time.process_time()
        if simulation.first_seed(mutation, [seed]) is not None:
            costs[time.process_time() - began] = seed
    return costs[min(costs)] if costs else simulation.first_seed(mutation, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.mutation_seeds", description=__doc__)
    parser.add_argument("names", nargs="*", help="worlds and mutations (default: all)")
    options = parser.parse_args()
    known, missed = read(), False
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        looking = {
            pool.submit(_find, world.name, mutation.name, known): key(world, mutation)
            for world, mutation in chosen(options.names)
        }
        for found in as_completed(looking):
            name, seed = looking[found], found.result()
            print(f"{name}: {'not found' if seed is None else seed}", flush=True)
            missed |= seed is None
            known |= {} if seed is None else {name: seed}
            FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
