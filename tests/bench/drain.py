"""Run a query over a backlog to its end, and measure it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from connectors.kafka.log.data_log import DataLog
from connectors.ledger.table import BESIDE, LedgerWriter, create_tables, ledger_rows
from connectors.sequencer.query import encode_decided, sequence
from connectors.sequencer.shard import SequencerShard
from connectors.spark.job import JobOptions
from connectors.spark.sink import SINK_OPTIONS
from connectors.takeover.takeover import take_over
from tests.bench.lab import Lab, Place
from tests.bench.processes import cpu_seconds, cpu_since

_MIN_BATCHES_FOR_STEADY = 3


@dataclass(frozen=True, slots=True)
class Drained:
    """The cost of one drain.

    `whole`: records/s from the start of the query to its end. `steady`: the same without the first batch, which plans,
    compiles and starts Python; None with fewer than 3 batches. `cpu_us`: CPU microseconds per record, by part of the
    system. `state_bytes`: memory of Spark's state store at the end.
    """

    records: int
    batches: int
    whole: float
    steady: float | None
    cpu_us: Mapping[str, float]
    state_bytes: int = 0

    @property
    def rate(self) -> float:
        """The steady rate where there is one."""
        return self.steady or self.whole

    @property
    def own_cpu_us(self) -> float:
        """CPU microseconds a record without the broker's."""
        return sum(used for part, used in self.cpu_us.items() if part != "broker")


def read(lab: Lab, topic: str, offset: int = 0) -> DataFrame:
    """A stream over a topic from an offset of partition 0 on, with the jobs' own options of the source."""
    return read_all(lab, [topic], {TopicPartition(topic, 0): offset})


def read_all(lab: Lab, topics: list[str], offsets: Mapping[TopicPartition, int] | None = None) -> DataFrame:
    """A stream over several topics; from their beginning where no offset is given."""
    options = JobOptions(lab.connection, "unused", lab.directory, lab.plan.batch_records)
    source = SequencerShard(lab.spark, options).kafka_source(topics, offsets or {})
    return lab.spark.readStream.format("kafka").options(**source).load()


def copy_of(forward: DataFrame, topic: str) -> DataFrame:
    """The yardstick: copy every record to another topic unchanged."""
    return forward.select(F.lit(topic).alias("topic"), "key", "value", "headers")


def to_kafka(lab: Lab, rows: DataFrame) -> DataStreamWriter:
    """The sink of copy and sequencer, with the jobs' own options."""
    return rows.writeStream.format("kafka").options(**lab.connection.spark_options(), **SINK_OPTIONS)


def drain_copy(lab: Lab, place: Place, output: Place, topic: str | None = None) -> Drained:
    """(a) FORWARD (or another topic) copied to the output's DATA topic."""
    return measure_drain(lab, to_kafka(lab, copy_of(read(lab, topic or place.forward), output.data)))


def drain_sequencer(lab: Lab, place: Place, output: Place) -> Drained:
    """(b) FORWARD sequenced to the output's DATA topic, by the functions of the sequencer job, after a takeover."""
    state = take_over(lab.connection, output.group, output.site)
    decided = sequence(read(lab, place.forward), place.site, {output.group: state})
    return measure_drain(lab, to_kafka(lab, encode_decided(decided, output.site, read_at=place.site)))


def drain_ledger(lab: Lab, output: Place) -> Drained:
    """(c) the output's DATA topic written to a ledger of its own, by the functions of the ledger job."""
    tables = lab.path("tables")
    try:
        create_tables(lab.spark, tables)
        with DataLog(lab.connection, output.group, output.site) as log:
            start = log.after(0)
        writer = LedgerWriter(tables / "ledger", {output.group: start}, lambda _: start.offset)
        drained = measure_drain(lab, read(lab, output.data, start.offset).writeStream.foreachBatch(writer.write))
        writer.check()
        return drained
    finally:
        shutil.rmtree(tables, ignore_errors=True)


def drain_append(lab: Lab, output: Place) -> Drained:
    """The ledger's yardstick: the same columns of the output's DATA topic, as Spark appends them to such a table."""
    tables = lab.path("tables")
    try:
        create_tables(lab.spark, tables)
        with DataLog(lab.connection, output.group, output.site) as log:
            start = log.after(0)
        rows = ledger_rows(read(lab, output.data, start.offset)).where("seqno IS NOT NULL").drop(*BESIDE)
        return measure_drain(lab, rows.writeStream.format("delta").option("path", str(tables / "ledger")))
    finally:
        shutil.rmtree(tables, ignore_errors=True)


def measure_drain(lab: Lab, writer: DataStreamWriter) -> Drained:
    """Run the query to the end of the backlog."""
    checkpoint = lab.path("checkpoint")
    before, started = cpu_seconds(lab.pid), time.monotonic()
    try:
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
        try:
            with lab.hushed_when_interrupted():
                query.awaitTermination()
            took, cpu = time.monotonic() - started, cpu_since(before, lab.pid)
        finally:
            query.stop()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    progress: list[dict[str, Any]] = [json.loads(batch.json) for batch in query.recentProgress]
    batches = [batch for batch in progress if _records(batch)]
    records = sum(map(_records, batches))
    return Drained(
        records,
        len(batches),
        records / took,
        _steady(batches),
        {part: seconds / max(records, 1) * 1e6 for part, seconds in cpu.items()},
        sum(operator["memoryUsedBytes"] for operator in batches[-1].get("stateOperators", [])) if batches else 0,
    )


def _records(batch: Mapping[str, Any]) -> int:
    """Records of a batch, by its offsets: `numInputRows` counts twice what foreachBatch reads twice."""
    return sum(_offsets(source["endOffset"]) - _offsets(source["startOffset"]) for source in batch["sources"])


def _offsets(offsets: Mapping[str, Mapping[str, int]] | str | None) -> int:
    if isinstance(offsets, str):
        offsets = json.loads(offsets)
    assert not isinstance(offsets, str)
    return sum(sum(partitions.values()) for partitions in offsets.values()) if offsets else 0


def _steady(batches: list[dict[str, Any]]) -> float | None:
    if len(batches) < _MIN_BATCHES_FOR_STEADY:
        return None
    last = batches[-1]
    took: float = _began(last) + last["durationMs"]["triggerExecution"] / 1000 - _began(batches[1])
    return sum(map(_records, batches[1:])) / took


def _began(batch: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
