"""A plain process of the ISIS agreement: UDP around its machine (`connectors.isis.machine`). No Kafka, no JVM.

Source: Total Order Multicast (docs/sources.md), "UDP Client and Server".

It has one thread and one socket. Datagrams that have arrived are one step of the machine, at most `BATCH_DATAGRAMS`.
Any datagram may be lost, also because the socket does not take it.

Bounds: the machine's, `MAX_DELAYED` datagrams delayed on purpose, and the socket's buffers.
"""

from __future__ import annotations

import errno
import heapq
import random
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connectors.isis.hostfile import Host, digest
from connectors.isis.machine import TICK_MS, Event, IsisMachine, SentDatagram, fresh_process
from connectors.isis.wire import MAX_PAYLOAD_BYTES
from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.hold_back import Run
from ordering.agreement.process import SUSPECT_AFTER_MS
from ordering.agreement.views import Process
from ordering.base.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:  # it imports the sequencer
    from ordering.machine import Machine

BATCH_DATAGRAMS = 64
"""The most datagrams in a batch."""

SOCKET_BYTES = 4 * 1024 * 1024
"""The buffer to request from the socket in each direction; the machine may give less."""

MAX_DELAYED = 4_096
"""The most datagrams delayed on purpose; one more is sent at once."""


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
        self.faults = faults
        self._addresses = [host.address() for host in hosts]
        self._places = {address: place for place, address in enumerate(self._addresses)}
        if len(self._places) < len(hosts):
            twice = next(place for place, address in enumerate(self._addresses) if self._places[address] != place)
            again = self._places[self._addresses[twice]]
            raise UsageError(f"{hosts[twice]} and {hosts[again]} are the same place: one process a port.")
        self._socket = _bound(hosts[me], self._addresses[me])
        self._now_ms = _now_ms()
        names = [f"{place:03}" for place in range(len(hosts))]  # they sort like numbers
        incarnation = ProcessIncarnation(names[me], time.time_ns() // 1_000)
        process = fresh_process(incarnation, names, now_ms=self._now_ms, suspect_after_ms=suspect_after_ms)
        self._dice = random.Random()
        self.machine = IsisMachine(process, names, digest(hosts), dice=self._dice)
        self.rejected = self.machine.rejected
        self._delayed: list[tuple[float, int, tuple[str, int], bytes]] = []
        self._numbers = 0

    @property
    def process(self) -> Process:
        """The process through all views, in its present incarnation."""
        return self.machine.process

    def submit(self, payload: bytes) -> bool:
        """Take a message to be ordered; return False if the backlog is full. Raises UsageError if it is too large."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise UsageError(f"a message of {len(payload)} bytes is too large: {MAX_PAYLOAD_BYTES} at most.")
        return self.machine.submit(Run(payload))

    def work(self, timeout_s: float = TICK_MS / 1_000) -> list[Event]:
        """Wait for datagrams, take a step with them, and send the resulting messages; return the events.

        The machine gets all datagrams of a batch with the time at which they were found. The time of a long batch
        counts as nobody's silence.
        """
        due_s = self.machine.due_in_ms / 1_000
        wait_s = min([timeout_s, due_s, *(due - time.monotonic() for due, *_ in self._delayed[:1])])
        select.select([self._socket], (), (), max(0.0, wait_s))
        before_ms, self._now_ms = self._now_ms, _now_ms()
        machine: Machine[int, bytes, SentDatagram | Event] = self.machine
        machine.tick(self._now_ms - before_ms)
        for _ in range(BATCH_DATAGRAMS):
            if not self._receive():
                break
        events: list[Event] = []
        for output in machine.writes() or ():
            if isinstance(output, SentDatagram):
                self._send_datagram(self._addresses[output.place], output.datagram)
            else:
                events.append(output)
        self._send_delayed()
        return events

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _receive(self) -> bool:
        """Take a datagram, if one is there; return whether to look for another one."""
        try:
            raw, address = self._socket.recvfrom(65_536)
        except BlockingIOError:
            return False
        except ConnectionError:  # an earlier datagram found no process at its port
            return True
        place = self._places.get(address)
        if place is None:
            self.rejected["from an address that is not in the hostfile"] += 1
        else:
            self.machine.take(place, (raw,))
        return True

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


def _now_ms() -> int:
    return int(time.monotonic() * 1_000)
