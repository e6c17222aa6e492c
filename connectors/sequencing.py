"""The sequencer as a Spark query: FORWARD rows in, DATA and dead-letter rows out, `ordering` in between.

    Kafka source → columns (JVM) → applyInPandasWithState, key = group → headers (JVM) → Kafka sink

The stateful operator is the only Python on the path. It sees arrow batches, decides them with `step_columns`, and
never looks at a payload. Spark's state store holds the state between the batches of one run; nothing rests on it
after a crash (see `connectors.takeover`).

A group's rows come from Spark in no promised order, so `sequence` has each micro-batch sorted by group and source, in
the JVM, there and nowhere else; `step_columns` asserts it of each arrow batch, of which the Python worker holds one at
a time. The size of a micro-batch, which the sort holds, is bounded by `maxOffsetsPerTrigger`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from connectors import codec, spark_codec
from connectors.connection import MAX_RECORD_BYTES
from ordering.columns import ForwardColumns, Ints, step_columns
from ordering.errors import ProtocolViolation
from ordering.membership import NOT_A_MEMBER
from ordering.records import EPOCH, HEARTBEAT, MESSAGE, Data
from ordering.sequencer import BAD_ADDRESS, SequencerState, begin_batch, end_batch

_RUN = (
    "group string, kind string, topic string, partition int, first_offset long, first_seqno long, epoch long, "
    "view long, size int, senders array<string>, incarnations array<long>, sender array<int>, "
    "local_seqno array<long>, forwarded_at_ms array<long>, value array<binary>, packed_headers array<string>, "
    "error array<string>"
)
_RUN_COLUMNS = [field.split()[0] for field in _RUN.split(", ")]
_STATE = "state binary"
_BY_ROW = ["local_seqno", "forwarded_at_ms", "value", "packed_headers", "error"]
_SOURCE = ["topic", "partition", "offset"]
_HEARTBEAT = codec.FORWARD_KINDS.index(HEARTBEAT)
_FIRST_CONTROL = _HEARTBEAT + 1


def decode_forward(kafka_rows: DataFrame, *, relayed: bool = False, sites: Collection[str] | None = None) -> DataFrame:
    """Rows of Spark's Kafka source (with headers) → the columns the sequencer works on, errors named.

    `relayed`: whether there may be rows of topics that a relay fills. `sites`: those configured; None if nobody knows.
    """
    extracted = spark_codec.extract(kafka_rows, codec.FORWARD_HEADERS)
    listed = spark_codec.header(codec.H_VISITED, len(codec.FORWARD_HEADERS))
    visited = F.when(~F.col("bare"), listed).cast("string")
    numbered = extracted.withColumns(
        {
            "incarnation": spark_codec.number(codec.H_INCARNATION),
            "local_seqno": spark_codec.number(codec.H_LOCAL_SEQNO),
            "neighbour": spark_codec.neighbour_of(F.col("topic")) if relayed else F.lit(""),
            codec.H_VISITED: visited if relayed else F.lit(""),
        }
    )
    judged = numbered.withColumn("error", spark_codec.forward_error(sites))
    return judged.select(
        spark_codec.group_of(F.col("topic")).alias("group"),
        "topic",
        "partition",
        "offset",
        # Python takes valid UTF-8 only, and must get the row whatever is in it.
        F.when(F.is_valid_utf8(codec.H_SENDER), F.col(codec.H_SENDER)).otherwise(F.lit("")).alias("sender"),
        F.coalesce("incarnation", F.lit(0)).alias("incarnation"),
        F.coalesce("local_seqno", F.lit(0)).alias("local_seqno"),
        spark_codec.kind_code().alias("kind"),
        F.unix_millis("timestamp").alias("forwarded_at_ms"),
        "error",
        "value",
        spark_codec.pack_headers().alias("packed_headers"),
    )


def sequence(forward: DataFrame, initial: Mapping[str, SequencerState], parallelism: int = 1) -> DataFrame:
    """The sequencing transformation: decoded FORWARD rows → decided rows.

    `initial` has the state of every group that may occur. `parallelism` is how many groups are decided at once
    (the number of shuffle partitions, which must be the session's setting if it is not 1).
    """
    placed = forward.coalesce(1) if parallelism == 1 else forward.repartition(parallelism, "group")
    return (
        placed.sortWithinPartitions("group", *_SOURCE)
        .groupBy("group")
        .applyInPandasWithState(
            decider({group: state.to_bytes() for group, state in initial.items()}),
            outputStructType=_RUN,
            stateStructType=_STATE,
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
    )


def unpack_runs(runs: DataFrame, *kept: str) -> DataFrame:
    """Runs → one row a record, in the JVM, with headers as text. `kept`: further columns of the run to keep."""
    # What is the same for all rows of a run, or for all of a sender's, is put into words before the rows are made.
    worded = runs.withColumns(
        {
            "place": F.concat(F.concat_ws("-", "topic", "partition"), F.lit(":")),
            "epoch": F.col("epoch").cast("string"),
            "view": F.col("view").cast("string"),
            "incarnations": F.col("incarnations").cast("array<string>"),
        }
    )
    row = F.col("row")
    records = worded.select("*", F.explode(F.sequence(F.lit(0), F.col("size") - 1)).alias("row"))
    sender = F.get("sender", row)
    return records.select(
        *kept,
        "kind",
        F.concat("place", F.col("first_offset") + row).alias("source"),
        (F.col("first_seqno") + row).alias("seqno"),
        "epoch",
        "view",
        F.get("senders", sender).alias("sender"),
        F.get("incarnations", sender).alias("incarnation"),
        *(F.get(name, row).alias(name) for name in _BY_ROW),
    )


def encode_decided(runs: DataFrame, site: str) -> DataFrame:
    """Runs → the rows of Spark's Kafka sink (topic, key, value, headers)."""
    data_topic = F.concat(F.lit("abcast."), F.col("group"), F.lit(f".data.{site}"))
    dead_topic = F.concat(F.lit("abcast."), F.col("group"), F.lit(f".dead-letter.{site}"))
    is_dead = F.col("error").isNotNull()
    written_to = runs.withColumn("written_to", F.when(is_dead, dead_topic).otherwise(data_topic))
    records = unpack_runs(written_to, "written_to")
    # A step of its own, so that the array is built once and the plan stays small: Spark plans every batch anew.
    own, packed = F.col("own_headers"), F.col("packed_headers")
    return records.withColumn("own_headers", spark_codec.own_data_headers()).select(
        F.col("written_to").alias("topic"),
        F.when(F.col("kind") != EPOCH, F.col("sender").cast("binary")).alias("key"),
        "value",
        F.when(is_dead, spark_codec.dead_letter_headers())
        .when(F.col("kind") == EPOCH, spark_codec.epoch_headers())
        .when(F.col("sender").isNull(), spark_codec.decided_headers())
        .when(packed.isNull(), own)
        .otherwise(F.concat(own, spark_codec.unpack_headers(packed)))
        .alias("headers"),
    )


Decide = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]


def decider(initial: Mapping[str, bytes]) -> Decide:
    """The function of the stateful operator. `initial`: encoded state by group, for the first batch of a run."""

    def decide(key: tuple[Any, ...], chunks: Iterator[pd.DataFrame], stored: GroupState) -> Iterator[pd.DataFrame]:
        assert_first_attempt()
        state, opening = begin_batch(SequencerState.from_bytes(stored.get[0] if stored.exists else initial[key[0]]))
        for record in opening:
            yield _own_run(state.group, record)
        for chunk in chunks:
            state, decided = decide_chunk(state, chunk)
            yield from decided
        state, closing = end_batch(state)
        for record in closing:
            yield _own_run(state.group, record)
        stored.update((state.to_bytes(),))

    return decide


def decide_chunk(state: SequencerState, chunk: pd.DataFrame) -> tuple[SequencerState, list[pd.DataFrame]]:
    """Decide one piece of a group's rows; return the state after it and the runs to write, in order."""
    places, place = _places(chunk)
    sender, senders = pd.factorize(chunk["sender"].to_numpy())
    well_formed = chunk["error"].isna().to_numpy()
    kind, value = chunk["kind"].to_numpy(), chunk["value"]
    controls = {
        row: (codec.FORWARD_KINDS[kind[row]], bytes(value.iloc[row]))
        for row in np.flatnonzero((kind >= _FIRST_CONTROL) & well_formed).tolist()
    }
    decisions = step_columns(
        state,
        ForwardColumns(
            places=[f"{topic}-{partition}" for topic, partition in places],
            place=place,
            offset=chunk["offset"].to_numpy(),
            senders=senders.tolist(),
            sender=sender,
            incarnation=chunk["incarnation"].to_numpy(),
            local_seqno=chunk["local_seqno"].to_numpy(),
            well_formed=well_formed,
            timestamp_ms=chunk["forwarded_at_ms"].to_numpy(),
            is_heartbeat=kind == _HEARTBEAT,
            controls=controls,
        ),
    )
    error = chunk["error"].to_numpy()
    error[decisions.bad_address] = BAD_ADDRESS
    error[decisions.not_member] = NOT_A_MEMBER
    dead = ~well_formed | decisions.bad_address | decisions.not_member
    incarnation, offset = chunk["incarnation"].to_numpy(), chunk["offset"].to_numpy()
    runs: list[dict[str, Any]] = []
    for first, end in _runs(place, offset, sender, incarnation, decisions.seqno, dead, controls):
        topic, partition = places[int(place[first])]
        codes, by_code = np.unique(sender[first:end], return_index=True)
        run = chunk.iloc[first:end]
        # A control record is a run of its own: with the kind and the payload that were decided, if it is accepted.
        of_kind, payload = decisions.controls.get(first) or controls.get(first) or (MESSAGE, None)
        runs.append(
            {
                "group": state.group,
                "kind": of_kind,
                "topic": topic,
                "partition": partition,
                "first_offset": int(offset[first]),
                "first_seqno": int(decisions.seqno[first]),
                "epoch": state.epoch,
                "view": state.view,
                "size": end - first,
                "senders": senders[codes].tolist(),
                "incarnations": incarnation[first:end][by_code].tolist(),
                "sender": np.searchsorted(codes, sender[first:end]).tolist(),
                "local_seqno": run["local_seqno"].tolist(),
                "forwarded_at_ms": run["forwarded_at_ms"].tolist(),
                "value": run["value"].tolist() if payload is None else [payload],
                "packed_headers": run["packed_headers"].tolist() if run["packed_headers"].notna().any() else None,
                "error": error[first:end].tolist() if dead[first] else None,
            }
        )
    if not runs:
        return decisions.state, []
    return decisions.state, [_frame(runs)]


def assert_first_attempt() -> None:
    """Refuse to run a task again: within one epoch every record is written once.

    The settings of `connectors.spark` make Spark give up at a task's first failure; then the query ends, and the next
    one begins with a takeover and an epoch of its own.
    """
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise ProtocolViolation("a task of the sequencer runs a second time: set spark.task.maxFailures to 1.")


def _own_run(group: str, record: Data) -> pd.DataFrame:
    """The run of one record of the sequencer's own (a snapshot, a view)."""
    return _frame(
        [
            {
                "group": group,
                "kind": record.kind,
                "first_seqno": record.seqno,
                "epoch": record.epoch,
                "view": record.view,
                "size": 1,
                "value": [record.payload],
            }
        ]
    )


def _frame(runs: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame({name: _objects(run.get(name) for run in runs) for name in _RUN_COLUMNS})


def _objects(cells: Iterable[Any]) -> pd.Series[Any]:
    """A column that keeps None as None, whatever the other cells are."""
    return pd.Series(list(cells), dtype=object)


def _runs(
    place: Ints,
    offset: Ints,
    sender: Ints,
    incarnation: Ints,
    seqno: Ints,
    dead: NDArray[np.bool_],
    controls: Iterable[int],
) -> Iterator[tuple[int, int]]:
    """The (first, end) of every run: rows to be written, of one place, with consecutive offsets, all accepted (so
    with consecutive seqnos) or all dead, and with one incarnation a sender. A control row is a run of its own.
    """
    kind = np.where(dead, 2, np.where(seqno > 0, 1, 0))
    breaks = (np.diff(place) != 0) | (np.diff(offset) != 1) | (np.diff(kind) != 0)
    for row in controls:
        breaks[max(0, row - 1) : row + 1] = True
    # An incarnation that changes in a chunk is rare: then every change of it between two rows breaks a run.
    of_sender = np.full(int(sender.max(initial=0)) + 1, -1, dtype=np.int64)
    of_sender[sender] = incarnation
    if not bool(np.all(of_sender[sender] == incarnation)):
        breaks |= np.diff(incarnation) != 0
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(place)]
    for first, end in itertools.pairwise(edges):
        if kind[first]:
            yield first, end


def _places(chunk: pd.DataFrame) -> tuple[list[tuple[str, int]], np.ndarray[Any, np.dtype[np.int64]]]:
    """The (topic, partition) of the rows in their order, and the index of each row's."""
    topic, partition = chunk["topic"].to_numpy(), chunk["partition"].to_numpy()
    starts = np.append(True, (topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1]))
    places = [(topic[row], int(partition[row])) for row in np.flatnonzero(starts).tolist()]
    return places, np.cumsum(starts) - 1


SINK_OPTIONS = {
    "includeHeaders": "true",
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.max.request.size": str(MAX_RECORD_BYTES),
    "kafka.linger.ms": "0",
    "kafka.batch.size": "131072",
    "kafka.compression.type": "none",
}
