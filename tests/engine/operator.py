"""The Spark job's operator as a machine of the process engine's loop, with one step a batch.

The columns are made here, and the resulting runs are written here: tests/spark/test_agreeing.py covers the JVM's part
of both. Most messages are plain, and in blocks; some are not. The code between ships.
"""

from __future__ import annotations

import pickle
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kafka.structs import TopicPartition

from connectors.engine.agreeing import Agreeing
from connectors.engine.loop import Beginnings
from connectors.kafka.codec.codec import decode_forward
from connectors.kafka.codec.headers import HEADER, VERSION
from connectors.kafka.codec.inputs import Input, original
from connectors.kafka.transport import PlainRecord, Record
from connectors.sequencer.agreeing_query import (
    FROM_TIME,
    REPORT,
    StepReport,
    agreer,
    begun,
)
from connectors.sequencer.runs import DATA_ROLE
from connectors.sequencer.spill_store import SpillStore
from connectors.spark.forward_rows import FROM_EPOCH, FROM_FORWARD, FROM_LOG
from connectors.takeover.agreement import AgreementSettings, inputs_of, known_state, starts_of
from connectors.takeover.rows import Output
from connectors.testing.memory_kafka import MemoryConnection
from ordering.agreement.group import Group, after_takeover
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.names import Topic
from ordering.base.records import MESSAGE, Exclusion, Forward, Source
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState
from tests.spark.packing import packed

CHUNK_ROWS = 7
"""Rows of a batch in one chunk."""
BLOCK_ROWS = 5
"""Most rows of a block."""
PLAIN_BUT = 6
"""Each sixth message is one that the JVM would not find plain."""


class Memory:
    """A double of Spark's GroupState."""

    def __init__(self) -> None:
        self.get: tuple[Any, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.get)

    def update(self, value: tuple[Any, ...]) -> None:
        assert all(isinstance(each, bytes) for each in value)
        self.get = tuple(map(bytearray, value))


class Operator:
    """The machine of one group: each step is a batch."""

    def __init__(self, operators: Operators, state: SequencerState, group: Group) -> None:
        self.pipeline = Pipeline.after_takeover(state)
        self.group = group
        self.sources: dict[TopicPartition, Input | None] = {}
        self.is_due = self._is_in_flight = False
        self._operators, self._site = operators, operators.agreement.neighbours.site
        self._initial, self._stored = {state.group: begun(group)}, Memory()
        self._spilled = SpillStore(Path(operators.directory.name) / state.group, str(state.epoch))
        self._rows: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        return self.is_due

    @property
    def reads_on(self) -> bool:
        return False

    def wants(self, place: TopicPartition) -> bool:
        return not self.is_due

    def take(self, place: TopicPartition, records: Sequence[Record]) -> None:
        self._rows += _in_blocks(self._read(place, records))

    def absorb(self, decisions: Iterable[Exclusion]) -> None:
        """Do nothing: the operator reads EPOCH."""

    def tick(self, elapsed_ms: int) -> None:
        """Begin a batch with the time."""
        self._rows.append(_row(FROM_TIME, PlainRecord("", 0, 0, int(time.time() * 1000), None, None, []), 0))
        self.is_due = True

    def writes(self) -> list[Output] | None:
        if self._is_in_flight:
            return None
        frame = pd.DataFrame(self._rows).sort_values(["input", "topic", "partition", "at"], ignore_index=True)
        chunks = (frame.iloc[begin : begin + CHUNK_ROWS] for begin in range(0, len(frame), CHUNK_ROWS))
        stored: Any = self._stored
        name, neighbours = self.pipeline.state.group, self._operators.agreement.neighbours
        decided = agreer(self._initial, neighbours, lambda _: self._spilled)((name,), chunks, stored)
        self._rows, self._is_in_flight = [], True
        return [output for runs in decided for output in self._outputs(name, runs)]

    def acknowledge(self) -> None:
        self.is_due = self._is_in_flight = False

    def finish(self) -> None:
        """Do nothing: Spark ends a query between two batches."""

    def _read(self, place: TopicPartition, records: Sequence[Record]) -> Iterator[dict[str, Any]]:
        source = self.sources[place]
        kind = FROM_EPOCH if source is None else FROM_FORWARD if source.place else FROM_LOG
        for raw in records:
            at_home = original(raw, source.site, source.place) if source and source.place and source.is_copy else raw
            if at_home is not None:
                make = _plain_row if kind == FROM_FORWARD and _is_plain(at_home) else _row
                yield make(kind, at_home, raw.offset + 1)

    def _outputs(self, group: str, runs: pd.DataFrame) -> Iterator[Output]:
        for run in runs.to_dict("records"):
            if run["role"] == REPORT:
                self._operators.reports.append(StepReport.from_json(run["value"][0].decode()))
                continue
            topic = str(Topic(group, run["role"], self._site))
            packed_records = _unpacked(run) if run["aside"] else None
            for row in range(run["size"]):
                given = list(zip(run["names"][row], run["values"][row], strict=True)) if run["names"] else []
                if packed_records is not None:
                    key, value, headers, incarnation, local_seqno, at_ms = packed_records[row]
                    if run["role"] != DATA_ROLE:
                        yield topic, (key, value, [*headers, *given])
                        continue
                    given = headers[1:]
                else:
                    yield topic, (run["key"][row], run["value"][row], given)
                    continue
                fields = (
                    *(VERSION, run["kind"], incarnation, local_seqno),
                    *(run["first_seqno"] + row, run["epoch"], run["view"]),
                    f"{run['topic']}-{run['partition']}:{run['first_offset'] + row}",
                    at_ms,
                )
                own = (HEADER, " ".join(map(str, fields)).encode())
                yield topic, (key, value, [own, *given])


class Operators:
    """The makers of the machines."""

    def __init__(self, connection: MemoryConnection, agreement: AgreementSettings) -> None:
        self._connection, self.agreement = connection, agreement
        self.directory = tempfile.TemporaryDirectory(prefix="abcast-test-")
        self.reports: list[StepReport] = []

    def machine(self, state: SequencerState) -> Operator:
        """Return the group's operator."""
        return Operator(self, state, after_takeover(known_state(self._connection, self.agreement, state), state))

    def starts(
        self, machine: Operator, found: Mapping[TopicPartition, int], beginnings: Beginnings
    ) -> Mapping[TopicPartition, int]:
        """Return the offset of each input, and of EPOCH."""
        sources = inputs_of(self.agreement.neighbours, found)
        name, site = machine.pipeline.state.group, self.agreement.neighbours.site
        epoch = TopicPartition(str(Topic(name, "epoch", site)), 0)
        machine.sources = {**sources, epoch: None}
        return {**starts_of(self._connection, machine.group, sources, beginnings(found)), epoch: 0}


def next_run(machine: Agreeing) -> Sequence[Output]:
    """Take a step whose entry is written at once; return DATA and dead letters of the first due run."""
    machine.tick(0)
    while (outputs := machine.writes()) and outputs[0][1][2][0][1].startswith(b"2 entry "):
        machine.acknowledge()
    return outputs or []


def _row(kind: int, record: Record, at: int) -> dict[str, Any]:
    return {
        "input": kind,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "plain": False,
        "sender": None,
        "incarnation": 0,
        "local_seqno": 0,
        "kind": 0,
        "forwarded_at_ms": record.timestamp,
        "key": record.key,
        "value": record.value,
        "packed_headers": packed(record.headers),
        "at": at,
        "block": None,
        "records": None,
    }


def _is_plain(record: Record) -> bool:
    """Whether to pass the record as plain: a valid message, but each `PLAIN_BUT`-th one is not."""
    read = decode_forward(
        Source(record.topic, record.partition, record.offset),
        record.key,
        record.value,
        record.headers,
        record.timestamp,
    )
    return isinstance(read, Forward) and read.kind == MESSAGE and read.local_seqno % PLAIN_BUT != 0


def _plain_row(kind: int, record: Record, at: int) -> dict[str, Any]:
    """Return a block of one message."""
    incarnation, local_seqno = map(int, record.headers[0][1].split()[2:4])
    whole = (record.key, record.value, list(record.headers), incarnation, local_seqno, record.timestamp)
    pickled = pickle.dumps(whole)
    return {
        **_row(kind, record, at),
        "plain": True,
        "sender": (record.key or b"").decode(),
        "incarnation": incarnation,
        "local_seqno": local_seqno,
        "kind": FORWARD_KINDS.index(MESSAGE),
        "key": None,
        "value": None,
        "packed_headers": None,
        "block": struct.pack("<qqqq", 0, incarnation, local_seqno, record.timestamp),
        "records": struct.pack("<qq", record.offset, len(pickled)) + pickled,
    }


def _in_blocks(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Join some plain rows of consecutive offsets into blocks."""
    held: dict[str, Any] | None = None
    for row in rows:
        if held is not None and _goes_on(held, row):
            held = _together(held, row)
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _goes_on(held: dict[str, Any], row: dict[str, Any]) -> bool:
    if held["block"] is None or row["block"] is None:
        return False
    size = len(held["block"]) // 32
    return bool(size < BLOCK_ROWS and all(held[name] + size == row[name] for name in ("offset", "at")))


def _together(held: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    size = len(held["block"]) // 32
    senders = held["sender"].split("\x80")
    if row["sender"] not in senders:
        senders.append(row["sender"])
    numbers = struct.pack("<q", senders.index(row["sender"])) + row["block"][8:]
    index, rows = (held["records"][: 16 * size], held["records"][16 * size :])
    return {
        **held,
        "sender": "\x80".join(senders),
        "block": held["block"] + numbers,
        "records": index + row["records"][:16] + rows + row["records"][16:],
    }


def _unpacked(run: dict[str, Any]) -> list[Any]:
    """Return the records that `_plain_row` packed, each at its own offset."""
    size, packed_records, unpacked = run["size"], run["records"], []
    begin = 16 * size
    for at in range(size):
        offset, length = struct.unpack_from("<qq", packed_records, 16 * at)
        assert offset == run["first_offset"] + at
        unpacked.append(pickle.loads(packed_records[begin : begin + length]))
        begin += length
    assert begin == len(packed_records)
    return unpacked
