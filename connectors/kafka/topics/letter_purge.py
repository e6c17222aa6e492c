"""Deleting letters that nobody waits for (`ordering.letters.letter_care` says which, and why that loses nothing).

The order of the steps is what holds:

1. where the log begins;
2. what is noted: whoever has deleted up to there had noted all before;
3. what stands from there on, and that the log begins there still: else another one deletes, and this leaves it alone;
4. what the rule makes of it is noted, for every receiver;
5. it is deleted;
6. what the new notes replace is taken away.

A crash between any two leaves notes that are true, and letters that are deleted the next time.

Left alone: groups without a memory topic. `connectors.relay.letter_copies` is for the copies of other sites' inboxes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import LETTER_FIELDS, first_fields
from connectors.kafka.codec.letter_codec import WrittenLetter, decode_letter, is_state_letter
from connectors.kafka.connection.backlog import partition_bytes
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.connection.sending import WRITTEN_S, producing
from connectors.kafka.topics.letter_bases import Noted, key_of_base, key_of_beginning, partition_of, read_noted
from connectors.kafka.topics.purge import Purged, delete, older
from connectors.kafka.transport import Consumer
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic, is_address
from ordering.letters.letter_care import InboxEntry, Plan, Times, is_waited_for, plan, superseded

SETTLED_S = 86_400.0
"""Nothing younger is deleted: a member may be in the middle of taking a state."""
MAX_RECORDS = 200_000
"""Of one partition, at a time."""
MAX_BASE_BYTES = 4 * 1024 * 1024
"""A base has some 40 bytes for each sender. A partition with a receiver whose base is larger is left alone."""

_RELAYED_FROM = LETTER_FIELDS.index("RELAYED_FROM")
_logger = logging.getLogger(__name__)


def purge_letters(
    connection: Connection, group: str, site: str, *, letters_s: float, dry_run: bool = False
) -> list[Purged]:
    """Delete letters that were taken, and those older than so many seconds of receivers that have no position.

    Raises BrokerUnreachable; KafkaRefused for a right that is missing; AbcastError if Kafka refuses.
    """
    inbox, memory = str(Topic(group, "inbox", site)), str(Topic(group, "memory", site))
    with closing(connection.metadata_client()) as metadata:
        for operation in ("READ", "WRITE"):
            metadata.partitions_of(memory, operation)
        metadata.partitions_of(inbox, "READ")
        numbers = metadata.partitions_of(inbox, "DELETE")
        if not numbers or not metadata.partitions_of(memory):
            return []
        with closing(connection.consumer()) as consumer, connection.admin() as admin:
            places = [TopicPartition(inbox, number) for number in sorted(numbers)]
            before = partition_bytes(admin, places)
            with connection.reachable():
                beginnings = consumer.beginning_offsets(places)
            noted = read_noted(connection, consumer, group, site)
            care = _Care(connection, group, site, metadata, consumer, admin, noted, len(numbers))
            deleted = sum(care.purge(place, int(beginnings[place]), letters_s, dry_run=dry_run) for place in places)
            after = before if dry_run else partition_bytes(admin, places)
    return [Purged(inbox, deleted, *(sum(sizes.values()) if sizes else None for sizes in (before, after)))]


class _Care:
    """One group's, once."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        site: str,
        metadata: MetadataClient,
        consumer: Consumer,
        admin: KafkaAdminClient,
        noted: Noted,
        count: int,
    ) -> None:
        self._connection = connection
        self._group = group
        self._site = site
        self._metadata = metadata
        self._consumer = consumer
        self._admin = admin
        self._noted = noted
        self._count = count

    def purge(self, place: TopicPartition, beginning: int, letters_s: float, *, dry_run: bool) -> int:
        """Delete what may go of a partition; how many records. `beginning`: as it was before the notes were read."""
        consumer, reachable = self._consumer, self._connection.reachable
        if beginning and beginning not in self._noted.beginnings.get(place.partition, ()):
            return 0  # a retention has been there, and nobody knows what it has dropped
        with reachable():
            end = int(consumer.end_offsets([place])[place])
            times = Times(*(older(consumer, place, age_s)[place] for age_s in (letters_s, min(letters_s, SETTLED_S))))
        end = min(end, times.settled, beginning + MAX_RECORDS)
        entries, positions = list[InboxEntry](), dict[str, int | None]()
        try:
            for record in read_range(self._connection, consumer, place, beginning, end):
                entries.append(self._entry(record, place.partition))
                receiver = entries[-1].receiver
                if receiver and receiver not in positions:
                    positions[receiver] = self._position(place, receiver)
                if is_waited_for(entries[-1], positions, times.old):
                    break
            consumer.rest()
            with reachable():
                is_whole = consumer.beginning_offsets([place])[place] == beginning
        except HistoryUnavailable:
            is_whole = False
        if not is_whole:
            return 0  # another one deletes
        try:
            due = plan(entries, beginning, self._noted.bases, positions, times)
        except HistoryUnavailable as damaged:
            _logger.warning("letters in %s-%d are left alone: %s", place.topic, place.partition, damaged)
            return 0
        if due.below <= beginning or dry_run or not self._note(place.partition, due):
            return due.below - beginning if dry_run else 0
        delete(self._admin, {place: due.below})
        self._forget(place.partition, due)
        return due.below - beginning

    def _entry(self, record: Any, number: int) -> InboxEntry:
        """A record as the rule sees it: a letter counts where its receiver looks for it."""
        receiver = (record.key or b"").decode("latin-1")
        relayed = relayed_from(record)
        is_here = is_address(receiver) and receiver.partition("/")[0] == self._site
        is_here = is_here and partition_of(receiver, self._count) == number
        letter = _decoded(record) if is_here else ""
        if isinstance(letter, str):
            return InboxEntry(record.offset, relayed_from=relayed)
        is_own = is_state_letter(record.headers)
        return InboxEntry(record.offset, receiver, *letter[:3], is_own=is_own, relayed_from=relayed)

    def _position(self, place: TopicPartition, receiver: str) -> int | None:
        """Up to where it has taken everything; None if Kafka does not know."""
        found = self._metadata.committed(f"abcast.member.{self._group}.{receiver.replace('/', '.')}", [place])
        return int(found[place].offset) if found else None

    def _note(self, number: int, due: Plan) -> bool:
        """Note what replaces the letters; whether there is room for it."""
        notes = {key_of_base(receiver, base.below): base.to_json() for receiver, base in due.bases.items()}
        for key, value in notes.items():
            if len(value) > MAX_BASE_BYTES:
                _logger.warning("letters are left alone: %s has too many senders", key.split()[0].decode("ascii"))
                return False
        self._write({**notes, key_of_beginning(number, due.below): b"1"})
        return True

    def _forget(self, number: int, due: Plan) -> None:
        """Take away what nobody reads any more, now that the log begins there."""
        old = [
            key_of_base(receiver, below)
            for receiver, base in due.bases.items()
            for below in superseded([*self._noted.bases.get(receiver, ()), base], due.below)
        ]
        passed = self._noted.beginnings.get(number, set())
        self._write(dict.fromkeys([*old, *(key_of_beginning(number, at) for at in passed if at < due.below)]))

    def _write(self, notes: Mapping[bytes, bytes | None]) -> None:
        memory = str(Topic(self._group, "memory", self._site))
        with producing(self._connection) as producer, self._connection.reachable("WRITE", memory):
            sent = [producer.send(memory, key=key, value=value, partition=0) for key, value in notes.items()]
            for each in sent:
                each.get(timeout=WRITTEN_S)


def _decoded(record: Any) -> WrittenLetter | str:
    """As its receiver reads it."""
    return decode_letter(record.key, record.key, record.value, record.headers, record.timestamp)


def relayed_from(record: Any) -> str:
    """The partition that a relay has copied a letter from, with its site; "" if none has."""
    fields = first_fields(record.headers, len(LETTER_FIELDS))
    text = fields[_RELAYED_FROM].decode("latin-1") if len(fields) > _RELAYED_FROM else ""
    return text.rpartition(":")[0]
