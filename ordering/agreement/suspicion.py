"""A process's view of the others: which members it suspects, and which processes ask to join.

Every suspicion may be wrong. It decides only when a ballot is opened, and the members of a new value
(`ordering.agreement.views`).
"""

from __future__ import annotations

from typing import NamedTuple

from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.messages import Hears
from ordering.agreement.process import Hearing, ProcessInView, ProcessState

MAX_JOINERS = 64
"""Incarnations that may be waiting to join."""


class Reason(NamedTuple):
    """The reason to open a ballot: suspected members by place, and joiners that all others hear."""

    suspects: set[int]
    joiners: list[ProcessIncarnation]


def is_long_ago(state: ProcessState, process: ProcessIncarnation, at_ms: int) -> bool:
    """Whether a process that was last heard at that time has been silent for too long."""
    return state.now_ms - at_ms >= state.slower.get(process.name, state.suspect_after_ms)


def suspects(state: ProcessState) -> set[ProcessIncarnation]:
    """Return the other members of the view that have been silent for too long."""
    return {member for member, at_ms in state.heard.items() if member != state.me and is_long_ago(state, member, at_ms)}


class Suspicion:
    """A process's knowledge of when it has heard each other one."""

    def __init__(self, here: ProcessInView) -> None:
        self._here, self._state = here, here.state

    def hear(self, sender: ProcessIncarnation) -> None:
        """Note a message of a process."""
        if sender in self._state.heard:
            self._state.heard[sender] = self._state.now_ms

    def hear_join(self, sender: ProcessIncarnation) -> None:
        """Note that a process asks to join. A later incarnation replaces an earlier one."""
        state, members = self._state, self._state.view.members
        is_newest = all(member.incarnation < sender.incarnation for member in members if member.name == sender.name)
        if self._here.agreement is None or sender in self._here.places or not is_newest:
            return
        for earlier in [joiner for joiner in state.joiners if joiner.name == sender.name and joiner < sender]:
            del state.joiners[earlier]
        is_known = sender in state.joiners
        if is_known or len(state.joiners) < MAX_JOINERS:
            state.joiners[sender] = state.now_ms
        if not is_known:
            self.say_who_joins()

    def say_who_joins(self) -> None:
        """Report to all members the processes that ask to join."""
        if self._state.joiners:
            self._here.cast(Hears(self._state.view.id, tuple(sorted(self._state.joiners))))

    def take_hears(self, sender: ProcessIncarnation, message: Hears) -> None:
        """Take a member's report of the joiners that it hears."""
        self._state.hears[sender] = Hearing(sender, self._state.now_ms, message.joiners)

    def note_pace(self, name: str, suspect_after_ms: int) -> None:
        """Note after how long another process suspects. It beats by that, so it is suspected no earlier."""
        self._state.slower.pop(name, None)
        if suspect_after_ms > self._state.suspect_after_ms:
            self._state.slower[name] = suspect_after_ms

    def reason(self) -> Reason:
        """Return the reason to open a ballot, if any. Joiners that are silent are forgotten."""
        state, places = self._state, self._here.places
        state.joiners = {joiner: at for joiner, at in state.joiners.items() if not self._is_long_ago(joiner, at)}
        again = {joiner.name for joiner in state.joiners}
        suspects = {
            place
            for member, place in places.items()
            if member != state.me
            and (self._is_long_ago(member, state.heard[member]) or member.name in again or member in state.excluded)
        }
        if not state.joiners:
            return Reason(suspects, [])
        hearing: list[tuple[ProcessIncarnation, ...]] = []
        for member, place in places.items():
            if member != state.me and place not in suspects:
                heard = state.hears.get(member)
                hearing.append(() if heard is None or self._is_long_ago(member, heard.at_ms) else heard.joiners)
        return Reason(suspects, [each for each in sorted(state.joiners) if all(each in heard for heard in hearing)])

    def _is_long_ago(self, process: ProcessIncarnation, at_ms: int) -> bool:
        return is_long_ago(self._state, process, at_ms)

    def rank(self, suspects: set[int]) -> int:
        """Return the number of unsuspected members before this one. The first opens the ballot; others wait longer."""
        mine = self._here.places[self._state.me]
        return sum(place < mine for place in self._here.places.values() if place not in suspects)

    def enter_view(self) -> None:
        """Begin a view: all members were heard now, and the new members ask to join no longer."""
        state, members = self._state, self._state.view.members
        state.heard = dict.fromkeys(members, state.now_ms)
        state.joiners = {
            joiner: at
            for joiner, at in state.joiners.items()
            if not any(member.name == joiner.name and member >= joiner for member in members)
        }
        state.hears = {member: heard for member, heard in state.hears.items() if member in members}
