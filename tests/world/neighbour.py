"""A neighbouring site of a mesh, as its relay reports it: its views, its takeovers, and a relay that may die or stop.

The model of `connectors.relay.rules` (which carries every view in DATA, leftovers of a fenced sequencer, too) and
of `connectors.relay.presence` (which tells the view in force once all before it is carried, and says that it is
there).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ordering.base.names import relay_of
from ordering.base.records import HEARTBEAT, LEAVE, REMOTE_VIEW
from ordering.membership.membership import MemberIncarnation

SITE = "far"

Send = Callable[[str, str, int, int, bytes], None]
"""Writes a FORWARD record: sender, kind, incarnation, local seqno, payload."""


class View(NamedTuple):
    """A view, and the epoch that decided it."""

    epoch: int
    view_id: int
    members: tuple[MemberIncarnation, ...]

    def payload(self) -> bytes:
        return json.dumps({"members": self.members}).encode("ascii")


@dataclass
class Relay:
    """A start of a relay process: its position, its reports, and reports to come."""

    position: int
    told_epoch: int = 0
    waiting: View | None = None
    waits_for: int = 0


class Neighbour:
    """The other site. `in_force` is what all must know of it in the end."""

    def __init__(self, dice: random.Random, send: Send) -> None:
        self._dice = dice
        self._send = send
        self._epoch = 1
        self._lives = 0
        self._carried = 0
        self.in_force = self._next_view()
        self._log = [self.in_force]
        self._relay: Relay | None = None

    def _next_view(self) -> View:
        """The next view of a sequencer that knows `in_force`."""
        members = tuple(
            MemberIncarnation(f"{SITE}/{name}", self._lives + 1) for name in "xyz" if self._dice.random() < 0.5
        )
        self._lives += 1
        last_id = self.in_force.view_id if self._lives > 1 else 0
        return View(self._epoch, last_id + 1, members)

    def change_view(self) -> None:
        """Somebody joined or left there."""
        self.in_force = self._next_view()
        self._log.append(self.in_force)

    def take_over(self) -> None:
        """Another sequencer there; the one before may still write a view or two behind its seal."""
        last, self._epoch = self._epoch, self._epoch + 1
        for ahead in range(self._dice.randint(0, 2)):
            leftover = self._next_view()
            self._log.append(leftover._replace(epoch=last, view_id=leftover.view_id + ahead))

    def start_relay(self) -> None:
        """A relay goes on after the last record that was carried, or repeats some."""
        self._relay = Relay(self._dice.randint(0, self._carried) if self._dice.random() < 0.3 else self._carried)

    def kill_relay(self) -> None:
        """kill -9."""
        self._relay = None

    def stop_relay(self) -> None:
        """Stop the relay: its leave may get lost."""
        if self._relay is not None and self._dice.random() < 0.8:
            self._tell(LEAVE)
        self._relay = None

    def work(self) -> None:
        """The relay carries something, and says what there is to say."""
        relay = self._relay
        if relay is None:
            return
        for view in self._log[relay.position : relay.position + self._dice.randint(0, 3)]:
            self._tell(REMOTE_VIEW, view)
            relay.position += 1
            self._carried = max(self._carried, relay.position)
        in_force = self.in_force._replace(epoch=self._epoch)
        if relay.waiting is None and in_force.epoch > relay.told_epoch:
            relay.waiting, relay.waits_for = in_force, len(self._log)
        if relay.waiting is not None and relay.position >= relay.waits_for:
            self._tell(REMOTE_VIEW, relay.waiting)
            relay.told_epoch, relay.waiting = relay.waiting.epoch, None
        self._tell(HEARTBEAT)

    def heal(self) -> None:
        """From now on there is a relay."""
        if self._relay is None:
            self.start_relay()
        self.work()

    def _tell(self, kind: str, view: View | None = None) -> None:
        if view is None:
            self._send(relay_of(SITE), kind, 1, 1, b"")
        else:
            self._send(relay_of(SITE), kind, view.epoch, view.view_id, view.payload())
