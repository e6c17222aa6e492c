"""Read and name the notes on deleted letters (`ordering.letters.letter_care`) in the group's memory topic.

    key                                   value
    SITE/NAME letters-below OFFSET        the receiver's base there, JSON
    inbox-PARTITION letters-below OFFSET  `1`: a purge of abcast's deletes up to there, or has done so

An inbox partition that begins above offset 0, without the second note for that offset, has lost letters to a retention.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.transport import Consumer
from ordering.base.names import ADDRESS_PATTERN, Topic
from ordering.base.records import MAX_NUMBER
from ordering.letters.letter_care import Base

_BELOW = "letters-below"
_NUMBER = f"[0-9]{{1,{len(str(MAX_NUMBER))}}}"
_KEY = re.compile(f"(?P<name>{ADDRESS_PATTERN}|inbox-[0-9]{{1,9}}) {_BELOW} (?P<below>{_NUMBER})".encode("ascii"))


class Noted(NamedTuple):
    """The notes: each receiver's bases, and the beginnings that purges have left in the inbox's partitions."""

    bases: dict[str, list[Base]]
    beginnings: dict[int, set[int]]


def key_of_base(receiver: str, below: int) -> bytes:
    """Return the key of a base's note."""
    return f"{receiver} {_BELOW} {below}".encode("ascii")


def key_of_beginning(partition: int, below: int) -> bytes:
    """Return the key of the note that a partition may begin at that offset."""
    return key_of_base(f"inbox-{partition}", below)


def read_noted(
    connection: Connection, consumer: Consumer, group: str, site: str, receivers: Collection[str] | None = None
) -> Noted:
    """Return the notes in the memory topic; none without that topic. `receivers`: whose bases are wanted; None for all.

    Raises BrokerUnreachable, KafkaRefused.
    """
    noted = Noted({}, {})
    for (name, below), value in sorted(_found(connection, consumer, group, site).items()):
        if "/" not in name:
            noted.beginnings.setdefault(int(name.removeprefix("inbox-")), set()).add(below)
        elif receivers is None or name in receivers:
            noted.bases.setdefault(name, []).append(Base.parse(below, value))
    return noted


def _found(connection: Connection, consumer: Consumer, group: str, site: str) -> dict[tuple[str, int], bytes]:
    found: dict[tuple[str, int], bytes] = {}
    for record in _memory(connection, consumer, group, site):
        noted = _KEY.fullmatch(record.key or b"")
        if noted is None:  # other notes, and any record of members and observers
            continue
        name, below = noted["name"].decode("ascii"), int(noted["below"])
        if record.value is None:
            found.pop((name, below), None)
        else:
            found[name, below] = record.value
    return found


def _memory(connection: Connection, consumer: Consumer, group: str, site: str) -> Iterator[Any]:
    place = TopicPartition(str(Topic(group, "memory", site)), 0)
    with connection.reachable("READ", place.topic):
        if not consumer.partitions_for_topic(place.topic):
            return
        beginning, end = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        yield from read_range(connection, consumer, place, int(beginning), int(end))
