"""What Spark columns read and write is what the row form of the codec does, on one corpus of good and bad records."""

from __future__ import annotations

import itertools

import pytest
from chispa import assert_df_equality
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connectors import codec
from connectors.relaying import relay_news, relay_requests
from connectors.sequencing import _unpack, decode_forward
from connectors.sites import Direction
from ordering.records import REMOTE_VIEW, Data, Forward, Malformed, Source
from ordering.sequencer import SequencerState
from tests.forward_corpus import CORPUS, SITES
from tests.spark.kafka_rows import BAD_ADDRESSES, Row, SinkRow, data, decide_rows, forward, sink_frame, source_frame
from tests.spark.static import decide

pytestmark = pytest.mark.spark

SITE = "nyc"


def test_what_is_plain_is_good(spark: SparkSession) -> None:
    """No bad record is taken for plain, and of a plain one each field is what the row form reads."""
    rows = [Row(case.topic, 0, offset, case.key, case.value, case.headers) for offset, case in enumerate(CORPUS)]
    decoded = decode_forward(source_frame(spark, rows), SITE, SITES, relayed=True).orderBy("offset").collect()
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
        forward("local/alice", number + 1, number, application=application, kind=kind)
        for number, (application, kind) in enumerate(itertools.product(headers, codec.FORWARD_KINDS), 1)
        if kind != REMOTE_VIEW
    ]
    decoded = decode_forward(source_frame(spark, rows), "local").collect()
    assert [row["plain"] for row in decoded] == [True] * len(rows)


def test_what_our_own_relays_bring_is_plain(spark: SparkSession) -> None:
    """Requests, with and without headers of the application, and news, also from a site behind the neighbour."""
    trace = (("trace", b"1"),)
    way = Direction("local", "nyc")
    asked = [forward("local/alice", number + 1, number, application=trace[number:]) for number in (0, 1)]
    source = Source("abcast.g.forward.lax", 0, 0)
    told = [
        Data("message", 4, 1, 9, "local/bob", 7, 1, b"hello", source, trace),
        Data("message", 4, 2, 9, "lax/eve", 7, 1, b"afar", source, ((codec.H_VISITED, b"lax"), *trace)),
    ]
    of_data = [data(record, offset, site="local") for offset, record in enumerate(told)]
    relayed = relay_requests(source_frame(spark, asked), way).unionAll(
        relay_news(source_frame(spark, of_data), way, ["nyc"])
    )
    rows = relayed.withColumns({"offset": F.monotonically_increasing_id(), "timestamp": F.now()})
    decoded = decode_forward(rows, "nyc", ("local", "nyc", "lax"), relayed=True).collect()
    visited = (codec.H_VISITED, b"local")
    assert [(row["plain"], row["sender"], headers_of(row)) for row in decoded] == [
        (True, "local/alice", [visited, *trace]),
        (True, "local/alice", [visited]),
        (True, "local/bob", [visited, *trace]),
        (True, "lax/eve", [(codec.H_VISITED, b"lax,local"), *trace]),
    ]


def headers_of(row: SparkRow) -> list[tuple[str, bytes | None]]:
    return list(_unpack(row["packed_headers"]))


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
