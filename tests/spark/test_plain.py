"""Compare the decisions of `tests.bench.plain`, the sequencer on plain PySpark, with the core's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from connectors.takeover.rows import OutputTopics
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.state import SequencerState
from tests.bench.plain import Latest, decided, decider
from tests.forward_corpus import CORPUS, TOPIC
from tests.spark.kafka_rows import BAD_ADDRESSES, Row, decide_rows, forward, sink_frame, source_frame

pytestmark = pytest.mark.spark


def assert_decided_as_rows(spark: SparkSession, state: SequencerState, rows: Sequence[Row], site: str) -> None:
    """Decide the rows, mixed up, on Spark; expect the core's records in its order, and its state."""
    own_topic, after = f"abcast.{state.group}.forward.{site}", spark.sparkContext.accumulator(b"", Latest())
    expected_state, expected = decide_rows(state, rows, site)
    mixed = source_frame(spark, random.Random(3).sample(rows, len(rows)))
    decide = decider(state.to_bytes(), OutputTopics.of(state.group, site), own_topic, after.add)
    assert decided(mixed, own_topic, decide).collect() == sink_frame(spark, expected).collect()
    assert SequencerState.from_bytes(after.value) == expected_state


def test_plain_messages(spark: SparkSession) -> None:
    """Repeats, gaps, incarnations, several senders and partitions."""
    state = SequencerState("g", epoch=3, seqno=41, view=2, received={"local/old": ReceivedRow(7, 5)})
    numbers = [("local/old", 7, n) for n in (5, 6, 6, 8, 7, 8)] + [("local/old", 9, 1), ("local/old", 7, 9)]
    numbers += [("local/new", 1, n) for n in (2, 1, 2)]
    rows = [
        forward(sender, local_seqno, offset, incarnation=incarnation, partition=partition)
        for partition in (0, 1)
        for offset, (sender, incarnation, local_seqno) in enumerate(numbers)
    ]
    assert_decided_as_rows(spark, state, rows, "local")


@pytest.mark.parametrize("format_number", [1, 3])
def test_any_records(spark: SparkSession, format_number: int) -> None:
    """The whole corpus, packs among it."""
    cases = [case for case in (*CORPUS, *BAD_ADDRESSES) if case.topic == TOPIC]
    rows = [
        Row(case.topic, 0, offset, case.key, case.value, case.headers, case.timestamp_ms)
        for offset, case in enumerate(cases)
    ]
    assert_decided_as_rows(spark, SequencerState("orders", epoch=3, format=format_number), rows, "nyc")
