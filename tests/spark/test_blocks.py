"""Blocks of messages, cut and put together by offsets: whatever the cuts, each offset has its own numbers and bytes."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.sequencer.blocks import HeldBlocks, Records, out_of_blocks, part_of, sizes_of, without_repeats

COLUMNS = ["offset", "sender", "incarnation", "local_seqno", "forwarded_at_ms", "block", "records"]
sizes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), min_size=1, max_size=5)


def numbers_of(offset: int) -> tuple[int, int, int]:
    """Incarnation, local seqno and time of the message at an offset."""
    return offset % 3 + 1, 10 * offset, 100 * offset


def sender_of(offset: int) -> str:
    return f"s/{offset % 2}"


def bytes_of(offset: int) -> bytes:
    """Return the record's bytes, which the JVM alone can read."""
    return f"<{offset}>".encode() * (offset % 4)


def packed(offsets: Sequence[int]) -> bytes:
    index = b"".join(struct.pack("<qq", offset, len(bytes_of(offset))) for offset in offsets)
    return index + b"".join(map(bytes_of, offsets))


def row(offsets: Sequence[int], *, odd: bool) -> dict[str, object]:
    """A row as the JVM makes it: of a block, or of a record by itself."""
    senders = list(dict.fromkeys(map(sender_of, offsets)))
    block = b"".join(struct.pack("<qqqq", senders.index(sender_of(offset)), *numbers_of(offset)) for offset in offsets)
    first = dict(zip(("incarnation", "local_seqno", "forwarded_at_ms"), numbers_of(offsets[0]), strict=True))
    return {
        "offset": offsets[0],
        "sender": "\x80".join(senders),
        **first,
        "block": None if odd else block,
        "records": None if odd else packed(offsets),
    }


def rows_of(given_sizes: Sequence[tuple[int, int, bool]]) -> tuple[pd.DataFrame, list[int], set[int]]:
    """Return rows of so many messages, each so far behind the one before, with their offsets and those in blocks."""
    rows, offsets, in_blocks, next_ = [], list[int](), set[int](), 5
    for gap, size, odd in given_sizes:
        of_row = range(next_ + gap, next_ + gap + (1 if odd else size))
        rows.append(row(of_row, odd=odd))
        offsets += of_row
        in_blocks |= set() if odd else set(of_row)
        next_ = of_row.stop
    return pd.DataFrame(rows, columns=COLUMNS), offsets, in_blocks


@given(sizes, st.integers(0, 40), st.integers(0, 40))
def test_a_part_has_its_messages(given_sizes: list[tuple[int, int, bool]], first: int, end: int) -> None:
    rows, offsets, in_blocks = rows_of(given_sizes)
    part = part_of(rows, first, end)
    wanted = [offset for offset in offsets if first <= offset < end]
    assert int(sizes_of(part).sum()) == len(wanted)
    found = pd.concat(list(out_of_blocks(part))) if len(part) else part
    assert found["offset"].tolist() == wanted
    assert found["sender"].tolist() == list(map(sender_of, wanted))
    assert list(zip(*(found[name] for name in COLUMNS[2:5]), strict=True)) == list(map(numbers_of, wanted))
    held = HeldBlocks()
    for offset, size, records in zip(part["offset"], sizes_of(part), part["records"], strict=True):
        if records is not None:
            held.add(Records(offset, offset + size, records))
    for begin, stop in ((offset, until) for offset in wanted for until in (offset + 1, offset + 3)):
        together = range(begin, stop)
        if in_blocks.issuperset(together) and set(wanted).issuperset(together):
            assert held.packed(begin, stop) == packed(together)


@given(sizes)
def test_without_an_end_all_the_rest_is_there(given_sizes: list[tuple[int, int, bool]]) -> None:
    rows, offsets, _ = rows_of(given_sizes)
    assert part_of(rows, 0).equals(rows)
    assert int(sizes_of(part_of(rows, offsets[-1])).sum()) == 1
    assert part_of(rows, offsets[-1] + 1).empty


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6), st.booleans()), min_size=1, max_size=6))
def test_repeats_are_left_out(came: list[tuple[int, int, bool]]) -> None:
    """Rows may begin anywhere: each offset is kept once, from the row that came first."""
    rows = pd.DataFrame([row(range(at, at + (1 if odd else size)), odd=odd) for at, size, odd in came], columns=COLUMNS)
    end = np.maximum.accumulate(rows["offset"].to_numpy() + sizes_of(rows))
    wanted, highest = list[int](), -1
    for at, size, odd in came:
        new = [offset for offset in range(at, at + (1 if odd else size)) if offset > highest]
        wanted += new
        highest = max([highest, *new])
    left = without_repeats(rows, end)
    assert [offset for piece in out_of_blocks(left) for offset in piece["offset"]] == wanted


@pytest.mark.slow
def test_many_blocks_of_one() -> None:
    """Each is looked up by its offset, not by walking through all."""
    held, count = HeldBlocks(), 10_000
    for offset in range(0, 2 * count, 2):
        held.add(Records(offset, offset + 1, packed([offset])))
    began = time.process_time()
    assert all(held.packed(offset, offset + 1) == packed([offset]) for offset in range(0, 2 * count, 2))
    assert time.process_time() - began < 2
