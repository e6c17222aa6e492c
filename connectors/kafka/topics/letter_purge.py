"""Delete letters that no receiver waits for (`ordering.letters.letter_care` has the rule, and why it loses nothing).

The order of the steps makes it safe:

1. Read where the log begins.
2. Read the notes: a purge that deleted up to that beginning had written its notes before.
3. Read the letters from there, and check that the log still begins there. If not, another purge is at work: stop.
4. Write the notes that the rule makes of these letters, for every receiver.
5. Delete the letters.
6. Delete the notes that the new ones replace.

A crash between any two leaves true notes, and letters for the next purge to delete.

Groups without a memory topic are left alone. `connectors.relay.letter_copies` purges the copies of other sites'
inboxes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import LETTER_FIELDS
from connectors.kafka.codec.headers import first_fields
from connectors.kafka.codec.letter_codec import WrittenLetter, decode_letter, is_state_letter
from connectors.kafka.connection.backlog import partition_bytes
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.connection.sending import WRITTEN_S, producing
from connectors.kafka.topics.letter_bases import Noted, key_of_base, key_of_beginning, read_noted
from connectors.kafka.topics.purge import Purged, delete, older
from connectors.kafka.transport import Consumer
from connectors.kafka.transport.partitioner import partition_of
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic, is_address
from ordering.letters.letter_care import InboxEntry, Plan, Times, is_waited_for, plan, superseded

SETTLED_S = 86_400.0
"""Letters younger than this, in seconds, stay: a member may be in the middle of a state transfer."""
MAX_RECORDS = 200_000
"""The most records of one partition read by a purge."""
MAX_BASE_BYTES = 4 * 1024 * 1024
"""The largest base: it has some 40 bytes a sender. A partition with a receiver whose base is larger is left alone."""

_RELAYED_FROM = LETTER_FIELDS.index("RELAYED_FROM")
_logger = logging.getLogger(__name__)


def purge_letters(
    connection: Connection, group: str, site: str, *, letters_s: float, dry_run: bool = False
) -> list[Purged]:
    """Delete the oldest letters of each partition, up to the first that a receiver may still take.

    Letters that were taken go, and letters older than `letters_s` seconds to receivers without a position. Letters
    younger than SETTLED_S (or `letters_s`, if that is less) stay. One call reads at most MAX_RECORDS of a partition.
    With `dry_run`, nothing is written or deleted. Returns [] without an inbox or a memory topic.

    Raises BrokerUnreachable; KafkaRefused for a missing right; AbcastError if Kafka refuses.
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
            purge = _LetterPurge(connection, group, site, metadata, consumer, admin, noted, len(numbers))
            deleted = sum(purge.purge(place, int(beginnings[place]), letters_s, dry_run=dry_run) for place in places)
            after = before if dry_run else partition_bytes(admin, places)
    return [Purged(inbox, deleted, *(sum(sizes.values()) if sizes else None for sizes in (before, after)))]


@dataclass(frozen=True, slots=True)
class _LetterPurge:
    """A single purge of one group's letters. `count`: the number of the inbox's partitions."""

    connection: Connection
    group: str
    site: str
    metadata: MetadataClient
    consumer: Consumer
    admin: KafkaAdminClient
    noted: Noted
    count: int

    def purge(self, place: TopicPartition, beginning: int, letters_s: float, *, dry_run: bool) -> int:
        """Purge a partition; return how many offsets were deleted, or would be. `beginning`: read before the notes."""
        consumer, reachable = self.consumer, self.connection.reachable
        if beginning and beginning not in self.noted.beginnings.get(place.partition, ()):
            return 0  # a retention has dropped records, and nothing tells which
        with reachable():
            end = int(consumer.end_offsets([place])[place])
            times = Times(*(older(consumer, place, age_s)[place] for age_s in (letters_s, min(letters_s, SETTLED_S))))
        end = min(end, times.settled, beginning + MAX_RECORDS)
        entries, positions = list[InboxEntry](), dict[str, int | None]()
        try:
            for record in read_range(self.connection, consumer, place, beginning, end):
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
            return 0  # another purge is at work
        try:
            due = plan(entries, beginning, self.noted.bases, positions, times)
        except HistoryUnavailable as damaged:
            _logger.warning("no letters in %s-%d are deleted: %s", place.topic, place.partition, damaged)
            return 0
        if due.below <= beginning or dry_run or not self._write_notes(place.partition, due):
            return due.below - beginning if dry_run else 0
        delete(self.admin, {place: due.below})
        self._delete_notes(place.partition, due)
        return due.below - beginning

    def _entry(self, record: Any, number: int) -> InboxEntry:
        """Return a record as the rule sees it: a letter counts only in the partition that its receiver reads."""
        receiver = (record.key or b"").decode("latin-1")
        relayed = relayed_from(record)
        is_here = is_address(receiver) and receiver.partition("/")[0] == self.site
        is_here = is_here and partition_of(record.key, self.count) == number
        letter = _decoded(record) if is_here else ""
        if isinstance(letter, str):
            return InboxEntry(record.offset, relayed_from=relayed)
        is_own = is_state_letter(record.headers)
        return InboxEntry(record.offset, receiver, *letter[:3], is_own=is_own, relayed_from=relayed)

    def _position(self, place: TopicPartition, receiver: str) -> int | None:
        """Return the offset up to which the receiver has taken every letter; None if Kafka has none."""
        found = self.metadata.committed(f"abcast.member.{self.group}.{receiver.replace('/', '.')}", [place])
        return int(found[place].offset) if found else None

    def _write_notes(self, number: int, due: Plan) -> bool:
        """Write the notes that replace the letters; return False if a base is too large."""
        notes = {key_of_base(receiver, base.below): base.to_json() for receiver, base in due.bases.items()}
        for key, value in notes.items():
            if len(value) > MAX_BASE_BYTES:
                _logger.warning("no letters are deleted: %s has too many senders", key.split()[0].decode("ascii"))
                return False
        self._write({**notes, key_of_beginning(number, due.below): b"1"})
        return True

    def _delete_notes(self, number: int, due: Plan) -> None:
        """Delete the notes that no reader needs now that the log begins there."""
        old = [
            key_of_base(receiver, below)
            for receiver, base in due.bases.items()
            for below in superseded([*self.noted.bases.get(receiver, ()), base], due.below)
        ]
        passed = self.noted.beginnings.get(number, set())
        self._write(dict.fromkeys([*old, *(key_of_beginning(number, at) for at in passed if at < due.below)]))

    def _write(self, notes: Mapping[bytes, bytes | None]) -> None:
        memory = str(Topic(self.group, "memory", self.site))
        with producing(self.connection) as producer, self.connection.reachable("WRITE", memory):
            sent = [producer.send(memory, key=key, value=value, partition=0) for key, value in notes.items()]
            for each in sent:
                each.get(timeout=WRITTEN_S)


def _decoded(record: Any) -> WrittenLetter | str:
    """Decode a letter as its receiver does."""
    return decode_letter(record.key, record.key, record.value, record.headers, record.timestamp)


def relayed_from(record: Any) -> str:
    """Return where the last relay copied the letter from, as `SITE/topic-partition`; "" for an original."""
    fields = first_fields(record.headers, len(LETTER_FIELDS))
    text = fields[_RELAYED_FROM].decode("latin-1") if len(fields) > _RELAYED_FROM else ""
    return text.rpartition(":")[0]
