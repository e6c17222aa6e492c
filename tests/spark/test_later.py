"""The ledger and a mesh's relay read records of earlier and of later versions."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka.structs import TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from connectors.kafka.connection.sites import Direction
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.data_log import DataLog, Start
from connectors.ledger.state import state_from_ledger
from connectors.ledger.table import LedgerWriter, create_tables
from connectors.relay.process.copying import copier
from connectors.relay.rules import mesh_data
from connectors.relay.spark.columns import rows_by
from connectors.spark.query_failure import explain, failed_group
from ordering.base.errors import LaterVersion, ProtocolViolation
from ordering.base.formats import NEWEST, Format
from ordering.base.packs import encode_pack
from ordering.base.reader import Reader
from ordering.base.records import EPOCH, MESSAGE, MESSAGES, Data, Source
from ordering.sequencer.links import carry_each
from tests.formats.make import kafka_of
from tests.formats.test_earlier import VERSIONS
from tests.spark.kafka_rows import TIMESTAMP_MS, Row, data, source_frame
from tests.spark.relayed import relayed

pytestmark = pytest.mark.spark

LATER = Format(NEWEST.number + 7, "9.8.7")


def message(seqno: int) -> Data:
    source = Source("abcast.g.forward.local", 0, seqno)
    return Data(MESSAGE, 1, seqno, 0, "local/a", 1, seqno, b"m%d" % seqno, source, (), TIMESTAMP_MS)


LOG = (
    Data(EPOCH, 1),
    message(1),
    Data("pause", 1, 2, payload=b"{}"),
    Data("later", 1, 3, payload=b"of three", count=3),
    message(6),
    Data("later", 1, 7, payload=b"of two", count=2),
    replace(message(9), kind=MESSAGES, payload=encode_pack([b"m9", b"m10"]), count=2),
)


def rows_of(*records: Data, first: int = 0) -> list[Row]:
    return [data(record, first + place) for place, record in enumerate(records)]


def writer_of(directory: Path, start: Start) -> LedgerWriter:
    return LedgerWriter(directory / "ledger", {"g": start}, lambda _: 0)


@pytest.mark.long
def test_a_record_has_a_row_for_each_of_its_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Packs, and kinds of a later version. The batches may be cut anywhere, and the table may have some of a record's
    numbers.
    """
    wanted = [
        *(
            (1, "message", b"m1"),
            (2, "pause", b"{}"),
            (3, "later", b"of three"),
            (4, "later", None),
            (5, "later", None),
        ),
        *((6, "message", b"m6"), (7, "later", b"of two"), (8, "later", None), (9, "message", b"m9")),
        *((10, "message", b"m10"), (11, "message", b"m11")),
    ]
    log = rows_of(*LOG, message(11))
    create_tables(spark, tmp_path)
    for group, cuts in (("g", (0, 8)), ("h", (0, 1, 3, 4, 6, 8))):
        of_group = [row._replace(topic=row.topic.replace(".g.", f".{group}.")) for row in log]
        writer = LedgerWriter(tmp_path / "ledger", {group: Start(0, Reader())}, lambda _: 0)
        for number, (first, end) in enumerate(itertools.pairwise(cuts)):
            writer.write(source_frame(spark, of_group[first:end]), number)
            writer.check()
        table = DeltaTable(str(tmp_path / "ledger")).to_pyarrow_table(filters=[("group_name", "=", group)])
        found = sorted((row["seqno"], row["kind"], row["payload"]) for row in table.to_pylist())
        assert found == wanted
        state = state_from_ledger(tmp_path / "ledger", group)
        assert state is not None
        assert (state.seqno, state.received["local/a"]) == (11, (1, 11))


@pytest.mark.long
def test_a_later_format_stops_the_ledger(spark: SparkSession, tmp_path: Path) -> None:
    """The group ends with a sentence. The records before the seal are in the table, or in DATA for the next version.

    With another group, only this one ends. A seal that is not in force stops nothing.
    """
    create_tables(spark, tmp_path)
    writer = writer_of(tmp_path, Start(0, Reader()))
    writer.write(source_frame(spark, rows_of(LOG[0], Data(EPOCH, 0, format=LATER), message(1))), 0)
    writer.check()
    of_two = LedgerWriter(tmp_path / "ledger", dict.fromkeys("gh", Start(3, Reader(1, 1))), lambda _: 0)
    seal = source_frame(spark, rows_of(Data(EPOCH, 2, format=LATER), message(2), first=3))
    for each, error in ((writer, LaterVersion), (of_two, UnservableGroups)):
        each.write(seal, 1)
        with pytest.raises(error, match=rf"abcast\.g\.data\.local has format {LATER.number}\b"):
            each.check()


@pytest.mark.long
def test_a_pack_that_no_sequencer_writes_stops_its_group(spark: SparkSession, tmp_path: Path) -> None:
    """The error of the query tells the group, which the job then leaves out."""
    create_tables(spark, tmp_path)
    writer = writer_of(tmp_path, Start(0, Reader()))
    rows = rows_of(Data(EPOCH, 1), replace(message(1), kind=MESSAGES, payload=b"\x02", count=2))
    sink = (
        spark.readStream.format("rate")
        .load()
        .writeStream.foreachBatch(lambda _, number: writer.write(source_frame(spark, rows), number))
    )
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    reason = explain(raised.value, tmp_path)
    assert (type(reason), failed_group(reason)) == (ProtocolViolation, "g")


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_table_of_an_earlier_version_goes_on(spark: SparkSession, tmp_path: Path, version: Path) -> None:
    tables = tmp_path / "tables"
    shutil.copytree(version / "tables", tables)
    kafka = kafka_of(version / "group.jsonl")
    with DataLog(kafka, "g", "nyc") as log:
        state, end = log.state(), log.end()
    place = TopicPartition("abcast.g.data.nyc", 0)
    create_tables(spark, tables)
    following = [data(_after(state.seqno + 1), end)]
    rows = [row._replace(topic=place.topic) for row in following]
    writer = writer_of(tables, Start(end, Reader(state.epoch, state.seqno)))
    writer.write(source_frame(spark, rows), 0)
    writer.check()
    held = DeltaTable(str(tables / "ledger")).to_pyarrow_table(columns=["seqno"])["seqno"].to_pylist()
    assert sorted(held) == list(range(1, state.seqno + 2))


def _after(seqno: int) -> Data:
    source = Source("abcast.g.forward.nyc", 0, 99)
    return Data(MESSAGE, 3, seqno, 4, "nyc/carol", 9, 1, b"new", source, (), TIMESTAMP_MS)


class TestMesh:
    RULE = mesh_data(Direction("local", "sfo"), {"abcast.g.data.local": 5}, ())

    def test_a_skip_for_each_number(self, spark: SparkSession) -> None:
        """The relay makes the same skips, and the same messages of a pack, as `ordering.sequencer.links`."""
        made = relayed(spark, rows_of(*LOG, message(11)), self.RULE)
        said = [bytes(row["headers"][0]["value"]).decode() for row in made]
        wanted = [each for record in (*LOG, message(11)) for each in carry_each(record, "local", 5, lambda _: True)]
        assert said == [f"2 {each.kind} {each.incarnation} {each.local_seqno} - {each.link}" for each in wanted]
        assert [bytes(row["value"]) for row in made] == [each.payload for each in wanted]

    def test_a_pack_that_no_sequencer_writes_stops_it(self, spark: SparkSession) -> None:
        for value, count in ((b"", 1), (b"\x01", 999_999), (b"\x02\0\0\0\0", 1), (b"\x01\0\0\0\x01ab", 1)):
            pack = replace(message(1), kind=MESSAGES, payload=value, count=count)
            frame = source_frame(spark, rows_of(pack))
            with pytest.raises(PySparkException, match=r"a pack of DATA can't be read: abcast\.g\.data\.local 0"):
                rows_by(self.RULE, frame).collect()
            with pytest.raises(ProtocolViolation):
                copier(self.RULE)(rows_of(pack)[0].record)

    def test_a_later_format_stops_it(self, spark: SparkSession, tmp_path: Path) -> None:
        """Otherwise the relay would carry a skip for messages that it can't read."""
        rows = rows_of(Data(EPOCH, 2, format=LATER), message(1))
        frame = source_frame(spark, rows)
        with pytest.raises(PySparkException) as raised:
            rows_by(self.RULE, frame).collect()
        with pytest.raises(LaterVersion):
            copier(self.RULE)(rows[0].record)
        reason = explain(raised.value, tmp_path)
        assert isinstance(reason, LaterVersion)
        assert "install abcast 9.8.7 or later" in str(reason)
