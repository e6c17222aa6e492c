"""Blocks: messages that come to Python as one row, and are split into rows again.

A row costs Spark and Arrow by its columns, whatever is in them. A message in the JVM's buffer is decided by its sender
and some numbers. So messages of a partition with consecutive offsets come as one row, the first one's
(`connectors.spark.own_columns.block_of`): `sender` has the senders of all, and `block` the numbers.

If the messages don't stay in the JVM, `records` has them, as the JVM packs them: Python does not decode them. So a
block can be kept, cut and joined by offsets.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ROWS_AT_ONCE = 20_000
"""The most messages of a block. A piece has fewer than twice as many rows."""
_NUMBERS = ("incarnation", "local_seqno", "forwarded_at_ms")
_BYTES_OF_ONE = 8 * (1 + len(_NUMBERS))
_BETWEEN_SENDERS = "\x80"


def out_of_blocks(chunk: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the rows of a chunk in pieces, with each message of a block as a row.

    A block of one message is its own row: many small groups have no larger ones.
    """
    blocks = [None if block is None or len(block) == _BYTES_OF_ONE else _numbers(block) for block in chunk["block"]]
    size = np.array([1 if block is None else len(block) for block in blocks])
    turn = (np.cumsum(size) - size) // ROWS_AT_ONCE
    edges = [0, *(np.flatnonzero(np.diff(turn)) + 1).tolist(), len(chunk)]
    for first, end in itertools.pairwise(edges):
        yield _rows(chunk.iloc[first:end], blocks[first:end], size[first:end])


def sizes_of(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return the number of messages of each row."""
    return np.array([1 if block is None else len(block) // _BYTES_OF_ONE for block in rows["block"]], np.int64)


def part_of(rows: pd.DataFrame, first: int, end: int | None = None) -> pd.DataFrame:
    """Return the rows that cover [`first`, `end`), cutting blocks at the edges. The rows need the column `records`."""
    offset = rows["offset"].to_numpy()
    behind = offset + sizes_of(rows)
    end = int(behind.max(initial=0)) if end is None else end
    inside = rows[(offset < end) & (behind > first)]
    is_whole = (inside["offset"].to_numpy() >= first) & (inside["offset"].to_numpy() + sizes_of(inside) <= end)
    if bool(is_whole.all()):
        return inside
    cut = [
        row if whole else _cut(row, first, end) for row, whole in zip(inside.to_dict("records"), is_whole, strict=True)
    ]
    return pd.DataFrame(cut, columns=rows.columns)


def _cut(row: dict[Hashable, Any], first: int, end: int) -> dict[Hashable, Any]:
    """Return a block's row with the messages of these offsets only."""
    whole = Records(row["offset"], row["offset"] + len(row["block"]) // _BYTES_OF_ONE, row["records"])
    begin, stop = max(first, whole.first), min(end, whole.end)
    numbers = _numbers(row["block"])[begin - whole.first : stop - whole.first]
    held = HeldBlocks()
    held.add(whole)
    kept: dict[Hashable, Any] = {"offset": begin, "block": numbers.tobytes(), "records": held.packed(begin, stop)}
    if len(numbers) == 1:  # the row itself has all of it
        index, *values = numbers[0].tolist()
        kept |= dict(zip(("sender", *_NUMBERS), (row["sender"].split(_BETWEEN_SENDERS)[index], *values), strict=True))
    return {**row, **kept}


def without_repeats(rows: pd.DataFrame, end: NDArray[np.int64]) -> pd.DataFrame:
    """Keep each offset once, where it comes first. `end`: the offset reached in the partition with each row."""
    repeats = np.flatnonzero(rows["offset"].to_numpy()[1:] < end[:-1]) + 1
    if not len(repeats):
        return rows
    pieces, begin = [], 0
    for at in repeats.tolist():
        pieces += [rows[begin:at], part_of(rows[at : at + 1], int(end[at - 1]))]
        begin = at + 1
    return pd.concat([*pieces, rows[begin:]], ignore_index=True)


class Records(NamedTuple):
    """The messages of a block: their offsets, and their bytes as the JVM has packed them, behind an index."""

    first: int
    end: int
    packed: bytes

    def offsets_and_sizes(self) -> NDArray[np.int64]:
        """Return the index: offset and size of each message."""
        return np.frombuffer(self.packed, "<i8", 2 * (self.end - self.first)).reshape(-1, 2)


class HeldBlocks:
    """The messages of blocks of a partition, in their order."""

    def __init__(self) -> None:
        """Hold no block yet."""
        self._blocks: list[Records] = []
        self._ends: list[int] = []
        self._last: tuple[Records, NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, block: Records) -> None:
        """Add a block of later offsets."""
        self._blocks.append(block)
        self._ends.append(block.end)

    def packed(self, first: int, end: int) -> bytes:
        """Return the messages of [`first`, `end`), packed. The blocks must have all of them."""
        index, rows = [], []
        for at in range(bisect_right(self._ends, first), len(self._blocks)):
            block = self._blocks[at]
            if block.first >= end:
                break
            of_index, of_rows = self._part(block, max(first, block.first), min(end, block.end))
            index.append(of_index)
            rows.append(of_rows)
        return b"".join(index + rows)

    def _part(self, block: Records, first: int, end: int) -> tuple[bytes, bytes]:
        """Return the index and the rows of a part of a block."""
        if self._last is None or self._last[0] is not block:
            index = block.offsets_and_sizes()
            self._last = block, index, index.nbytes + np.append(0, np.cumsum(index[:, 1]))
        _, index, edges = self._last
        begin, stop = first - block.first, end - block.first
        return index[begin:stop].tobytes(), block.packed[edges[begin] : edges[stop]]


def _numbers(block: bytes) -> NDArray[np.int64]:
    """Return a row for each message: the index of its sender, and _NUMBERS."""
    return np.frombuffer(block, "<i8").reshape(-1, 1 + len(_NUMBERS))


def _rows(piece: pd.DataFrame, blocks: Sequence[NDArray[np.int64] | None], size: NDArray[np.int64]) -> pd.DataFrame:
    """Return the rows of a piece, one for each message. `size`: the number of messages of each row of the piece."""
    there = [(row, block) for row, block in enumerate(blocks) if block is not None]
    if not there:
        return piece
    # Separate columns: pandas would join columns of one type, and each use of one would take time.
    columns = {name: np.repeat(piece[name].to_numpy(), size) for name in piece}
    inside = np.repeat([block is not None for block in blocks], size)
    senders = [np.array(piece["sender"].iloc[row].split(_BETWEEN_SENDERS), object)[block[:, 0]] for row, block in there]
    numbers = np.concatenate([block for _, block in there]).T[1:]
    for name, values in zip(("sender", *_NUMBERS), (np.concatenate(senders), *numbers), strict=True):
        columns[name][inside] = values
    columns["offset"] += np.arange(len(inside)) - np.repeat(np.cumsum(size) - size, size)
    return pd.DataFrame(columns, copy=False)
