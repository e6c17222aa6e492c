"""The simulator in the suite: a fixed number of seeds keeps every promise, and every broken rule is found out."""

from __future__ import annotations

import pytest

from ordering.checker.anomalies import FIFO_VIOLATION
from tests.simulator.schedule import describe, history, run, shrink
from tests.simulator.seeds import blocks
from tests.simulator.simulations import SIMULATIONS

SEEDS = 2_000


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(0, 500, SEEDS))
def test_every_promise_holds(seeds: range) -> None:
    """Whatever crashes, repeats, comes late or comes twice."""
    for seed in seeds:
        anomalies = run(history(seed))
        if anomalies:
            shrunk = describe(shrink(history(seed), anomalies[0].name), anomalies[0].name)
            pytest.fail(f"python -m tests.simulator --seed {seed}\n{anomalies}\n{shrunk}")


def test_shrinking_keeps_the_anomaly_and_drops_the_rest() -> None:
    mutation = SIMULATIONS["group"].mutation("not-lower")
    shrunk = shrink(history(0), FIFO_VIOLATION, mutation)
    assert FIFO_VIOLATION in {anomaly.name for anomaly in run(shrunk, mutation)}
    assert len(shrunk.actions) <= 12
