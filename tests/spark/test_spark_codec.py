"""The record codec as Spark columns gives the same as the row form, on one corpus of good and bad records."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from connectors import codec
from connectors.sequencing import decode_forward
from ordering.records import Malformed
from ordering.sequencer import SequencerState
from tests.forward_corpus import CORPUS, SITES
from tests.spark.kafka_rows import BAD_ADDRESSES, Row, SinkRow, decide_rows, sink_frame, source_frame
from tests.spark.static import decide

pytestmark = pytest.mark.spark

SITE = "nyc"


def test_decoding_is_the_same(spark: SparkSession) -> None:
    """Each record of the corpus gets the same reason, or the same fields, from both forms."""
    rows = [Row(case.topic, 0, offset, case.key, case.value, case.headers) for offset, case in enumerate(CORPUS)]
    decoded = decode_forward(source_frame(spark, rows), relayed=True, sites=SITES).orderBy("offset").collect()
    assert {case.name: row["error"] for case, row in zip(CORPUS, decoded, strict=True)} == {
        case.name: case.reason for case in CORPUS
    }
    for case, row, found in zip(CORPUS, rows, decoded, strict=True):
        wanted = codec.decode_forward(row.source, row.key, row.value, row.headers, row.timestamp_ms, SITES)
        if not isinstance(wanted, Malformed):
            assert _fields(found) == (
                wanted.sender,
                wanted.incarnation,
                wanted.local_seqno,
                wanted.payload,
                wanted.timestamp_ms,
            ), case.name


def _fields(row: SparkRow) -> tuple[object, ...]:
    return tuple(row[name] for name in ("sender", "incarnation", "local_seqno", "value", "forwarded_at_ms"))


def test_the_whole_way_is_the_same(spark: SparkSession) -> None:
    """Each record, in a group of its own, becomes the same DATA or the same dead letter, whatever bytes are in it."""
    rows, states = [], []
    expected: list[SinkRow] = []
    for number, case in enumerate([*CORPUS, *BAD_ADDRESSES]):
        state = SequencerState(f"case-{number}", epoch=1)
        topic = case.topic.replace("orders", state.group)
        row = Row(topic, 0, number, case.key, case.value, case.headers)
        rows.append(row)
        states.append(state)
        expected += decide_rows(state, [row], SITE)[1]
    # Local seqno 10^18 - 1 is good, and dropped since it is not the first; a relay's heartbeat and leave are none.
    assert len(expected) == len(rows) - 3
    assert_df_equality(
        decide(source_frame(spark, rows), *states, site=SITE).drop("key"),
        sink_frame(spark, expected).drop("key"),
        ignore_nullable=True,
        ignore_row_order=True,
    )
