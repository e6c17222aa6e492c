"""The sequencer's own decisions at the end of a batch: views, steps of a flush, changes of remote views.

Source: FLUSH (docs/sources.md), "FLUSH on view change": the joins J, leaves L and suspects S of a batch give one view
V2 = M − S − L + J; "Crash handling during FLUSH": nobody waits for a suspect, and if the requester is gone, the flush
starts over in the name of the next member.

Invariant. `next_decision` names one record, and depends on the membership and the received rows alone.
`ordering.sequencer.sequencer.end_batch` folds it and asks again until there is none. So a crash between two records
loses nothing: the next sequencer decides the rest. docs/protocols/membership.md has the picture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ordering.base.names import relay_of
from ordering.base.records import FLUSH_COMPLETED, REMOTE_VIEW, START_FLUSH, STOP_FLUSH, VIEW
from ordering.membership.flush import FlushPhase
from ordering.membership.membership import NOTHING_ACCEPTED, Membership, ReceivedRow

TIMED_OUT = "the flush took longer than flush_timeout_ms"
VIEW_INSTALLED = "the view is installed"


class Decision(NamedTuple):
    """A DATA record to be written: its kind, and its payload as JSON values."""

    kind: str
    payload: dict[str, Any]


def start_grace_periods(membership: Membership) -> Membership:
    """Count members and relays as heard now if they were not heard since they joined, or since the takeover.

    The relay of a silent site is left out: it counts as heard when it sends something.
    """
    remote = membership.remote.items()
    watched = [member.address for member in membership.members]
    watched += [relay_of(name) for name, site in remote if site.members and not site.is_silent]
    detector = membership.detector
    missing = [address for address in watched if address not in detector.heard]
    return replace(membership, detector=detector.hear_now(missing)) if detector.clock and missing else membership


def next_decision(membership: Membership, received: Mapping[str, ReceivedRow]) -> Decision | None:
    """Return the next record to decide, or None."""
    flush = membership.flush
    if not membership.detector.clock and membership.members and not membership.horizon:
        return None  # since the horizon, or the takeover, no record with a time was read
    changed = _remote_view(membership)
    if changed is not None:
        return changed
    suspects = _suspects(membership, received)
    # A LEAVE is the last message of its sender, and the old incarnation of a joiner sends no more.
    gone = {*suspects, *membership.leaving, *(member.address for member in membership.joining)}
    waiting = [
        member.address
        for member in membership.members
        if member.address not in flush.answered and member.address not in gone
    ]
    changes = bool(membership.joining or membership.leaving or suspects)
    if flush.phase is FlushPhase.RUNNING:
        if not changes:
            return None
        return _start(membership, gone) if membership.settings.flush and waiting else _view(membership, suspects)
    is_late = membership.detector.is_late(flush.id, membership.settings.flush_timeout_ms)
    if flush.requested:
        if flush.requester in gone:
            return _start(membership, gone)
        if flush.phase is FlushPhase.BLOCKING and not waiting:
            return Decision(FLUSH_COMPLETED, {"flush": flush.id})
        if flush.phase is FlushPhase.BLOCKED and (changes or waiting):  # waiting: heard again since the takeover
            return _view(membership, {*suspects, *waiting})
        return _stop(membership, TIMED_OUT) if is_late else None
    if waiting and not is_late:
        return None
    if changes or waiting:  # a member that has not answered in time may still send in the old view: it has to leave
        return _view(membership, {*suspects, *waiting})
    return _stop(membership, VIEW_INSTALLED)


def _suspects(membership: Membership, received: Mapping[str, ReceivedRow]) -> set[str]:
    """Return the members that were silent for too long, and each whose name has sent in a higher incarnation."""
    detector, limit_ms = membership.detector, membership.settings.suspect_after_ms
    return {
        address
        for address, incarnation in membership.members
        if detector.is_overdue(address, limit_ms) or received.get(address, NOTHING_ACCEPTED).incarnation > incarnation
    }


def _remote_view(membership: Membership) -> Decision | None:
    """Return the remote view of the first site, by name, whose relay has fallen silent or is heard again."""
    detector, limit_ms = membership.detector, membership.settings.suspect_after_ms
    for name, site in sorted(membership.remote.items()):
        relay = relay_of(name)
        is_silent = detector.is_overdue(relay, limit_ms) or (site.is_silent and relay not in detector.heard)
        if site.members and is_silent != site.is_silent:
            members = [] if is_silent else [list(member) for member in site.members]
            return Decision(REMOTE_VIEW, {"site": name, "members": members, "silent": is_silent})
    return None


def _view(membership: Membership, suspects: Collection[str]) -> Decision:
    joined = [list(member) for member in membership.joining]
    replaced = {member.address for member in membership.joining}
    out = {*suspects, *membership.leaving, *replaced}
    stay = [list(member) for member in membership.members if member.address not in out]
    lost = [member.address for member in membership.members if member.address in suspects]
    return Decision(
        VIEW,
        {
            "members": [*stay, *joined],
            "joined": [member.address for member in membership.joining],
            "left": list(membership.leaving),
            "suspected": [address for address in lost if address not in replaced and address not in membership.leaving],
            "flush": membership.flush.id,
        },
    )


def _start(membership: Membership, gone: Collection[str]) -> Decision:
    requester = next((member.address for member in membership.members if member.address not in gone), "")
    return Decision(START_FLUSH, {"requester": requester})


def _stop(membership: Membership, reason: str) -> Decision:
    return Decision(STOP_FLUSH, {"flush": membership.flush.id, "reason": reason})
