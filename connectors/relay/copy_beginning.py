"""The beginning of a hub's copy: the home's first message, unless retention has dropped it from the copy."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import UsageError
from ordering.base.reader import Reader, Verdict
from ordering.base.records import Data, Source
from ordering.sequencer.state import SequencerState


def check_beginning(copy: DataLog, home: DataLog | None = None) -> bool:
    """Return whether the copy has a first message, or had one that retention has dropped.

    Raises UsageError if the copy begins in the middle of the order: somebody recreated the topic while a relay ran, and
    the relay went on where it was. Readers of such a copy wait for seqno 1 for ever. Every relay, promotion and
    bootstrap begins a new copy with seqno 1, behind a seal of its epoch. So a snapshot that counts seqnos comes after
    seqno 1. Records ahead of it are a write that was interrupted at the home, if seqno 1 follows.

    If it does not follow yet, `home` tells: it has the same records ahead of its own seqno 1, and the copy has no epoch
    above that seqno's. Then the copy is a beginning of the home's log, so a relay may go on, at any time: it carries
    seqno 1 next, and readers take it.
    """
    if copy.beginning() > 0:
        return True
    reader, ahead, counts = Reader(), set[_Decision](), False
    for stored in copy.records(0, copy.end()):
        data = stored.data
        verdict = reader.judge(data)
        if verdict is Verdict.TAKE:
            return True
        if verdict is Verdict.CONTROL and data.payload and SequencerState.from_bytes(data.payload).seqno:
            counts = True
            break
        if verdict is Verdict.AHEAD:
            ahead.add(_Decision.of(data))
    if counts or (ahead and (home is None or not _begins_with(home, ahead, reader.epoch))):
        raise UsageError(
            f"{copy.topic} begins in the middle of the order: it was recreated while a relay ran. So "
            f"{let_it_join_again(copy)}"
        )
    return False


class _Decision(NamedTuple):
    """The fields of a record of DATA that only its sequencer can have given it."""

    epoch: int
    seqno: int
    sender: str
    source: Source | None

    @classmethod
    def of(cls, data: Data) -> _Decision:
        return cls(data.epoch, data.seqno, data.sender, data.source)


def _begins_with(home: DataLog, ahead: Set[_Decision], epoch: int) -> bool:
    """Whether the home has these records ahead of its first message, whose epoch is not below `epoch`."""
    if home.beginning() > 0:
        return False
    reader, found = Reader(), set[_Decision]()
    for stored in home.records(0, home.end()):
        verdict = reader.judge(stored.data)
        if verdict is Verdict.TAKE:
            break
        if verdict is Verdict.AHEAD:
            found.add(_Decision.of(stored.data))
    return ahead <= found and epoch <= reader.epoch


def let_it_join_again(copy: DataLog) -> str:
    """Return the end of a sentence that says how a site becomes a new copy."""
    return f"delete the group's topics at {copy.topic.site}, and let it join again (`abcast site add`)."
