"""The forward table: the records that a sender has sent and not yet read back as DATA, sorted by local seqno.

Source: SEQUENCER (docs/sources.md), "Design" (forward-table) and "Reliability on failover": on a failover, everything
left in the table is sent again *in increasing order of local seqnos*.

Invariant. The table holds exactly the local seqnos `acknowledged + 1 … last`, without a hole. The sequencer accepts a
sender's records in order only. So DATA of local seqno n proves that all up to n are ordered.
A message carried over from an earlier incarnation has the id under which it was sent there (`carried_from`).
The table is bounded in records and in bytes: a sender that is ahead of the sequencer waits.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ordering.base.errors import ProtocolViolation
from ordering.base.records import JOIN, MESSAGE, Headers

KIND_HEADER = "abcast-kind"
"""The header that marks a control record in the table and the outbox. No application may use it."""


CARRIED_HEADER = "abcast-carried"
"""The header with the id of a message in an earlier incarnation. No application may use it."""


class Pending(NamedTuple):
    """An entry of the table, which may have to be sent again."""

    local_seqno: int
    payload: bytes
    headers: Headers


def control_headers(kind: str) -> Headers:
    """Return the headers of a control record of this kind."""
    return ((KIND_HEADER, kind.encode("ascii")),)


def is_control(pending: Pending) -> bool:
    """Whether the entry is a control record, and no message of the application."""
    return bool(pending.headers) and pending.headers[0][0] == KIND_HEADER


def kind_of(pending: Pending) -> str:
    """Return the kind of the entry's FORWARD record."""
    return pending.headers[0][1].decode("ascii") if is_control(pending) else MESSAGE


def carried_over(pending: Pending, incarnation: int) -> Pending:
    """Return the entry of this incarnation as the next one carries it over."""
    was = f"{incarnation} {pending.local_seqno}".encode("ascii")
    return pending._replace(headers=((CARRIED_HEADER, was), *sent_headers(pending)))


def carried_from(pending: Pending) -> tuple[int, int] | None:
    """Return the earlier incarnation and local seqno of a message that was carried over; None for any other."""
    if not pending.headers or pending.headers[0][0] != CARRIED_HEADER:
        return None
    incarnation, local_seqno = pending.headers[0][1].split()
    return int(incarnation), int(local_seqno)


def sent_headers(pending: Pending) -> Headers:
    """Return the application's headers of a message."""
    return pending.headers if carried_from(pending) is None else pending.headers[1:]


def was_ordered(pending: Pending, incarnation: int, local_seqno: int) -> bool:
    """Whether a message was carried over from `incarnation` and is ordered there, being at most `local_seqno`."""
    was = carried_from(pending)
    return was is not None and was[0] == incarnation and was[1] <= local_seqno


def message_bytes(payload: bytes, headers: Headers) -> int:
    """Return the size of a message as it counts against `max_bytes`."""
    size = len(payload)
    for name, value in headers:
        size += len(name) + len(value)
    return size


def bytes_of_all(payloads: Sequence[bytes], headers: Headers) -> int:
    """Return the size of messages with the same headers, as they count against `max_bytes`."""
    size = sum(map(len, payloads))
    return size + len(payloads) * message_bytes(b"", headers) if headers else size


class ForwardTable:
    """The pending records of one incarnation. Not thread-safe: the member locks around it.

    It keeps no object for each entry, since the garbage collector would visit each one again and again. Entries come in
    with one call into C: so an exception that a signal raises (Ctrl-C) leaves all of them, or none.
    """

    __slots__ = ("_bytes", "_entries", "acknowledged", "max_bytes", "max_records")

    def __init__(self, max_records: int, max_bytes: int, last: int = 0) -> None:
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.acknowledged = last
        """The highest local seqno that is known to be ordered."""
        self._entries: deque[Any] = deque()  # the payload and the headers of each in turn
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries) // 2

    @property
    def last(self) -> int:
        """The highest local seqno in use."""
        return self.acknowledged + len(self._entries) // 2

    def has_room(self, size: int, count: int = 1) -> bool:
        """Whether `count` more messages of `size` in all (`message_bytes`) fit. An empty table takes any single one."""
        kept = len(self._entries) // 2
        if not kept and count == 1:
            return True
        return kept + count <= self.max_records and self._bytes + size <= self.max_bytes

    def may_hold(self, size: int, count: int) -> bool:
        """Whether so many messages fit when the table is empty."""
        return count == 1 or (count <= self.max_records and size <= self.max_bytes)

    def append(self, payload: bytes, headers: Headers) -> Pending:
        """Keep the message under the next local seqno, even if it has no room. Return the entry."""
        return Pending(self.extend((payload,), headers, message_bytes(payload, headers)), payload, headers)

    def extend(self, payloads: Sequence[bytes], headers: Headers, size: int) -> int:
        """Keep messages of `size` in all (`bytes_of_all`) under the next local seqnos, even if they have no room.

        Return the last local seqno.
        """
        parts: list[Any] = [headers] * (2 * len(payloads))
        parts[::2] = payloads
        self._entries.extend(parts)
        self._bytes += size
        return self.acknowledged + len(self._entries) // 2

    def entry(self, local_seqno: int) -> Pending | None:
        """Return the entry with this local seqno, or None. Quick near the beginning and the end."""
        at = local_seqno - self.acknowledged - 1
        if not 0 <= at < len(self):
            return None
        return Pending(local_seqno, self._entries[2 * at], self._entries[2 * at + 1])

    def acknowledge(self, local_seqno: int) -> int:
        """Drop the entries up to `local_seqno`, whose DATA was read; return their number.

        Raises ProtocolViolation if that local seqno was not sent yet.
        """
        if local_seqno > self.last:
            raise ProtocolViolation(f"DATA of local seqno {local_seqno}, but only {self.last} were sent.")
        dropped = max(0, local_seqno - self.acknowledged)
        pop = self._entries.popleft
        parts = [pop() for _ in range(2 * dropped)]
        self._bytes -= sum(map(len, parts[::2]))
        self._bytes -= sum(message_bytes(b"", headers) for headers in parts[1::2] if headers)
        self.acknowledged += dropped
        return dropped

    def take_out(self, incarnation: int, local_seqno: int) -> int:
        """Drop the messages carried over from an incarnation that is ordered up to `local_seqno`; return their number.

        They lie right behind the JOIN. The entries behind them get lower local seqnos, so none of these may be sent
        yet. Raises ProtocolViolation if the JOIN was acknowledged before.
        """
        entries = list(self.pending())
        stay = [entry for entry in entries if not was_ordered(entry, incarnation, local_seqno)]
        dropped = len(entries) - len(stay)
        if dropped:
            if kind_of(entries[0]) != JOIN:
                raise ProtocolViolation(f"local seqno {local_seqno} of {incarnation} is ordered behind the next JOIN.")
            self._entries.clear()
            self._bytes = 0
            for entry in stay:
                self.append(entry.payload, entry.headers)
        return dropped

    def oldest(self, count: int) -> tuple[list[bytes], list[Headers]]:
        """Return the payloads and the headers of the first `count` entries, or of all if there are fewer."""
        parts = list(itertools.islice(self._entries, 2 * count))
        return parts[::2], parts[1::2]

    def between(self, first: int, last: int) -> tuple[list[bytes], list[Headers]]:
        """Return the payloads and the headers of the entries from local seqno `first` to `last`. Quick near the end."""
        behind = self.last - last
        parts = list(itertools.islice(reversed(self._entries), 2 * behind, 2 * (behind + last - first + 1)))
        return parts[::-2], parts[-2::-2]

    def pending(self) -> Iterator[Pending]:
        """Iterate over the entries in increasing order of local seqnos: the order in which to send them again."""
        entries = iter(self._entries)
        return map(Pending, itertools.count(self.acknowledged + 1), entries, entries)
