"""Follow a growing DATA topic and return its effective records: the reading rule on live Kafka.

A pack is returned as its messages (`ordering.base.packs`), which share its offset: those behind the last seqno that was
taken. So a reader that begins in the middle of a pack goes on with the next message. The messages stay together
(`connectors.kafka.log.effective`) until a caller asks for one.

It is the `DataLog` of readers that stay: polls wait for a bounded time instead of ending at the log's end. A broker
that goes away for a while is no error; the cursor continues when it is back. All records come from one log
(`connectors.kafka.log.same_log_consumer`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition
from numpy.typing import NDArray

from connectors.kafka.codec.codec import (
    data_count,
    data_fields,
    data_format,
    data_numbers,
    message_numbers,
    pack_numbers,
)
from connectors.kafka.codec.headers import without_nulls
from connectors.kafka.codec.message_columns import is_message, messages_numbers
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective, MessageColumns, Messages, Pack, effective, with_packs
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.kafka.transport import Consumer
from ordering.base.errors import HistoryChanged, HistoryUnavailable, ProtocolViolation
from ordering.base.formats import FIRST, follow
from ordering.base.kinds import DATA_KINDS
from ordering.base.packs import fault
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, MESSAGES

RETRY_PAUSE_S = 0.2
_AT_ONCE = 1000
"""The most records judged at once, and messages of packs, up to a whole pack more. Records are judged one by one if one
of them is no message by itself (a snapshot, say)."""

_MANY = 2_048
"""Up to this many records, reading is faster than a seek past them."""
_ASK_MS = 1_000

_NO_FIELDS: list[bytes] = []

_logger = logging.getLogger(__name__)

_warned_of: set[tuple[str, str]] = set()
"""The unknown kinds that this process has warned of, by topic. Only sequencers write there: they are few."""


class DataCursor:
    """Reads on from a `Start`. Not thread-safe. `close` closes the consumer, too.

    `position`: the offset after the records returned so far. `strays`: the number of strays passed over. `format`: the
    highest one in the seals read so far. Records of kinds that only a later version knows are returned like any others.
    """

    def __init__(self, consumer: Consumer, partition: TopicPartition, start: Start) -> None:
        self._consumer = consumer
        self._partition = partition
        self._reader, self._quiet = start.reader, start.quiet
        self._failing = False
        self._pending: Sequence[Any] = ()
        self.position = start.offset
        self.strays = 0
        self.format = FIRST.number
        self._log = SameLogConsumer(consumer, self._changed)
        self._log.read({partition: start.offset})

    @property
    def reader(self) -> Reader:
        """A copy of the reading rule's state at `position`."""
        return Reader(self._reader.epoch, self._reader.last_seqno)

    @property
    def untold_s(self) -> float:
        """The seconds for which Kafka has not told the log's end, though it was asked; 0 if it told it."""
        return self._log.untold_s(self._partition)

    def end(self) -> int:
        """Return the log's present end; 0 if no broker answers within a second."""
        with contextlib.suppress(KafkaError):
            return int(self._consumer.end_offsets([self._partition], _ASK_MS)[self._partition])
        return 0

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def poll(self, timeout: float) -> Sequence[Effective]:
        """Return the next effective records; none if none arrive within `timeout` seconds. Many messages are a
        `Messages`.

        A broker that is away is logged once, and asked again by the next call.

        Raises:
            AuthorizationError: this user may not read the topic.
            HistoryUnavailable: retention has dropped records before they were read.
            HistoryChanged: the topic was recreated, or the log has lost its end.
            LaterVersion: the group has a format from here on that this version does not know.
            ProtocolViolation: the next record is a pack that can't be read.
        """
        if not self._pending:
            self._pending = self._read(timeout)
        return self._judge()

    def _read(self, timeout: float) -> Sequence[Any]:
        self._skip_quiet()
        try:
            read = self._log.poll(timeout).get(self._partition, ())
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise HistoryUnavailable(
                f"{self._partition.topic} no longer holds seqno {self._reader.last_seqno + 1}: retention has dropped "
                "it before it was read."
            ) from error
        except AuthorizationError:
            raise
        except KafkaError as error:
            # The consumer reconnects by itself; it is enough to ask again.
            if not self._failing:
                _logger.warning("reading %s: %r; trying again", self._partition.topic, error)
            self._failing = True
            time.sleep(min(timeout, RETRY_PAUSE_S))
            return ()
        self._failing = self._failing and not read
        if not read:  # a transaction's marker moves the position, too
            self.position = max(self.position, self._consumer.position(self._partition))
        return read

    def _skip_quiet(self) -> None:
        """Skip a stretch without seqnos: sites that agree write many such records."""
        quiet = self._quiet
        if quiet is None or self._reader.last_seqno < quiet.seqno:
            return
        self._quiet = None
        if quiet.offset - self.position > _MANY and self._reader.last_seqno == quiet.seqno:
            self._reader = Reader(max(quiet.epoch, self._reader.epoch), quiet.seqno)
            self.position = quiet.offset
            self._log.read({self._partition: quiet.offset})

    def _changed(self, _: TopicPartition, what: str) -> HistoryChanged:
        return HistoryChanged(
            f"{self._partition.topic} {what}: it was recreated, or has lost its end. Other messages may now "
            f"have seqnos up to {self._reader.last_seqno}, which were read before. Make a new Member, which begins "
            "with what the group has now."
        )

    def _judge(self) -> Sequence[Effective]:
        """Return the next judged records: messages up to the first thousand with another record, or that thousand."""
        messages: list[Messages] = []
        while self._pending:
            part, rest = self._pending[:_AT_ONCE], self._pending[_AT_ONCE:]
            numbers = None
            if is_message(part[0].headers):  # a look at all of them is in vain else
                keys, headers = [record.key for record in part], [record.headers for record in part]
                numbers = messages_numbers(keys, headers)
            if numbers is None and any(messages):
                break  # the next call judges them
            if numbers is not None:
                self._pending, self.position = rest, part[-1].offset + 1
                messages.append(self._judge_messages(part, keys, headers, numbers))
            elif taken := self._judge_each(part):
                return taken
        return Messages.joined(messages) if messages else ()

    def _judge_messages(
        self,
        records: Sequence[Any],
        keys: list[bytes | None],
        headers: Sequence[Sequence[tuple[str, bytes]]],
        numbers: NDArray[np.int64],
    ) -> Messages:
        """Judge many messages at once, as `_judge_each` would. Of most batches all are taken."""
        incarnations, local_seqnos, seqnos, epochs, views, forwarded_at_ms = numbers
        is_taken = self._reader.accept_columns(np.zeros(len(records), np.bool_), epochs, seqnos)
        columns: Any = (
            seqnos.tolist(),
            [record.offset for record in records],
            keys,
            *(column.tolist() for column in (incarnations, local_seqnos, epochs, views, forwarded_at_ms)),
            [without_nulls(of_record[1:]) if len(of_record) > 1 else () for of_record in headers],
            [record.value for record in records],
            [record.timestamp for record in records],
        )
        if not is_taken.all():
            columns = (list(itertools.compress(column, is_taken.tolist())) for column in columns)
        return Messages(MessageColumns(*columns))

    def _judge_each(self, records: Sequence[Any]) -> Sequence[Effective]:
        """Judge records one by one, until they have given `_AT_ONCE` messages or more."""
        accept = self._reader.accept
        taken: list[Any] = []  # Effective, and packs
        has_pack = has_others = False
        judged = messages = 0
        for number, record in enumerate(records, 1):
            judged = number
            key, headers, before = record.key, record.headers, self._reader.last_seqno
            kind, count, fields = MESSAGE, 1, _NO_FIELDS
            numbers = message_numbers(key, headers)
            if not numbers and (of_pack := pack_numbers(key, headers)):
                kind, numbers, count = MESSAGES, of_pack[:-1], of_pack[-1]
            if not numbers:
                fields = data_fields(key, headers)
                if not fields:
                    self._pass_over(record.offset)
                    continue
                kind, count, numbers = fields[1].decode("ascii"), data_count(fields), data_numbers(fields)
            incarnation, local_seqno, seqno, epoch, view, forwarded_at_ms = numbers
            verdict = accept(kind, epoch, seqno, count)
            if verdict is Verdict.TAKE:
                if kind not in DATA_KINDS:
                    self._warn_of_kind(kind, record.offset)
                is_pack = kind == MESSAGES
                application = without_nulls(headers[1:]) if len(headers) > 1 else ()
                found = effective(
                    (
                        seqno if is_pack else seqno + count - 1,
                        record.offset,
                        MESSAGE if is_pack else kind,
                        key,
                        incarnation,
                        local_seqno,
                        epoch,
                        view,
                        forwarded_at_ms,
                        application,
                        record.value,
                        record.timestamp,
                    )
                )
                if is_pack:
                    has_pack = True
                    try:
                        pack = self._pack_of(found, count, before)
                    except ProtocolViolation:
                        if not taken:
                            raise
                        judged -= 1  # the next call raises it
                        break
                    taken.append(pack)
                    messages += pack.size
                    if messages >= _AT_ONCE:
                        break
                else:
                    has_others = has_others or kind != MESSAGE
                    taken.append(found)
                    messages += 1
            elif verdict is Verdict.CONTROL:
                told = data_format(fields)
                follow(self._partition.topic, told)
                self.format = max(self.format, told.number)
        self._pending, self.position = self._pending[judged:], records[judged - 1].offset + 1
        return with_packs(taken, messages, are_messages=not has_others) if has_pack else taken

    def _pack_of(self, first: Effective, count: int, before: int) -> Pack:
        """Return the messages of a pack behind seqno `before`. Raises ProtocolViolation if it can't be read.

        `first` is the first message of the whole pack, with the value of all.
        """
        if reason := fault(first.value or b"", count):
            self._reader.last_seqno = before  # not taken: the next call raises again
            raise ProtocolViolation(f"{self._partition.topic} at offset {first.offset}: {reason}.")
        return Pack.of(first, count).part(max(0, before + 1 - first.seqno), count)

    def _warn_of_kind(self, kind: str, offset: int) -> None:
        """Warn of an unknown kind, once a topic."""
        topic = self._partition.topic
        if (topic, kind) not in _warned_of:
            _warned_of.add((topic, kind))
            _logger.warning(
                "%s at offset %d: a later version of abcast wrote records of the kind %s, which are skipped",
                topic,
                offset,
                kind,
            )

    def _pass_over(self, offset: int) -> None:
        """Count a stray. Only the first is logged: a console producer may have written thousands."""
        self.strays += 1
        if self.strays == 1:
            topic = self._partition.topic
            _logger.warning(
                "%s at offset %d is not DATA and is skipped: find out which program writes there", topic, offset
            )
