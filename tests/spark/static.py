"""The sequencer job's transformation on a static DataFrame.

Spark has no `applyInPandasWithState` outside of streaming. So that the tests run the very code of the job, that one
operator is replaced by a grouped map which hands the same function the same rows, in arrow batches of a chosen size and
with an empty state. `test_sequencing.test_streaming` runs the real operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pandas as pd
from pyspark.sql import DataFrame, GroupedData

from connectors.sequencer.query import encode_decided, sequence
from ordering.sequencer.state import SequencerState

StatefulFunction = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def decide(kafka_rows: DataFrame, *states: SequencerState, site: str = "local", chunk_rows: int = 10_000) -> DataFrame:
    """Rows of Spark's Kafka source → rows of its Kafka sink, as the job decides them in its first batch."""
    with instead_of_state(["topic", "partition", "offset"], chunk_rows):
        by_group = {state.group: state for state in states}
        decided = sequence(kafka_rows, site, by_group, relayed=True)
    return encode_decided(decided, site)


@contextmanager
def instead_of_state(order: list[str], chunk_rows: int) -> Iterator[None]:
    """Replace a stateful operator by a grouped map: a group's rows in that order, in arrow batches of that size."""

    def instead(
        groups: GroupedData,
        function: StatefulFunction,
        outputStructType: str,  # noqa: N803 - Spark's name
        **_: object,
    ) -> DataFrame:
        return groups.applyInPandas(_first_batch(function, order, chunk_rows), outputStructType)

    with patch.object(GroupedData, "applyInPandasWithState", instead):
        yield


class EmptyState:
    """Spark's GroupState in the first batch of a run. Each batch must leave a state behind."""

    exists = False

    def __init__(self) -> None:
        self.updates = 0

    def update(self, _: tuple[bytes]) -> None:
        self.updates += 1


def _first_batch(
    function: StatefulFunction, order: list[str], chunk_rows: int
) -> Callable[[Any, pd.DataFrame], pd.DataFrame]:
    def first_batch(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        # The real operator gets them so.
        rows = rows.sort_values(order, na_position="first", ignore_index=True)
        chunks = [rows.iloc[start : start + chunk_rows] for start in range(0, len(rows), chunk_rows)]
        state = EmptyState()
        decided = list(function(key, iter(chunks), state))
        assert state.updates == 1
        return pd.concat(decided, ignore_index=True) if decided else pd.DataFrame()

    return first_batch
