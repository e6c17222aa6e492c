"""The ledger reads DATA batch by batch, and tells missing offsets from empty ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from connectors.kafka.log.data_log import Start
from connectors.ledger.one_pass import Follower, RecordColumns
from connectors.ledger.seqno_table import DataSkipped
from connectors.ledger.table import check_look
from ordering.base.reader import Reader


class Following:
    """Looks at batches of group g. DATA has its records from `beginning` on."""

    def __init__(self, start: Start, beginning: int = 0) -> None:
        self.follower, self.beginning = Follower(start.offset, start.reader), beginning

    @property
    def last_seqno(self) -> int:
        return self.follower.reader.last_seqno

    def tell(self, group: str) -> int:
        assert group == "g"
        return self.beginning


follower = Following


def accept(reader: Following, rows: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the seqnos that are taken of (offset, epoch, seqno); seqno 0 is a seal."""
    offset, epoch, seqno = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    looking = reader.follower.looking()
    ones, none = np.ones_like(seqno), np.zeros_like(seqno, dtype=np.bool_)
    places = looking.read(RecordColumns(offset, epoch, seqno, ones, ones, seqno == 0, none))
    check_look("g", reader.follower.offset, looking, reader.tell)
    reader.follower = looking
    return [int(number) for number in seqno[places == 0]]


def run(first_offset: int, epoch: int, *seqnos: int) -> list[tuple[int, int, int]]:
    return [(first_offset + place, epoch, seqno) for place, seqno in enumerate(seqnos)]


def test_batches_follow_each_other() -> None:
    reader = follower(Start(7, Reader(1, 3)))
    assert accept(reader, run(7, 1, 3, 4, 5)) == [4, 5]
    assert accept(reader, run(10, 1, 5, 6)) == [6]
    assert reader.last_seqno == 6


def test_retention_that_overtakes_the_query_is_noticed() -> None:
    """The ledger has 100, retention has dropped 101 to 150: no later record would ever be taken."""
    reader = follower(Start(101, Reader(3, 100)), beginning=151)
    with pytest.raises(DataSkipped, match="read from offset 101 on") as caught:
        accept(reader, run(151, 3, *range(151, 1151)))
    assert caught.value.retriable  # the next start says whether the ledger can go on


@pytest.mark.parametrize("hole", [1, 3])
def test_in_the_middle_of_a_batch(hole: int) -> None:
    reader = follower(Start(0, Reader(1, 0)), beginning=5)
    with pytest.raises(DataSkipped):
        accept(reader, run(0, 1, *range(1, 1 + hole)) + run(5, 1, 6, 7))


def test_a_seal_that_was_dropped_is_not_passed_over() -> None:
    """The fenced sequencer's 101 would be taken, since nothing says that epoch 4 had begun before it."""
    reader = follower(Start(101, Reader(3, 100)), beginning=102)
    with pytest.raises(DataSkipped):
        accept(reader, [(102, 3, 101), (103, 4, 101)])


def test_an_offset_that_never_had_a_record() -> None:
    """A transaction's end takes an offset, for instance; DATA still begins before it."""
    reader = follower(Start(0, Reader(1, 0)), beginning=0)
    assert accept(reader, run(0, 1, 1, 2) + run(3, 1, 3)) == [1, 2, 3]
    assert accept(reader, run(5, 1, 4)) == [4]


def test_a_topic_that_was_made_anew() -> None:
    reader = follower(Start(50, Reader(1, 50)))
    with pytest.raises(DataSkipped, match="or the topic was recreated"):
        accept(reader, run(0, 1, 1, 2))


def test_what_runs_ahead_of_a_torn_write_is_waited_for() -> None:
    reader = follower(Start(0, Reader(1, 0)))
    assert accept(reader, run(0, 1, 1, 4, 5)) == [1]
    assert accept(reader, run(3, 1, 2, 3, 4, 5)) == [2, 3, 4, 5]
