"""`step_columns` decides what `step` decides."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.columns import step_columns
from ordering.errors import ProtocolViolation
from ordering.records import Forward, Source
from ordering.sequencer import SequencerState, step
from tests.core.forwards import TOPIC, Log, cut, logs, opened
from tests.simulator.columns import step_by_columns, to_columns


@given(logs(max_records=60), st.lists(st.integers(0, 60), max_size=4))
def test_columns_decide_what_rows_decide(log: Log, at: list[int]) -> None:
    """Runs, repeats, gaps, restarts, malformed records and bad addresses, over several batches and partitions."""
    by_rows = by_columns = opened()
    for batch in cut(log, at):
        rows, columns = step(by_rows, batch), step_by_columns(by_columns, batch)
        assert columns == rows
        by_rows, by_columns = rows.state, columns.state


@given(st.integers(0, 2**32))
def test_many_senders(seed: int) -> None:
    """A large batch of interleaved senders, a few of them irregular."""
    rng = random.Random(seed)
    next_local: dict[str, int] = {}
    log: Log = []
    for offset in range(300):
        sender = f"s/{rng.randrange(40)}"
        local = next_local[sender] = next_local.get(sender, 0) + 1
        wrong = rng.random() < 0.02
        log.append(Forward(sender, 1, max(1, local + wrong * rng.randint(-2, 2)), b"", Source(TOPIC, 0, offset)))
    assert step_by_columns(opened(), log) == step(opened(), log)


def test_an_empty_batch() -> None:
    assert step_by_columns(opened(), []) == step(opened(), [])


def test_rows_out_of_log_order_are_refused() -> None:
    rows: Log = [Forward("s/a", 1, 1, b"", Source(TOPIC, 0, 1)), Forward("s/a", 1, 2, b"", Source(TOPIC, 0, 0))]
    with pytest.raises(ProtocolViolation, match="not in log order"):
        step_by_columns(opened(), rows)


def test_columns_of_malformed_rows_are_not_read() -> None:
    """Whatever the codec left in them."""
    rows: Log = [Forward("s/a", 1, 1, b"", Source(TOPIC, 0, 0)), Forward("s/a", 1, 2, b"", Source(TOPIC, 0, 1))]
    columns = replace(to_columns(rows), well_formed=np.array([False, True]))
    decided = step_columns(SequencerState("g"), columns)
    assert decided.seqno.tolist() == [0, 0]
    assert decided.state.duplicates == 1
