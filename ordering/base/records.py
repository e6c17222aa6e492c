"""The records of the protocol: FORWARD, DATA, dead letters. Plain values; how they look on Kafka is the codec's.

Source: SEQUENCER (docs/sources.md), "Design": its headers FORWARD and DATA.
docs/records.md has all that stands on Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ordering.base.formats import FIRST, Format

Headers = tuple[tuple[str, bytes], ...]
"""The application's headers of a message, in the order they were given."""

MESSAGE = "message"
EPOCH = "epoch"
STRAY = "(stray)"
"""What stands in DATA and is none. No record on Kafka can name this kind."""
STRAY_EPOCH = -1
"""Lower than any, so that the reading rule passes over it as over what a fenced sequencer has left."""
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
REMOTE_VIEW = "remote-view"
SKIP = "skip"
LINK_START = "link-start"
ENTRY = "entry"

WITHOUT_SEQNO = (EPOCH, ENTRY)
"""DATA kinds that are not in the order: for those who decide it. All others pass over them."""

CONTROL_KINDS = (JOIN, LEAVE, SETTINGS, FORGET, START_FLUSH, FLUSH_OK, STOP_FLUSH, REMOTE_VIEW)
"""FORWARD kinds that take a local seqno, as messages do, and change the membership
(`ordering.membership.membership`)."""

DECIDED_KINDS = (VIEW, START_FLUSH, FLUSH_COMPLETED, STOP_FLUSH, REMOTE_VIEW)
"""DATA that may come from the sequencer itself, without a sender and a source."""

DATA_KINDS = frozenset((MESSAGE, REFUSED, *WITHOUT_SEQNO, *CONTROL_KINDS, *DECIDED_KINDS))
"""All DATA kinds that this version knows. Another one is of a later version: it takes its numbers, and no more."""

MAX_PAYLOAD_BYTES = 1_000_000
"""Largest payload of a message, in bytes. A larger one is refused by the client and dead-lettered by the sequencer."""

MAX_HEADERS_BYTES = 65_536
"""Most that the names and values of a message's application headers may have together, in bytes."""

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Largest record that abcast writes, in bytes: a snapshot of a very large group. Topics and brokers must allow it."""

MAX_NUMBER = 10**18 - 1
"""Largest incarnation or local seqno: 18 digits, so that every language's 64-bit integers hold it."""

INCARNATIONS_A_MS = 100_000
"""An incarnation is a time since 1970 in the unit of 10 ns, or less."""

CLOCK_AHEAD_MS = 24 * 3600 * 1000
"""By so much a sender's clock may be ahead of the broker's: one that is wrong by more would end its name for good."""


class Partition(NamedTuple):
    """A partition of a topic, equal to kafka-python's `TopicPartition`. Its text is `topic-number`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Inverse of `str`. Raises ValueError."""
        topic, _, number = text.rpartition("-")
        if not topic:
            raise ValueError(f"not a partition: {text!r}")
        return cls(topic, int(number))


def named_partitions(numbers: Mapping[Partition, int]) -> dict[str, int]:
    """A number for each partition, as a JSON object."""
    return {str(partition): number for partition, number in numbers.items()}


def parsed_partitions(body: Mapping[str, int]) -> dict[Partition, int]:
    """Inverse of `named_partitions`. Raises ValueError."""
    return {Partition.parse(name): number for name, number in body.items()}


class Source(NamedTuple):
    """Where a FORWARD record stands. Sorting sources sorts a batch into log order (see
    `ordering.sequencer.sequencer`).
    """

    topic: str
    partition: int
    offset: int

    @property
    def topic_partition(self) -> Partition:
        """The partition that it stands in."""
        return Partition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Source:
        """Inverse of `str`. Raises ValueError."""
        partition, _, offset = text.rpartition(":")
        return cls(*Partition.parse(partition), int(offset))


class Link(NamedTuple):
    """What a link between two sites of a mesh says of a record (`ordering.sequencer.links`).

    `session` is the link's, `epoch` and `seqno` are the record's in the DATA of the neighbour; `origin_seqno` is a
    message's at the site of its sender, and 0 for anything else. An epoch record has the seqno 0.
    """

    session: int
    epoch: int
    seqno: int
    origin_seqno: int

    def __str__(self) -> str:
        return f"{self.session}.{self.epoch}.{self.seqno}.{self.origin_seqno}"


class MessageId(NamedTuple):
    """What makes a message the same message, however often it is sent: (member, incarnation, local seqno)."""

    sender: str
    incarnation: int
    local_seqno: int

    def __str__(self) -> str:
        return f"{self.sender}#{self.incarnation}.{self.local_seqno}"


@dataclass(frozen=True, slots=True)
class Forward:
    """A record from a member to the sequencer. `timestamp_ms` is the broker's (ms since the epoch, UTC)."""

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    source: Source
    headers: Headers = ()
    kind: str = MESSAGE
    timestamp_ms: int = 0
    link: Link | None = None

    @property
    def id(self) -> MessageId:
        """The message's identity."""
        return MessageId(self.sender, self.incarnation, self.local_seqno)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A FORWARD record that the codec could not read, and why."""

    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """A record from the sequencer to every member.

    With kind `epoch` it takes no seqno: `seqno` is 0 and there is no sender. Its payload is empty (the seal) or a
    snapshot of the sequencer's state, the state after every effective record before it. `source` and
    `forwarded_at_ms` say which FORWARD record it came from, and when the broker had that one. What the sequencer
    decides by itself (a view, a step of its flush) has a seqno, but neither sender nor source.

    With kind `entry` it takes no seqno either: it is one of a site's log (`ordering.agreement.log`), its number there
    is `local_seqno`.

    It takes `count` numbers from `seqno` on; all kinds that are known take one. A seal says the group's `format`
    (`ordering.base.formats`).
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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A FORWARD record that will never be ordered, and why."""

    source: Source
    reason: str


class Exclusion(NamedTuple):
    """An operator's decision: in that view of the sites that agree, these are not waited for any more."""

    view: int
    sites: tuple[str, ...]
