"""Sites that agree, as a Spark query: a site's inputs in, entries and DATA out, `AgreeingMachine` in between.

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
other input. The core bounds the advance of time in a step, as in the other engine. If that clock is set, the job begins
a new query (`ClockSet` of the shard).

Bounds. A partition whose waiting records take more than `BUFFER_BYTES` of `connectors.sequencer.kept_records` is *left
out*: its rows are skipped. So are the rows of other sites' logs while the site is behind. When there is room again, the
step reports it, and the job begins a new query, which reads from the offsets in the site's log. This happens to a site
that waits for a majority, and to one that works off a backlog with more records in a batch than a run of each site
takes (`connectors.sequencer.agreeing_shard`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple
from uuid import uuid4

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from connectors.kafka.codec import epochs
from connectors.kafka.codec.inputs import Input, Neighbours
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.sequencer import kept_records, stored_state
from connectors.sequencer.kept_records import KeptRecords, StoredChunk
from connectors.sequencer.query import Decide, in_blocks, named_errors
from connectors.sequencer.runs import RUN_SCHEMA, frame_of, unpack_headers
from connectors.sequencer.spill_store import SpillStore
from connectors.spark.forward_rows import FROM_EPOCH, FROM_FORWARD, FROM_LOG
from connectors.takeover.agreeing import AgreeingMachine
from connectors.takeover.notices import describe
from ordering.agreement.codec import decode, encode
from ordering.agreement.group import Group, going_on
from ordering.agreement.site import MAX_UNSNAPPED_RUNS
from ordering.agreement.site_state import GroupState as SiteGroupState
from ordering.agreement.site_state import Notice
from ordering.base.names import Topic
from ordering.base.records import Exclusion, Partition

REPORT = "report"
"""The role of a row for the driver: JSON of a `StepReport`."""

FROM_TIME = 1 + max(FROM_FORWARD, FROM_LOG, FROM_EPOCH)
"""The kind of a row with the time: a step takes these rows last."""
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


def with_time(rows: DataFrame, times: DataFrame, groups: Iterable[str]) -> DataFrame:
    """Add a row for each group and each `timestamp` of `times`, so that the clock of the group goes on."""
    clock = times.select(
        F.explode(F.array(*map(F.lit, sorted(groups)))).alias("group"),
        F.unix_millis("timestamp").alias("forwarded_at_ms"),
        F.lit(FROM_TIME).alias("input"),
        F.lit(False).alias("plain"),
        *(F.lit(0).alias(name) for name in _NUMBERS),
    )
    return rows.unionByName(clock, allowMissingColumns=True)


def seconds(spark: SparkSession) -> DataFrame:
    """Return a stream with a row with a `timestamp` every second."""
    return spark.readStream.format("rate").options(rowsPerSecond="1", numPartitions="1").load()


_NUMBERS = ("partition", "offset", "incarnation", "local_seqno", "kind", "at")
"""The columns of `forward_rows` in which no row may have a null."""


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

    `at_ms`: the time of the last tick. `skipped`: the inputs that are left out. `chunks`: in the spill store. `last`:
    the last number of a chunk.
    """

    at_ms: int = 0
    skipped: tuple[Input, ...] = ()
    chunks: tuple[StoredChunk, ...] = ()
    last: int = 0


def begun(group: Group) -> StoredGroup:
    """Return the state of a group before its first step."""
    return _stored(group, stored_state.StoredState(group.site.sequenced.state.to_bytes(), b""), _OfStep())


def _stored(group: Group, sequencer: stored_state.StoredState, of_step: _OfStep) -> StoredGroup:
    known = group.state
    bare = encode(replace(known, site=replace(known.site, snapshot=b"")))
    return StoredGroup(bare, known.site.snapshot, encode(of_step), sequencer.base, sequencer.changes)


def agreer(initial: Mapping[str, StoredGroup], neighbours: Neighbours, spill_of: Callable[[str], SpillStore]) -> Decide:
    """Return the function of the stateful operator. `spill_of`: makes the spill store of a group."""

    def agree(key: tuple[Any, ...], chunks: Iterator[pd.DataFrame], stored: GroupState) -> Iterator[pd.DataFrame]:
        spill = spill_of(key[0])
        if not stored.exists:
            spill.clear()
        step = GroupStep(StoredGroup(*map(bytes, stored.get)) if stored.exists else initial[key[0]], neighbours, spill)
        for chunk in chunks:
            step.take(chunk)
        yield from step.decided()
        stored.update(tuple(step.stored()))

    return named_errors(agree)


class GroupStep:
    """A step of a group's machine: `take` the inputs, then `decided`, then `stored`."""

    def __init__(self, before: StoredGroup, neighbours: Neighbours, spill: SpillStore) -> None:
        """Go on from the state before the step. Raises ProtocolViolation."""
        state = decode(SiteGroupState, before.known)
        self._before = stored_state.StoredState(before.base, before.changes)
        sequencer = stored_state.load(state.site.group, self._before)
        self.group = going_on(replace(state, site=replace(state.site, snapshot=before.snapshot)), sequencer)
        # All of the batch before is written.
        self.group.written = self.group.sent
        self._at_ms, skipped, chunks, last = decode(_OfStep, before.of_step)
        self._skipped = set(skipped)
        self._neighbours = neighbours
        self._own_topic = str(Topic(self.group.site.group, "forward", neighbours.site))
        self._elapsed_ms = 0
        self._notices: list[Notice] = []
        self.kept = KeptRecords(spill, self.group.site.group, chunks, last)
        self.machine = AgreeingMachine(self.group, self.kept, self._notices.append)

    # Inputs

    def take(self, chunk: pd.DataFrame) -> None:
        """Take a piece of the group's rows, in order. Raises Disagreement."""
        chunk = chunk.assign(topic=chunk["topic"].fillna(self._own_topic))
        for (kind, topic, partition), rows in chunk.groupby(["input", "topic", "partition"], sort=False):
            if kind == FROM_FORWARD:
                source = Input(Topic.of(topic).site, str(Partition(topic, partition)))
                self.group.start_of(source.place, 0, is_copy=False)  # of a partition that is new
                if self._reads(source):
                    self.machine.read(source, rows)
            elif kind == FROM_LOG:
                log = self._neighbours.input(Topic.of(topic), 0)
                if log is not None:
                    self.machine.hear(log, takewhile(partial(self._reads, log), _records(topic, rows)))
            elif kind == FROM_EPOCH:
                self.machine.absorb(_exclusions(_records(topic, rows)))
            else:
                now_ms = int(rows["forwarded_at_ms"].max())
                self._elapsed_ms += max(0, now_ms - self._at_ms) if self._at_ms else 0
                self._at_ms = now_ms

    def _reads(self, source: Input, _: object = None) -> bool:
        """Whether to take the next records of an input. Once it is left out, this query has no more of it."""
        if not self.machine.has_room(source):
            self._skipped.add(source)
        return source not in self._skipped

    # Outputs

    def decided(self) -> Iterator[pd.DataFrame]:
        """Yield the entry, DATA of the runs that are due, and the report. Raises HistoryUnavailable, Disagreement."""
        machine = self.machine
        machine.tick(self._elapsed_ms)
        while machine.is_due:
            writes = machine.writes()
            if writes is not None:
                yield from writes
            elif machine.is_due:  # DATA follows the entry to the same partition
                machine.acknowledge()
        report = self._report().encode("utf-8")
        yield frame_of([{"group": self.group.site.group, "role": REPORT, "size": 0, "value": [report]}])

    def _report(self) -> str:
        state = self.machine.pipeline.state
        positions = {str(place): offset for place, offset in state.positions.items()}
        return json.dumps([state.group, [describe(notice) for notice in self._notices], positions, self._has_room()])

    def _has_room(self) -> bool:
        """Whether an input that was left out could be read now."""
        is_near = len(self.group.site.state.since) < MAX_UNSNAPPED_RUNS // 2
        return any(
            self.kept.size(place) < kept_records.BUFFER_BYTES // 2 or self.group.lacks(place) if place else is_near
            for _, place, _ in self._skipped
        )

    def stored(self) -> StoredGroup:
        """Return the group's state after the step."""
        sequencer = stored_state.store(self.group.site.sequenced.state, self._before)
        of_step = _OfStep(self._at_ms, tuple(sorted(self._skipped)), self.kept.stored(), self.kept.last)
        return _stored(self.group, sequencer, of_step)


def _records(topic: str, rows: pd.DataFrame) -> Iterator[PlainRecord]:
    columns = (rows[name] for name in ("offset", "forwarded_at_ms", "key", "value", "packed_headers"))
    for offset, at_ms, key, value, packed in zip(*columns, strict=True):
        yield PlainRecord(topic, 0, int(offset), int(at_ms), key, value, list(unpack_headers(packed)))


def _exclusions(records: Iterable[PlainRecord]) -> Iterator[Exclusion]:
    for raw in records:
        try:
            record = epochs.decode(raw.topic, raw.offset, raw.value, raw.headers, raw.timestamp)
        except epochs.StrayClaim:
            continue
        if isinstance(record, Exclusion):
            yield record
