"""`python -m tests.simulator`: run many seeds, or one of them step by step."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulator.membership import Group
from tests.simulator.mutations import MUTATIONS, NONE, Mutation, by_name
from tests.simulator.schedule import History, history, run, shrink


def report(seed: int, mutation: Mutation) -> bool:
    """Run one seed; print what it broke, and the shortest history that still breaks it. True if all promises hold."""
    what = history(seed)
    anomalies = run(what, mutation)
    if not anomalies:
        return True
    print(f"seed {seed} (again with: python -m tests.simulator --seed {seed} --mutation {mutation.name})")
    for anomaly in anomalies:
        print(f"  {anomaly.name}: {anomaly.detail}")
    print(describe(shrink(what, anomalies[0].name, mutation), anomalies[0].name))
    return False


def describe(what: History, name: str) -> str:
    """A shrunk history, for a reader."""
    lines = [f"  {name} needs no more than this ({what.shape}, a snapshot every {what.snapshot_every} records, "]
    lines += [f"    first window {what.window})"]
    lines += [f"    {action.kind} {action.who} {action.dice}" for action in what.actions]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (default 1000)")
    parser.add_argument("--from-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument(
        "--mutation", default=NONE.name, choices=[m.name for m in (NONE, *MUTATIONS)], help="break a rule"
    )
    parser.add_argument("--membership", action="store_true", help="histories of joins, leaves and flushes instead")
    options = parser.parse_args()
    mutation = by_name(options.mutation)
    seeds = [options.seed] if options.seed is not None else range(options.from_seed, options.from_seed + options.seeds)
    started = time.perf_counter()
    for done, seed in enumerate(seeds, start=1):
        if options.membership:
            for problem in (problems := Group(seed).run()):
                print(f"seed {seed} (again with: python -m tests.simulator --membership --seed {seed}): {problem}")
            kept = not problems
        else:
            kept = report(seed, mutation)
        if not kept:
            print(f"seed {seed} broke a promise; {done - 1} seeds before it kept all.")
            return 3
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} seeds kept every promise ({len(seeds) / seconds:.0f} seeds/s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
