"""The sequencer on plain PySpark, measured beside the shipped one: no Scala of our own, payloads through Python.

    python -m tests.bench.plain --records 1000000 --rounds 3

    Kafka source → foreachBatch: one task, sorted by place → `mapInArrow`, which decides → headers → Kafka sink

It keeps what the shipped operator keeps, for one group. The rows of a batch have the order of the log, the same core
decides them, and the state after a batch is the next one's. The deciding task hands the state to the driver in an
accumulator. The driver takes it only when Kafka has the whole batch. Any failure ends the query, and a query begins
with a takeover. `tests/spark/test_plain.py` compares its records with the core's.

Batches of plain messages are decided as columns, and their payloads stay in Arrow. Batches with any other record
take the process engine's way (`connectors.engine.batch`).
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition
from pyspark import AccumulatorParam
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.engine.batch import by_columns
from connectors.kafka.codec.codec import FORWARD_FIELDS, decode_forward, pack_headers
from connectors.kafka.codec.headers import HEADER, highest_incarnation
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.upgrade import upgrade
from connectors.sequencer.query import assert_first_attempt
from connectors.spark.codec import HEADERS_TYPE
from connectors.spark.sink import SINK_OPTIONS
from connectors.takeover.rows import Output, OutputTopics
from connectors.takeover.takeover import take_over
from ordering.base.packs import encode_pack
from ordering.base.records import MAX_NUMBER, MAX_PAYLOAD_BYTES, MESSAGE, Forward, Partition, Source
from ordering.sequencer.columns import ForwardColumns, Ints, step_columns
from ordering.sequencer.sequencer import begin_batch, end_batch
from ordering.sequencer.state import SequencerState
from tests.bench.backlog import fill
from tests.bench.drain import Drained, drain_copy, drain_sequencer, measure_drain, read
from tests.bench.lab import Lab, Place
from tests.bench.machine import facts
from tests.bench.plan import Case, Plan

_PACK = 100
_DIGITS = len(str(MAX_NUMBER))
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_OUTPUT = pa.schema(
    [("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("line", pa.binary()), ("others", _HEADERS)]
)
OUTPUT_TYPE = f"topic string, key binary, value binary, line binary, others {HEADERS_TYPE}"


Decide = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Latest(AccumulatorParam[bytes]):
    """The state in which the deciding task has ended."""

    def zero(self, value: bytes) -> bytes:
        """Return none."""
        return b""

    def addInPlace(self, value1: bytes, value2: bytes) -> bytes:  # noqa: N802 - pyspark's name
        """Return the later one."""
        return value2 or value1


class PlainSequencer:
    """Decides batches of a group's FORWARD in Python, and writes DATA and dead letters."""

    def __init__(self, lab: Lab, state: SequencerState, own_topic: str, site: str) -> None:
        self._context, self._options = lab.spark.sparkContext, {**lab.connection.spark_options(), **SINK_OPTIONS}
        self._own_topic = own_topic
        self._state, self._topics = state.to_bytes(), OutputTopics.of(state.group, site)

    def write(self, batch: DataFrame, _: int) -> None:
        """Decide a batch and write its records; the state goes on only if Kafka has them all."""
        after = self._context.accumulator(b"", Latest())
        decide = decider(self._state, self._topics, self._own_topic, after.add)
        decided(batch, self._own_topic, decide).write.format("kafka").options(**self._options).save()
        self._state = after.value


@functools.cache  # Python takes longer to make columns than Spark to plan them
def columns_read(own_topic: str) -> list[Column]:
    """Return the columns that go to Python; `line`: of the header `abcast` if it is the first one."""
    first = F.get("headers", F.lit(0))
    line = F.when(first["key"] == HEADER, first["value"])
    return [
        F.when(F.col("topic") != own_topic, F.col("topic")).alias("topic"),
        F.col("partition"),
        F.col("offset"),
        F.unix_millis("timestamp").alias("at_ms"),
        F.col("key"),
        F.col("value"),
        line.alias("line"),
        F.when(line.isNull() | (F.size("headers") > 1), F.col("headers")).alias("headers"),
    ]


@functools.cache
def columns_written() -> list[Column]:
    """Return the columns of Spark's Kafka sink."""
    own = F.array(F.struct(F.lit(HEADER).alias("key"), F.col("line").alias("value")))
    with_others = F.when(F.col("others").isNull(), own).otherwise(F.concat(own, "others"))
    headers = F.when(F.col("line").isNull(), F.col("others")).otherwise(with_others)
    of_record = [F.col("topic"), F.lit(0).alias("partition"), F.col("key"), F.col("value")]
    return [*of_record, headers.alias("headers")]


def decided(kafka_rows: DataFrame, own_topic: str, decide: Decide) -> DataFrame:
    """Return the rows of Spark's Kafka sink: in one task, with the rows in the order of the log."""
    in_order = kafka_rows.coalesce(1).sortWithinPartitions("topic", "partition", "offset")
    return in_order.select(*columns_read(own_topic)).mapInArrow(decide, OUTPUT_TYPE).select(*columns_written())


def decider(before: bytes, topics: OutputTopics, own_topic: str, add: Callable[[bytes], None]) -> Decide:
    """Return the function of the deciding task."""

    def decide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert_first_attempt()
        state, opening = begin_batch(SequencerState.from_bytes(before))
        yield encoded([topics.encode(record, None) for record in opening])
        for batch in batches:
            plain = plain_columns(batch, own_topic)
            decisions = None if plain is None else step_columns(state, plain)
            if decisions is not None and not any(mask.any() for mask in decisions.dead.values()):
                assert plain is not None
                yield from plain_outputs(state, batch, plain, decisions.seqno, topics.data)
                state = decisions.state
            else:
                state, outputs = by_columns(state, read_rows(batch, own_topic), topics)
                yield encoded(outputs)
        state, closing = end_batch(state)
        yield encoded([topics.encode(record, None) for record in closing])
        add(state.to_bytes())

    return decide


def plain_columns(batch: pa.RecordBatch, own_topic: str) -> ForwardColumns | None:
    """Return the columns on which the core decides; None if a record is not plain, or may be no plain one."""
    key, value, line = (batch.column(name) for name in ("key", "value", "line"))
    if not len(batch) or batch.column("headers").null_count < len(batch) or key.null_count or value.null_count:
        return None
    if pc.max(pc.binary_length(value)).as_py() > MAX_PAYLOAD_BYTES:
        return None
    words = pc.split_pattern(line, b" ", max_splits=1, reverse=True)
    if pc.min(pc.list_value_length(words)).as_py() != 2:
        return None
    head, number = pc.list_element(words, 0), pc.list_element(words, 1).cast(pa.string())
    are_numbers = pc.and_(pc.utf8_is_decimal(number), pc.invert(pc.starts_with(number, "0")))
    if not pc.all(are_numbers).as_py() or pc.max(pc.binary_length(number)).as_py() > _DIGITS:
        return None
    at_ms, offset = batch.column("at_ms").to_numpy(), batch.column("offset").to_numpy()
    highest = highest_incarnation(int(at_ms.min()))
    keys, heads = pc.dictionary_encode(key), pc.dictionary_encode(head)
    both = keys.indices.to_numpy().astype(np.int64) * len(heads.dictionary) + heads.indices.to_numpy()
    _, firsts, code = np.unique(both, return_index=True, return_inverse=True)
    topic, partition = batch.column("topic"), batch.column("partition").to_numpy()
    topics = pc.fill_null(topic, own_topic)
    found: list[Forward] = []
    for first in firsts.tolist():
        source = Source(topics[first].as_py(), int(partition[first]), int(offset[first]))
        record = decode_forward(
            source, key[first].as_py(), value[first].as_py(), [(HEADER, line[first].as_py())], int(at_ms[first])
        )
        if not isinstance(record, Forward) or record.kind != MESSAGE or record.link or record.incarnation > highest:
            return None
        if heads.dictionary[heads.indices[first].as_py()].as_py().count(b" ") != len(FORWARD_FIELDS) - 2:
            return None
        found.append(record)
    senders = sorted({record.sender for record in found})
    topic_codes = pc.dictionary_encode(topics).indices.to_numpy()
    starts = np.append(True, (np.diff(partition) != 0) | (np.diff(topic_codes) != 0))
    at = np.flatnonzero(starts).tolist()
    return ForwardColumns(
        partitions=[Partition(topics[row].as_py(), int(partition[row])) for row in at],
        partition=np.cumsum(starts) - 1,
        offset=offset,
        senders=senders,
        sender=np.array([senders.index(record.sender) for record in found])[code],
        incarnation=np.array([record.incarnation for record in found])[code],
        local_seqno=number.cast(pa.int64()).to_numpy(),
        well_formed=np.ones(len(batch), np.bool_),
        timestamp_ms=at_ms,
        is_message=np.ones(len(batch), np.bool_),
        controls={},
    )


def plain_outputs(
    state: SequencerState, batch: pa.RecordBatch, rows: ForwardColumns, seqno: Ints, topic: str
) -> Iterator[pa.RecordBatch]:
    """Yield the DATA of plain messages, a batch for each partition. `state`: before the batch."""
    edges = [*(np.flatnonzero(np.diff(rows.partition)) + 1).tolist(), len(batch)]
    for begin, end, place in zip([0, *edges], edges, rows.partitions, strict=False):
        taken = pa.array(seqno[begin:end] > 0)
        key, value, line, offset, at_ms = (
            batch.column(name).slice(begin, end - begin).filter(taken)
            for name in ("key", "value", "line", "offset", "at_ms")
        )
        numbers = pa.array(seqno[begin:end]).filter(taken)
        between = f" {state.epoch} {state.view} {place}:"
        texts = [each.cast(pa.string()).cast(pa.binary()) for each in (numbers, offset, at_ms)]
        lines = pc.binary_join_element_wise(line, b" ", texts[0], between.encode(), texts[1], b" ", texts[2], b"")
        of_topic, others = pa.repeat(topic, len(lines)), pa.nulls(len(lines), _HEADERS)
        yield pa.RecordBatch.from_arrays([of_topic, key, value, lines, others], schema=_OUTPUT)


def read_rows(batch: pa.RecordBatch, own_topic: str) -> list[tuple[TopicPartition, list[PlainRecord]]]:
    """Return the records by partition, in the order of the log."""
    rows: dict[TopicPartition, list[PlainRecord]] = {}
    columns = [column.to_pylist() for column in batch.columns]
    for topic, partition, offset, at_ms, key, value, line, headers in zip(*columns, strict=True):
        alone = [] if line is None else [(HEADER, line)]
        read = alone if headers is None else [(each["key"], each["value"]) for each in headers]
        topic = topic or own_topic
        record = PlainRecord(topic, partition, offset, at_ms, key, value, read)
        rows.setdefault(TopicPartition(topic, partition), []).append(record)
    return list(rows.items())


def encoded(outputs: list[Output]) -> pa.RecordBatch:
    """Return the rows of records to write."""
    topics, keys, values, lines, others = [], [], [], [], []
    for topic, (key, value, headers) in outputs:
        is_own = bool(headers) and headers[0][0] == HEADER and headers[0][1] is not None
        rest = headers[1:] if is_own else headers
        topics.append(topic)
        keys.append(key)
        values.append(value)
        lines.append(headers[0][1] if is_own else None)
        others.append(None if is_own and not rest else [{"key": k, "value": v} for k, v in rest])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip((topics, keys, values, lines, others), _OUTPUT, strict=True)
        ],
        schema=_OUTPUT,
    )


def drain_plain(lab: Lab, place: Place, output: Place) -> Drained:
    """FORWARD sequenced to the output's DATA topic by plain PySpark, after a takeover."""
    plain = PlainSequencer(lab, take_over(lab.connection, output.group, output.site), place.forward, output.site)
    return measure_drain(lab, read(lab, place.forward).writeStream.foreachBatch(plain.write))


def fill_packs(lab: Lab, place: Place, records: int, senders: int) -> None:
    """Write packs of `_PACK` messages of 100 random bytes."""
    noise = random.Random(7).randbytes(1 << 20)
    producer = lab.member_connection("confluent").producer()
    for number in range(records):
        sender, turn = number % senders, number // senders
        begins = [(number * _PACK + at) * 101 % ((1 << 20) - 100) for at in range(_PACK)]
        value = encode_pack([noise[begin : begin + 100] for begin in begins])
        headers = pack_headers(1, turn * _PACK + 1, _PACK)
        producer.send(place.forward, value, f"{place.site}/m{sender}".encode(), headers, 0)
    producer.flush(timeout=600)
    producer.close(timeout=10)
    assert lab.end_of(place.forward) == records


_FORMS = ("single", "packs", "small")
_PATHS = {"copy": drain_copy, "JVM path": drain_sequencer, "plain path": drain_plain}


def one_case(lab: Lab, name: str, records: int, rounds: int, write: Callable[[Place], object], pack: int = 1) -> None:
    """Print a line for each round and path, and the medians."""
    rounds_of: dict[str, list[tuple[float, float]]] = {path: [] for path in _PATHS}
    with lab.place("plain") as place:
        if pack > 1:
            upgrade(lab.connection, place.group, place.site)
        write(place)
        for turn in range(rounds):
            for path, drain in _PATHS.items():
                with lab.output(place) as output:
                    if pack > 1:
                        upgrade(lab.connection, output.group, output.site)
                    drained = drain(lab, place, output)
                    if path != "copy":
                        with DataLog(lab.connection, output.group, output.site) as log:
                            assert log.state().seqno == records * pack, (path, log.state().seqno)
                used, rate = sum(drained.cpu_us.values()) / pack, drained.rate * pack / 1000
                rounds_of[path].append((used, rate))
                parts = ", ".join(f"{part} {us / pack:.2f}" for part, us in drained.cpu_us.items())
                size = drained.records / drained.batches
                ms = size / drained.rate * 1000
                print(
                    f"{name}, round {turn + 1}, {path}: {used:.2f} µs a message ({parts}); {rate:.1f} k messages/s; "
                    f"{drained.batches} batches of {size:.0f} records, {ms:.0f} ms each",
                    flush=True,
                )
    used_by, rate_by = ({path: median(each[at] for each in of) for path, of in rounds_of.items()} for at in (0, 1))
    for path in _PATHS:
        to_jvm = rate_by[path] / rate_by["JVM path"], used_by[path] / used_by["JVM path"]
        print(
            f"{name}, median, {path}: {used_by[path]:.2f} µs, {rate_by[path]:.1f} k/s; of the JVM path's rate "
            f"{to_jvm[0]:.2f}, of its CPU time {to_jvm[1]:.2f}",
            flush=True,
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plain", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--form", choices=_FORMS, nargs="+", default=_FORMS)
    options = parser.parse_args()
    records, packs, few, rounds = options.records, options.records // 10, options.records // 20, options.rounds
    with Lab(Plan(records), print) as lab:
        print(facts(), flush=True)
        for case in (Case(100, 1, 1), Case(100, 16, 1), Case(1000, 16, 1)) if "single" in options.form else ():
            one_case(lab, str(case), records, rounds, functools.partial(fill, lab, records=records, case=case))
        lab.plan = replace(lab.plan, records=packs)
        for senders in (1, 16) if "packs" in options.form else ():
            filled = functools.partial(fill_packs, lab, records=packs, senders=senders)
            one_case(lab, f"packs of {_PACK}, {senders} senders", packs, rounds, filled, _PACK)
        lab.plan = replace(lab.plan, records=1)  # the smallest batches
        if "small" in options.form:
            written = functools.partial(fill, lab, records=few, case=Case(100, 16, 1))
            one_case(lab, "small batches", few, rounds, written)


if __name__ == "__main__":
    main()
