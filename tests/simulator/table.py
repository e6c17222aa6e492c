"""Count the seeds that it takes to find each mutation, for the table of docs/proofs.md.

    python -m tests.simulator.table                       # all worlds
    python -m tests.simulator.table hub casts/torn-state  # these

A row is written as soon as it is measured, so an ended run is gone on with by name. Seconds are CPU time.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.simulator.mutation import Mutation
from tests.simulator.mutation_seeds import key, read
from tests.simulator.simulations import SIMULATIONS, Simulation, chosen

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proofs.md"
STARTS = (0, 10_000, 20_000)
BOUNDS = {"group": 60, "sites": 20, "hub": 12, "isis": 40, "isis-sites": 12}
"""Seeds that are run from each start, at most."""
BOUND = 30
"""The bound of other worlds."""
NOT_MEASURED = " not measured | |"


class Found(NamedTuple):
    """The median of the seeds to find a mutation, None if that is above the bound, and the CPU seconds of all."""

    seeds: int | None
    bound: int
    seconds: float

    def figures(self, known: int | None) -> str:
        """Return the cells of the table. `known`: the seed that found the mutation last; its test begins there."""
        if self.seeds is not None:
            return f" {self.seeds} | {self.seconds:.1f} |"
        near = "" if known is None else f"; test from {known:,}"
        return f" > {self.bound}{near} | {self.seconds:.1f} |"


def measure(simulation: Simulation, mutation: Mutation) -> Found:
    """Count the seeds from each start; a majority of starts that find nothing ends it."""
    bound = BOUNDS.get(simulation.name, BOUND)
    began, counts = time.process_time(), []
    for start in STARTS:
        seed = simulation.first_seed(mutation, range(start, start + bound))
        counts.append(bound + 1 if seed is None else seed - start + 1)
        if counts.count(bound + 1) > len(STARTS) // 2:
            break
    middle = int(median(counts))
    return Found(middle if middle <= bound else None, bound, time.process_time() - began)


def row(simulation: Simulation, mutation: Mutation, figures: str) -> str:
    """Return a mutation's row: its figures are its last two cells."""
    shows = ", ".join(sorted(mutation.anomalies))
    return f"| `{simulation.name}` | `{mutation.name}` | {mutation.why} | {shows} |{figures}"


def figures_of(page: str) -> dict[tuple[str, str], str]:
    """Return the figures of the page's rows by world and mutation."""
    rows = re.finditer(r"^\| `([\w-]+)` \| `([\w-]+)` \|.*\|([^|]*\|[^|]*\|)$", page, re.MULTILINE)
    return {(found[1], found[2]): found[3] for found in rows}


def write(name: str, lines: Sequence[str]) -> None:
    """Put lines into the page between the marks of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(before + begin + "".join(f"{line}\n" for line in lines) + end + after, encoding="utf-8")


def write_rows(new: Mapping[tuple[str, str], str]) -> None:
    """Write a row for each mutation, with the figures of now or of before."""
    known = {**figures_of(PAGE.read_text(encoding="utf-8")), **new}
    head = [
        "| world | mutation | the broken rule | shows as | seeds | CPU s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines = [
        row(each, mutation, known.get((each.name, mutation.name), NOT_MEASURED))
        for each in SIMULATIONS.values()
        for mutation in each.mutations
    ]
    write("mutations", [*head, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.table", description=__doc__)
    parser.add_argument("names", nargs="*", help="worlds and mutations (default: all)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of what ships, and is broken here on purpose
    for world, mutation in chosen(options.names):
        figures = measure(world, mutation).figures(read().get(key(world, mutation)))
        print(row(world, mutation, figures), flush=True)
        write_rows({(world.name, mutation.name): figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
