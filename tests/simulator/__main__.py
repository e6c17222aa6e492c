"""`python -m tests.simulator`: run many seeds, or one of them step by step."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time

from tests.simulator.mutation import NONE
from tests.simulator.simulations import SIMULATIONS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (default 1000)")
    parser.add_argument("--from-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--story", action="store_true", help="tell the history of each seed, in the worlds that can")
    parser.add_argument("--mutation", default=NONE.name, metavar="NAME", help="break a rule of what is simulated")
    which = parser.add_mutually_exclusive_group()
    for name, simulation in SIMULATIONS.items():
        which.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=simulation.help)
    parser.set_defaults(what="group")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of what ships, and is broken here on purpose
    gc.freeze()  # the imported modules, so that no collection of garbage visits them
    simulation = SIMULATIONS[options.what]
    try:
        mutation = simulation.mutation(options.mutation)
    except KeyError:
        known = ", ".join(mutation.name for mutation in simulation.mutations)
        parser.error(f"--mutation {options.mutation} breaks no rule of what is simulated here: {known}")
    seeds = [options.seed] if options.seed is not None else range(options.from_seed, options.from_seed + options.seeds)
    again = f"python -m tests.simulator --{options.what} --mutation {mutation.name}"
    started = time.perf_counter()
    for done, seed in enumerate(seeds):
        try:
            broken = simulation.run(seed, mutation)
        except Exception:
            print(f"seed {seed} broke with an error (again with: {again} --seed {seed}).")
            raise
        if broken:
            print(f"seed {seed} broke a promise (again with: {again} --seed {seed}); {done} before it kept all.")
            for anomaly in broken:
                print(f"  {anomaly.name}: {anomaly.detail}")
            if simulation.explain is not None:
                print(simulation.explain(seed, mutation, broken[0].name))
            return 3
        if options.story and simulation.explain is not None:
            print(simulation.explain(seed, mutation, ""))
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} seeds kept every promise ({len(seeds) / seconds:.0f} seeds/s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
