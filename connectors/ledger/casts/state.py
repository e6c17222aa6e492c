"""The table `casts`: the messages in FIFO and causal order, each once. They have no seqno.

Casts have a table of their own. The ledger is exact because seqnos form one line without a gap: the end of the line
says where to go on, and a batch is compared with it, row by row (`connectors.ledger.one_pass`). Casts form no such
line: they come from several partitions, each with its own numbers, some of them repeated. `abcast query` joins both
tables in the view `messages`.

Invariant. The table has each cast that the job has read from the cast topics of its site's Kafka, once. A cast is known
by (sender, incarnation, view or none, local seqno): within a view no incarnation gives a number twice. (In the next
view it may. Then no member can deliver the first cast any more: `ordering.casts.outgoing`.) The invariant rests on
three things:

* the numbers of each incarnation, and the offset up to which each partition was read, come from the table itself.
  Reading begins at that offset, and reading records again does no harm: a number that the table has is left out. So
  no crash, lost checkpoint, repeating sender or repeating relay adds a row twice;
* an append is a compare-and-set (`connectors.ledger.appending`), so rows are left out by the very version that the
  append follows;
* rows of a partition are appended in the order of offsets, and a batch as a whole: so every record below the highest
  offset in the table was considered.

The table has casts, whether delivered or not: it may have the last casts of a member that died, which no member of the
view has delivered. A delivery log tells a member's deliveries.

Casts that retention drops before they are read are missing, and the log of the job says so.

A group without casts has no table. The ends of its cast topics are asked for, but no records are read.
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from connectors.ledger.answer import CASTS
from connectors.ledger.append_only import APPEND_ONLY, KEPT, Layout
from connectors.ledger.delta_files import dataset_of, dataset_of_files
from connectors.ledger.row import GROUP
from connectors.ledger.table_state import TRANSACTION, Commit, TableState, digest_of, open_table
from connectors.storage.location import Location
from ordering.base.names import Topic
from ordering.casts.casts import NO_VIEW, Cast

CASTS_SCHEMA = (
    "group_name string, order string, view_id long, after_seqno long, clock string, site string, sender string, "
    "incarnation long, local_seqno long, payload binary, headers array<struct<key:string,value:binary>>, "
    "cast_partition int, cast_offset long, written_at timestamp"
)
LAYOUT = Layout(
    CASTS,
    CASTS_SCHEMA,
    [GROUP],
    {
        APPEND_ONLY: "true",
        **KEPT,
        "delta.dataSkippingStatsColumns": "view_id,sender,incarnation,local_seqno,cast_offset",
        "delta.autoOptimize.autoCompact": "true",
    },
)

_OF_NUMBERING = [GROUP, "sender", "incarnation", "view_id"]
_OF_PLACE = [GROUP, "site", "cast_partition"]
_OF_STATE = pa.schema(
    {
        GROUP: pa.string(),
        "site": pa.string(),
        "sender": pa.string(),
        "incarnation": pa.int64(),
        "view_id": pa.int64(),
        "local_seqno": pa.int64(),
        "cast_partition": pa.int32(),
        "cast_offset": pa.int64(),
        "written_at": pa.timestamp("us", "UTC"),
    }
)
"""The columns that the state is read from."""


class Numbering(NamedTuple):
    """The name of a sequence of local seqnos: an incarnation's in a view, or in none."""

    group: str
    sender: str
    incarnation: int
    view: int


class Numbers(NamedTuple):
    """A set of numbers, as runs without a hole (first, last): few, as casts nearly always come in their order.

    A gap that retention or a dead sender leaves costs one run more, however many numbers follow.
    """

    runs: tuple[tuple[int, int], ...] = ()

    def has(self, number: int) -> bool:
        """Whether the set has the number."""
        at = bisect_right(self.runs, number, key=itemgetter(0))
        return at > 0 and number <= self.runs[at - 1][1]

    def with_run(self, first: int, last: int) -> Numbers:
        """Return the set with all numbers from `first` to `last` added."""
        begin = bisect_left(self.runs, first - 1, key=itemgetter(1))
        end = bisect_right(self.runs, last + 1, key=itemgetter(0))
        touched = self.runs[begin:end]
        if touched:
            first, last = min(first, touched[0][0]), max(last, touched[-1][1])
        return Numbers((*self.runs[:begin], (first, last), *self.runs[end:]))


NONE = Numbers()


@dataclass(frozen=True, slots=True)
class CastTableState(TableState):
    """The content of the table: the numbers of each incarnation, and the offset behind each partition's last row.

    The last row is the newest one by the broker's clock: if a topic was made anew, the table has greater offsets of
    the former one.
    """

    numbers: Mapping[Numbering, Numbers] = field(default_factory=dict)
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The offset behind the last row, by topic and partition."""
    written_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The broker's time of the last row, in milliseconds, by topic and partition; missing where it is not known."""

    def with_files(self, path: Location, files: Sequence[Mapping[str, Any]]) -> CastTableState | None:
        """Return the state with the rows of files added, as `add` actions of Delta; None if they can't be read."""
        try:
            return self.with_rows(dataset_of_files(path, files, _OF_STATE).to_batches())
        except (pa.ArrowException, OSError, KeyError):  # merged since, say, and deleted
            return None

    def with_rows(self, batches: Iterable[pa.RecordBatch]) -> CastTableState:
        """Return the state with these rows added."""
        numbers = dict(self.numbers)
        last = {place: (self.written_ms.get(place, 0), offset) for place, offset in self.offsets.items()}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for numbering, *run in _runs(rows):
                numbers[numbering] = numbers.get(numbering, NONE).with_run(*run)
            for place, at in _last_rows(rows):
                last[place] = max(last.get(place, at), at)
        return replace(
            self,
            numbers=numbers,
            offsets={place: offset for place, (_, offset) in last.items()},
            written_ms={place: at_ms for place, (at_ms, _) in last.items() if at_ms},
        )


def read_cast_state(path: Location) -> CastTableState:
    """Read the state, without payloads; an empty one if there is no table. Raises LedgerDamaged, LedgerUnreadable."""
    table = open_table(path)
    if table is None:
        return CastTableState()
    version = table.version()
    newest = Commit(version, digest_of(path, version))
    state = CastTableState({}, table.transaction_version(TRANSACTION) or 0, newest)
    return state.with_rows(dataset_of(table, path).to_batches(columns=_OF_STATE.names))


def _runs(rows: pa.Table) -> Iterator[tuple[Numbering, int, int]]:
    """Yield the numbers of these rows as runs: one for each numbering, or more if it has holes."""
    counted = [("local_seqno", "min"), ("local_seqno", "max"), ("local_seqno", "count_distinct")]
    for row in rows.group_by(_OF_NUMBERING).aggregate(counted).to_pylist():
        numbering = Numbering(row[GROUP], row["sender"], row["incarnation"], row["view_id"] or NO_VIEW)
        first, last, count = (row[f"local_seqno_{name}"] for _, name in counted)
        if count == last - first + 1:
            yield numbering, first, last
            continue
        for number in _alike(rows, row, _OF_NUMBERING)["local_seqno"].to_pylist():
            yield numbering, number, number


def _last_rows(rows: pa.Table) -> Iterator[tuple[tuple[str, int], tuple[int, int]]]:
    """Yield for each partition the time of its newest row, in milliseconds, and the offset behind it."""
    for row in rows.group_by(_OF_PLACE).aggregate([("written_at", "max")]).to_pylist():
        row["written_at"] = row["written_at_max"]
        newest = _alike(rows, row, [*_OF_PLACE, "written_at"])["cast_offset"].to_pylist()
        place = str(Topic(row[GROUP], "cast", row["site"])), row["cast_partition"]
        yield place, (round(row["written_at"].timestamp() * 1000), max(newest) + 1)


def _alike(rows: pa.Table, row: Mapping[str, Any], names: Iterable[str]) -> pa.Table:
    """Return the rows with the values of `row` in these columns."""
    same = (pc.field(name).is_null() if row[name] is None else pc.field(name) == row[name] for name in names)
    return rows.filter(functools.reduce(operator.and_, same))


class CastPlace(NamedTuple):
    """A cast of a batch: its place in Kafka, and its number."""

    topic: str
    partition: int
    offset: int
    numbering: Numbering
    local_seqno: int

    @classmethod
    def of(cls, group: str, topic: str, partition: int, offset: int, cast: Cast) -> CastPlace:
        """Return the place of that cast."""
        return cls(topic, partition, offset, Numbering(group, *cast.member, cast.view), cast.local_seqno)


def missing_in(state: CastTableState, found: Iterable[CastPlace]) -> tuple[list[CastPlace], CastTableState]:
    """Return the casts that the table lacks, each once, and its state with them added."""
    numbers, offsets, written_ms = dict(state.numbers), dict(state.offsets), dict(state.written_ms)
    missing = []
    for place in found:
        held, number = numbers.get(place.numbering, NONE), place.local_seqno
        if not held.has(number):
            numbers[place.numbering] = held.with_run(number, number)
            offsets[place.topic, place.partition] = place.offset + 1
            written_ms.pop((place.topic, place.partition), None)
            missing.append(place)
    return missing, replace(state, numbers=numbers, offsets=offsets, written_ms=written_ms)
