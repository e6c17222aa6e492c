"""The flush's table, and every state with every event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import ProtocolViolation
from ordering.base.kinds import MESSAGE_KINDS, NEWER_KINDS, NEXT_KINDS
from ordering.base.records import FLUSH_COMPLETED, FLUSH_OK, START_FLUSH, STOP_FLUSH, Data, Forward, Source
from ordering.membership.flush import NO_FLUSH, RERUN, TRANSITIONS, Flush, FlushPhase
from ordering.membership.membership import MemberIncarnation, Membership, fold, refusal

EVENTS = (START_FLUSH, FLUSH_OK, FLUSH_COMPLETED, STOP_FLUSH)
SENDERS = ("s/a", "s/b", "s/stranger")

flushes = st.just(NO_FLUSH) | st.builds(
    Flush,
    phase=st.sampled_from((FlushPhase.BLOCKING, FlushPhase.BLOCKED)),
    id=st.just(7),
    requester=st.sampled_from(SENDERS),
    requested=st.booleans(),
    answered=st.sampled_from(((), ("s/a",), ("s/a", "s/b"))),
)


def test_the_table() -> None:
    """FLUSH (docs/sources.md), phases 1 to 4, and "run the FLUSH protocol from scratch"."""
    told = {f"{phase.value} {event} -> {after.value}" for (phase, event), after in TRANSITIONS.items()}
    assert told == {
        "running start-flush -> blocking",
        "blocking flush-ok -> blocking",
        "blocking flush-completed -> blocked",
        "blocking stop-flush -> running",
        "blocking rerun -> blocking",
        "blocked stop-flush -> running",
        "blocked rerun -> blocking",
    }


@given(flushes, st.sampled_from(EVENTS))
def test_every_state_with_every_event(flush: Flush, event: str) -> None:
    """Each transition of the table leads to its state; any other event raises and leaves the state as it was."""
    apply = {
        START_FLUSH: lambda: flush.start(9, "s/a", requested=True),
        FLUSH_OK: lambda: flush.answer("s/b"),
        FLUSH_COMPLETED: flush.complete,
        STOP_FLUSH: flush.stop,
    }[event]
    name = RERUN if event == START_FLUSH and flush.phase is not FlushPhase.RUNNING else event
    expected = TRANSITIONS.get((flush.phase, name))
    if expected is None:
        with pytest.raises(ProtocolViolation, match="no sequencer decides that"):
            apply()
    else:
        assert apply().phase is expected


@given(
    flushes,
    st.sampled_from(sorted((NEXT_KINDS | NEWER_KINDS) - MESSAGE_KINDS)),
    st.sampled_from(SENDERS),
    st.sampled_from((b"7", b"8", b"0", b"", b'{"flush":true}')),
)
def test_whatever_a_member_sends_is_refused_or_taken(flush: Flush, kind: str, sender: str, payload: bytes) -> None:
    """No FORWARD record leads to a state outside the table: a record that is not refused can be folded."""
    membership = Membership(members=(MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)), flush=flush)
    record = Forward(sender, 1, 3, payload, Source("abcast.g.forward.s", 0, 0), kind=kind)
    data = Data(kind, 1, 9, sender=sender, incarnation=1, local_seqno=3, payload=payload, source=record.source)
    if not refusal(membership, record, {}):
        after = fold(membership, data, {}).membership
        assert after != membership
        if kind in EVENTS:
            assert (flush.phase, kind) in TRANSITIONS


def test_a_second_flush_is_refused_with_a_reason() -> None:
    flush = NO_FLUSH.start(7, "s/a", requested=True)
    membership = Membership(members=(MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)), flush=flush)
    record = Forward("s/b", 1, 3, b"", Source("abcast.g.forward.s", 0, 0), kind=START_FLUSH)
    assert refusal(membership, record, {}) == "a flush runs already, for s/a"
