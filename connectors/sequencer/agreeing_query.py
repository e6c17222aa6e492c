"""Sites that agree, as a Spark query: a site's inputs in, entries and DATA out, `ordering.agreement.group` in between.

    FORWARD, own and others', logs of the ┐
    other sites, EPOCH (exclusions)       ├→ columns (JVM) → applyInPandasWithState, key = group → headers (JVM) → Kafka
    time                                  ┘

It has the form of `connectors.sequencer.query`, and shares its columns, its decision of a batch and its output. A
micro-batch is a step of the site: all new inputs, then the entry, then the DATA of the runs that are due. The state of
the operator is that of `ordering.agreement.group` between two steps, and the sequencer's. Spark's state store has it
during one run of the query; the executor has the records that are read and not sequenced
(`connectors.sequencer.spill_store`). Nothing depends on either after a crash.

Why the order of writing holds that `ordering.agreement.group` needs. A group's rows go to one partition of DATA through
one producer, in order: DATA of a step behind its entry, an entry behind all DATA of earlier steps. The producer has one
request in flight and never gives up on one (`COPY_SINK_OPTIONS`), so DATA has at any moment, even after kill -9, a
prefix of these records. A batch is one attempt of one epoch (`assert_first_attempt`), and the next batch begins when
Kafka has all of this one.

Of plain messages Python gets numbers, and their bytes, which it does not read; messages with consecutive offsets come
as one row (`connectors.sequencer.blocks`). Irregular records are decoded row by row, as in any sequencer, and so are
entries, a few a step. Records that wait for their run are kept in arrow's form, block by block. A block is cut, by
offsets, where a run or a repeat ends within it. The JVM makes DATA of a block's bytes, each record by its own offset,
or the task fails. The agreement sees only offsets: its cost is per run, not per message.

The driver's clock gives the time (Spark's rate source), a row a second, which also begins a batch when there is no
other input. The core bounds the advance of time in a step, as in the other engine.

Bounds. A partition whose waiting records take more than `BUFFER_BYTES` is *left out*: its rows are skipped. So are
the rows of other sites' logs while the site is behind. When there is room again, the step reports it, and the job
begins a new query, which reads from the offsets in the site's log. This happens to a site that waits for a majority,
and to one that works off a backlog with more records in a batch than a run of each site takes
(`connectors.sequencer.agreeing_shard`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from connectors.kafka.codec import epochs
from connectors.kafka.codec.entry_codec import read_entry, write_entry
from connectors.kafka.codec.inputs import Neighbours, of_log
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.sequencer import stored_state
from connectors.sequencer.blocks import out_of_blocks, part_of, sizes_of, without_repeats
from connectors.sequencer.kept_records import KeptRecords, StoredChunk, held_blocks, with_records
from connectors.sequencer.query import Decide, assert_first_attempt, decide_chunk, in_blocks
from connectors.sequencer.runs import DATA_ROLE, RUN_SCHEMA, frame_of, run_of, unpack_headers, without_first
from connectors.sequencer.spill_store import SpillStore
from connectors.spark.forward_rows import FROM_EPOCH, FROM_FORWARD, FROM_LOG, RECORD_SCHEMA
from connectors.takeover.notices import describe
from ordering.agreement.codec import decode, encode
from ordering.agreement.group import Group, going_on
from ordering.agreement.log import OrderedRun, ranges_of
from ordering.agreement.site import MAX_UNSNAPPED_RUNS
from ordering.agreement.site_state import GroupState as SiteGroupState
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.names import Topic
from ordering.base.records import HEARTBEAT, STRAY, Exclusion, Partition

BUFFER_BYTES = 256 * 1024 * 1024
"""The bound on a partition's records that are read and not sequenced, in arrow's form."""

REPORT = "report"
"""The role of a row for the driver: JSON of a `StepReport`."""

FROM_TIME = 1 + max(FROM_FORWARD, FROM_LOG, FROM_EPOCH)
"""The kind of a row with the time: a step takes these rows last."""
_HEARTBEAT = FORWARD_KINDS.index(HEARTBEAT)
_STATE = "known binary, snapshot binary, of_step binary, base binary, changes binary"


class StepReport(NamedTuple):
    """The report of a step to the driver.

    `notices`: a level of logging, and a text, each. `positions`: the first offset of the site's own FORWARD partitions
    that is not considered. `has_room`: whether inputs that were left out can be read now.
    """

    group: str
    notices: tuple[tuple[int, str], ...]
    positions: dict[str, int]
    has_room: bool

    @classmethod
    def from_json(cls, raw: str) -> StepReport:
        """Decode the JSON of a row."""
        group, notices, positions, has_room = json.loads(raw)
        return cls(group, tuple((level, words) for level, words in notices), positions, has_room)


# Rows in


def tick_rows(times: DataFrame, groups: Iterable[str]) -> DataFrame:
    """Make a row for each group from each `timestamp`, so that the clock of the group goes on."""
    each = times.select("timestamp", F.explode(F.array(*map(F.lit, sorted(groups)))).alias("of"))
    known = {"group": F.col("of"), "forwarded_at_ms": F.unix_millis("timestamp"), "input": F.lit(FROM_TIME)}
    return each.select(
        *(known.get(name, F.lit(_NOT_NULL.get(name))).cast(kind).alias(name) for name, kind in _EMPTY.items())
    )


def seconds(spark: SparkSession) -> DataFrame:
    """Return a stream with a row with a `timestamp` every second."""
    return spark.readStream.format("rate").options(rowsPerSecond="1", numPartitions="1").load()


_EMPTY = {
    "group": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "plain": "boolean",
    "sender": "string",
    "incarnation": "bigint",
    "local_seqno": "bigint",
    "kind": "int",
    "forwarded_at_ms": "bigint",
    "key": "binary",
    "value": "binary",
    "packed_headers": "string",
    "at": "bigint",
    "input": "int",
    "record": f"struct<{RECORD_SCHEMA}>",
}
"""The columns of the operator's rows, from `forward_rows`."""
_NOT_NULL = {"partition": 0, "offset": 0, "plain": False, "incarnation": 0, "local_seqno": 0, "kind": 0, "at": 0}


# The operator


def agree(
    rows: DataFrame, neighbours: Neighbours, initial: Mapping[str, StoredGroup], parallelism: int = 1
) -> DataFrame:
    """Return the runs and the reports that steps make of the operator's rows. `initial`: the state of every group."""
    placed = rows.coalesce(1) if parallelism == 1 else rows.repartition(parallelism, "group")
    return (
        in_blocks(placed, ["group", "input", "topic", "partition", "at"], with_records=True)
        .groupBy("group")
        .applyInPandasWithState(
            agreer(initial, neighbours, partial(SpillStore.of_executor, neighbours.site, uuid4().hex)),
            outputStructType=RUN_SCHEMA,
            stateStructType=_STATE,
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
    )


class StoredGroup(NamedTuple):
    """A group between two steps, as Spark's state store keeps it.

    `known`, `snapshot`: the agreement's state, in two parts. `of_step`: the query's own. `base`, `changes`: the
    sequencer's (`StoredState`).
    """

    known: bytes
    snapshot: bytes
    of_step: bytes
    base: bytes
    changes: bytes


class _OfStep(NamedTuple):
    """The state of the query besides the group's.

    `at_ms`: the time of the last tick. `places`, `logs`: partitions, and topics of logs, that are left out. `chunks`:
    in the spill store. `last`: the last number of a chunk.
    """

    at_ms: int = 0
    places: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    chunks: tuple[StoredChunk, ...] = ()
    last: int = 0


def begun(group: Group) -> StoredGroup:
    """Return the state of a group before its first step."""
    return _stored(group, stored_state.StoredState(group.site.sequenced.state.to_bytes(), b""), _OfStep())


def _stored(group: Group, sequencer: stored_state.StoredState, of_step: _OfStep) -> StoredGroup:
    known = group.state
    bare = replace(known, site=replace(known.site, snapshot=b"")).to_bytes()
    return StoredGroup(bare, known.site.snapshot, encode(of_step), sequencer.base, sequencer.changes)


def agreer(initial: Mapping[str, StoredGroup], neighbours: Neighbours, spill_of: Callable[[str], SpillStore]) -> Decide:
    """Return the function of the stateful operator. `spill_of`: makes the spill store of a group."""

    def agree(key: tuple[Any, ...], chunks: Iterator[pd.DataFrame], stored: GroupState) -> Iterator[pd.DataFrame]:
        assert_first_attempt()
        spill = spill_of(key[0])
        if not stored.exists:
            spill.clear()
        step = GroupStep(StoredGroup(*map(bytes, stored.get)) if stored.exists else initial[key[0]], neighbours, spill)
        for chunk in chunks:
            step.take(chunk)
        yield from step.decided()
        stored.update(tuple(step.stored()))

    return agree


class GroupStep:
    """A step of a group: `take` the inputs, then `decided`, then `stored`."""

    def __init__(self, before: StoredGroup, neighbours: Neighbours, spill: SpillStore) -> None:
        """Go on from the state before the step. Raises ProtocolViolation."""
        state = SiteGroupState.from_bytes(before.known)
        self._before = stored_state.StoredState(before.base, before.changes)
        sequencer = stored_state.load(state.site.group, self._before)
        self.group = going_on(replace(state, site=replace(state.site, snapshot=before.snapshot)), sequencer)
        # All of the batch before is written.
        self.group.written = self.group.sent
        self._at_ms, places, logs, chunks, last = decode(_OfStep, before.of_step)
        self._skipped_places, self._skipped_logs = set(places), set(logs)
        self._neighbours = neighbours
        self._own_topic = str(Topic(self.group.site.group, "forward", neighbours.site))
        self.kept = KeptRecords(spill, chunks, last)
        """The records of FORWARD that are read and not sequenced."""
        self.group.keep_with(self.kept.offsets)

    # Inputs

    def take(self, chunk: pd.DataFrame) -> None:
        """Take a piece of the group's rows, in order. Raises Disagreement."""
        chunk = chunk.assign(topic=chunk["topic"].fillna(self._own_topic))
        for (kind, topic, partition), rows in chunk.groupby(["input", "topic", "partition"], sort=False):
            if kind == FROM_FORWARD:
                self._take_forward(str(Partition(topic, partition)), rows)
            elif kind == FROM_LOG:
                self._take_log(topic, rows)
            elif kind == FROM_EPOCH:
                self.group.exclusions.add(_exclusions(rows))
            else:
                now_ms = int(rows["forwarded_at_ms"].max())
                self.group.tick(max(0, now_ms - self._at_ms) if self._at_ms else 0)
                self._at_ms = now_ms

    def _take_forward(self, name: str, rows: pd.DataFrame) -> None:
        group = self.group
        group.start_of(name, 0, is_copy=False)  # of a partition that is new
        if self.kept.size(name) >= BUFFER_BYTES and not group.lacks(name):
            self._skipped_places.add(name)
        if name in self._skipped_places:
            return
        offset, size = rows["offset"].to_numpy(), sizes_of(rows)
        end = np.maximum.accumulate(offset + size)
        at = int(rows["at"].iloc[-1] + size[-1]) - 1
        is_idle = bool((rows["plain"].to_numpy(dtype=bool) & (rows["kind"] == _HEARTBEAT) & rows["block"].isna()).all())
        kept_from = group.arrived(name, int(offset[0]), int(end[-1]) - 1, at, is_idle=is_idle)
        rows = part_of(without_repeats(rows, end), kept_from)
        if len(rows):
            self.kept.add(name, rows)

    def _take_log(self, topic: str, rows: pd.DataFrame) -> None:
        group, source = self.group, self._neighbours.input(_topic(topic), 0)
        if source is None:
            return
        for offset, at_ms, key, value, packed in zip(
            *(rows[name] for name in ("offset", "forwarded_at_ms", "key", "value", "packed_headers")), strict=True
        ):
            if group.site.is_behind:
                self._skipped_logs.add(topic)
            if topic in self._skipped_logs:
                return
            headers = list(unpack_headers(packed))
            raw = PlainRecord(topic, 0, int(offset), int(at_ms), key, value, headers)
            record = of_log(raw, is_copy=source.is_copy)
            if record.kind != STRAY:
                group.hear(source.site, raw.offset + 1, record, read_entry)

    # Outputs

    def decided(self) -> Iterator[pd.DataFrame]:
        """Yield the entry, DATA of the runs that are due, and the report. Raises HistoryUnavailable, Disagreement."""
        group = self.group
        name = group.site.group
        entry = group.end_step()
        if entry is not None:
            yield run_of(name, write_entry(entry))
        while (run := group.due()) is not None:
            for snapshot in group.open():
                yield run_of(name, snapshot)
            yield from self._sequence(run)
        yield frame_of([{"group": name, "role": REPORT, "size": 0, "value": [self._report().encode("utf-8")]}])

    def _sequence(self, run: OrderedRun) -> Iterator[pd.DataFrame]:
        group = self.group
        parts = sorted(ranges_of(run.run), key=lambda part: Partition.parse(part.place))
        rows = [piece for part in parts for piece in self.kept.take(part)]
        state, decided = group.site.sequenced.state, list[pd.DataFrame]()
        before = state.seqno
        for piece in out_of_blocks(pd.concat(rows, ignore_index=True)) if rows else ():
            state, of_piece = decide_chunk(state, piece, headers_only=True)
            decided += of_piece
        is_refused = any((runs["role"] != DATA_ROLE).any() for runs in decided)
        closing, written, has_dead_letters = group.decided(state, is_refused=is_refused)
        if not has_dead_letters:
            decided = [runs[runs["role"] == DATA_ROLE] for runs in decided]
        held = held_blocks(rows)
        yield from (with_records(without_first(runs, before + written), held) for runs in decided)
        yield from (run_of(group.site.group, each) for each in closing if each.seqno > before + written)

    def _report(self) -> str:
        site = self.group.site
        own = f".forward.{site.me.name}"
        positions = {str(place): n for place, n in site.sequenced.state.positions.items() if place.topic.endswith(own)}
        return json.dumps([site.group, [describe(notice) for notice in site.notices], positions, self._has_room()])

    def _has_room(self) -> bool:
        """Whether inputs that were left out could be read now."""
        for_records = any(
            self.kept.size(name) < BUFFER_BYTES // 2 or self.group.lacks(name) for name in self._skipped_places
        )
        return for_records or (bool(self._skipped_logs) and len(self.group.site.state.since) < MAX_UNSNAPPED_RUNS // 2)

    def stored(self) -> StoredGroup:
        """Return the group's state after the step."""
        sequencer = stored_state.store(self.group.site.sequenced.state, self._before)
        of_step = _OfStep(
            self._at_ms,
            tuple(sorted(self._skipped_places)),
            tuple(sorted(self._skipped_logs)),
            self.kept.stored(),
            self.kept.last,
        )
        return _stored(self.group, sequencer, of_step)


def _topic(name: str) -> Topic:
    topic = Topic.parse(name)
    assert topic is not None  # the job reads no others
    return topic


def _exclusions(rows: pd.DataFrame) -> Iterator[Exclusion]:
    for topic, offset, value, packed, at_ms in zip(
        *(rows[name] for name in ("topic", "offset", "value", "packed_headers", "forwarded_at_ms")), strict=True
    ):
        try:
            record = epochs.decode(topic, int(offset), value, unpack_headers(packed), int(at_ms))
        except epochs.StrayClaim:
            continue
        if isinstance(record, Exclusion):
            yield record
