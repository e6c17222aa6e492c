"""The simulator in the suite: a fixed number of seeds keeps every promise, and every broken rule is found out."""

from __future__ import annotations

import pytest

from tests.simulator.__main__ import describe
from tests.simulator.mutations import MUTATIONS, Mutation
from tests.simulator.schedule import history, run, shrink
from tests.simulator.seeds import blocks

SEEDS = 2_000
SEEDS_FOR_A_MUTATION = 400


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(0, 500, SEEDS))
def test_every_promise_holds(seeds: range) -> None:
    """Whatever crashes, repeats, comes late or comes twice."""
    for seed in seeds:
        anomalies = run(history(seed))
        if anomalies:
            shrunk = describe(shrink(history(seed), anomalies[0].name), anomalies[0].name)
            pytest.fail(f"python -m tests.simulator --seed {seed}\n{anomalies}\n{shrunk}")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_rule_is_found_out(mutation: Mutation) -> None:
    """The simulator can fail: each rule is needed, and what breaks without it has its name."""
    for seed in range(mutation.from_seed, mutation.from_seed + SEEDS_FOR_A_MUTATION):
        if mutation.expected in {anomaly.name for anomaly in run(history(seed), mutation)}:
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTATION} seeds without {mutation.expected!r}")


def test_shrinking_keeps_the_anomaly_and_drops_the_rest() -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == "not-lower")
    shrunk = shrink(history(0), mutation.expected, mutation)
    assert mutation.expected in {anomaly.name for anomaly in run(shrunk, mutation)}
    assert len(shrunk.actions) <= 12
