"""The simulators can fail: each rule is needed, and each violation has its name."""

from __future__ import annotations

import pytest

from tests.simulator.mutation import Mutation
from tests.simulator.mutation_seeds import read, seeds_to_try
from tests.simulator.simulations import SIMULATIONS, Simulation

KNOWN = read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("simulation", "mutation"),
    [
        pytest.param(simulation, mutation, id=f"{simulation.name}-{mutation.name}")
        for simulation in SIMULATIONS.values()
        for mutation in simulation.mutations
    ],
)
def test_a_broken_rule_is_found_out(simulation: Simulation, mutation: Mutation) -> None:
    seeds = seeds_to_try(simulation, mutation, KNOWN)
    assert simulation.first_seed(mutation, seeds) is not None, f"no seed of {seeds} shows {mutation.expected}"
