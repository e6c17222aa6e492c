"""What a member sees of the membership, in the order of the log: `ViewChange`, `Block`, `Unblock`, `RemoteView`.

Source: FLUSH (docs/sources.md): BLOCK and UNBLOCK are events that go up the stack.

Who reads the DATA records of a group from any
view on sees `(block view* unblock)+`; a flush that is run from scratch is no second block. A member that joins within
a flush is blocked from its first view on.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from ordering.errors import ProtocolViolation
from ordering.membership import Life, Membership
from ordering.records import REMOTE_VIEW, START_FLUSH, STOP_FLUSH, VIEW


class ViewChange(NamedTuple):
    """A new view, in force from `seqno` on. `members` stand oldest first, `lives` has their incarnations, too."""

    seqno: int
    view_id: int
    lives: tuple[Life, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """The members' addresses, oldest first."""
        return tuple(life.address for life in self.lives)

    def at(self, site: str) -> tuple[str, ...]:
        """The members at a site, oldest first: one's own site's are its local view, another's its remote view."""
        return tuple(address for address in self.members if address.startswith(f"{site}/"))


class Block(NamedTuple):
    """A flush begins: finish what you have to say."""

    seqno: int
    requester: str


class Unblock(NamedTuple):
    """The flush is over."""

    seqno: int


class RemoteView(NamedTuple):
    """A neighbouring site of a mesh has these members, oldest first, as far as its relay tells.

    With `reachable` False, the site is unreachable: its relay was stopped, or is silent. What is sent there waits.
    """

    seqno: int
    site: str
    members: tuple[str, ...]
    reachable: bool = True


Event = ViewChange | Block | Unblock | RemoteView


class EventReader:
    """Turns effective DATA records, in order, into events. Start it anywhere."""

    def __init__(self) -> None:
        self.view: ViewChange | None = None
        self.remote: dict[str, RemoteView] = {}
        """The newest remote view of each neighbouring site."""
        self.is_blocked = False
        self.flush_id = 0
        """The flush in hand, 0 if there is none."""

    def know_remote(self, membership: Membership) -> None:
        """Take the remote views from a state, instead of the records that led to it."""
        for site, known in membership.remote.items():
            members = () if known.is_silent else tuple(life.address for life in known.members)
            self.remote[site] = RemoteView(0, site, members, not known.is_silent)

    def accept(self, kind: str, seqno: int, view_id: int, sender: str, payload: bytes) -> Event | None:
        """The event that the record is, if it is one. Raises ProtocolViolation for what no sequencer writes."""
        try:
            if kind == VIEW:
                return self._install(seqno, view_id, payload)
            if kind == REMOTE_VIEW:
                return self._look_over(seqno, sender, payload)
            if kind == START_FLUSH:
                requester = sender or str(json.loads(payload)["requester"])
                self.flush_id, was_blocked, self.is_blocked = seqno, self.is_blocked, True
                return None if was_blocked else Block(seqno, requester)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolViolation(f"the {kind} of seqno {seqno} can't be read: {error!r}") from error
        if kind == STOP_FLUSH and self.is_blocked:
            self.flush_id, self.is_blocked = 0, False
            return Unblock(seqno)
        return None

    def _look_over(self, seqno: int, sender: str, payload: bytes) -> RemoteView | None:
        """None if it says again what is known: after a takeover at the other site, or by a second relay."""
        body = json.loads(payload)
        site = sender.partition("/")[0] or str(body["site"])
        members = tuple(Life(*row).address for row in body["members"])
        event = RemoteView(seqno, site, members, bool(sender) or not body["silent"])
        known = self.remote.get(site)
        self.remote[site] = event
        return None if known is not None and known[1:] == event[1:] else event

    def _install(self, seqno: int, view_id: int, payload: bytes) -> ViewChange:
        body = json.loads(payload)
        self.flush_id = body["flush"]
        self.is_blocked = bool(self.flush_id)
        self.view = ViewChange(
            seqno,
            view_id,
            tuple(Life(*row) for row in body["members"]),
            tuple(body["joined"]),
            tuple(body["left"]),
            tuple(body["suspected"]),
        )
        return self.view
