"""The records of the protocol: FORWARD, DATA, dead letters. Plain values; the codec gives them their form on Kafka.

Source: SEQUENCER (docs/sources.md), "Design": its headers FORWARD and DATA.
docs/records.md describes every record on Kafka.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ordering.base.formats import FIRST, Format

Headers = tuple[tuple[str, bytes], ...]
"""The application's headers of a message, in the order given."""

# The names of kinds, each with a row in `ordering.base.kinds`.
MESSAGE = "message"
MESSAGES = "messages"
EPOCH = "epoch"
STRAY = "(stray)"
"""The kind of a record in DATA that no sequencer wrote. No record on Kafka can name this kind."""
STRAY_EPOCH = -1
"""The epoch of a stray: below every real one, so that the reading rule drops it as stale."""
LETTER = "letter"
STATE = "state"
JOIN = "join"
LEAVE = "leave"
HEARTBEAT = "heartbeat"
SETTINGS = "settings"
FORGET = "forget"
START_FLUSH = "start-flush"
FLUSH_OK = "flush-ok"
FLUSH_COMPLETED = "flush-completed"
STOP_FLUSH = "stop-flush"
VIEW = "view"
REFUSED = "refused"
RESTORED = "restored"
REMOTE_VIEW = "remote-view"
SKIP = "skip"
LINK_START = "link-start"
ENTRY = "entry"

MAX_PAYLOAD_BYTES = 1_000_000
"""Largest payload of a message, in bytes. A larger one is refused by the client and dead-lettered by the sequencer."""

MAX_HEADERS_BYTES = 65_536
"""Largest total of the names and values of a message's application headers, in bytes."""

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Largest record that abcast writes, in bytes: a snapshot of a very large group. Topics and brokers must allow it."""

MAX_NUMBER = 10**18 - 1
"""Largest incarnation or local seqno: 18 digits, so that every language's 64-bit integers hold it."""

INCARNATIONS_A_MS = 100_000
"""Incarnations in a millisecond: an incarnation is at most the time since 1970 in units of 10 ns."""

CLOCK_AHEAD_MS = 24 * 3600 * 1000
"""Largest lead of a sender's clock over the broker's, in ms. An incarnation beyond it is refused: it would block its
name until that time comes."""


def headers_bytes(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the bytes of names and values.

    A header counts as at least one byte: Kafka allows a null value and an empty name.
    """
    return sum(max(1, len(name.encode("utf-8", "replace")) + len(value or b"")) for name, value in headers)


class Partition(NamedTuple):
    """A partition of a topic, equal to kafka-python's `TopicPartition`. Its text is `topic-number`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @classmethod
    @functools.lru_cache(maxsize=10_000)  # each comes with many records
    def parse(cls, text: str) -> Partition:
        """Return the inverse of `str`. Raises ValueError."""
        topic, _, number = text.rpartition("-")
        if not topic:
            raise ValueError(f"not a partition: {text!r}")
        return cls(topic, int(number))


def named_partitions(numbers: Mapping[Partition, int]) -> dict[str, int]:
    """Return the numbers by the text of their partitions, for a JSON object."""
    return {str(partition): number for partition, number in numbers.items()}


def parsed_partitions(body: Mapping[str, int]) -> dict[Partition, int]:
    """Return the inverse of `named_partitions`. Raises ValueError."""
    return {Partition.parse(name): number for name, number in body.items()}


class Source(NamedTuple):
    """The place of a FORWARD record. Sorting by it gives the log order of a batch (`ordering.sequencer.sequencer`)."""

    topic: str
    partition: int
    offset: int

    @property
    def topic_partition(self) -> Partition:
        """The partition of the record."""
        return Partition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Source:
        """Return the inverse of `str`. Raises ValueError."""
        partition, _, offset = text.rpartition(":")
        return cls(*Partition.parse(partition), int(offset))


class Link(NamedTuple):
    """The header of a record that crossed a link between two sites of a mesh (`ordering.sequencer.links`).

    `session` belongs to the link. `epoch` and `seqno` are the record's in the neighbour's DATA; an epoch record has the
    seqno 0. `origin_seqno` is a message's seqno at its sender's site, and 0 for any other kind.
    """

    session: int
    epoch: int
    seqno: int
    origin_seqno: int

    def __str__(self) -> str:
        return f"{self.session}.{self.epoch}.{self.seqno}.{self.origin_seqno}"


class MessageId(NamedTuple):
    """The identity of a message, however often one incarnation sends it: (member, incarnation, local seqno)."""

    sender: str
    incarnation: int
    local_seqno: int

    def __str__(self) -> str:
        return f"{self.sender}#{self.incarnation}.{self.local_seqno}"


@dataclass(frozen=True, slots=True)
class Forward:
    """A record from a member to the sequencer. `timestamp_ms` is the broker's (ms since 1970, UTC).

    A pack, of the kind `messages`, has `count` messages, at least two, with local seqnos from `local_seqno` on.
    """

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    source: Source
    headers: Headers = ()
    kind: str = MESSAGE
    timestamp_ms: int = 0
    link: Link | None = None
    count: int = 1

    @property
    def id(self) -> MessageId:
        """The identity of the message, of a pack's first one."""
        return MessageId(self.sender, self.incarnation, self.local_seqno)

    @property
    def last_local_seqno(self) -> int:
        """The last local seqno that the record takes."""
        return self.local_seqno + self.count - 1


@dataclass(frozen=True, slots=True)
class Malformed:
    """A FORWARD record that the codec could not read, and why."""

    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """A record from the sequencer to every member.

    `source` names the FORWARD record it came from, and `forwarded_at_ms` is the broker's time of that record. The
    sequencer's own decisions (a view, a step of its flush) have a seqno, but neither sender nor source.

    A record of the kind `epoch` takes no seqno: `seqno` is 0, and there is no sender. Its payload is empty (a seal) or
    a snapshot: the sequencer's state after every effective record before it. A seal carries the group's `format`
    (`ordering.base.formats`).

    A record of the kind `entry` takes no seqno either. It belongs to a site's log (`ordering.agreement.log`), under the
    number `local_seqno`.

    Any other record takes `count` seqnos from `seqno` on: a pack, of the kind `messages`, one for each of its messages
    (`ordering.base.packs`); the mark of a restore, of the kind `restored`, one for each that is never given again; each
    other kind that this version knows, one. Its `view` is the number of the newest view,
    a view's own included.
    """

    kind: str
    epoch: int
    seqno: int = 0
    view: int = 0
    sender: str = ""
    incarnation: int = 0
    local_seqno: int = 0
    payload: bytes = b""
    source: Source | None = None
    headers: Headers = ()
    forwarded_at_ms: int = 0
    link: Link | None = None
    count: int = 1
    format: Format = FIRST

    @property
    def id(self) -> MessageId:
        """The message's identity."""
        return MessageId(self.sender, self.incarnation, self.local_seqno)

    @property
    def last_local_seqno(self) -> int:
        """The last local seqno that the record takes: a pack takes one for each message."""
        return self.local_seqno + (self.count - 1 if self.kind == MESSAGES else 0)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A FORWARD record that will never be ordered, and why."""

    source: Source
    reason: str


class Exclusion(NamedTuple):
    """An operator's decision: in this view of the sites that agree, nobody waits for these sites any more."""

    view: int
    sites: tuple[str, ...]
