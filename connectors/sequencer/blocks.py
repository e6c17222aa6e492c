"""Blocks: messages that come to Python as one row, and are taken apart into rows again.

A row costs Spark and Arrow as much as it has columns, whatever is in them. Of a message that stays in the JVM, what
decides is its sender and some numbers. So neighbours of a partition, whose offsets leave no gap, come as one row, the
first one's (`connectors.spark.own_columns.block_of`): `sender` has the senders of all, and `block` the numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ROWS_AT_ONCE = 20_000
"""Those of a piece: as many, or more by less than a block, which has no more."""
_NUMBERS = ("incarnation", "local_seqno", "forwarded_at_ms")
_BYTES_OF_ONE = 8 * (1 + len(_NUMBERS))
_BETWEEN_SENDERS = "\x80"


def out_of_blocks(chunk: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of a chunk, each as if it had come by itself, in pieces."""
    # The row of a block of one says all of it. A small group has no more, and there are many such groups.
    blocks = [None if block is None or len(block) == _BYTES_OF_ONE else _numbers(block) for block in chunk["block"]]
    size = np.array([1 if block is None else len(block) for block in blocks])
    turn = (np.cumsum(size) - size) // ROWS_AT_ONCE
    edges = [0, *(np.flatnonzero(np.diff(turn)) + 1).tolist(), len(chunk)]
    for first, end in itertools.pairwise(edges):
        yield _rows(chunk.iloc[first:end], blocks[first:end], size[first:end])


def _numbers(block: bytes) -> NDArray[np.int64]:
    """A row for each message: the index of its sender, and _NUMBERS."""
    return np.frombuffer(block, "<i8").reshape(-1, 1 + len(_NUMBERS))


def _rows(piece: pd.DataFrame, blocks: Sequence[NDArray[np.int64] | None], size: NDArray[np.int64]) -> pd.DataFrame:
    """The rows of a piece; `size`: for how many each of its own stands."""
    there = [(row, block) for row, block in enumerate(blocks) if block is not None]
    if not there:
        return piece
    # Columns each by itself: pandas would put those of one type together, and then each use of one takes time.
    columns = {name: np.repeat(piece[name].to_numpy(), size) for name in piece}
    inside = np.repeat([block is not None for block in blocks], size)
    senders = [np.array(piece["sender"].iloc[row].split(_BETWEEN_SENDERS), object)[block[:, 0]] for row, block in there]
    numbers = np.concatenate([block for _, block in there]).T[1:]
    for name, values in zip(("sender", *_NUMBERS), (np.concatenate(senders), *numbers), strict=True):
        columns[name][inside] = values
    columns["offset"] += np.arange(len(inside)) - np.repeat(np.cumsum(size) - size, size)
    return pd.DataFrame(columns, copy=False)
