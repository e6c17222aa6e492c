"""A plain ISIS process as a machine (`ordering.machine`): datagrams in, datagrams and deliveries out.

Source: Total Order Multicast (docs/sources.md), "Process".

Nothing is acknowledged here: the core repeats a question until it is answered, so any datagram may be lost. All
messages for a receiver that result from a step are packed into as few datagrams as possible.

A process stores nothing. Killed and restarted, it has a new incarnation: it joins the view of the others, and asks them
for earlier deliveries (`ordering.agreement.history`). Its incarnation is the time of its start. If the others know of a
later one, because the clock went back, it begins again with a later one. Several earlier starts may have done so, and
the others that it hears need not know of all of them. So the number is drawn.

Invariant. Only `writes` changes the history, and it returns all deliveries that result.

Bounds: the core's (runs in flight, backlog), the history's, and the assembly's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from connectors.isis.wire import (
    MAX_DATAGRAM_BYTES,
    DatagramAssembly,
    MalformedDatagram,
    Packet,
    Part,
    encode_message,
    pack,
    unpack,
)
from ordering.agreement.formation import Formation, ProcessIncarnation
from ordering.agreement.history import Ask, Gone, History, MissedDeliveries
from ordering.agreement.hold_back import Run
from ordering.agreement.messages import DeliverRun, Installed, Missing, Outside, Stuck, To
from ordering.agreement.process import SUSPECT_AFTER_MS, fresh
from ordering.agreement.views import Process
from ordering.base.records import MAX_NUMBER

TICK_MS = 10
"""The interval at which the core gets the time."""

MAX_SUSPECT_AFTER_MS = 3_600_000
"""The longest suspicion timeout that is accepted from another process."""

LATER_BY = 1_000_000
"""The range of the numbers from which a process that begins again draws how much later it is."""


class SentDatagram(NamedTuple):
    """A datagram for the process at a place."""

    place: int
    datagram: bytes


class BegunAgain(NamedTuple):
    """The others know of a later start of this process, so its clock went back. It has a new incarnation now."""

    incarnation: ProcessIncarnation


Event = DeliverRun | Gone | Installed | Outside | Stuck | BegunAgain
"""The events of a process for its application."""


def fresh_process(
    me: ProcessIncarnation, names: Sequence[str], *, now_ms: int, suspect_after_ms: int = SUSPECT_AFTER_MS
) -> Process:
    """Return a process that remembers nothing. The only one of its group begins the first view at once."""
    process = Process(fresh(me, now_ms=now_ms, suspect_after_ms=suspect_after_ms), Formation(me, names))
    if len(names) == 1:
        process.begin_alone()
    return process


class IsisMachine:
    """A process of a group. `names` has the names by place, `group` is the digest that marks the group's datagrams."""

    def __init__(
        self,
        process: Process,
        names: Sequence[str],
        group: bytes,
        *,
        dice: random.Random,
        history: History | None = None,
        largest: int = MAX_DATAGRAM_BYTES,
    ) -> None:
        self.process, self.history = process, history or History()
        self.rejected: Counter[str] = Counter()
        """The number of rejected datagrams, and of messages in parts, by reason."""
        self.is_due = True
        self._names, self._group, self._dice, self._largest = names, group, dice, largest
        self._places = {name: place for place, name in enumerate(names)}
        self._me = self._places[process.me.name]
        self._assembly = DatagramAssembly()
        self._of_history: list[tuple[ProcessIncarnation, Ask | MissedDeliveries]] = []
        self._outgoing: dict[int, list[Packet]] = {}
        self._due_in_ms = 0

    @property
    def due_in_ms(self) -> int:
        """The time after which the core is due to get the time."""
        return max(0, self._due_in_ms)

    def take(self, place: int, records: Sequence[bytes]) -> None:
        """Take datagrams from the address of the process at this place."""
        self.is_due = True
        for raw in records:
            try:
                datagram = unpack(self._group, raw)
                if datagram.sender != place or place == self._me:
                    raise MalformedDatagram("under another's id")
            except MalformedDatagram as error:
                self.rejected[str(error)] += 1
                continue
            sender = ProcessIncarnation(self._names[place], datagram.incarnation)
            self.process.note_pace(sender.name, min(datagram.suspect_after_ms, MAX_SUSPECT_AFTER_MS))
            for message in self._whole(place, datagram.messages):
                if isinstance(message, Ask | MissedDeliveries):
                    self._of_history.append((sender, message))
                else:
                    self.process.receive(sender, message)

    def submit(self, run: Run) -> bool:
        """Take a run of the process's own; return False if its backlog is full."""
        self.is_due = True
        return self.process.submit(run)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass. Nobody is suspected before the end of the step, which may have messages of that time."""
        self.is_due = True
        self._due_in_ms -= elapsed_ms
        self.process.wake(self.process.state.now_ms + elapsed_ms)

    def writes(self) -> list[SentDatagram | Event] | None:
        """End the step: return its datagrams, then its events; None if no step has begun."""
        if not self.is_due:
            return None
        self.is_due = False
        if self._due_in_ms <= 0:
            self._due_in_ms = TICK_MS
            self.process.tick(self.process.state.now_ms)
        events = self._events()
        sent = list(self._datagrams())
        latest = self.process.latest_incarnation
        if self.process.me.incarnation < latest < MAX_NUMBER:
            events.append(self._begin_again(min(latest + 1 + self._dice.randrange(LATER_BY), MAX_NUMBER)))
        return [*sent, *events]

    def _events(self) -> list[Event]:
        """Return the step's events, and put its messages into `_outgoing`."""
        events: list[Event] = []
        for sender, message in self._of_history:
            if isinstance(message, Ask):
                self._tell(sender, self.history.answer(message))
            else:
                events += self.history.fill(sender, message, self._others())
        self._of_history.clear()
        for output in self.process.end_batch():
            if isinstance(output, To):
                self._tell(output.receiver, output.message)
            elif isinstance(output, DeliverRun):
                events += self.history.add(output)
            elif isinstance(output, Missing):
                self.history.miss(output.last)
            elif isinstance(output, Installed | Outside | Stuck):
                events.append(output)  # not `Refused`: `submit` has returned False for it
        if self.history.is_filling:
            question = self.history.question(self.process.state.now_ms, self._others())
            if question is not None:
                self._tell(*question)
        return events

    def _others(self) -> list[ProcessIncarnation]:
        return [member for member in self.process.view.members if member != self.process.me]

    def _begin_again(self, incarnation: int) -> BegunAgain:
        """Begin a new incarnation, which takes over the backlog."""
        state, me = self.process.state, self.process.me._replace(incarnation=incarnation)
        self.process = fresh_process(me, self._names, now_ms=state.now_ms, suspect_after_ms=state.suspect_after_ms)
        for run in state.backlog:
            self.process.submit(run)
        return BegunAgain(me)

    def _whole(self, place: int, messages: Iterable[Packet | Part]) -> Iterator[Packet]:
        """Yield the messages; one in parts is yielded with its last part."""
        for message in messages:
            if not isinstance(message, Part):
                yield message
                continue
            try:
                yield from self._assembly.take(place, message)
            except MalformedDatagram as error:
                self.rejected[str(error)] += 1

    def _tell(self, receiver: ProcessIncarnation, message: Packet) -> None:
        self._outgoing.setdefault(self._places[receiver.name], []).append(message)

    def _datagrams(self) -> Iterator[SentDatagram]:
        """Yield the outgoing messages, packed. A message to several processes is encoded once."""
        encoded: dict[int, list[bytes]] = {}
        incarnation, suspect_after_ms = self.process.me.incarnation, self.process.state.suspect_after_ms
        for place, messages in self._outgoing.items():
            parts: list[bytes] = []
            for message in messages:
                if id(message) not in encoded:
                    encoded[id(message)] = list(encode_message(message))
                parts += encoded[id(message)]
            for datagram in pack(self._group, self._me, incarnation, parts, suspect_after_ms, self._largest):
                yield SentDatagram(place, datagram)
        self._outgoing = {}
