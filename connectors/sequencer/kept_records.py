"""The records of FORWARD that an agreeing site on Spark has read and not sequenced, in files, for its machine.

Invariant: the chunks of a partition are in the order of their offsets, and do not overlap. A chunk is in the spill
store until `take` has yielded its last record, or `add` merges it with the next one. A crash costs nothing: the next
query reads FORWARD again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from connectors.kafka.codec.inputs import Input
from connectors.sequencer.blocks import HeldBlocks, Records, out_of_blocks, part_of, sizes_of, without_repeats
from connectors.sequencer.query import decide_chunk
from connectors.sequencer.runs import DATA_ROLE, run_of, without_first
from connectors.sequencer.spill_store import SpillStore
from connectors.takeover.agreeing import Decided
from ordering.agreement.log import Range
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.records import HEARTBEAT, Data, Partition
from ordering.sequencer.state import SequencerState

BUFFER_BYTES = 256 * 1024 * 1024
"""The bound on a partition's records, in arrow's form."""
_MERGED_BYTES = 64 * 1024
"""Chunks below this size are merged with the next one: a waiting site would have very many."""
_HEARTBEAT = FORWARD_KINDS.index(HEARTBEAT)

_KEPT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("plain", pa.bool_()),
        ("sender", pa.string()),
        ("incarnation", pa.int64()),
        ("local_seqno", pa.int64()),
        ("kind", pa.int32()),
        ("forwarded_at_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("packed_headers", pa.string()),
        ("block", pa.binary()),
        ("records", pa.binary()),
    ]
)


class StoredChunk(NamedTuple):
    """A chunk in the spill store: its partition, its number there, its size in bytes and its first offset."""

    place: str
    number: int
    size: int
    first: int


@dataclass(slots=True)
class _Chunk:
    """Records of a partition, in the order of their offsets: in the spill store, and loaded when needed."""

    number: int
    size: int
    first: int
    rows: pd.DataFrame | None = None


class KeptRecords:
    """The kept records of a group, as `AgreeingMachine` needs them. `last`: the last number that a chunk got."""

    def __init__(self, spill: SpillStore, group: str, chunks: Iterable[StoredChunk], last: int) -> None:
        self.last = last
        self._spill, self._group = spill, group
        self._chunks: dict[str, list[_Chunk]] = {}
        for place, number, size, first in chunks:
            self._chunks.setdefault(place, []).append(_Chunk(number, size, first))

    def read(self, source: Input, records: pd.DataFrame, arrived: Callable[..., int]) -> None:
        """Keep records from the offset that `arrived` returns."""
        rows, offset, size = records, records["offset"].to_numpy(), sizes_of(records)
        end = np.maximum.accumulate(offset + size)
        at = int(rows["at"].iloc[-1] + size[-1]) - 1
        is_idle = bool((rows["plain"].to_numpy(dtype=bool) & (rows["kind"] == _HEARTBEAT) & rows["block"].isna()).all())
        kept_from = arrived(int(offset[0]), int(end[-1]) - 1, at, is_idle=is_idle)
        rows = part_of(without_repeats(rows, end), kept_from)
        if len(rows):
            self.add(source.place, rows)

    def is_full(self, source: Input) -> bool:
        """Whether the partition has BUFFER_BYTES."""
        return self.size(source.place) >= BUFFER_BYTES

    def decide(self, state: SequencerState, parts: Iterable[Range]) -> Decided[pd.DataFrame]:
        """Remove the records of a run, and decide them."""
        in_order = sorted(parts, key=lambda part: Partition.parse(part.place))
        rows, decided = [piece for part in in_order for piece in self.take(part)], list[pd.DataFrame]()
        for piece in out_of_blocks(pd.concat(rows, ignore_index=True)) if rows else ():
            state, of_piece = decide_chunk(state, piece)
            decided += of_piece
        is_refused = any((runs["role"] != DATA_ROLE).any() for runs in decided)
        return Decided(state, is_refused, partial(_missing, decided, held_blocks(rows)))

    def data(self, record: Data) -> pd.DataFrame:
        """Return the run of a record that the job itself makes."""
        return run_of(self._group, record)

    def payload_of(self, writes: Iterable[pd.DataFrame]) -> int:  # noqa: ARG002
        """Return 0: the records that a batch reads bound its step."""
        return 0

    def add(self, place: str, rows: pd.DataFrame) -> None:
        """Keep records of a partition, behind the ones that it has."""
        chunks = self._chunks.setdefault(place, [])
        if chunks and chunks[-1].size < _MERGED_BYTES:
            last = chunks.pop()
            rows = pd.concat([self._rows(last), rows], ignore_index=True)
            self._spill.drop(last.number)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _KEPT) as writer:
            writer.write_table(pa.Table.from_pandas(rows[_KEPT.names], _KEPT, preserve_index=False))
        encoded = sink.getvalue()
        self.last += 1
        self._spill.put(self.last, encoded)
        chunks.append(_Chunk(self.last, encoded.size, int(rows["offset"].iloc[0]), rows))

    def size(self, place: str) -> int:
        """Return the bytes of a partition's records."""
        return sum(chunk.size for chunk in self._chunks.get(place, ()))

    def offsets(self, part: Range) -> list[tuple[int, int]]:
        """Return the offset ranges within `part` that have records. Reads only their chunks: very many may wait."""
        found: list[tuple[int, int]] = []
        chunks = self._chunks.get(part.place, [])
        begins, ends = (bisect_right(chunks, at, key=lambda chunk: chunk.first) for at in (part.first, part.end - 1))
        for chunk in chunks[max(0, begins - 1) : ends]:
            rows = self._rows(chunk)
            offset = rows["offset"].to_numpy()
            first, end = np.maximum(offset, part.first), np.minimum(offset + sizes_of(rows), part.end)
            inside = first < end
            found += zip(first[inside].tolist(), end[inside].tolist(), strict=True)
        return found

    def take(self, part: Range) -> Iterator[pd.DataFrame]:
        """Yield the records within `part`. Drop the chunks that end within it or before it."""
        chunks = self._chunks.get(part.place, [])
        while chunks:
            rows = self._rows(chunks[0])
            piece = part_of(rows, part.first, part.end)
            if len(piece):
                yield piece
            if rows["offset"].iloc[-1] + sizes_of(rows)[-1] > part.end:
                return
            self._spill.drop(chunks.pop(0).number)

    def stored(self) -> tuple[StoredChunk, ...]:
        """Return all chunks, by partition."""
        return tuple(
            StoredChunk(place, each.number, each.size, each.first)
            for place in sorted(self._chunks)
            for each in self._chunks[place]
        )

    def _rows(self, chunk: _Chunk) -> pd.DataFrame:
        if chunk.rows is None:
            chunk.rows = pa.ipc.open_stream(self._spill.get(chunk.number)).read_all().to_pandas()
        return chunk.rows


def _missing(
    decided: Iterable[pd.DataFrame], held: Mapping[Partition, HeldBlocks], last: int, has_dead_letters: bool
) -> Iterator[pd.DataFrame]:
    for runs in decided:
        wanted = runs if has_dead_letters else runs[runs["role"] == DATA_ROLE]
        yield with_records(without_first(wanted, last), held)


def held_blocks(rows: Iterable[pd.DataFrame]) -> dict[Partition, HeldBlocks]:
    """Return the messages that came in blocks, by partition."""
    held: dict[Partition, HeldBlocks] = {}
    for piece in rows:
        columns = *(piece[name] for name in ("topic", "partition", "offset", "records")), sizes_of(piece)
        for topic, number, offset, records, size in zip(*columns, strict=True):
            if records is not None:
                held.setdefault(Partition(topic, number), HeldBlocks()).add(Records(offset, offset + size, records))
    return held


def with_records(runs: pd.DataFrame, held: Mapping[Partition, HeldBlocks]) -> pd.DataFrame:
    """Give each run that is `aside` its messages from `held`; the other runs have theirs already."""
    columns = (runs[name] for name in ("aside", "topic", "partition", "first_offset", "size"))
    records = [
        held[Partition(topic, number)].packed(first, first + size) if aside else None
        for aside, topic, number, first, size in zip(*columns, strict=True)
    ]
    return runs.assign(records=pd.Series(records, runs.index, object))
