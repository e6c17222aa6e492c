"""The forward table when a sender begins its next incarnation: what it finds there, and what it carries over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ordering.base.records import FLUSH_OK, JOIN, Headers
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import (
    Pending,
    carried_from,
    carried_over,
    control_headers,
    is_control,
    kind_of,
)
from ordering.sequencer.state import SequencerState


def begins_stranded(member: MemberIncarnation, pending: Sequence[Pending], state: SequencerState) -> bool:
    """Whether an incarnation that goes on at `state` could have nothing ordered any more.

    The group is closed, the incarnation is neither in it nor joining, and its table does not begin with the JOIN.
    """
    membership = state.membership
    is_outside = not membership.is_member(member.address) and member not in membership.joining
    return membership.settings.closed and is_outside and bool(pending) and kind_of(pending[0]) != JOIN


def begins_returning(pending: Sequence[Pending]) -> bool:
    """Whether the table has messages of the last incarnation behind a JOIN that is not ordered yet."""
    is_joining = bool(pending) and kind_of(pending[0]) == JOIN
    return is_joining and any(carried_from(entry) is not None for entry in pending)


def handed_over(pending: Sequence[Pending], incarnation: int) -> Iterator[Pending]:
    """Yield the messages of this incarnation's table as the next one carries them over.

    Behind a JOIN that is not ordered, none was sent under this incarnation. So one that has come from an earlier one
    may only be ordered under the id that it had there.
    """
    is_unsent = begins_returning(pending)
    for entry in pending:
        if not is_control(entry):
            is_from_before = is_unsent and carried_from(entry) is not None
            yield entry if is_from_before else carried_over(entry, incarnation)


def newest_answer(pending: Iterable[Pending]) -> int:
    """Return the newest flush that a FLUSH_OK in the table answers; 0 if there is none."""
    return max((int(entry.payload) for entry in pending if kind_of(entry) == FLUSH_OK), default=0)


def next_entries(pending: Iterable[Pending], *, joins: bool) -> Iterator[tuple[bytes, Headers]]:
    """Yield the first entries of the next incarnation's table: its JOIN, then the last one's messages in order."""
    if joins:
        yield b"", control_headers(JOIN)
    for entry in pending:
        if not is_control(entry):
            yield entry.payload, entry.headers
