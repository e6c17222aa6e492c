"""The sequencer as a Spark query: FORWARD rows in, DATA and dead-letter rows out, `ordering` in between.

    Kafka source → columns (JVM) → applyInPandasWithState, key = group → headers (JVM) → Kafka sink
                      └→ plain messages, buffered in the task → taken back by offset ↑

The stateful operator is the only Python on the path. It gets arrow batches and decides them with `step_columns`. The
codec decodes irregular records there, mainly bad input, row by row: so one place has the reasons of refusals, and Spark
has little to plan anew for each batch. Spark's state store has the state between the batches of one run; nothing
depends on it after a crash (see `connectors.takeover.takeover`).

A plain message stays in the JVM (`connectors.spark.own_columns`). Python gets the fields that decide: sender,
incarnation, local seqno, offset; consecutive messages come as one row (`connectors.sequencer.blocks`). For a run of
such records Python returns their places and the first seqno, nothing for each record.

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
from connectors.kafka.codec.headers import HEADER, VERSION
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
from connectors.spark.forward_rows import LINK_COLUMNS, RECORD_SCHEMA, forward_rows
from connectors.spark.own_columns import block_of, rows_of_runs, set_aside
from ordering.base.errors import AbcastError, ProtocolViolation
from ordering.base.kinds import COLUMN_KINDS, FORWARD_KINDS, MESSAGE_KINDS
from ordering.base.names import Topic
from ordering.base.packs import rest_of
from ordering.base.records import MESSAGE, MESSAGES, DeadLetter, Forward, Link, Malformed, Partition, Source
from ordering.sequencer.columns import ForwardColumns, Ints, step_columns
from ordering.sequencer.links import LinkColumns
from ordering.sequencer.sequencer import begin_batch, data_of, end_batch
from ordering.sequencer.state import SequencerState

READERS_A_GROUP_AT_ONCE = 4
"""Reading tasks for each group that is decided at the same time: while some have much to read, others do the rest."""
_SOURCE = ["topic", "partition", "offset"]
_FROM_HEADERS = ["sender", "incarnation", "local_seqno", "kind"]
_IS_MESSAGE = FORWARD_KINDS.index(MESSAGE)
_MESSAGE_KINDS = [FORWARD_KINDS.index(kind) for kind in MESSAGE_KINDS]
_FIRST_CONTROL = len(COLUMN_KINDS)


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
        placed = forward_rows(kafka_rows.coalesce(1), site, relayed=relayed, headers_only=True)
    else:
        placed = forward_rows(kafka_rows, site, relayed=relayed, headers_only=True).repartition(parallelism, "group")
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
    """Sort rows of `forward_rows` (`headers_only`) behind the last exchange, and join plain messages into blocks.

    A block is one row for messages of consecutive offsets. `with_records`: the messages are in the column `records`,
    and the rows have the column `at`; otherwise they stay in the buffer.
    """
    # A relay that begins again repeats offsets: they count as another topic's.
    topic = F.concat_ws("@", "topic", F.col("at") - F.col("offset")) if with_records else F.col("topic")
    place = F.col("group"), topic, F.col("partition")
    numbers = F.col("incarnation"), F.col("local_seqno"), F.col("forwarded_at_ms")
    sender = F.when(F.col("has_block"), F.col("sender"))
    # Before the sort, which then has little to sort.
    goes_on = set_aside(place, F.col("offset"), F.col("record"), RECORD_SCHEMA, sender, numbers)
    block = F.when(F.col("has_block"), block_of(place, F.col("offset"), with_records=with_records))
    of_block = {"sender": F.coalesce("block.senders", "sender"), "block": F.col("block.numbers")}
    return (
        rows.withColumn("has_block", F.col("record").isNotNull() & F.col("record.link").isNull())
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
    return runs.select(rows_of_runs(run, VERSION, HEADER))


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
                state, decided = decide_chunk(state, rows, headers_only=True)
                yield from decided
        state, closing = end_batch(state)
        for record in closing:
            yield run_of(state.group, record)
        stored.update(tuple(store(state, before)))

    return named_errors(decide)


def decide_chunk(
    state: SequencerState, chunk: pd.DataFrame, *, headers_only: bool = False
) -> tuple[SequencerState, list[pd.DataFrame]]:
    """Decide a piece of a group's rows; return the state after it and the runs to write, in order.

    `headers_only`: plain messages are in the JVM's buffer.
    """
    partitions, partition = _partitions(chunk)
    rows, error, packs = _read_irregular(chunk, partitions, partition)
    well_formed = error == None  # noqa: E711 - element by element
    sender, senders = pd.factorize(rows["sender"])
    kind, incarnation, offset = rows["kind"], rows["incarnation"], chunk["offset"].to_numpy()
    controls = {
        row: (FORWARD_KINDS[kind[row]], bytes(chunk["value"].iloc[row]))
        for row in np.flatnonzero((kind >= _FIRST_CONTROL) & well_formed).tolist()
    }
    link = LinkColumns(*(rows[name] for name in LINK_COLUMNS)) if LINK_COLUMNS[0] in rows else None
    decisions = step_columns(
        state,
        ForwardColumns(
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
            link=link,
            count=_counts(packs, len(chunk)),
        ),
    )
    aside = chunk["plain"].to_numpy(dtype=bool) & (kind == _IS_MESSAGE) & headers_only
    dead = ~well_formed
    for reason, mask in decisions.dead.items():
        error[mask] = reason
        dead |= mask
    runs: list[dict[str, Any]] = []
    alone = [*controls, *packs]
    for first, end in _runs(partition, offset, sender, incarnation, aside, decisions.seqno, dead, alone):
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
        decided = {
            "group": state.group,
            "role": DATA_ROLE,
            "kind": MESSAGE,
            **place,
            "first_seqno": int(decisions.seqno[first]),
            "epoch": state.epoch,
            "view": state.view,
        }
        if aside[first]:
            runs.append(decided)
            continue
        if first in packs:
            pack = rest_of(packs[first], decisions.taken[first])
            data = data_of(state, decided["first_seqno"], pack, MESSAGES, pack.payload)
            runs.append({**decided, "kind": MESSAGES, **record_columns([encode_data(data)])})
            continue
        codes, by_code = np.unique(sender[run], return_index=True)
        # A control record is a run of its own, with the kind and the payload of the decision.
        of_kind, payload = decisions.controls.get(first) or (MESSAGE, None)
        travelling = rows["headers"][run].tolist()
        headers = header_columns(of_row or () for of_row in travelling) if any(travelling) else {}
        runs.append(
            {
                **decided,
                "kind": of_kind,
                "senders": senders[codes].tolist(),
                "incarnations": incarnation[run][by_code].tolist(),
                "sender": np.searchsorted(codes, sender[run]).tolist(),
                "local_seqno": rows["local_seqno"][run].tolist(),
                "forwarded_at_ms": chunk["forwarded_at_ms"].iloc[run].tolist(),
                "value": chunk["value"].iloc[run].tolist() if payload is None else [payload],
                **headers,
                **_link_of_run(link, run),
            }
        )
    if not runs:
        return decisions.state, []
    return decisions.state, [frame_of(runs)]


def _link_of_run(link: LinkColumns | None, run: slice) -> dict[str, list[int]]:
    """Return the fields of links of a run's records, if a link has brought them; a run has records of one topic."""
    if link is None or link.session[run.start] < 0:
        return {}
    return {name: column[run].tolist() for name, column in zip(LINK_COLUMNS, link, strict=True)}


def _read_irregular(
    chunk: pd.DataFrame, partitions: Sequence[Partition], partition: Ints
) -> tuple[dict[str, NDArray[Any]], NDArray[np.object_], dict[int, Forward]]:
    """Return the columns from headers, after the codec has decoded irregular rows; each row's error; and the packs."""
    columns = {name: chunk[name].to_numpy() for name in (*_FROM_HEADERS, *LINK_COLUMNS) if name in chunk}
    error = np.full(len(chunk), None, dtype=object)
    headers = np.full(len(chunk), None, dtype=object)
    packed = chunk["packed_headers"]
    for row in np.flatnonzero(packed.notna()).tolist():
        headers[row] = unpack_headers(packed.iloc[row])
    irregular = np.flatnonzero(~chunk["plain"].to_numpy(dtype=bool)).tolist()
    if not irregular:
        return {**columns, "headers": headers}, error, {}
    packs: dict[int, Forward] = {}
    columns = {name: column.copy() for name, column in columns.items()}
    for row, offset, key, value, at_ms in zip(
        irregular, *(chunk[name].iloc[irregular] for name in ("offset", "key", "value", "forwarded_at_ms")), strict=True
    ):
        source = Source(*partitions[int(partition[row])], int(offset))
        record = codec.decode_forward(source, key, value, headers[row] or (), int(at_ms))
        if isinstance(record, Malformed):
            error[row] = record.reason
            columns["sender"][row] = ""
            continue
        columns["sender"][row] = record.sender
        columns["incarnation"][row] = record.incarnation
        columns["local_seqno"][row] = record.local_seqno
        columns["kind"][row] = FORWARD_KINDS.index(record.kind)
        headers[row] = record.headers
        if record.kind == MESSAGES:
            packs[row] = record
        for name, number in zip(LINK_COLUMNS, record.link or (), strict=False):
            columns[name][row] = number
    return {**columns, "headers": headers}, error, packs


def _counts(packs: Mapping[int, Forward], size: int) -> Ints | None:
    if not packs:
        return None
    counts = np.ones(size, np.int64)
    counts[list(packs)] = [pack.count for pack in packs.values()]
    return counts


def _reasons(rows: pd.DataFrame, reasons: Iterable[str]) -> dict[str, list[Any]]:
    """Return the headers to append to refused records in the JVM's buffer."""
    sources = zip(*(rows[name].tolist() for name in _SOURCE), strict=True)
    return header_columns(
        dead_letter_headers(DeadLetter(Source(*source), reason), ())
        for source, reason in zip(sources, reasons, strict=True)
    )


def _dead_letters(rows: pd.DataFrame, reasons: Iterable[str]) -> dict[str, list[Any]]:
    """Return dead letters: the records unchanged, with the reason.

    The mark of a hub's relay on a plain record is missing (the record in the relay's topic has it).
    """
    from_headers = [*_FROM_HEADERS, *(name for name in LINK_COLUMNS if name in rows)]
    columns = ("topic", "partition", "offset", "key", "value", "packed_headers", "plain", *from_headers)
    letters = []
    for reason, topic, partition, offset, key, value, packed, plain, sender, *numbers in zip(
        reasons, *(rows[name].tolist() for name in columns), strict=True
    ):
        headers: Sequence[tuple[str, bytes]] = unpack_headers(packed)
        if plain:
            incarnation, local_seqno, kind, *linked = numbers
            link = Link(*linked) if linked and linked[0] >= 0 else None
            key = sender.encode("ascii")
            headers = codec.forward_headers(incarnation, local_seqno, unpack_headers(packed), FORWARD_KINDS[kind], link)
        letter = DeadLetter(Source(topic, partition, offset), reason)
        letters.append(encode_dead_letter(letter, key, value, headers))
    return record_columns(letters)


def assert_first_attempt() -> None:
    """Raise ProtocolViolation if the task runs again: within one epoch every record is written once.

    The settings of `connectors.spark.session` make Spark give up at a task's first failure; then the query ends, and
    the next one begins with a takeover and an epoch of its own.
    """
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise ProtocolViolation("a task of the sequencer runs a second time: set spark.task.maxFailures to 1.")


def _runs(
    partition: Ints,
    offset: Ints,
    sender: Ints,
    incarnation: Ints,
    aside: NDArray[np.bool_],
    seqno: Ints,
    dead: NDArray[np.bool_],
    alone: Iterable[int],
) -> Iterator[tuple[int, int]]:
    """Yield the (first, end) of every run of rows to write.

    The rows of a run are of one partition, with consecutive offsets, all accepted (so with consecutive seqnos) or all
    dead, all in the JVM's buffer or none, and with one incarnation a sender. A row of `alone` is a run of its own.
    """
    kind = np.where(dead, 2, np.where(seqno > 0, 1, 0))
    breaks = (np.diff(partition) != 0) | (np.diff(offset) != 1) | (np.diff(kind) != 0) | np.diff(aside)
    for row in alone:
        breaks[max(0, row - 1) : row + 1] = True
    # A chunk with two incarnations of a sender is rare: every change between two rows breaks a run then.
    of_sender = np.full(int(sender.max(initial=0)) + 1, -1, dtype=np.int64)
    of_sender[sender] = incarnation
    if not bool(np.all(of_sender[sender] == incarnation)):
        breaks |= np.diff(incarnation) != 0
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
