"""The end of DATA, and the state there, read for many callers."""

from __future__ import annotations

from contextlib import closing

import pytest

from connectors import Member
from connectors.client.tail.log_end import LogEnd
from connectors.kafka.log.data_log import DataLog
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryChanged
from ordering.sequencer.state import SequencerState
from tests.waiting import WAIT


def test_a_state_is_brought_up_to_date_and_equals_one_read_anew(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first call reads the state from DATA; `close` forgets it."""
    anew: list[int] = []
    really = DataLog.state

    def state_read_anew(log: DataLog, offset: int) -> SequencerState:
        anew.append(offset)
        return really(log, offset)

    with (
        closing(LogEnd(kafka, "g", "nyc")) as end,
        SequencerThread(kafka, "g"),
        Member("g", "nyc/a", connection=kafka) as member,
    ):
        member.broadcast(b"0").result(WAIT)
        monkeypatch.setattr(DataLog, "state", state_read_anew)
        start, state = end.read()
        assert len(anew) == 1
        for number in range(1, 4):
            seqno = member.broadcast(b"%d" % number).result(WAIT)
            start, state = end.read()
            assert state.seqno >= seqno
        assert end.after(state.seqno, or_end=False)[1] >= start.offset
        assert len(anew) == 1
        with DataLog(kafka, "g", "nyc") as log:
            assert state == really(log, start.offset)
        end.close()
        assert end.read()[0].offset >= start.offset
        assert len(anew) == 2


def test_a_log_that_ends_earlier_is_another_one(kafka: MemoryConnection) -> None:
    with closing(LogEnd(kafka, "g", "nyc")) as end:
        with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka) as member:
            member.broadcast(b"x").result(WAIT)
            end.read()
        kafka.topics.truncate("abcast.g.data.nyc", 0)
        with pytest.raises(HistoryChanged, match="ends at seqno 0, and ended at 1 before"):
            end.read()
