"""Old messages come from the ledger once each, wherever its chunks end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pyarrow as pa
import pytest
from pyarrow import dataset

from connectors.ledger import history


def alone(seqno: int) -> int:
    return seqno


def in_packs(seqno: int) -> int:
    return seqno // 7


def in_one_pack(_: int) -> int:
    return 0


def of_an_earlier_log(seqno: int) -> int:
    """The rows up to 200 are of a log whose offsets the later one has, too."""
    return seqno if seqno > 200 else seqno + 57


@pytest.mark.parametrize("offset", [alone, in_packs, in_one_pack, of_an_earlier_log])
def test_each_seqno_comes_once(monkeypatch: pytest.MonkeyPatch, offset: Callable[[int], int]) -> None:
    rows = [{"group_name": "g", "seqno": seqno, "data_offset": offset(seqno)} for seqno in range(1, 701)]
    monkeypatch.setattr(history, "_dataset", lambda _: dataset.dataset(pa.Table.from_pylist(rows)))
    chunks = [[row["seqno"] for row in chunk] for chunk in history.read_rows("", "g", 1)]  # type: ignore[arg-type]
    assert [seqno for chunk in chunks for seqno in chunk] == list(range(1, 701))
    ends: Iterable[tuple[int, int]] = ((before[-1], behind[0]) for before, behind in pairwise(chunks))
    assert all(offset(last) != offset(first) for last, first in ends), "no pack is cut"
