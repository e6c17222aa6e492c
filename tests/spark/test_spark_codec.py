"""Spark columns read and write the same as the codec's row form, on one corpus of good and bad records."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from chispa import assert_df_equality
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from connectors.kafka.codec import codec
from connectors.kafka.codec.headers import HEADER, parse_number
from connectors.kafka.connection.sites import Direction
from connectors.relay import rules
from connectors.relay.spark.columns import rows_by
from connectors.sequencer.runs import unpack_headers
from connectors.spark.forward_rows import LINK_COLUMNS, forward_rows
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.records import (
    FLUSH_OK,
    HEARTBEAT,
    INCARNATIONS_A_MS,
    MAX_HEADERS_BYTES,
    MAX_NUMBER,
    MESSAGE,
    Data,
    Forward,
    Link,
    Malformed,
    Partition,
    Source,
)
from ordering.sequencer.links import LinkRow
from ordering.sequencer.state import SequencerState
from tests.forward_corpus import CORPUS, TOPIC, Case
from tests.spark.kafka_rows import (
    BAD_ADDRESSES,
    BAD_ADDRESSES_BY_LINK,
    TOO_LARGE_TO_BE_WRITTEN,
    Row,
    SinkRow,
    data,
    decide_rows,
    forward,
    sink_frame,
    source_frame,
)
from tests.spark.static import decide

pytestmark = pytest.mark.spark

SITE = "nyc"
NO_LINK = (-1, 0, 0, 0)
FAR_MS = MAX_NUMBER // INCARNATIONS_A_MS
"""At this time every number can be an incarnation."""


def test_what_is_plain_is_good(spark: SparkSession) -> None:
    """No bad record is taken for plain, and of a plain one each field is what the row form reads."""
    rows = [row_of(case, offset) for offset, case in enumerate(CORPUS)]
    decoded = forward_rows(source_frame(spark, rows), SITE, relayed=True).orderBy("offset").collect()
    for case, row, found in zip(CORPUS, rows, decoded, strict=True):
        wanted = codec.decode_forward(row.source, row.key, row.value, row.headers, row.timestamp_ms)
        assert (found["record"] or found)["value"] == row.value
        if isinstance(wanted, Malformed):
            assert not found["plain"], case.name
        if not found["plain"]:
            assert found["key"] == row.key
            assert headers_of(found) == list(row.headers), case.name
            assert link_of(found) == NO_LINK
            continue
        assert isinstance(wanted, Forward)
        assert headers_of(found) == list(wanted.headers), case.name
        assert FORWARD_KINDS[found["kind"]] == wanted.kind
        assert found["count"] == wanted.count, case.name
        assert link_of(found) == (wanted.link or NO_LINK), case.name
        assert (found["sender"], found["incarnation"], found["local_seqno"], found["forwarded_at_ms"]) == (
            *(wanted.sender, wanted.incarnation, wanted.local_seqno),
            wanted.timestamp_ms,
        ), case.name


def test_names_end_before_a_zero_byte(spark: SparkSession) -> None:
    """librdkafka, and so our other clients, read them in the same way."""
    written = [
        [("abcast\0x", b"2 message 1 1")],
        [("abcast", b"2 message 1 1"), ("trace\0x", b"v")],
        [("abcast", b"2 message 1 1"), ("h\0" + "n" * MAX_HEADERS_BYTES, b"")],
        [("abcast", b"2 message 1 1"), ("abcast\0", b"2 message 1 2")],
        [("abcast", b"2 message 1 1"), ("a\0\ufffd", b"")],
    ]
    read = [[(name.partition("\0")[0], value) for name, value in headers] for headers in written]
    found, expected = (
        forward_rows(
            source_frame(spark, [Row(TOPIC, 0, at, b"nyc/a", b"x", headers) for at, headers in enumerate(each)]),
            "nyc",
        )
        for each in (written, read)
    )
    assert_df_equality(found, expected)
    assert [row["plain"] for row in found.orderBy("offset").collect()] == [True, True, True, False, True]


def test_a_site_without_relays_reads_its_own_topic_in_the_same_way(spark: SparkSession) -> None:
    """There are no columns for links then."""
    rows = [row_of(case, offset) for offset, case in enumerate(CORPUS) if case.topic == TOPIC]
    frame = source_frame(spark, rows)
    alone, beside = (forward_rows(frame, SITE, relayed=relayed).orderBy("offset") for relayed in (False, True))
    assert_df_equality(alone, beside.drop(*LINK_COLUMNS), ignore_nullable=True)


ODD_NUMBERS = [
    *(
        "",
        "0",
        "1",
        "9",
        "10",
        "00",
        "07",
        "-1",
        "-0",
        "+1",
        " 7",
        "7 ",
        "7 7",
        "1_000",
        "1e3",
        "1.0",
        "0x1",
        "7\n",
        "\x007",
    ),
    *("\u0661", "\uff11", "1\u0662", "\u00b2", "seven", "7\u00e9", "/", ":", "1/", "1:"),
    *(str(10**power + more) for power in (16, 17, 18, 19, 40) for more in (-1, 0, 1)),
    *(str(2**63 + more) for more in (-1, 0, 1)),
]


@pytest.mark.parametrize("field", ["incarnation", "local_seqno"])
def test_numbers(spark: SparkSession, field: str) -> None:
    """The columns and the codec accept the same numbers, and a record with another text is not plain."""
    rows = []
    for offset, text in enumerate(ODD_NUMBERS):
        fields = f"2 message {text} 1" if field == "incarnation" else f"2 message 1 {text}"
        headers = [(HEADER, fields.encode())]
        rows.append(Row(TOPIC, 0, offset, b"nyc/alice", b"x", headers, FAR_MS))
    found = forward_rows(source_frame(spark, rows), SITE).collect()
    wanted = [parse_number(text.encode()) for text in ODD_NUMBERS]
    assert [row[field] if row["plain"] else None for row in found] == wanted


@pytest.mark.parametrize(
    "name", [b"a", b"", "\u00e9".encode(), b"\xff", b"\x80", b"\xc0\xaf", b"a\x7f\x00\n", b"x" * 99]
)
def test_senders_of_ascii(spark: SparkSession, name: bytes) -> None:
    rows = [Row(TOPIC, 0, 0, b"nyc/" + name, b"x", codec.forward_headers(1, 1))]
    assert [row["plain"] for row in forward_rows(source_frame(spark, rows), SITE).collect()] == [name.isascii()]


def test_what_our_own_client_writes_is_plain(spark: SparkSession) -> None:
    """With and without headers of the application: no Python reads it row by row."""
    headers = [(), (("trace", b"1"),), (("trace", b"\x00\xff"), ("trace", b""))]
    rows = [
        forward("local/alice", number + 1, number, application=application, kind=kind)
        for number, (application, kind) in enumerate(itertools.product(headers, (MESSAGE, HEARTBEAT)), 1)
    ]
    decoded = forward_rows(source_frame(spark, rows), "local").collect()
    assert [row["plain"] for row in decoded] == [True] * len(rows)


def test_what_our_own_relays_bring_is_plain(spark: SparkSession) -> None:
    """Requests, with and without headers of the application, and reports, also from a site behind the neighbour."""
    trace = (("trace", b"1"),)
    way = Direction("local", "nyc")
    asked = [forward("local/alice", number + 1, number, application=trace[number:]) for number in (0, 1)]
    source = Source("abcast.g.forward.local", 0, 0)
    far = Source("abcast.g.relayed-lax.local", 0, 0)
    told = [
        Data("message", 4, 1, 9, "local/bob", 7, 1, b"hello", source, trace),
        Data("message", 4, 2, 9, "lax/eve", 7, 1, b"afar", far, trace, link=Link(5, 2, 8, 6)),
        Data(FLUSH_OK, 4, 3, 9, "local/bob", 7, 2, b"1", source),
    ]
    of_data = [data(record, offset, site="local") for offset, record in enumerate(told)]
    link = rules.mesh_data(way, {"abcast.g.data.local": 17}, ["nyc"])
    relayed = rows_by(rules.forward(way), source_frame(spark, asked)).unionAll(
        rows_by(link, source_frame(spark, of_data))
    )
    rows = relayed.withColumns({"offset": F.monotonically_increasing_id(), "timestamp": F.now()})
    decoded = forward_rows(rows, "nyc", relayed=True).collect()
    assert [(row["plain"], row["sender"], headers_of(row), link_of(row)) for row in decoded] == [
        (True, "local/alice", [*trace], NO_LINK),
        (True, "local/alice", [], NO_LINK),
        (True, "local/bob", [*trace], (17, 4, 1, 1)),
        (True, "lax/eve", [*trace], (17, 4, 2, 6)),
        (True, "local/abcast.relay", [], (17, 4, 3, 0)),
    ]


def row_of(case: Case, offset: int) -> Row:
    return Row(case.topic, 0, offset, case.key, case.value, case.headers, case.timestamp_ms)


def headers_of(row: SparkRow) -> list[tuple[str, bytes | None]]:
    """Return the headers, of a plain row the application's."""
    record = row["record"]
    headers = unpack_headers(row["packed_headers"]) if record is None else map(tuple, record["headers"])
    return list(headers)[1 if row["plain"] else 0 :]


def link_of(row: SparkRow) -> tuple[int, ...]:
    return tuple(row[name] for name in LINK_COLUMNS)


SILENT = {"heartbeat", "leave", "link-start"}
"""Kinds of relays' own records that lead to no DATA and no dead letter."""


def test_the_whole_way_is_the_same(spark: SparkSession) -> None:
    """Each record, in a group of its own, becomes the same DATA or the same dead letter, whatever its bytes."""
    rows, states = [], []
    expected: list[SinkRow] = []
    for number, case in enumerate([*CORPUS, *BAD_ADDRESSES, *BAD_ADDRESSES_BY_LINK, *TOO_LARGE_TO_BE_WRITTEN]):
        state = SequencerState(f"case-{number}", epoch=1, links={"sfo": LinkRow(17, 4, 8)}, format=3)
        row = row_of(case._replace(topic=case.topic.replace("orders", state.group)), number)
        state = replace(state, positions={Partition(row.topic, row.partition): number})
        rows.append(row)
        states.append(state)
        decided = decide_rows(state, [row], SITE)[1]
        expected += decided
        text = (dict(case.headers).get("abcast") or b"").decode("latin-1")
        _, kind, _, local_seqno, _, link = [*text.split(" "), *[""] * 6][:6]
        is_next = local_seqno.partition("-")[0] == "1" and (case.topic == TOPIC or link in ("", "-", "17.4.9.3"))
        is_quiet = kind == "heartbeat" or kind == "skip" or (kind in SILENT and case.key == b"sfo/abcast.relay")
        assert bool(decided) == (case.reason is not None or (is_next and not is_quiet)), case.name
    assert_df_equality(
        decide(source_frame(spark, rows), *states, site=SITE),
        sink_frame(spark, expected),
        ignore_nullable=True,
        ignore_row_order=True,
    )
