"""What Spark columns read and write is what the row form of the codec does, on one corpus of good and bad records."""

from __future__ import annotations

import itertools

import pytest
from chispa import assert_df_equality
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from connectors import codec
from connectors.sequencing import _unpack, decode_forward
from ordering.records import REMOTE_VIEW, Forward, Malformed
from ordering.sequencer import SequencerState
from tests.forward_corpus import CORPUS, SITES
from tests.spark.kafka_rows import BAD_ADDRESSES, Row, SinkRow, decide_rows, forward, sink_frame, source_frame
from tests.spark.static import decide

pytestmark = pytest.mark.spark

SITE = "nyc"


def test_what_is_plain_is_good(spark: SparkSession) -> None:
    """No bad record is taken for plain, and of a plain one each field is what the row form reads."""
    rows = [Row(case.topic, 0, offset, case.key, case.value, case.headers) for offset, case in enumerate(CORPUS)]
    decoded = decode_forward(source_frame(spark, rows), SITE).orderBy("offset").collect()
    for case, row, found in zip(CORPUS, rows, decoded, strict=True):
        wanted = codec.decode_forward(row.source, row.key, row.value, row.headers, row.timestamp_ms, SITES)
        assert found["value"] == row.value
        if isinstance(wanted, Malformed):
            assert not found["plain"], case.name
        if not found["plain"]:
            assert found["key"] == row.key
            assert headers_of(found) == list(row.headers), case.name
            continue
        assert isinstance(wanted, Forward)
        assert headers_of(found) == list(wanted.headers), case.name
        assert codec.FORWARD_KINDS[found["kind"]] == wanted.kind
        assert (found["sender"], found["incarnation"], found["local_seqno"], found["forwarded_at_ms"]) == (
            *(wanted.sender, wanted.incarnation, wanted.local_seqno),
            wanted.timestamp_ms,
        ), case.name


def test_what_our_own_client_writes_is_plain(spark: SparkSession) -> None:
    """With and without headers of the application: no Python reads it row by row."""
    headers = [(), (("trace", b"1"),), (("trace", b"\x00\xff"), ("trace", b""))]
    rows = [
        forward("local/alice", number, number, application=application, kind=kind)
        for number, (application, kind) in enumerate(itertools.product(headers, codec.FORWARD_KINDS), 1)
        if kind != REMOTE_VIEW
    ]
    decoded = decode_forward(source_frame(spark, rows), "local").collect()
    assert [row["plain"] for row in decoded] == [True] * len(rows)


def headers_of(row: SparkRow) -> list[tuple[str, bytes | None]]:
    return _unpack(row["packed_headers"])  # type: ignore[return-value]


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
        decide(source_frame(spark, rows), *states, site=SITE),
        sink_frame(spark, expected),
        ignore_nullable=True,
        ignore_row_order=True,
    )
