"""A plain process of the ISIS agreement: UDP around `ordering.agreement.views`. No Kafka, no JVM.

Source: Total Order Multicast (docs/sources.md), "Process" and "UDP Client and Server".

It has one thread and one socket. Datagrams that have arrived are taken as one batch (at most `BATCH_DATAGRAMS`), and
all messages that result for a receiver are packed into as few datagrams as possible. Nothing is acknowledged here: the
core repeats a question until it is answered, so any datagram may be lost, also because the socket does not take it.

A process stores nothing. Killed and restarted, it has a new incarnation: it joins the view of the others, and asks them
for earlier deliveries (`ordering.agreement.history`). Its incarnation is the time of its start. If the others know of a
later one, because the clock went back, it begins again with one above that.

Bounds: the core's (runs in flight, backlog), the history's, `MAX_DELAYED` datagrams delayed on purpose, and the
socket's buffers.
"""

from __future__ import annotations

import errno
import heapq
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from connectors.isis.hostfile import Host, digest
from connectors.isis.wire import (
    MAX_PAYLOAD_BYTES,
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
from ordering.agreement.state import Refused
from ordering.agreement.views import Process
from ordering.base.errors import EnvironmentProblem, UsageError
from ordering.base.records import MAX_NUMBER

TICK_S = 0.01
"""The interval at which the core gets the time."""

BATCH_DATAGRAMS = 64
"""The most datagrams in a batch."""

SOCKET_BYTES = 4 * 1024 * 1024
"""The buffer to request from the socket in each direction; the machine may give less."""

MAX_SUSPECT_AFTER_MS = 3_600_000
"""The longest suspicion timeout that is accepted from another process."""

MAX_DELAYED = 4_096
"""The most datagrams delayed on purpose; one more is sent at once."""


class BegunAgain(NamedTuple):
    """The others know of a later start of this process, so its clock went back. It has a new incarnation now."""

    incarnation: ProcessIncarnation


Event = DeliverRun | Gone | Installed | Outside | Stuck | BegunAgain
"""The events of a process for its application."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to inject into sent datagrams; probabilities from 0 to 1."""

    drop: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    max_delay_s: float = 0.25


NO_FAULTS = Faults()
DELAYS = Faults(delay=0.2)
"""The source's "delays" mode: some datagrams are delayed by a random time."""


def name_of(place: int) -> str:
    """Return the name of the process in that line of the hostfile: names sort like numbers."""
    return f"{place:03}"


class IsisProcess:
    """The process in line `me` of the hostfile. Not thread-safe; `close` it."""

    def __init__(
        self,
        hosts: Sequence[Host],
        me: int,
        *,
        faults: Faults = NO_FAULTS,
        suspect_after_ms: int = SUSPECT_AFTER_MS,
    ) -> None:
        """Open the socket. Raises UsageError for an unsuitable hostfile, EnvironmentProblem for an unavailable port."""
        if not 0 <= me < len(hosts):
            raise UsageError(f"there is no process {me}: the hostfile has 0 to {len(hosts) - 1}.")
        self.me, self.faults = me, faults
        self.rejected: Counter[str] = Counter()
        self._addresses = [host.address() for host in hosts]
        self._places = {address: place for place, address in enumerate(self._addresses)}
        if len(self._places) < len(hosts):
            twice = next(place for place, address in enumerate(self._addresses) if self._places[address] != place)
            again = self._places[self._addresses[twice]]
            raise UsageError(f"{hosts[twice]} and {hosts[again]} are the same place: one process a port.")
        self._group = digest(hosts)
        self._socket = _bound(hosts[me], self._addresses[me])
        self._suspect_after_ms = suspect_after_ms
        self.process = self._begun(time.time_ns() // 1_000)
        self._history, self._assembly = History(), DatagramAssembly()
        self._delayed: list[tuple[float, int, tuple[str, int], bytes]] = []
        self._dice = random.Random()
        self._numbers = 0
        self._next_tick = 0.0
        if len(hosts) == 1:
            self.process.begin_alone()

    def _begun(self, incarnation: int) -> Process:
        me = ProcessIncarnation(name_of(self.me), incarnation)
        formation = Formation(me, [name_of(place) for place in range(len(self._addresses))])
        now_ms = _in_ms(time.monotonic())
        return Process(fresh(me, now_ms=now_ms, suspect_after_ms=self._suspect_after_ms), formation)

    def _begin_again(self, incarnation: int) -> None:
        """Begin a new incarnation, which takes over the backlog."""
        waiting = self.process.state.backlog
        self.process = self._begun(incarnation)
        for run in waiting:
            self.process.submit(run)

    @property
    def incarnation(self) -> ProcessIncarnation:
        """The incarnation of the process."""
        return self.process.me

    def submit(self, payload: bytes) -> bool:
        """Take a message to be ordered; return False if the backlog is full. Raises UsageError if it is too large."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise UsageError(f"a message of {len(payload)} bytes is too large: {MAX_PAYLOAD_BYTES} at most.")
        return self.process.submit(Run(payload))

    def work(self, timeout_s: float = TICK_S) -> list[Event]:
        """Wait for datagrams or the next tick, process them, and send the resulting messages; return the events.

        The core gets all datagrams of a batch with the time at which they were found. The time of a long batch counts
        as nobody's silence.
        """
        now = time.monotonic()
        until = min([self._next_tick, *(due for due, *_ in self._delayed[:1])])
        select.select([self._socket], (), (), max(0.0, min(timeout_s, until - now)))
        now = time.monotonic()
        self.process.wake(_in_ms(now))
        outgoing: dict[str, list[Packet]] = {}
        events: list[Event] = []
        for _ in range(BATCH_DATAGRAMS):
            if not self._receive(outgoing, events):
                break
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            self._tick(_in_ms(now), outgoing)
        for output in self.process.end_batch():
            if isinstance(output, To):
                outgoing.setdefault(output.receiver.name, []).append(output.message)
            elif isinstance(output, DeliverRun):
                events += self._history.add(output)
            elif isinstance(output, Missing):
                self._history.miss(output.last)
            elif isinstance(output, Installed | Outside | Stuck):
                events.append(output)
            else:
                assert isinstance(output, Refused)  # `submit` has returned False for it
        self._send(outgoing)
        self._send_delayed()
        latest = self.process.latest_incarnation
        if self.process.me.incarnation < latest < MAX_NUMBER:
            self._begin_again(latest + 1)
            events.append(BegunAgain(self.incarnation))
        return events

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _receive(self, outgoing: dict[str, list[Packet]], events: list[Event]) -> bool:
        try:
            raw, address = self._socket.recvfrom(65_536)
        except BlockingIOError:
            return False
        except ConnectionError:  # an earlier datagram found no process at its port
            return True
        place = self._places.get(address)
        try:
            if place is None:
                raise MalformedDatagram("from an address that is not in the hostfile")
            datagram = unpack(self._group, raw)
            if datagram.sender != place or place == self.me:
                raise MalformedDatagram("under another's id")
        except MalformedDatagram as error:
            self.rejected[str(error)] += 1
            return True
        sender = ProcessIncarnation(name_of(place), datagram.incarnation)
        self.process.note_pace(sender.name, min(datagram.suspect_after_ms, MAX_SUSPECT_AFTER_MS))
        for message in self._whole(place, datagram.messages):
            if isinstance(message, Ask):
                outgoing.setdefault(sender.name, []).append(self._history.answer(message))
            elif isinstance(message, MissedDeliveries):
                events += self._history.fill(sender, message, self._others())
            else:
                self.process.receive(sender, message)
        return True

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

    def _tick(self, now_ms: int, outgoing: dict[str, list[Packet]]) -> None:
        self.process.tick(now_ms)
        question = self._history.question(now_ms, self._others())
        if question is not None:
            outgoing.setdefault(question[0].name, []).append(question[1])

    def _others(self) -> list[ProcessIncarnation]:
        return [member for member in self.process.view.members if member != self.incarnation]

    def _send(self, outgoing: dict[str, list[Packet]]) -> None:
        encoded: dict[int, list[bytes]] = {}
        for name, messages in outgoing.items():
            parts: list[bytes] = []
            for message in messages:
                if id(message) not in encoded:
                    encoded[id(message)] = list(encode_message(message))
                parts += encoded[id(message)]
            address = self._addresses[int(name)]
            for datagram in pack(self._group, self.me, self.process.me.incarnation, parts, self._suspect_after_ms):
                self._send_datagram(address, datagram)

    def _send_datagram(self, address: tuple[str, int], datagram: bytes) -> None:
        faults = self.faults
        if faults is not NO_FAULTS:
            if self._dice.random() < faults.drop:
                return
            if self._dice.random() < faults.repeat:
                self._put(address, datagram)
            if self._dice.random() < faults.delay and len(self._delayed) < MAX_DELAYED:
                self._numbers += 1
                due = time.monotonic() + self._dice.random() * faults.max_delay_s
                heapq.heappush(self._delayed, (due, self._numbers, address, datagram))
                return
        self._put(address, datagram)

    def _send_delayed(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, address, datagram = heapq.heappop(self._delayed)
            self._put(address, datagram)

    def _put(self, address: tuple[str, int], datagram: bytes) -> None:
        try:
            self._socket.sendto(datagram, address)
        except OSError as error:  # as if it had been lost on its way
            self.rejected[f"not sent: {errno.errorcode.get(error.errno or 0, 'unknown')}"] += 1


def counted(process: IsisProcess) -> Iterator[str]:
    """Yield a text for each reason why datagrams, or messages of the present view, were rejected, with their number."""
    for why, count in sorted(process.rejected.items()):
        yield f"{count} datagrams {why}"
    for drop, count in sorted(process.process.dropped.items()):
        yield f"{count} runs, proposals or numbers {drop}"


def _bound(host: Host, address: tuple[str, int]) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        bound.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise EnvironmentProblem(f"port {host.port} is in use: does process {host} run already?") from error
        raise EnvironmentProblem(
            f"process {host} can't listen at {address[0]}: {error.strerror}. Is --id the line of this machine?"
        ) from error
    bound.setblocking(False)
    return bound


def _in_ms(seconds: float) -> int:
    return int(seconds * 1_000)
