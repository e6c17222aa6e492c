"""ISIS in the simulator, of processes and between sites: seeds keep the promises, and broken rules are found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ordering.checker.anomalies import Anomaly
from tests.simulator import isis, isis_sites
from tests.simulator.seeds import blocks
from tests.simulator.simulations import SIMULATIONS


class Simulation(NamedTuple):
    """A simulation and its amount. `make simulate` runs more."""

    option: str
    run: Callable[..., list[Anomaly]]
    seeds: int
    seeds_in_the_fast_suite: int
    seeds_at_a_time: int

    def keeps_every_promise(self, seeds: range) -> None:
        for seed in seeds:
            assert self.run(seed) == [], f"python -m tests.simulator --{self.option} --seed {seed}"


PROCESSES = Simulation("isis", isis.run, 2_000, 50, 150)
SITES = Simulation("isis-sites", isis_sites.run, 500, 5, 20)
BOTH = (PROCESSES, SITES)


def name_of(what: object) -> str | None:
    return what.option if isinstance(what, Simulation) else None


@pytest.mark.parametrize("simulation", BOTH, ids=name_of)
def test_every_promise_holds(simulation: Simulation) -> None:
    simulation.keeps_every_promise(range(simulation.seeds_in_the_fast_suite))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("simulation", "seeds"),
    [block for each in BOTH for block in blocks(each.seeds_in_the_fast_suite, each.seeds_at_a_time, each.seeds, each)],
)
def test_every_promise_holds_for_longer(simulation: Simulation, seeds: range) -> None:
    """Whatever is lost, repeated, cut off, killed between two records, started twice, or suspected wrongly."""
    simulation.keeps_every_promise(seeds)


def test_a_link_that_is_cut_under_load_heals_by_itself() -> None:
    """The reports of both its ends are then longer than a datagram."""
    seeds = range(12)
    assert [(seed, found) for seed in seeds if (found := isis.flood(seed))] == []
    broken = SIMULATIONS["isis"].mutation("no-parts")
    assert any(isis.flood(seed, broken) for seed in seeds)
