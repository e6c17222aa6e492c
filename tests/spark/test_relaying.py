"""Relays as Spark columns: the same result as the form in Python, record by record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from connectors.kafka.codec import codec
from connectors.kafka.codec.cast_codec import decode_cast
from connectors.kafka.codec.headers import DEPENDS_HEADER, first_fields
from connectors.kafka.codec.inputs import of_log, original
from connectors.kafka.codec.letter_codec import decode_letter
from connectors.kafka.connection.sites import Direction
from connectors.kafka.transport import PlainRecord
from connectors.ledger.table import ledger_rows
from connectors.relay.rules import Rule, agreed, casts, forward, home_data, letters, mesh_data
from connectors.relay.spark.columns import rows_by
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.names import is_address
from ordering.base.records import (
    ENTRY,
    EPOCH,
    FLUSH_COMPLETED,
    FLUSH_OK,
    JOIN,
    LEAVE,
    MAX_HEADERS_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RECORD_BYTES,
    MESSAGE,
    MESSAGES,
    REFUSED,
    REMOTE_VIEW,
    SETTINGS,
    SKIP,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    Data,
    Forward,
    Link,
    Malformed,
    Source,
)
from ordering.sequencer.links import carry
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.data_corpus import CASES
from tests.forward_corpus import CORPUS, TIMESTAMP_MS, TOPIC
from tests.spark.kafka_rows import Row, SinkRow, data, sink_frame, source_frame
from tests.spark.relayed import relayed

pytestmark = pytest.mark.spark

WAY = Direction("sfo", "nyc")
AGREED_WAY = Direction("nyc", "sfo")
OWN = Source("abcast.g.forward.sfo", 2, 70)
FAR = Source("abcast.g.relayed-fra.sfo", 0, 71)
SESSION = 17
NOT_CARRIED = ("lax", "nyc")
LINK = mesh_data(WAY, {"abcast.g.data.sfo": SESSION}, NOT_CARRIED)
MEMBERS = b'{"members":[["sfo/bob",7]],"joined":["sfo/bob"],"left":[],"suspected":[],"flush":0}'
TRACE = (("trace", b"\x00\xff"), ("trace", b""))
BOB = ("sfo/bob", 7)


def log() -> list[Data]:
    """Return a record of each kind in DATA."""
    decided = [
        (VIEW, 9, MEMBERS),
        (START_FLUSH, 9, b'{"requester":"sfo/bob"}'),
        (FLUSH_COMPLETED, 9, b"{}"),
        (STOP_FLUSH, 9, b"{}"),
        (REMOTE_VIEW, 9, b'{"site":"nyc","silent":true}'),
        (VIEW, 10**15, b""),
    ]
    told = [
        *((kind, 3 + number, b"1") for number, kind in enumerate((JOIN, LEAVE, SETTINGS, START_FLUSH, FLUSH_OK))),
        (STOP_FLUSH, 8, b"1"),
        (REFUSED, 9, b'{"kind":"join"}'),
    ]
    at_ms = 1_700_000_000_000
    records = [
        Data("message", 4, 0, 9, *BOB, 1, b"hello", OWN, (), at_ms),
        Data("message", 4, 0, 9, *BOB, 2, b"\x00\xff\n", OWN, TRACE, at_ms),
        Data("message", 4, 0, 9, *BOB, 3, b"", OWN, TRACE[:1], at_ms),
        *(Data(kind, 4, 0, 9, *BOB, number, payload, OWN, TRACE[:1], at_ms) for kind, number, payload in told),
        *(Data(kind, 4, 0, view, payload=payload) for kind, view, payload in decided),
        Data("message", 4, 0, 9, "fra/eve", 10**17, 1, b"afar", FAR, (), at_ms, Link(3, 2, 90, 60)),
        Data("message", 4, 0, 9, "fra/eve", 5, 2, b"afar", FAR, TRACE, at_ms, Link(3, 2, 91, 10**18 - 1)),
        Data("message", 4, 0, 9, "nyc/al", 5, 1, b"theirs", FAR, TRACE, at_ms, Link(3, 2, 92, 61)),
        Data("message", 4, 0, 9, "lax/dan", 5, 1, b"by another way", FAR, (), at_ms, Link(3, 2, 93, 62)),
        Data("message", 4, 0, 9, "lax2/dan", 5, 1, b"of a site that is not known", FAR, (), at_ms, Link(3, 2, 94, 63)),
        Data(REMOTE_VIEW, 4, 0, 9, "fra/abcast.relay", 2, 3, b'{"members":[]}', FAR, (), at_ms, Link(3, 2, 95, 0)),
        Data(REFUSED, 4, 0, 9, "fra/abcast.relay", 2, 4, b"{}", FAR, (), at_ms, Link(3, 2, 96, 0)),
        Data(REMOTE_VIEW, 4, 0, 9, "fra/abcast.relay", 2, 5, b'{"members":[]}', FAR, (), at_ms),
    ]
    numbered = [_numbered(record, seqno) for seqno, record in enumerate(records, 10**14)]
    return [seal(4), snapshot(SequencerState("g", 4, 10**14 - 1)), *numbered, seal(5), numbered[0]]


def _numbered(record: Data, seqno: int) -> Data:
    return Data(record.kind, record.epoch, seqno, *[getattr(record, name) for name in Data.__slots__[3:]])


def carried(record: Data, topic: str) -> SinkRow:
    """Return the record that the row form makes of it."""
    said = carry(record, WAY.source, SESSION, lambda origin: origin not in NOT_CARRIED)
    application = record.headers if said.kind == "message" else ()
    headers = codec.forward_headers(said.incarnation, said.local_seqno, application, said.kind, said.link)
    return SinkRow(topic, said.sender.encode(), said.payload, headers)


def test_news_are_what_the_row_form_says(spark: SparkSession) -> None:
    """Every record of DATA, of any kind, in its place."""
    rows = [data(record, offset, site="sfo") for offset, record in enumerate(log())]
    news = rows_by(LINK, source_frame(spark, rows))
    expected = [carried(record, "abcast.g.relayed-sfo.nyc") for record in log()]
    assert {row.headers[0][1].split()[1] for row in expected} == {b"message", b"remote-view", b"skip"}
    assert_df_equality(news, sink_frame(spark, expected), ignore_nullable=True)


def test_the_neighbour_reads_all_of_it(spark: SparkSession) -> None:
    rows = [data(record, offset, site="sfo") for offset, record in enumerate(log())]
    news = relayed(spark, rows, LINK)
    for offset, (row, record) in enumerate(zip(news, log(), strict=True)):
        headers = [(header["key"], bytes(header["value"])) for header in row["headers"]]
        source = Source(row["topic"], row["partition"], offset)
        read = codec.decode_forward(source, bytes(row["key"]), bytes(row["value"]), headers)
        assert isinstance(read, Forward)
        assert read.link is not None
        assert read.link[:3] == (SESSION, record.epoch, record.seqno)
        assert (record.seqno == 0) == (record.kind == EPOCH)


def test_each_group_has_a_session_of_its_own(spark: SparkSession) -> None:
    """Also where every record is carried."""
    message = Data("message", 1, 1, 0, "sfo/bob", 1, 1, b"x", OWN, TRACE, link=None)
    rows = [
        data(message, 0, site="sfo"),
        data(message, 1, group="a.b-c", site="sfo"),
    ]
    sessions = {"abcast.g.data.sfo": 0, "abcast.a.b-c.data.sfo": 10**12}
    found = relayed(spark, rows, mesh_data(WAY, sessions, ()))
    assert [(row["topic"], bytes(row["headers"][0]["value"])) for row in found] == [
        ("abcast.g.relayed-sfo.nyc", b"2 message 1 1 - 0.1.1.1"),
        ("abcast.a.b-c.relayed-sfo.nyc", b"2 message 1 1 - 1000000000000.1.1.1"),
    ]


ASKED: list[tuple[list[Any], list[Any]]] = [
    (["2 message 7 1"], ["2 message 7 1 MARK - AT_MS"]),
    (["2 message 7 1", ("trace", b"\xff")], ["2 message 7 1 MARK - AT_MS", ("trace", b"\xff")]),
    (["2 message 7 1 later  still"], ["2 message 7 1 MARK - AT_MS later  still"]),
    (["2 message 7 1 - 1.2.3.4"], ["2 message 7 1 MARK - AT_MS - 1.2.3.4"]),
    (["2 message 7 "], ["2 message 7  MARK - AT_MS"]),
    (["2 message 7"], ["2 message 7 - MARK - AT_MS"]),
    (["2"], ["2 - - - MARK - AT_MS"]),
    ([""], [" - - - MARK - AT_MS"]),
    ([], [" - - - MARK - AT_MS"]),
    ([("trace", b"")], [" - - - MARK - AT_MS", ("trace", b"")]),
    ([("abcast", None)], [" - - - MARK - AT_MS"]),
    ([("a", b"1"), "2 message 7 1", ("b", b"2")], ["2 message 7 1 MARK - AT_MS", ("a", b"1"), ("b", b"2")]),
    (["2 message 7 1", "2 message 7 2"], ["2 message 7 1 MARK - AT_MS", "2 message 7 2"]),
    (["2 message 7 1", ("abcast-x", b"")], ["2 message 7 1 MARK - AT_MS", ("abcast-x", b"")]),
    ([("abcast", b"2 message 7 \xf0 - 7")], [("abcast", b"2 message 7 \xf0 MARK - AT_MS - 7")]),
    ([("abcast", b"2 m\xff 7 1 \xff\0")], [("abcast", b"2 m\xff 7 1 MARK - AT_MS \xff\0")]),
]
"""Headers as a client writes them, and as a hub's relay passes them on; a text is the header `abcast`."""
FORWARDED, BROUGHT = "abcast.a.b-c.forward.sfo", "abcast.a.b-c.relayed-sfo.nyc"
INBOX, CAST = "abcast.a.b-c.inbox.lax", "abcast.a.b-c.cast.sfo"
THERE = ("nyc", "oak")
"""The sites in the target's Kafka."""
of_letters = functools.partial(letters, at_target=THERE)
of_casts = functools.partial(casts, at_target=THERE, of_views=True)
OF_CLIENTS: list[tuple[Callable[[Direction], Rule], str, str, tuple[int, int], str]] = [
    (forward, FORWARDED, BROUGHT, (4, 4), "MARK - AT_MS"),
    (agreed, FORWARDED, BROUGHT, (4, 4), "MARK - AT_MS"),
    (of_letters, INBOX, INBOX, (5, 5), "MARK"),
    (of_casts, CAST, CAST, (7, 7), "MARK"),
]
"""Copies of clients' records: the source, the target, and the changed fields."""
LETTERS: list[tuple[str | bytes, str | bytes]] = [
    ("2 letter 7 1 sfo/bob -", "2 letter 7 1 sfo/bob MARK -"),
    ("2 letter 7 1 sfo/bob lax/abcast.g.inbox.nyc-0:4", "2 letter 7 1 sfo/bob MARK lax/abcast.g.inbox.nyc-0:4"),
    (
        "2 letter 7 1 nyc/eve lax/nyc/-0:4 lax/abcast.g.inbox.nyc-0:4",
        "2 letter 7 1 nyc/eve MARK lax/nyc/-0:4 lax/abcast.g.inbox.nyc-0:4",
    ),
    ("2 letter 7 1 sfo/bob", "2 letter 7 1 sfo/bob MARK"),
    ("2 letter 7 1 sfo/bob - later", "2 letter 7 1 sfo/bob MARK - later"),
    ("2 letter", "2 letter - - - MARK"),
    # Bytes that begin a character of several: the digits behind them must not become a part of the mark.
    (b"2 letter 7 1 sfo/bob \xf0zz 77 later", b"2 letter 7 1 sfo/bob MARK \xf0zz 77 later"),
    (b"2 letter 7 1 sfo/bob \xf0 7 7", b"2 letter 7 1 sfo/bob MARK \xf0 7 7"),
    (b"2 letter 7 1 sfo/b\xe0 - \xff", b"2 letter 7 1 sfo/b\xe0 MARK - \xff"),
]


def test_requests_are_marked(spark: SparkSession) -> None:
    """Each stays in its partition. Nothing else changes, and a bad record has the same reason at the home."""
    rows = [
        Row("abcast.g.forward.sfo", offset % 3, offset, b"sfo/bob", b"x", _whole(headers))
        for offset, (headers, _) in enumerate(ASKED)
    ]
    expected = [_whole(marked, row) for row, (_, marked) in zip(rows, ASKED, strict=True)]
    found = relayed(spark, rows, forward(WAY))
    for row, headers, written in zip(rows, expected, found, strict=True):
        topic = "abcast.g.relayed-sfo.nyc"
        assert written[:4] == (topic, row.partition, row.key, row.value)
        assert [tuple(header) for header in written["headers"]] == headers
        assert first_fields(headers, 5)[4:] == [f"sfo/{row.source}".encode()]  # where a relay that starts looks
        before = codec.decode_forward(row.source, row.key, row.value, row.headers)
        after = codec.decode_forward(row.source._replace(topic=topic), row.key, row.value, headers)
        assert after == replace(before, source=after.source)


def test_who_agrees_reads_what_stands_at_home(spark: SparkSession) -> None:
    """A copy of any good or bad record is read as the original, with its place and its time."""
    cases = [case for case in CORPUS if case.topic == TOPIC]
    rows = [
        Row(TOPIC, 1, offset, case.key, case.value, case.headers, case.timestamp_ms)
        for offset, case in enumerate(cases)
    ]
    rows += [Row(TOPIC, 1, len(rows) + n, b"nyc/al", b"x", _whole(headers)) for n, (headers, _) in enumerate(ASKED)]
    found = relayed(spark, rows, agreed(AGREED_WAY))
    for row, written in zip(rows, found, strict=True):
        headers = [tuple(header) for header in written["headers"]]
        assert (written["topic"], written["partition"]) == (TOPIC.replace(".forward.nyc", ".relayed-nyc.sfo"), 1)
        assert first_fields(headers, 5)[4:] == [f"nyc/{row.source}".encode()]  # where a relay that starts looks
        copy = PlainRecord(written["topic"], 1, 5, 6, written["key"], written["value"], headers)
        read = original(copy, "nyc", str(row.source.topic_partition))
        assert read is not None
        assert (*read[:6],) == (*row.source, row.timestamp_ms, row.key, row.value)
        both = [
            codec.decode_forward(row.source, row.key, row.value, said, row.timestamp_ms)
            for said in (row.headers, read.headers)
        ]
        assert both[0] == both[1]


@pytest.mark.parametrize(("relay", "source", "target", "fields", "said"), OF_CLIENTS)
def test_whatever_a_client_writes_is_carried(
    spark: SparkSession,
    relay: Callable[[Direction], Rule],
    source: str,
    target: str,
    fields: tuple[int, int],
    said: str,
) -> None:
    """The copy has its key and its headers, except for the mark, and only as much of its value as shows that it
    is too large. (For larger headers, see below.)
    """
    rows = [
        Row(source, offset % 3, 10**12 + offset, case.key, case.value, case.headers, case.timestamp_ms)
        for offset, case in enumerate(CORPUS)
        if all(len(said or b"") < MAX_PAYLOAD_BYTES for _, said in case.headers)
    ]
    rows += [Row(source, 0, offset, None, None, _whole(headers), -1) for offset, (headers, _) in enumerate(ASKED)]
    found = relayed(spark, rows, relay(WAY))
    for row, written in zip(rows, found, strict=True):
        value = row.value if row.value is None else row.value[: MAX_PAYLOAD_BYTES + 1]
        assert written[:4] == (target, row.partition, row.key, value)
        text = said.replace("MARK", f"sfo/{row.source}").replace("AT_MS", str(row.timestamp_ms))
        assert [tuple(header) for header in written["headers"]] == _marked(row.headers, text.encode(), *fields)


def _marked(headers: Sequence[tuple[str, Any]], said: bytes, begin: int, end: int) -> list[tuple[str, Any]]:
    """Return the headers with that text in these fields of abcast's first one, which comes first then."""
    others = list(headers)
    own = next((header for header in headers if header[0] == "abcast"), None)
    if own is not None:
        others.remove(own)
    text = (own and own[1]) or b""
    before = [*text.split(b" "), *[b"-"] * begin][:begin]
    return [("abcast", b" ".join([*before, said, *text.split(b" ")[end:]])), *others]


def test_of_data_strays_stay_where_they_are(spark: SparkSession) -> None:
    """The home's other DATA are copied unchanged; an agreeing site's entries and seals get a mark."""
    values = (None, b"", b"x", bytes(MAX_PAYLOAD_BYTES + 2))
    cases = [(case, value) for case in CASES for value in values]
    topic = "abcast.a.b-c.data.sfo"
    rows = [Row(topic, 0, offset, case.key, value, case.headers) for offset, (case, value) in enumerate(cases)]
    copied = [row for row, (case, _) in zip(rows, cases, strict=True) if case.is_data]
    for row, written in zip(copied, relayed(spark, rows, home_data(WAY)), strict=True):
        assert written[:4] == ("abcast.a.b-c.data.nyc", 0, row.key, row.value)
        assert [tuple(header) for header in written["headers"]] == list(row.headers)
    of_log = [row for row in copied if _is_of_log(codec.decode_data(row.key, row.value, row.headers))]
    assert {row.headers[0][1].split()[1] for row in of_log} == {b"entry", b"epoch"}
    for row, written in zip(of_log, relayed(spark, rows, agreed(WAY)), strict=True):
        assert written[:4] == ("abcast.a.b-c.entries-sfo.nyc", 0, None, row.value)
        said = f"sfo/{row.source}".encode()
        assert [tuple(header) for header in written["headers"]] == _marked(row.headers, said, 7, 8)


def _is_of_log(record: Data) -> bool:
    return record.kind == ENTRY or record == seal(record.epoch)


def test_of_another_site_nothing_is_carried(spark: SparkSession) -> None:
    """Sites that agree get only the site's own records."""
    topics = (
        "forward.fra",
        "data.fra",
        "relayed-sfo.nyc",
        "entries-sfo.nyc",
        "epoch.sfo",
        "forward-sfo",
        "forward.sfo",
    )
    entry = [("abcast", b"2 entry - 4 - 1 - - -")]
    rows = [Row(f"abcast.g.{topic}", 0, 0, None, b"", entry) for topic in topics]
    [written] = relayed(spark, rows, agreed(WAY))
    assert written["topic"] == "abcast.g.relayed-sfo.nyc"


def test_spark_asks_once_for_a_row(spark: SparkSession) -> None:
    """Its columns are used separately, and none of them where it is null."""
    for relay in (home_data, agreed):
        frame = rows_by(relay(WAY), source_frame(spark, [])).where("octet_length(value) > 0").select("topic", "headers")
        plan = frame._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("CarriedReader") == 1


BIG = b"n" * MAX_RECORD_BYTES
LINE = codec.forward_headers(7, 1)
LEFT = MAX_PAYLOAD_BYTES - MAX_HEADERS_BYTES - len(DEPENDS_HEADER)
NO_TOPIC_TAKES = {
    "the key": (b"sfo/" + BIG, b"x", LINE),
    "the value": (b"sfo/bob", BIG, LINE),
    "a header": (b"sfo/bob", b"x", [*LINE, ("h", BIG)]),
    "a name": (b"sfo/bob", b"x", [*LINE, (BIG.decode(), b"")]),
    "many headers": (b"sfo/bob", b"x", [*LINE, *[("", b"")] * (MAX_HEADERS_BYTES + 1), ("h", BIG)]),
    "what it depends on": (b"sfo/bob", b"x", [*LINE, (DEPENDS_HEADER, BIG)]),
    **{
        f"headers and what it depends on, {more} too many": (
            b"sfo/bob",
            b"x",
            [*LINE, *[("", b"")] * MAX_HEADERS_BYTES, (DEPENDS_HEADER, bytes(LEFT + more))],
        )
        for more in (0, 1)
    },
    "our header twice": (b"sfo/bob", b"x", [*LINE, ("abcast", BIG)]),
    "a reserved header": (b"sfo/bob", b"x", [("abcast-n", BIG), *LINE]),
    "a reserved header alone": (b"sfo/bob", b"x", [("abcast-n", BIG)]),
    "fields behind those of ours": (b"sfo/bob", b"x", [("h", b"v"), ("abcast", b"2 message 7 1 " + BIG)]),
    "the kind": (b"sfo/bob", b"x", [("abcast", b"2 " + BIG + b" 7 1")]),
    "a number": (b"sfo/bob", b"x", [("abcast", b"2 message 7 1" + BIG.replace(b"n", b"0"))]),
    "all of it": (b"sfo/" + BIG, BIG, [*LINE, *LINE, ("h", BIG)]),
}
"""Kafka takes these records compressed."""


@pytest.mark.parametrize("what", NO_TOPIC_TAKES)
def test_what_no_topic_takes_is_cut_and_judged_as_before(spark: SparkSession, what: str) -> None:
    """The relay goes on, and the record is judged at the other site as at home: good, or a dead letter."""
    row = Row("abcast.g.forward.sfo", 0, 0, *NO_TOPIC_TAKES[what])
    at_home = codec.decode_forward(row.source, row.key, row.value, row.headers, TIMESTAMP_MS)
    for relay in (forward, agreed):
        [written] = relayed(spark, [row], relay(WAY))
        headers = [tuple(header) for header in written["headers"]]
        key, value = (bytes(written[name]) for name in ("key", "value"))
        size = len(key) + len(value) + sum(len(name) + len(said) + 10 for name, said in headers)
        assert size < MAX_RECORD_BYTES
        source = row.source._replace(topic=written["topic"])
        there = codec.decode_forward(source, key, value, headers, TIMESTAMP_MS)
        if isinstance(at_home, Malformed):
            assert isinstance(there, Malformed)
        elif is_address(at_home.sender):
            assert there == replace(at_home, source=source)
        else:
            assert isinstance(there, Forward)
            assert not is_address(there.sender)


def test_a_letter_and_a_cast_that_no_topic_takes(spark: SparkSession) -> None:
    """Both are refused alike before and behind a relay."""
    clock = [("abcast", b"2 causal 7 1 3 1 " + BIG)]
    sender = [("abcast", b"2 letter 7 1 sfo/" + BIG)]
    for relay, role, key, line, decode in (
        (of_casts, "cast.sfo", b"sfo/bob", clock, decode_cast),
        (
            functools.partial(letters, at_target=THERE),
            "inbox.nyc",
            b"nyc/al",
            sender,
            functools.partial(decode_letter, b"nyc/al"),
        ),
    ):
        row = Row(f"abcast.g.{role}", 0, 0, key, b"x", line)
        [written] = relayed(spark, [row], relay(WAY))
        headers = [tuple(header) for header in written["headers"]]
        assert sum(len(said) for _, said in headers) < MAX_RECORD_BYTES / 2
        reasons = {decode(row.key, row.value, said) for said in (row.headers, headers)}
        assert len(reasons) == 1
        assert isinstance(reasons.pop(), str)


def test_of_data_who_agrees_is_brought_the_log(spark: SparkSession) -> None:
    """Entries and seals keep their order and form, and are marked with their offsets."""
    entries = [Data(ENTRY, 4, local_seqno=number, payload=b"%d" % number) for number in (1, 2)]
    records = [*log(), *entries]
    rows = [data(record, offset, site="nyc") for offset, record in enumerate(records)]
    found = relayed(spark, rows, agreed(AGREED_WAY))
    carried_ones = [
        (row, record) for row, record in zip(rows, records, strict=True) if record in (seal(4), seal(5), *entries)
    ]
    for (row, record), written in zip(carried_ones, found, strict=True):
        headers = [tuple(header) for header in written["headers"]]
        assert written["topic"] == "abcast.g.entries-nyc.sfo"
        copy = PlainRecord(written["topic"], 0, 5, 6, written["key"], written["value"], headers)
        assert of_log(copy, is_copy=True) == record
        assert headers[0][1].split(b" ")[codec.DATA_FIELDS.index("SOURCE")] == f"nyc/{row.source}".encode()


def test_letters_are_marked(spark: SparkSession) -> None:
    """Earlier marks stay: the mark of the last relay comes first."""
    rows = [
        Row("abcast.g.inbox.nyc", 1, offset, b"nyc/al", b"x", _whole([_said(header), ("trace", b"1")]))
        for offset, (header, _) in enumerate(LETTERS)
    ]
    found = relayed(spark, rows, of_letters(WAY))
    for row, (_, marked), written in zip(rows, LETTERS, found, strict=True):
        assert written[:4] == (row.topic, 1, row.key, row.value)
        assert [tuple(header) for header in written["headers"]] == _whole([_said(marked), ("trace", b"1")], row)


CARRIED_ON = ["-", "", "fra/a-0:1", "sfo/a-0:1", "fra/a-0:1 lax/a-0:1", "fra/nyc/a-0:1", "nyce/a-0:1", "nyc", "lax/nyc"]
BACK = ["nyc/a-0:1", "oak/a-0:1", "fra/a-0:1 nyc/a-0:1", "fra/a-0:1 oak/a-0:1 lax/a-0:1", "- oak/", "nyc/a-0:1 -"]


@pytest.mark.parametrize(
    ("relay", "topic", "before"),
    [
        (of_letters, "inbox.lax", "2 letter 7 1 nyc/bob"),
        (of_casts, "cast.fra", "2 fifo 7 1 - 0 0"),
    ],
)
def test_what_has_been_there_is_not_carried_back(
    spark: SparkSession, relay: Callable[[Direction], Rule], topic: str, before: str
) -> None:
    """Whatever its way, a record is not copied to a Kafka that it has passed. All others are copied."""
    rows = [
        Row(f"abcast.g.{topic}", 0, offset, b"lax/al", b"x", _whole([f"{before} {marks}"]))
        for offset, marks in enumerate([*CARRIED_ON, *BACK])
    ]
    found = relayed(spark, rows, relay(WAY))
    expected = [_whole([f"{before} MARK {marks}"], row) for row, marks in zip(rows, CARRIED_ON, strict=False)]
    assert [[tuple(header) for header in written["headers"]] for written in found] == expected


CASTS: list[Any] = [
    "2 fifo 7 1 - - -",
    "2 fifo 7 1",
    "2 fifo 7 2 3 - -",
    "2 causal 7 3 3 12 +1,4=2",
    "2 causal 7 3 3 0 0 fra/abcast.g.cast.fra-0:5",
    "2 causal 7 3 3 12",
    "2 causal 7 3 3",
    "2 causal 7 3",
    "2 total 7 1 - - -",
    b"2 causal 7 3 3 1 \xff",
    "",
]


def test_casts_are_marked(spark: SparkSession) -> None:
    """A cast is the same at the other site, and a bad record has the same reason there. A mesh's relay carries
    casts of no view, and records that name none.
    """
    rows = [
        Row("abcast.g.cast.fra", 1, offset, b"fra/al", b"x", _whole([("trace", b"1"), _said(header)]))
        for offset, header in enumerate(CASTS)
    ]
    rows.append(Row("abcast.g.cast.fra", 1, len(rows), None, None, []))
    found = relayed(spark, rows, of_casts(WAY))
    for row, written in zip(rows, found, strict=True):
        assert written[:4] == (row.topic, row.partition, row.key, row.value)
        headers = [(name, bytes(value)) for name, value in written["headers"]]
        assert decode_cast(row.key, row.value, headers) == decode_cast(row.key, row.value, row.headers)
        assert first_fields(headers, 8)[7] == f"sfo/{row.source}".encode()
    of_no_view = [row for row in rows if first_fields(row.headers, 5)[4:] in ([], [b"-"])]
    assert len(relayed(spark, rows, casts(WAY, THERE, of_views=False))) == len(of_no_view)


def test_nobody_speaks_in_the_name_of_the_relay_that_carries_him(spark: SparkSession) -> None:
    """At the home, a record that a member of the other site wrote under the relay's name is a dead letter."""
    rows = [
        Row("abcast.g.forward.sfo", 0, offset, b"sfo/abcast.relay", b"{}", codec.forward_headers(1, 1, kind=kind))
        for offset, kind in enumerate(FORWARD_KINDS)
        if kind not in (SKIP, MESSAGES)
    ]
    for row, written in zip(rows, relayed(spark, rows, forward(WAY)), strict=True):
        headers = [tuple(header) for header in written["headers"]]
        for source, said in ((row.source, row.headers), (row.source._replace(topic=written["topic"]), headers)):
            read = codec.decode_forward(source, row.key, row.value, said)
            assert read == Malformed(source, codec.NOT_THE_RELAY)


def _said(header: str | bytes) -> Any:
    return ("abcast", header) if isinstance(header, bytes) else header


def _whole(headers: list[Any], row: Row | None = None) -> list[tuple[str, Any]]:
    """Return headers of the tables above, with the mark of that row."""
    mark, at_ms = (f"sfo/{row.source}".encode(), b"%d" % row.timestamp_ms) if row is not None else (b"", b"")
    named = [("abcast", header.encode()) if isinstance(header, str) else header for header in headers]
    return [(name, value and value.replace(b"MARK", mark).replace(b"AT_MS", at_ms)) for name, value in named]


def test_the_ledger_has_the_seqno_at_the_origin(spark: SparkSession) -> None:
    """A message of a link has it, and its headers are the application's, without the link's."""
    records = log()
    rows = [data(record, offset, site="sfo") for offset, record in enumerate(records)]
    found = ledger_rows(source_frame(spark, rows)).orderBy("offset").collect()
    for row, record in zip(found, records, strict=True):
        link = record.link if record.kind == MESSAGE else None
        assert row["origin_seqno"] == (None if link is None else link.origin_seqno)
        assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == list(record.headers)
