"""`tests.simulator.retention`: no number is given twice, whatever retention has dropped and the ledger lacks."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from ordering.checker import DIVERGENT
from tests.simulator.retention import Retained

SEEDS = 300


@pytest.mark.slow
def test_no_number_is_given_twice() -> None:
    refused = started = 0
    for seed in range(SEEDS):
        history = Retained(seed)
        assert history.run() == [], seed
        assert history.broker.wrong_states == [], seed
        refused += history.refusals
        if history.do_note() and history.effective() and history.knows_offsets:
            assert history.starts_with_a_whole_ledger(), seed
            started += 1
    assert refused > SEEDS / 10
    assert started > SEEDS / 10


def test_without_the_rule_it_is_found_out() -> None:
    """Nobody asks how far the ledger reaches: what is left of DATA does not contradict it."""
    found: Counter[str] = Counter()
    with ExitStack() as stack:
        stack.enter_context(patch("connectors.sequencer.takeover._follows", return_value=True))
        stack.enter_context(patch("tests.simulator.broker.SimulatedLog.notes", return_value=[]))
        for seed in range(100):
            found += Counter(anomaly.name for anomaly in Retained(seed).run())
    assert found[DIVERGENT] > 0
