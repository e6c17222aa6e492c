"""The sequencer as a Spark query: FORWARD rows in, DATA and dead-letter rows out, `ordering` in between.

    Kafka source → columns (JVM) → applyInPandasWithState, key = group → headers (JVM) → Kafka sink
                      └→ plain messages, buffered in the task → taken back by offset ↑

The stateful operator is the only Python on the path. It gets arrow batches and decides them with `step_columns`. The
codec decodes irregular records there, mainly bad input, row by row: so one place has the reasons of refusals, and Spark
has little to plan anew for each batch. Spark's state store has the state between the batches of one run; nothing
depends on it after a crash (see `connectors.takeover.takeover`).

A plain message stays in the JVM (`connectors.spark.own_columns`). Python gets the fields that decide: sender,
incarnation, local seqno, offset; consecutive messages come as one row (`connectors.sequencer.blocks`). For a run of
such records Python returns their places and the first seqno, nothing for each record. A pack stays in the JVM, too, and
Python gets the number of its messages: for each pack of a run the seqnos go on by that number.

Why no record gets another's decision. The output of a record is looked up by topic, partition and offset, the very
source in its DATA header; not by its place in a batch. It is found once, in the attempt of the task that has buffered
it, or the task fails. A block is found in the same way by its first record, and its offsets are consecutive. So a
mismatch can do no more than end the query. A later attempt can't find anything of it: a failed, killed or repeated
batch buffers the records that it reads itself.

Spark promises no order of a group's rows, so `sequence` sorts each micro-batch by group and source, in the JVM, there
and nowhere else. (A block is sorted by its first record: no other row lies between its records.) `step_columns` asserts
the order, piece by piece. Spark writes all rows of a group before it reads a result, and gathers the results of a group
before it writes them. So the JVM holds a whole micro-batch, Python holds the part not buffered in the JVM, and
`connectors.kafka.connection.backlog` bounds its bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from connectors.kafka.codec import codec
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.dead_letter_codec import dead_letter_headers, encode_dead_letter
from connectors.kafka.codec.headers import HEADER, NOTHING, VERSION
from connectors.sequencer import stored_state
from connectors.sequencer.blocks import out_of_blocks
from connectors.sequencer.runs import (
    DATA_ROLE,
    RUN_COLUMNS,
    RUN_SCHEMA,
    frame_of,
    header_columns,
    record_columns,
    run_of,
    unpack_headers,
)
from connectors.sequencer.stored_state import StoredState, load, store
from connectors.spark.forward_rows import LINK_COLUMNS, forward_rows
from connectors.spark.own_columns import block_of, rows_of_runs, set_aside
from ordering.base.errors import AbcastError, ProtocolViolation
from ordering.base.kinds import COLUMN_KINDS, FORWARD_KINDS, MESSAGE_KINDS
from ordering.base.names import Topic
from ordering.base.packs import rest_of
from ordering.base.records import HEARTBEAT, MESSAGE, MESSAGES, DeadLetter, Forward, Malformed, Partition, Source
from ordering.sequencer.columns import ForwardColumns, Ints, step_columns
from ordering.sequencer.links import LinkColumns
from ordering.sequencer.sequencer import begin_batch, data_of, end_batch
from ordering.sequencer.state import SequencerState

READERS_A_GROUP_AT_ONCE = 4
"""Reading tasks for each group that is decided at the same time: while some have much to read, others do the rest."""
_SOURCE = ["topic", "partition", "offset"]
_FROM_HEADERS = ["sender", "incarnation", "local_seqno", "kind"]
_HEARTBEAT = FORWARD_KINDS.index(HEARTBEAT)
_ASIDE_PACK = 2
_MESSAGE_KINDS = [FORWARD_KINDS.index(kind) for kind in MESSAGE_KINDS]


def read_by_few(kafka_rows: DataFrame, parallelism: int) -> DataFrame:
    """Read the rows by few tasks, as each of many groups has little. Call this before the rows are decoded.

    Spark reads each partition of Kafka in a task of its own. With a thousand groups, tasks would be most of the work.
    (Spark drops this step if the next one changes partitions, too.)
    """
    return kafka_rows.coalesce(READERS_A_GROUP_AT_ONCE * parallelism)


def sequence(
    kafka_rows: DataFrame,
    site: str,
    initial: Mapping[str, SequencerState],
    parallelism: int = 1,
    *,
    relayed: bool = False,
) -> DataFrame:
    """Return the sequencer's runs for FORWARD rows of Spark's Kafka source. `relayed`: as in `forward_rows`.

    `initial` has the state of every group that may occur. `parallelism` is how many groups are decided at once
    (the number of shuffle partitions, which must be the session's setting if it is not 1).
    """
    if parallelism == 1:
        placed = forward_rows(kafka_rows.coalesce(1), site, relayed=relayed)
    else:
        placed = forward_rows(kafka_rows, site, relayed=relayed).repartition(parallelism, "group")
    return (
        in_blocks(placed, ["group", *_SOURCE])
        .groupBy("group")
        .applyInPandasWithState(
            decider({group: state.to_bytes() for group, state in initial.items()}, site),
            outputStructType=RUN_SCHEMA,
            stateStructType=stored_state.SCHEMA,
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
    )


def in_blocks(rows: DataFrame, order: Sequence[str], *, with_records: bool = False) -> DataFrame:
    """Sort rows of `forward_rows` behind the last exchange, and join plain messages into blocks.

    A block is one row for messages of consecutive offsets. `with_records`: the messages are in the column `records`,
    and the rows have the column `at`; otherwise they stay in the buffer.
    """
    # A relay that begins again repeats offsets: they count as another topic's.
    topic = F.concat_ws("@", "topic", F.col("at") - F.col("offset")) if with_records else F.col("topic")
    place = F.col("group"), topic, F.col("partition")
    may_join = F.col("record").isNotNull() & F.col("record.link").isNull() & (F.col("record.count") == 1)
    # Before the sort, which then has little to sort.
    goes_on = set_aside(place, F.col("offset"), F.col("record"), F.col("has_block"))
    block = F.when(F.col("has_block"), block_of(place, F.col("offset"), with_records=with_records))
    of_block = {"sender": F.coalesce("block.senders", "sender"), "block": F.col("block.numbers")}
    return (
        rows.withColumn("has_block", may_join)
        .where(goes_on)
        .drop("record")
        .sortWithinPartitions(*order)
        .withColumn("block", block)
        .withColumns(of_block | ({"records": F.col("block.records")} if with_records else {}))
        .drop("has_block")
    )


def encode_decided(runs: DataFrame, site: str, *, read_at: str | None = None) -> DataFrame:
    """Return the rows of Spark's Kafka sink for runs. `read_at`: the site given to `sequence`, if it is another."""
    own_topic = F.concat(F.lit("abcast."), "group", F.lit(f".forward.{read_at or site}"))
    behind_seqno = F.concat(F.concat_ws(" ", "epoch", "view", F.concat_ws("-", "topic", "partition")), F.lit(":"))
    run = F.struct(
        F.concat(F.lit("abcast."), "group", F.lit("."), "role", F.lit(f".{site}")).alias("written_to"),
        (F.col("role") == DATA_ROLE).alias("is_data"),
        "kind",
        behind_seqno.alias("behind_seqno"),
        "group",
        F.when(F.col("topic") != own_topic, F.col("topic")).alias("topic"),  # as `forward_rows` has it
        *RUN_COLUMNS[RUN_COLUMNS.index("partition") : RUN_COLUMNS.index("epoch")],
        *RUN_COLUMNS[RUN_COLUMNS.index("size") :],
    )
    return runs.select(rows_of_runs(run, VERSION, HEADER, NOTHING))


Decide = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]

_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that come from the code or from a group's records, not from the machine."""


def named_errors(decide: Decide) -> Decide:
    """Make each error of `decide` name its group, so that the job goes on without that group alone.

    `connectors.spark.query_failure` reads the name. Otherwise the error would end the query for all groups, each time.
    """

    def named(key: tuple[Any, ...], chunks: Iterator[pd.DataFrame], stored: GroupState) -> Iterator[pd.DataFrame]:
        assert_first_attempt()
        try:
            yield from decide(key, chunks, stored)
        except AbcastError as error:
            raise type(error)(f"group {key[0]}: {error}") from error
        except _FAULTS as error:
            raise ProtocolViolation(f"group {key[0]}: it can't be ordered ({error!r}).") from error

    return named


def decider(initial: Mapping[str, bytes], site: str) -> Decide:
    """Return the function of the stateful operator. `initial`: encoded state by group, for the first batch of a run."""

    def decide(key: tuple[Any, ...], chunks: Iterator[pd.DataFrame], stored: GroupState) -> Iterator[pd.DataFrame]:
        before = StoredState(*map(bytes, stored.get)) if stored.exists else StoredState(initial[key[0]], b"")
        state, opening = begin_batch(load(key[0], before))
        for record in opening:
            yield run_of(state.group, record)
        own_topic = str(Topic(state.group, "forward", site))
        for chunk in chunks:
            chunk["topic"] = [topic or own_topic for topic in chunk["topic"]]
            for rows in out_of_blocks(chunk):
                state, decided = decide_chunk(state, rows)
                yield from decided
        state, closing = end_batch(state)
        for record in closing:
            yield run_of(state.group, record)
        stored.update(tuple(store(state, before)))

    return named_errors(decide)


def decide_chunk(state: SequencerState, chunk: pd.DataFrame) -> tuple[SequencerState, list[pd.DataFrame]]:
    """Decide a piece of a group's rows; return the state after it and the runs to write, in order."""
    partitions, partition = _partitions(chunk)
    rows, error, irregular = _read_irregular(chunk, partitions, partition)
    well_formed = error == None  # noqa: E711 - element by element
    sender, senders = pd.factorize(rows["sender"])
    kind, incarnation, offset = rows["kind"], rows["incarnation"], chunk["offset"].to_numpy()
    controls = {
        row: (record.kind, record.payload) for row, record in irregular.items() if record.kind not in COLUMN_KINDS
    }
    read = ForwardColumns(
        partitions=partitions,
        partition=partition,
        offset=offset,
        senders=senders.tolist(),
        sender=sender,
        incarnation=incarnation,
        local_seqno=rows["local_seqno"],
        well_formed=well_formed,
        timestamp_ms=chunk["forwarded_at_ms"].to_numpy(),
        is_message=np.isin(kind, _MESSAGE_KINDS),
        controls=controls,
        link=LinkColumns(*(rows[name] for name in LINK_COLUMNS)) if LINK_COLUMNS[0] in rows else None,
        count=_counts(chunk, irregular),
    )
    decisions = step_columns(state, read)
    aside = chunk["plain"].to_numpy(dtype=bool) & (kind != _HEARTBEAT)
    dead = ~well_formed
    for reason, mask in decisions.dead.items():
        error[mask] = reason
        dead |= mask
    runs: list[dict[str, Any]] = []
    taken = decisions.taken  # the messages of each pack, by row
    form = aside.astype(np.int8)
    form[[row for row in taken if aside[row]]] = _ASIDE_PACK
    # A pack that came here is a run of its own; so is one that is cut, and a control record.
    alone = [row for row, messages in taken.items() if not aside[row] or messages < read.counts[row]]
    for first, end in _runs(partition, offset, form, decisions.seqno, dead, [*controls, *alone]):
        run = slice(first, end)
        place = {
            "topic": partitions[partition[first]].topic,
            "partition": partitions[partition[first]].number,
            "first_offset": int(offset[first]),
            "size": end - first,
            "aside": bool(aside[first]),
        }
        if dead[first]:
            letters = (_reasons if aside[first] else _dead_letters)(chunk.iloc[run], error[run])
            runs.append({"group": state.group, "role": "dead-letter", **place, **letters})
            continue
        records = [] if aside[first] else [irregular[row] for row in range(first, end)]
        if first in taken:
            records = [rest_of(record, taken[first]) for record in records]
        # A control record has the kind and the payload of the decision.
        decided, seqno = decisions.controls.get(first), int(decisions.seqno[first])
        data = [
            data_of(state, seqno + at, record, *(decided or (record.kind, record.payload)))
            for at, record in enumerate(records)
        ]
        runs.append(
            {
                "group": state.group,
                "role": DATA_ROLE,
                "kind": data[0].kind if data else MESSAGES if first in taken else MESSAGE,
                **place,
                "first_seqno": seqno,
                "seqnos": sum(taken[row] for row in range(first, end)) if first in taken else end - first,
                "epoch": state.epoch,
                "view": state.view,
                **(record_columns(map(encode_data, data)) if data else {}),
            }
        )
    if not runs:
        return decisions.state, []
    return decisions.state, [frame_of(runs)]


def _read_irregular(
    chunk: pd.DataFrame, partitions: Sequence[Partition], partition: Ints
) -> tuple[dict[str, NDArray[Any]], NDArray[np.object_], dict[int, Forward]]:
    """Decode irregular rows; return the columns that decide, each row's error, and the decoded records."""
    columns = {name: chunk[name].to_numpy() for name in (*_FROM_HEADERS, *LINK_COLUMNS) if name in chunk}
    error = np.full(len(chunk), None, dtype=object)
    rows = np.flatnonzero(~chunk["plain"].to_numpy(dtype=bool)).tolist()
    if not rows:
        return columns, error, {}
    irregular: dict[int, Forward] = {}
    columns = {name: column.copy() for name, column in columns.items()}
    of_records = (chunk[name].iloc[rows] for name in ("offset", "key", "value", "packed_headers", "forwarded_at_ms"))
    for row, offset, key, value, headers, at_ms in zip(rows, *of_records, strict=True):
        source = Source(*partitions[int(partition[row])], int(offset))
        record = codec.decode_forward(source, key, value, unpack_headers(headers), int(at_ms))
        if isinstance(record, Malformed):
            error[row] = record.reason
            columns["sender"][row] = ""
            continue
        irregular[row] = record
        columns["sender"][row] = record.sender
        columns["incarnation"][row] = record.incarnation
        columns["local_seqno"][row] = record.local_seqno
        columns["kind"][row] = FORWARD_KINDS.index(record.kind)
        for name, number in zip(LINK_COLUMNS, record.link or (), strict=False):
            columns[name][row] = number
    return columns, error, irregular


def _counts(chunk: pd.DataFrame, irregular: Mapping[int, Forward]) -> Ints | None:
    """Return the number of messages of each row; None if no row is a pack."""
    packs = {row: record.count for row, record in irregular.items() if record.kind == MESSAGES}
    if not packs and ("count" not in chunk or bool((chunk["count"].to_numpy() == 1).all())):
        return None
    counts = chunk["count"].to_numpy(np.int64, copy=True) if "count" in chunk else np.ones(len(chunk), np.int64)
    counts[list(packs)] = list(packs.values())
    return counts


def _reasons(rows: pd.DataFrame, reasons: Iterable[str]) -> dict[str, list[Any]]:
    """Return the headers to append to refused records in the JVM's buffer."""
    sources = zip(*(rows[name].tolist() for name in _SOURCE), strict=True)
    return header_columns(
        dead_letter_headers(DeadLetter(Source(*source), reason), ())
        for source, reason in zip(sources, reasons, strict=True)
    )


def _dead_letters(rows: pd.DataFrame, reasons: Iterable[str]) -> dict[str, list[Any]]:
    """Return dead letters: the records unchanged, with the reason."""
    columns = ("topic", "partition", "offset", "key", "value", "packed_headers")
    return record_columns(
        encode_dead_letter(DeadLetter(Source(*source), reason), key, value, unpack_headers(packed))
        for reason, *source, key, value, packed in zip(reasons, *(rows[name].tolist() for name in columns), strict=True)
    )


def assert_first_attempt() -> None:
    """Raise ProtocolViolation if the task runs again: within one epoch every record is written once.

    The settings of `connectors.spark.session` make Spark give up at a task's first failure; then the query ends, and
    the next one begins with a takeover and an epoch of its own.
    """
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise ProtocolViolation("a task of the sequencer runs a second time: set spark.task.maxFailures to 1.")


def _runs(
    partition: Ints, offset: Ints, form: NDArray[np.int8], seqno: Ints, dead: NDArray[np.bool_], alone: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield the (first, end) of every run of rows to write.

    The rows of a run are of one partition, with consecutive offsets, all accepted (so with consecutive seqnos) or all
    dead, and all of one `form`: packs, or others, in the JVM's buffer, or none there. A row of `alone` is a run of its
    own.
    """
    kind = np.where(dead, 2, np.where(seqno > 0, 1, 0))
    breaks = (np.diff(partition) != 0) | (np.diff(offset) != 1) | (np.diff(kind) != 0) | (np.diff(form) != 0)
    for row in alone:
        breaks[max(0, row - 1) : row + 1] = True
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(partition)]
    for first, end in itertools.pairwise(edges):
        if kind[first]:
            yield first, end


def _partitions(chunk: pd.DataFrame) -> tuple[list[Partition], Ints]:
    """Return the partitions of the rows in order, and the index of each row's partition."""
    topic, number = chunk["topic"].to_numpy(), chunk["partition"].to_numpy()
    starts = np.append(True, (topic[1:] != topic[:-1]) | (number[1:] != number[:-1]))
    partitions = [Partition(topic[row], int(number[row])) for row in np.flatnonzero(starts).tolist()]
    return partitions, np.cumsum(starts) - 1
