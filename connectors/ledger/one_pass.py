"""Read a batch of DATA in one pass: its rows for the ledger, by columns, in the task that reads it.

The task gives the records to Python as Arrow (`mapInArrow`). A `Follower` of each group, sent by the driver, applies
the reading rule (`ordering.base.reader`) to their columns; a pack becomes its messages. At the end the followers go
back to the driver, in an accumulator.

Invariant. The rows of a group that a pass gives are the effective seqnos behind its follower's, each once, in order and
without a gap. The follower that comes back has read just the records before its offset. It rests on this only:

* each record has the offset behind the one before it, or follows a hole that is known to be harmless. Any other record
  ends the pass for its group. So neither a lost record nor tasks that share a topic do harm;
* a record that the driver must see first ends it, too: a view, which goes into a table of its own before the rows
  behind it, and a seal in force of a format that this version does not know;
* a record that begins before the next seqno gives the rest of its seqnos only.

A crash of the task gives neither rows nor followers. The driver's own followers stay as they are until the rows are
committed, and a pass begins with copies of them. So any pass can be done again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import AccumulatorParam

from connectors.kafka.codec.pack_arrow import payloads_in
from connectors.ledger.row import GROUP
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import NEWEST
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.reader import Reader
from ordering.base.records import MESSAGE, MESSAGES, STRAY_EPOCH, VIEW

BESIDE = ("topic", "offset", "count", "format")
"""Columns of a pass's input that the table does not have."""

_MOST_ROWS = 20_000
"""The rows that packs become at a time: few enough for memory, enough for columns to pay."""
_HEADERS_OF_A_ROW = 1600
"""Bytes of headers that count as one more row. Each message of a pack gets the headers of the pack."""

Hole = tuple[int, int]
"""Offsets without a record: the first one, and the end."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of a group's DATA, in order."""

    offset: NDArray[np.int64]
    epoch: NDArray[np.int64]
    seqno: NDArray[np.int64]
    count: NDArray[np.int64]
    format: NDArray[np.int64]
    is_control: NDArray[np.bool_]
    is_view: NDArray[np.bool_]

    def part(self, begin: int, end: int) -> RecordColumns:
        """Return some of the records."""
        at = slice(begin, end)
        numbers = self.offset[at], self.epoch[at], self.seqno[at], self.count[at], self.format[at]
        return RecordColumns(*numbers, self.is_control[at], self.is_view[at])


@dataclass(slots=True)
class Follower:
    """The reading rule over a group's DATA, from `offset` on.

    The other fields tell what a pass has met. `later`: the number of an unknown format, which has ended it.
    """

    offset: int
    reader: Reader
    topic: str = ""
    passes_views: bool = False
    passes_holes: Collection[Hole] | None = ()
    """The holes that are harmless; None if the pass only looks for them."""
    is_over: bool = False
    holes: list[Hole] = field(default_factory=list)
    views: list[tuple[int, int]] = field(default_factory=list)
    """The offset and the seqno of each view that was taken."""
    strays: int = 0
    first_stray: int = 0
    later: int = 0

    def looking(self) -> Follower:
        """Return a follower that begins here and passes views and holes."""
        return Follower(self.offset, copy.copy(self.reader), passes_views=True, passes_holes=None)

    def behind_look(self, looked: Follower) -> Follower:
        """Return a follower that begins here and passes the views and holes that `looked` has met, no others."""
        return Follower(self.offset, copy.copy(self.reader), passes_views=True, passes_holes=frozenset(looked.holes))

    def is_level_with(self, other: Follower) -> bool:
        """Whether both have read the same records, in the same state of the rule."""
        return (self.offset, self.reader) == (other.offset, other.reader)

    def read(self, records: RecordColumns) -> NDArray[np.int64]:
        """Judge the next records; return for each the place of its first new seqno among its own, -1 for no row."""
        places = np.full(len(records.offset), -1)
        if not (end := self._end(records)):
            return places
        read, before = records.part(0, end), self.reader.last_seqno
        mask = self.reader.accept_columns(read.is_control, read.epoch, read.seqno, read.count)
        taken, views = np.flatnonzero(mask), mask & read.is_view
        lasts = read.seqno[taken] + read.count[taken] - 1
        places[taken] = np.append(before, lasts)[:-1] + 1 - read.seqno[taken]
        self.offset = int(read.offset[-1]) + 1
        self.views += zip(read.offset[views].tolist(), read.seqno[views].tolist(), strict=True)
        strays = read.offset[read.epoch == STRAY_EPOCH]
        if len(strays):
            self.strays, self.first_stray = self.strays + len(strays), self.first_stray or int(strays[0])
        return places

    def _end(self, records: RecordColumns) -> int:
        """Return the number of records before the one that ends the pass."""
        if self.is_over:
            return 0
        wanted = np.append(self.offset, records.offset + 1)[:-1]
        is_later = records.is_control & (records.format > NEWEST.number)
        if is_later.any():  # a record that is not in force tells nothing
            is_later &= records.epoch >= np.maximum.accumulate(np.maximum(records.epoch, self.reader.epoch))
        ends = is_later if self.passes_views else is_later | records.is_view
        at: int
        for at in np.flatnonzero(ends | (records.offset != wanted)).tolist():
            hole = begin, end = int(wanted[at]), int(records.offset[at])
            if ends[at] or end < begin or not (self.passes_holes is None or hole in self.passes_holes):
                self.is_over = True
                self.later = int(records.format[at]) if is_later[at] else 0
                return at
            self.holes.append(hole)
        return len(records.offset)


Followers = Mapping[str, Follower]
Report = Callable[[list[dict[str, Follower]]], object]


class Reports(AccumulatorParam[list[dict[str, Follower]]]):
    """The followers of each pass over a batch."""

    def zero(self, value: list[dict[str, Follower]]) -> list[dict[str, Follower]]:  # noqa: ARG002
        """Return none."""
        return []

    def addInPlace(  # noqa: N802 - pyspark's name
        self, value1: list[dict[str, Follower]], value2: list[dict[str, Follower]]
    ) -> list[dict[str, Follower]]:
        """Return both."""
        return value1 + value2


def effective_rows(
    batches: Iterable[pa.RecordBatch], *, followers: Followers, report: Report
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the followers take of rows of `ledger_rows`; then report the followers of all groups met."""
    met = dict[str, Follower]()
    for batch in batches:
        yield from _each_seqno(batch, _read(batch, followers, met))
    report([met])


def _read(batch: pa.RecordBatch, followers: Followers, met: dict[str, Follower]) -> NDArray[np.int64]:
    """Let the followers read the batch; return the places that they return."""

    def mask(condition: pa.BooleanArray) -> NDArray[np.bool_]:
        return np.asarray(condition.to_numpy(zero_copy_only=False))

    offset, epoch, seqno, count, format_ = (
        pc.fill_null(batch.column(name), 0).to_numpy() for name in ("offset", "epoch", "seqno", "count", "format")
    )
    is_control = mask(pc.is_in(batch.column("kind"), pa.array(WITHOUT_SEQNO)))
    is_view = mask(pc.equal(batch.column("kind"), VIEW))
    records = RecordColumns(offset, epoch, seqno, count, format_, is_control, is_view)
    groups = batch.column(GROUP).dictionary_encode()
    edges = np.flatnonzero(np.diff(groups.indices.to_numpy())) + 1
    places = np.full(len(batch), -1)
    for begin, end in pairwise([0, *edges.tolist(), len(batch)]):
        if begin < end:
            group = groups[begin].as_py()
            if group not in met:
                met[group] = copy.deepcopy(followers[group])
            follower = met[group]
            follower.topic = batch.column("topic")[begin].as_py()
            places[begin:end] = follower.read(records.part(begin, end))
    return places


def _each_seqno(batch: pa.RecordBatch, places: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each new seqno of the records taken. `places`: from `Follower.read`.

    A pack becomes its messages, one a row, which share the place of the pack in FORWARD and in DATA. Other records that
    take several seqnos are marks of a restore, or of kinds of a later version. The table keeps its promise of no gap,
    and has all that a later version needs: the kind in each row, and the rest of the record in its first row.
    """
    is_taken = places >= 0
    if not is_taken.all():
        batch, places = batch.filter(pa.array(is_taken)), places[is_taken]
    count, is_pack = batch.column("count").to_numpy(), pc.equal(batch.column("kind"), MESSAGES)
    is_several = (count > 1) | is_pack.to_numpy(zero_copy_only=False)
    if not is_several.any():
        yield _of_table(batch)
        return
    weight = count * (1 + _headers_bytes(batch) // _HEADERS_OF_A_ROW)
    parts = np.flatnonzero(np.diff(np.cumsum(weight) // _MOST_ROWS)) + 1
    for begin, end in pairwise([0, *parts.tolist(), len(batch)]):
        yield _split(batch.slice(begin, end - begin), places[begin:end], is_several[begin:end])


def _headers_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the bytes of each record's headers."""
    headers = batch.column("headers")
    each = pc.list_flatten(headers)
    key, value = (
        pc.fill_null(pc.binary_length(pc.struct_field(each, name)), 0).to_numpy() for name in ("key", "value")
    )
    record = pc.list_parent_indices(headers).to_numpy()
    return np.bincount(record, weights=key + value, minlength=len(batch)).astype(np.int64)


def _split(batch: pa.RecordBatch, places: NDArray[np.int64], is_several: NDArray[np.bool_]) -> pa.RecordBatch:
    count = batch.column("count").to_numpy()
    record = np.repeat(np.arange(len(batch)), count)
    place = np.arange(len(record)) - np.repeat(np.cumsum(count) - count, count)
    payload = pa.concat_arrays(list(_payloads(batch, np.flatnonzero(is_several).tolist(), places)))
    rows = _of_table(batch.drop_columns("payload")).take(pa.array(record))
    is_pack = pc.equal(rows.column("kind"), MESSAGES)
    within = pc.if_else(is_pack, pa.array(place), 0)
    for name, column in (
        ("seqno", pc.add(rows.column("seqno"), pa.array(place))),
        ("local_seqno", pc.add(rows.column("local_seqno"), within)),
        ("kind", pc.if_else(is_pack, MESSAGE, rows.column("kind"))),
    ):
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    rows = rows.add_column(batch.schema.get_field_index("payload"), "payload", payload)
    is_new = place >= places[record]
    return rows if is_new.all() else rows.filter(pa.array(is_new))


def _payloads(batch: pa.RecordBatch, several: list[int], places: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yield the payloads of each seqno that the records take. `several`: the rows that are not simply one seqno."""
    payload, done = batch.column("payload"), 0
    kind, count = batch.column("kind"), batch.column("count")
    for at in several:
        if at > done:
            yield payload.slice(done, at - done)
        done, value, number = at + 1, payload[at].as_py(), count[at].as_py()
        if kind[at].as_py() != MESSAGES:
            first = int(places[at])  # the places before it become no rows
            yield pa.array([*[None] * first, value, *[None] * (number - 1 - first)], pa.binary())
            continue
        try:
            yield payloads_in(value or b"", number)
        except ProtocolViolation as error:
            group, topic, offset = (batch.column(name)[at].as_py() for name in (GROUP, "topic", "offset"))
            # `connectors.spark.query_failure` finds the group: the job leaves out no other.
            raise ProtocolViolation(
                f"group {group}: a pack of DATA can't be read: {topic} {offset}: {error}"
            ) from error
    yield payload.slice(done)


def _of_table(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in BESIDE])
