"""The inbox: receive the letters to one member, in the order of its inbox log.

All letters to a member are in one partition of its site's inbox topic, chosen from the member's address by Kafka's
usual partitioner. The accepted letters are a pure function of that partition (`ordering.letters.inbox`). So the number
of partitions must never change after the first letter, and no retention may drop the log's beginning. `abcast maintain`
may: it notes the state of the rule where it cuts (`ordering.letters.letter_care`), and a run begins with that.

Invariant. A run gives the application the letters that the rule accepts, each once. The offset up to which they were
*taken* is committed (`connectors.client.memory.bookmark`). Each run reads the partition from its beginning, restores
the rule's state, and gives the letters from the committed offset on. So after kill -9 none is lost, and at most the
letters of the last half second come again: the application knows them by their numbers. If Kafka has lost the offset of
a name, the run raises PositionLost (`connectors.client.memory.position_notes`).

A run sees whether the partition is still the same log (`connectors.kafka.log.same_log_consumer`). The commit has a
trace of a record below the offset, and a run compares that record when it reads it. Otherwise a log that was made anew,
or has lost its end, and has grown again would give no letters up to that offset.

A run that is overtaken by a purge begins again with the newer note. If a letter was deleted before this name took it,
the run raises HistoryUnavailable. A run from the beginning gives the letters that are left, and raises only if some are
deleted later, before it has read them.

The cost: a start reads the whole partition, payloads of other receivers included (Kafka can't send headers alone).
Memory is one row for each sender.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.client.deliveries.deliveries import POLL_S
from connectors.client.memory.bookmark import PositionMark
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.member_pass import MemberPass
from connectors.client.values.letter import Letter
from connectors.kafka.codec.letter_codec import decode_letter, is_state_letter
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import RETRY_PAUSE_S
from connectors.kafka.log.same_log_consumer import SameLogConsumer, Trace, trace_of
from connectors.kafka.topics.letter_bases import read_noted
from connectors.kafka.topics.topics import inbox_partitions
from connectors.kafka.transport import Consumer
from connectors.kafka.transport.partitioner import partition_of
from ordering.base.errors import HistoryChanged, HistoryUnavailable, PositionLost
from ordering.base.names import Address
from ordering.letters.inbox import InboxReader
from ordering.letters.letter_care import NO_BASE, Base, base_at

_logger = logging.getLogger(__name__)


def inbox_partition(connection: Connection, consumer: Consumer, group: str, address: Address) -> TopicPartition:
    """Return the partition of a member's letters, which a producer chooses for its address as the key.

    Raises TopicMissing, BrokerUnreachable.
    """
    partitions = inbox_partitions(connection, consumer, group, address.site)
    return partitions[partition_of(str(address).encode("ascii"), len(partitions))]


class Inbox(MemberPass[Letter]):
    """A run through a member's letters. `run` once; `stop` from any thread ends it within about 0.1 s.

    `connectors.client.values.stream` says when a letter is *taken*.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        timeout: float | None,
        *,
        from_beginning: bool = False,
    ) -> None:
        """Prepare a run; connect to nothing yet.

        After `timeout` seconds without a letter the run ends; None: never. With `from_beginning` it sets the committed
        offset back to 0, and gives all letters that are left.
        """
        super().__init__(connection, group, address, timeout, f"{address}'s inbox")
        self.from_beginning = from_beginning
        self._key = str(address).encode("ascii")
        self._reader = InboxReader()
        self._failing = False
        self._known: Trace | None = None
        """The trace of a record that an earlier run has read, until this run has compared it."""
        self._read_last: Trace | None = None
        """The trace to commit: of the last record read before which every letter is taken."""
        self._read_up_to: Any = None
        """The last record up to which all letters are taken, in hand, or in the list that grows; None at first."""

    def _items(self, memory: MemberMemory) -> Iterator[Letter | list[Letter]]:
        """Yield the letters, or lists of them.

        Raises BrokerUnreachable (at the start), KafkaRefused, TopicMissing, HistoryChanged, HistoryUnavailable,
        PositionLost. Later, the run waits until a broker answers.
        """
        with closing(self.connection.consumer()) as consumer:
            yield from self._receive(memory, consumer)

    def _receive(self, memory: MemberMemory, consumer: Consumer) -> Iterator[Letter | list[Letter]]:
        partition = inbox_partition(self.connection, consumer, self.group, self.address)
        self._log = SameLogConsumer(consumer, self._changed)
        try:
            if self.from_beginning:  # the committed offset may be of another log
                memory.remember_letters_taken(partition, 0)
            first, self._known = memory.letters_taken(partition)
        except PositionLost:
            self._begin(consumer, partition, 0)  # raises first if letters are gone, too
            raise
        self._bookmark.begin(PositionMark(first, first), first, functools.partial(self._remember, memory, partition))
        silence, bookmark, gathering = self._silence, self._bookmark, self._gathering
        position: int | None = None

        def begin() -> None:
            nonlocal position
            position, end = self._begin(consumer, partition, first, position)
            bookmark.pass_over(position, position)
            silence.expect(end)
            silence.read_up_to(position)

        begin()
        while not self._stopping.is_set():
            try:
                records = self._poll(partition)
            except (OffsetOutOfRangeError, NoOffsetForPartitionError):
                if gathering.count:
                    yield from self._given()
                first = max(first, bookmark.taken.number)
                begin()
                continue
            yield from self._letters(partition, records, first)
            if self._stopping.is_set():
                return
            if (reached := consumer.position(partition)) != position:
                position = reached
                self._note_passed(position, records)
                silence.read_up_to(position)
            bookmark.commit_if_due()
            if gathering.is_due(has_news=bool(records)) or (gathering.count and silence.is_over):
                yield from self._given()
            if not gathering.count and silence.is_over:
                return

    def _letters(
        self, partition: TopicPartition, records: Sequence[Any], first: int
    ) -> Iterator[Letter | list[Letter]]:
        """Yield the letters in `records` from the offset `first` on, as far as they were asked for."""
        for record in records:
            if self._stopping.is_set():
                return
            self._compare(partition, record)
            letter = self._judge(record, is_new=record.offset >= first)
            if letter is not None and record.offset >= first:
                self._gathered([letter], (record.offset + 1, record.offset + 1))
                self._read_up_to = record
                if self._gathering.is_full:
                    yield from self._given()

    def _note_passed(self, position: int, records: Sequence[Any]) -> None:
        """Note that the letters below `position` are handed out or gathered, and `records` were read last."""
        self._read_up_to = records[-1] if records else self._read_up_to
        if self._gathering.count:
            self._gathering.place = position, position
        else:
            self._bookmark.pass_over(position, position)
            self._note_read()

    def take(self) -> None:
        """Count the letters in hand as taken."""
        super().take()
        self._note_read()

    def _note_read(self) -> None:
        if self._read_up_to is not None:
            self._read_last = trace_of(self._read_up_to)

    def _begin(
        self, consumer: Consumer, partition: TopicPartition, taken: int, read_to: int | None = None
    ) -> tuple[int, int]:
        """Go to the log's first record, with the note on deleted ones; return the log's first and end offsets.

        `taken` is the first offset whose letter was not taken. `read_to` is the offset at which this run would read on,
        if it has begun before. Raises HistoryUnavailable if records are missing without a readable note on them, or if
        a deleted letter was not taken.
        """
        beginning, end = self._span(consumer, partition, taken)
        base, is_noted = NO_BASE, beginning == 0
        while not is_noted:
            noted = read_noted(self.connection, consumer, self.group, self.address.site, {str(self.address)})
            base = base_at(noted.bases.get(str(self.address), ()), beginning)
            is_noted = beginning in noted.beginnings.get(partition.partition, ())
            before, (beginning, end) = beginning, self._span(consumer, partition, taken)
            if beginning == before:
                break
            is_noted = False  # the notes may be on the old beginning, or on the new one
        if not is_noted or end < taken:
            raise HistoryUnavailable(
                f"{partition.topic}-{partition.partition} holds the offsets {beginning} to {end}, but {self.address} "
                f"needs all from 0 on and was at {taken} before. Inbox topics must have no retention."
            )
        if base.is_damaged:
            raise HistoryUnavailable(
                f"letters to {self.address} were deleted, and the note about the letters below offset {base.below} of "
                f"{partition.topic}-{partition.partition} can't be read. So the next letters are not known. Take a new "
                "name."
            )
        if self._has_missed(base, taken, read_to):
            raise HistoryUnavailable(
                f"letters to {self.address} were deleted before it took them, since `abcast maintain` keeps letters "
                "for a limited time. inbox(from_beginning=True) gives the letters that are left."
            )
        self._reader = InboxReader(base.received)
        self._log.read({partition: beginning})
        if self._known is not None and self._known.offset < beginning:
            self._known = None
        return beginning, end

    def _has_missed(self, base: Base, taken: int, read_to: int | None) -> bool:
        """Whether letters were deleted that this run should give.

        A run from the beginning gives the letters that are left when it begins. If a purge overtakes it later, letters
        that it had not read are in the base's table, and not in its own.
        """
        if not self.from_beginning:
            return base.lost > taken
        return read_to is not None and base.below > read_to and base.received != self._reader.received

    def _span(self, consumer: Consumer, partition: TopicPartition, taken: int) -> tuple[int, int]:
        with self.connection.reachable():
            beginning = int(consumer.beginning_offsets([partition])[partition])
            return beginning, int(consumer.end_offsets([partition], reached={partition: taken})[partition])

    def _poll(self, partition: TopicPartition) -> Sequence[Any]:
        try:
            polled = self._log.poll(self._gathering.patience(POLL_S))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError):
            raise  # the log's beginning has moved
        except AuthorizationError as error:
            raise self.connection.refused(error, "READ", partition.topic) from None
        except KafkaError as error:
            # The consumer connects again by itself.
            if not self._failing:
                _logger.warning("reading %s: %r; trying again", partition.topic, error)
            self._failing = True
            time.sleep(RETRY_PAUSE_S)
            return ()
        records: Sequence[Any] = polled.get(partition, ())
        self._failing = self._failing and not records
        return records

    def _compare(self, partition: TopicPartition, record: Any) -> None:
        """Check that the log still has the record that an earlier run has read. Raises HistoryChanged."""
        known = self._known
        if known is not None and record.offset >= known.offset:
            self._known = None
            if trace_of(record) != known:
                raise self._changed(partition, f"has another record at offset {known.offset}, or none")

    def _changed(self, partition: TopicPartition, what: str) -> HistoryChanged:
        return HistoryChanged(
            f"{partition.topic}-{partition.partition} {what}: it was recreated, or has lost its end. It is not known "
            f"which of its letters {self.address} has taken. inbox(from_beginning=True) gives all that are there; "
            "their (sender, incarnation, local_seqno) tell which the application has seen."
        )

    def _judge(self, record: Any, is_new: bool) -> Letter | None:
        """Return the letter, if the record is one to this member, and the next one of its sender; else None.

        A letter of a state transfer takes its number, and is not returned.
        """
        key, headers = self._key, record.headers
        # Other members' letters cost no more than this comparison.
        if record.key != key:
            return None
        written = decode_letter(key, record.key, record.value, headers, record.timestamp)
        if isinstance(written, str):
            if is_new:
                place = f"{record.topic}-{record.partition}:{record.offset}"
                warn_seldom(_logger, "%s: skipped a malformed letter at %s: %s", self.address, place, written)
            return None
        is_next = self._reader.accept(written.sender, written.incarnation, written.local_seqno)
        return Letter(*written) if is_next and not is_state_letter(headers) else None

    def _remember(self, memory: MemberMemory, partition: TopicPartition, _: int, offset: int) -> None:
        memory.remember_letters_taken(partition, offset, self._read_last)
