"""The forward table: what a sender has sent and not yet seen back as DATA, sorted by local seqno.

Source: SEQUENCER (docs/sources.md), "Design" (forward-table) and "Reliability on failover": on a failover, everything
left in the table is sent again *in increasing order of local seqnos*.

Invariant: the table holds exactly the local seqnos `acknowledged + 1 … last`, without a hole. Since the sequencer
accepts a sender's messages in order only, seeing DATA of local seqno n means that all up to n are ordered.
A message that the life has taken over from an earlier one says under which id it was sent there (`carried_from`).
Bounded in records and in bytes: a sender that is ahead of the sequencer waits instead of filling its memory.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ordering.base.errors import ProtocolViolation
from ordering.base.records import JOIN, MESSAGE, Headers

KIND_HEADER = "abcast-kind"
"""Tells a control record from a message, in the table and the outbox: no application may use it."""


CARRIED_HEADER = "abcast-carried"
"""Where a message was sent before, in an earlier life: the same."""


class Pending(NamedTuple):
    """One entry: a message that may have to be sent again."""

    local_seqno: int
    payload: bytes
    headers: Headers


def control_headers(kind: str) -> Headers:
    """The headers of a control record of that kind."""
    return ((KIND_HEADER, kind.encode("ascii")),)


def is_control(pending: Pending) -> bool:
    """Whether it is a control record of the member's own, and no message of the application."""
    return bool(pending.headers) and pending.headers[0][0] == KIND_HEADER


def kind_of(pending: Pending) -> str:
    """The kind of its record."""
    return pending.headers[0][1].decode("ascii") if is_control(pending) else MESSAGE


def carried_over(pending: Pending, incarnation: int) -> Pending:
    """The entry of a life with that incarnation, as the next life takes it over."""
    was = f"{incarnation} {pending.local_seqno}".encode("ascii")
    return pending._replace(headers=((CARRIED_HEADER, was), *sent_headers(pending)))


def carried_from(pending: Pending) -> tuple[int, int] | None:
    """The incarnation and the local seqno that the message had in an earlier life; None if it had none."""
    if not pending.headers or pending.headers[0][0] != CARRIED_HEADER:
        return None
    incarnation, local_seqno = pending.headers[0][1].split()
    return int(incarnation), int(local_seqno)


def sent_headers(pending: Pending) -> Headers:
    """The headers of a message that are the application's."""
    return pending.headers if carried_from(pending) is None else pending.headers[1:]


def was_ordered(pending: Pending, incarnation: int, local_seqno: int) -> bool:
    """Whether a message that was taken over is ordered, as its earlier life is ordered up to there."""
    was = carried_from(pending)
    return was is not None and was[0] == incarnation and was[1] <= local_seqno


def message_bytes(payload: bytes, headers: Headers) -> int:
    """What a message counts against `max_bytes`."""
    size = len(payload)
    for name, value in headers:
        size += len(name) + len(value)
    return size


class ForwardTable:
    """Pending messages of one incarnation. Not thread-safe: the member locks around it.

    It has no object for each entry, which the garbage collector would look at again and again.
    """

    __slots__ = ("_bytes", "_headers", "_payloads", "last", "max_bytes", "max_records")

    def __init__(self, max_records: int, max_bytes: int, last: int = 0) -> None:
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.last = last
        self._payloads: deque[bytes] = deque()
        self._headers: deque[Headers] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def acknowledged(self) -> int:
        """The highest local seqno known to be ordered."""
        return self.last - len(self._payloads)

    def has_room(self, size: int) -> bool:
        """Whether one more message of `size` (`message_bytes`) fits. An empty table takes any single message."""
        if not self._payloads:
            return True
        return len(self._payloads) < self.max_records and self._bytes + size <= self.max_bytes

    def append(self, payload: bytes, headers: Headers) -> Pending:
        """Give the message the next local seqno and keep it."""
        self.last += 1
        self._payloads.append(payload)
        self._headers.append(headers)
        self._bytes += message_bytes(payload, headers)
        return Pending(self.last, payload, headers)

    def entry(self, local_seqno: int) -> Pending | None:
        """The entry of that number, if it is there. Quick near the beginning and the end."""
        at = local_seqno - self.acknowledged - 1
        if not 0 <= at < len(self._payloads):
            return None
        return Pending(local_seqno, self._payloads[at], self._headers[at])

    def acknowledge(self, local_seqno: int) -> int:
        """Forget everything up to `local_seqno`, whose DATA was seen; return how many were forgotten."""
        if local_seqno > self.last:
            raise ProtocolViolation(f"DATA of local seqno {local_seqno}, but only {self.last} were sent.")
        forgotten = max(0, local_seqno - self.acknowledged)
        for _ in range(forgotten):
            self._bytes -= message_bytes(self._payloads.popleft(), self._headers.popleft())
        return forgotten

    def take_out(self, incarnation: int, local_seqno: int) -> int:
        """Forget what was taken over from a life that is ordered up to there; return how many were forgotten.

        They stand right behind the JOIN. What stands behind them moves up, so nothing of that may have been sent.
        """
        entries = list(self.pending())
        stay = [entry for entry in entries if not was_ordered(entry, incarnation, local_seqno)]
        forgotten = len(entries) - len(stay)
        if forgotten:
            if kind_of(entries[0]) != JOIN:
                raise ProtocolViolation(f"local seqno {local_seqno} of {incarnation} is ordered behind the next JOIN.")
            self.last = self.acknowledged
            self._payloads.clear()
            self._headers.clear()
            self._bytes = 0
            for entry in stay:
                self.append(entry.payload, entry.headers)
        return forgotten

    def tail(self, count: int) -> Iterator[Pending]:
        """The last entries, so many, in increasing order of local seqnos."""
        for behind in range(count, 0, -1):
            yield Pending(self.last - behind + 1, self._payloads[-behind], self._headers[-behind])

    def pending(self) -> Iterator[Pending]:
        """The entries in increasing order of local seqnos: the order in which to send them again."""
        return map(Pending, itertools.count(self.acknowledged + 1), self._payloads, self._headers)
