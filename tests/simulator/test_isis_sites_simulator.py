"""ISIS between sites in the simulator: a number of seeds keeps every promise, and every broken rule is found out."""

from __future__ import annotations

import pytest

from tests.simulator.isis_mutations import Mutation
from tests.simulator.isis_site_mutations import MUTATIONS
from tests.simulator.isis_sites import run
from tests.simulator.seeds import blocks

SEEDS = 500
"""`make simulate` runs more: there are five a second."""
SEEDS_IN_THE_FAST_SUITE = 10
SEEDS_FOR_A_MUTATION = 60


def test_every_promise_holds() -> None:
    for seed in range(SEEDS_IN_THE_FAST_SUITE):
        assert run(seed) == [], f"python -m tests.simulator --isis-sites --seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(SEEDS_IN_THE_FAST_SUITE, 50, SEEDS))
def test_every_promise_holds_for_longer(seeds: range) -> None:
    """Whatever is cut off, killed between two records, started twice, or suspected wrongly."""
    for seed in seeds:
        assert run(seed) == [], f"python -m tests.simulator --isis-sites --seed {seed}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_rule_is_found_out(mutation: Mutation) -> None:
    """The simulator can fail: each rule is needed, and what breaks without it has its name."""
    for seed in range(mutation.from_seed, mutation.from_seed + SEEDS_FOR_A_MUTATION):
        if mutation.expected in {anomaly.name for anomaly in run(seed, mutation)}:
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTATION} seeds without {mutation.expected!r}")


def test_a_seed_is_a_history() -> None:
    """The same seed gives the same run, down to the last anomaly; so a failure can be looked at again."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == "forget")
    assert run(5, mutation) == run(5, mutation)
