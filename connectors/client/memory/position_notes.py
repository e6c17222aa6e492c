"""Notes in the group's memory topic that a name has a position, in case Kafka forgets the position.

Invariant: no name begins at the first message, or letter, again unless the application asks for it. Before the first
position of a name above the beginning is committed, a *note* that it has one is written to the group's memory topic,
which is compacted and keeps it for good. If Kafka has no position, the notes are read. A name without a note is new,
and begins at the beginning; a name with a note gets PositionLost. A crash between the steps does no harm: the beginning
itself is committed first, so there is never a note without a position that Kafka may forget. The commit on the memory
topic remembers that the note was written; if Kafka forgets it, the note is written again.

After a restore from a ledger, one note says that any name may have had a position
(`connectors.kafka.topics.restored_note`).

A group without that topic (an earlier version created it) is served as before, with a warning: in it, a name that Kafka
has forgotten is new. `abcast topics create` creates the topic.

The cost: one more produce request for each name. The notes, some 50 bytes a name, are read by names that are new or
forgotten.
"""

from __future__ import annotations

import contextlib
import logging

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.client.memory.committed_offsets import CommittedOffsets
from connectors.client.tail.sharing import Shared
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.topics.restored_note import NOTE_OF_ALL_NAMES, restored_up_to
from ordering.base.errors import KafkaRefused
from ordering.base.names import Address, Topic

DELIVERIES = "deliveries"
LETTERS = "letters"
"""The kinds of position that a name may have a note of."""

TIMEOUT_S = 2.0
_logger = logging.getLogger(__name__)


class PositionNotes:
    """The notes of one name. Not thread-safe. It owns nothing."""

    def __init__(
        self, connection: Connection, shared: Shared, group: str, address: Address, offsets: CommittedOffsets
    ) -> None:
        """Read nothing yet."""
        self._connection = connection
        self._shared = shared
        self._group = group
        self._address = address
        self._offsets = offsets
        self._place = TopicPartition(str(Topic(group, "memory", address.site)), 0)
        self._written: set[str] | None = None  # the notes in the commit on the memory topic
        self._found: set[str] | None = None  # the notes in the topic itself
        self.restored: int | None = None
        """The last seqno that a restore of the group has brought back, as of the last read; None without a restore."""
        self._may_use = True

    def write(self, what: str, place: TopicPartition, beginning: str) -> None:
        """Make sure that the note of the position `what` is written, before a position above 0 is committed at `place`.

        If there is neither a position nor a note yet, commit offset 0 first, with `beginning` as its metadata. Without
        a usable memory topic no note is written, with a warning. Raises BrokerUnreachable.
        """
        if self._written is None:
            self._written = self._known()
        if what in self._written:
            return
        if self._offsets.at(place) is None and not self.has(what):
            self._offsets.commit(place, 0, beginning, TIMEOUT_S)
        if self._is_usable():
            self._append(what)
        self._written.add(what)

    def has(self, what: str) -> bool:
        """Whether the topic has a note, so that there was a position above the beginning. Raises BrokerUnreachable."""
        if self._found is None and self._is_usable():
            try:
                self._found = self._read()
            except KafkaRefused as error:
                self._give_up(f"can't be read ({error})")
        return self._found is not None and what in self._found

    def _known(self) -> set[str]:
        """Return the notes that the commit says are written: they need not be written again."""
        if not self._is_usable():
            return set()
        try:
            committed = self._offsets.at(self._place)
        except KafkaRefused as error:
            self._give_up(f"can't be read ({error})")
            return set()
        return set((committed.metadata or "").split()) if committed is not None else set()

    def _is_usable(self) -> bool:
        """Whether the memory topic is there, and this member may use it."""
        if not self._may_use:
            return False
        with contextlib.suppress(KafkaRefused):
            if self._shared.metadata.partitions_of(self._place.topic):
                return True
        self._give_up("does not exist")
        return False

    def _give_up(self, why: str) -> None:
        if self._may_use:
            self._may_use = False
            _logger.warning(
                "topic %s %s: if Kafka forgets the position of %s, it starts again at the first message. "
                "`abcast topics create --group %s --site %s` creates what is missing",
                self._place.topic,
                why,
                self._address,
                self._group,
                self._address.site,
            )

    def _append(self, what: str) -> None:
        assert self._written is not None
        known = " ".join(sorted({*self._written, what}))
        try:
            producers = self._shared.producers
            producer = producers.lease()
            try:
                with self._connection.reachable("WRITE", self._place.topic):
                    sent = producer.send(self._place.topic, key=self._key(what), value=b"1", partition=0)
                    sent.get(timeout=TIMEOUT_S)
            finally:
                producers.release(producer)
            self._offsets.commit(self._place, 0, known, TIMEOUT_S)
        except (KafkaError, KafkaRefused) as error:
            self._give_up(f"can't be written ({error})")

    def _read(self) -> set[str]:
        """Read the notes of all names; return this name's."""
        place, keys, found = self._place, {self._key(what): what for what in (DELIVERIES, LETTERS)}, set()
        with contextlib.closing(self._connection.consumer()) as consumer:
            with self._connection.reachable("READ", place.topic):
                beginning, end = (ask([place])[place] for ask in (consumer.beginning_offsets, consumer.end_offsets))
            for record in read_range(self._connection, consumer, place, int(beginning), int(end)):
                if record.key == NOTE_OF_ALL_NAMES:
                    self.restored = restored_up_to(record.value)  # None: an operator has deleted the note
                elif record.key in keys and record.value is not None:
                    found.add(keys[record.key])
                elif record.key in keys:  # an operator has deleted the note
                    found.discard(keys[record.key])
        return found if self.restored is None else found | {DELIVERIES}

    def _key(self, what: str) -> bytes:
        return f"{self._address} {what}".encode("ascii")
