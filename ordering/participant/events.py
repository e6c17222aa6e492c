"""The membership events of a group in the order of the log: `ViewChange`, `Block`, `Unblock`, `RemoteView`.

Source: FLUSH (docs/sources.md): BLOCK and UNBLOCK are events that go up the stack.

Invariant. In the events that a reader of a group's DATA sees, Block and Unblock alternate; a reader that begins within
a flush may see its Unblock first. A view comes between them, or outside if it needed no flush. A flush that starts over
gives no second Block. A member that joins within a flush is blocked from its first view on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.base.canonical import UNREADABLE
from ordering.base.errors import ProtocolViolation
from ordering.base.records import REMOTE_VIEW, START_FLUSH, STOP_FLUSH, VIEW
from ordering.membership.membership import MemberIncarnation, Membership
from ordering.sequencer.state import SequencerState

BEGIN = "begin"
"""The `event` of the first line of each run of a reader, in a delivery log that has casts."""


class ViewChange(NamedTuple):
    """A new view, in force from `seqno` on; 0 if a state has told it. `incarnations`: the members, oldest first."""

    seqno: int
    view_id: int
    incarnations: tuple[MemberIncarnation, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """The members' addresses, oldest first."""
        return tuple(member.address for member in self.incarnations)

    def at(self, site: str) -> tuple[str, ...]:
        """Return the members at a site, oldest first."""
        return tuple(address for address in self.members if address.startswith(f"{site}/"))


class Block(NamedTuple):
    """The begin of a flush: send what must come before it, then be quiet."""

    seqno: int
    requester: str


class Unblock(NamedTuple):
    """The end of a flush: members send again."""

    seqno: int


class RemoteView(NamedTuple):
    """The members of a neighbouring site of a mesh, oldest first, as far as its relay tells.

    With `reachable` False, its relay was stopped or is silent. Then `members` is empty, and messages to the site wait.
    """

    seqno: int
    site: str
    members: tuple[str, ...]
    reachable: bool = True


Event = ViewChange | Block | Unblock | RemoteView


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """The knowledge of a group that its log has given so far: its newest view, its neighbours' views, the flush.

    `flush_id` is the seqno of the running flush's START_FLUSH, 0 if no flush runs.
    """

    view: ViewChange | None = None
    remote: Mapping[str, RemoteView] = field(default_factory=dict)
    flush_id: int = 0

    @classmethod
    def of_state(cls, state: SequencerState) -> KnownGroup:
        """Return the knowledge that a state gives, in place of the records that led to it."""
        membership = state.membership
        view = ViewChange(0, state.view, membership.members) if membership.members else None
        return cls(view, remote_views(membership), membership.flush.id)

    def after(
        self, kind: str, seqno: int, view_id: int, sender: str, payload: bytes
    ) -> tuple[KnownGroup, Event | None]:
        """Return the knowledge after a record, and its event, if any. Raises ProtocolViolation if it is unreadable."""
        try:
            if kind == VIEW:
                return self._after_view(seqno, view_id, payload)
            if kind == REMOTE_VIEW:
                return self._after_remote_view(seqno, sender, payload)
            if kind == START_FLUSH:
                requester = sender or str(json.loads(payload)["requester"])
                event = None if self.flush_id else Block(seqno, requester)
                return replace(self, flush_id=seqno), event
        except UNREADABLE as error:
            raise ProtocolViolation(f"the {kind} of seqno {seqno} can't be read: {error!r}") from error
        if kind == STOP_FLUSH and self.flush_id:
            return replace(self, flush_id=0), Unblock(seqno)
        return self, None

    def _after_remote_view(self, seqno: int, sender: str, payload: bytes) -> tuple[KnownGroup, RemoteView | None]:
        """Take a remote view. A repeat of the known one, after a takeover there or by a second relay, is no event."""
        body = json.loads(payload)
        site = sender.partition("/")[0] or str(body["site"])
        members = tuple(MemberIncarnation.of(row).address for row in body["members"])
        event = RemoteView(seqno, site, members, bool(sender) or not body["silent"])
        before = self.remote.get(site)
        is_new = before is None or before[1:] != event[1:]
        return replace(self, remote={**self.remote, site: event}), event if is_new else None

    def _after_view(self, seqno: int, view_id: int, payload: bytes) -> tuple[KnownGroup, ViewChange]:
        body = json.loads(payload)
        view = ViewChange(
            seqno,
            view_id,
            tuple(MemberIncarnation.of(row) for row in body["members"]),
            tuple(body["joined"]),
            tuple(body["left"]),
            tuple(body["suspected"]),
        )
        return replace(self, view=view, flush_id=body["flush"]), view


def remote_views(membership: Membership) -> dict[str, RemoteView]:
    """Return the remote views of a state by site, each with the seqno 0."""
    views = {}
    for site, known in membership.remote.items():
        members = () if known.is_silent else tuple(member.address for member in known.members)
        views[site] = RemoteView(0, site, members, not known.is_silent)
    return views


class EventReader:
    """A reader that turns effective DATA records, in order, into events. It may start anywhere."""

    def __init__(self) -> None:
        self.known = KnownGroup()

    @property
    def view(self) -> ViewChange | None:
        """The newest view."""
        return self.known.view

    @property
    def remote(self) -> Mapping[str, RemoteView]:
        """The newest remote view of each neighbouring site."""
        return self.known.remote

    @property
    def flush_id(self) -> int:
        """The seqno of the running flush's START_FLUSH, 0 if no flush runs."""
        return self.known.flush_id

    @property
    def is_blocked(self) -> bool:
        """Whether a flush runs."""
        return bool(self.known.flush_id)

    def know_remote(self, membership: Membership) -> None:
        """Take the remote views from a state, in place of the records that led to it."""
        self.known = replace(self.known, remote={**self.known.remote, **remote_views(membership)})

    def accept(self, kind: str, seqno: int, view_id: int, sender: str, payload: bytes) -> Event | None:
        """Return the record's event, if any. Raises ProtocolViolation if the payload can't be read."""
        self.known, event = self.known.after(kind, seqno, view_id, sender, payload)
        return event
