"""The beginning of a hub's copy: the home's first message, unless retention has dropped it from the copy."""

from __future__ import annotations

from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import UsageError
from ordering.base.reader import Reader, Verdict
from ordering.sequencer.state import SequencerState


def check_beginning(copy: DataLog) -> bool:
    """Return whether the copy has a first message, or had one that retention has dropped.

    Raises UsageError if the copy begins in the middle of the order: somebody recreated the topic while a relay ran, and
    the relay went on where it was. Readers of such a copy wait for seqno 1 for ever. Every relay, promotion and
    bootstrap begins a new copy with seqno 1, behind a seal of its epoch. So a snapshot that counts seqnos comes after
    seqno 1. Records ahead of it are a write that was interrupted at the home, if seqno 1 follows.
    """
    if copy.beginning() > 0:
        return True
    reader, is_ahead = Reader(), False
    for stored in copy.records(0, copy.end()):
        data = stored.data
        verdict = reader.judge(data)
        if verdict is Verdict.TAKE:
            return True
        if verdict is Verdict.CONTROL and data.payload and SequencerState.from_bytes(data.payload).seqno:
            is_ahead = True
            break
        is_ahead = is_ahead or verdict is Verdict.AHEAD
    if is_ahead:
        raise UsageError(
            f"{copy.topic} begins in the middle of the order: it was recreated while a relay ran. So "
            f"{let_it_join_again(copy)}"
        )
    return False


def let_it_join_again(copy: DataLog) -> str:
    """Return the end of a sentence that says how a site becomes a new copy."""
    return f"delete the group's topics at {copy.topic.site}, and let it join again (`abcast site add`)."
