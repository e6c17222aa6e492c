"""Follows a DATA topic as it grows and hands out its effective records: the reading rule, applied to live Kafka.

It is `DataLog` for those who stay: a bounded wait instead of an end. A broker that goes away for a while is no error
here; the cursor goes on when it is back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.codec import H_EPOCH, H_KIND, H_SEQNO, H_VERSION, PREFIX, VERSION
from connectors.kafka.data_log import Start
from connectors.kafka.transport import Consumer
from ordering.errors import HistoryUnavailable, ProtocolViolation
from ordering.reader import Verdict
from ordering.records import Headers

RETRY_PAUSE_S = 0.2

_VERSION = VERSION.encode()
_logger = logging.getLogger(__name__)


class Effective(NamedTuple):
    """A DATA record that was taken. `fields` are its headers by name, still as bytes."""

    seqno: int
    offset: int
    kind: str
    fields: Mapping[str, bytes]
    headers: Sequence[tuple[str, bytes]]
    value: bytes | None

    def application_headers(self) -> Headers:
        """The headers that are not abcast's own, in their order."""
        return tuple((name, value) for name, value in self.headers if not name.startswith(PREFIX))


class DataCursor:
    """Reads on from a `Start`. Not thread-safe. The consumer is the caller's, who closes it.

    `position`: the offset of the record that is read next.
    """

    def __init__(self, consumer: Consumer, partition: TopicPartition, start: Start) -> None:
        self._consumer = consumer
        self._partition = partition
        self._reader = start.reader
        self._failing = False
        self.position = start.offset
        consumer.assign([partition])
        consumer.seek(partition, start.offset)

    def poll(self, timeout: float) -> list[Effective]:
        """The next effective records; none if none arrive within `timeout` seconds.

        Raises:
            HistoryUnavailable: retention has dropped records before they were read.
            ProtocolViolation: what was read is not DATA.
        """
        try:
            polled = self._consumer.poll(timeout_ms=int(timeout * 1000))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise HistoryUnavailable(
                f"{self._partition.topic} no longer holds seqno {self._reader.last_seqno + 1}: retention has dropped "
                "it before it was read."
            ) from error
        except AuthorizationError:
            raise
        except KafkaError as error:
            # The consumer connects again by itself; all we have to do is to ask again.
            if not self._failing:
                _logger.warning("reading %s: %r; trying again", self._partition.topic, error)
            self._failing = True
            time.sleep(min(timeout, RETRY_PAUSE_S))
            return []
        if self._failing and polled:
            self._failing = False
        return self._judge(polled.get(self._partition, ()))

    def _judge(self, records: Sequence[Any]) -> list[Effective]:
        accept = self._reader.accept
        taken = []
        for record in records:
            headers = record.headers
            fields = dict(headers)
            try:
                if fields[H_VERSION] != _VERSION:
                    raise ValueError(f"version {fields[H_VERSION]!r}")
                kind = fields[H_KIND].decode("ascii")
                seqno = int(fields.get(H_SEQNO, 0))
                verdict = accept(kind, int(fields[H_EPOCH]), seqno)
            except (KeyError, ValueError, TypeError) as error:
                raise ProtocolViolation(
                    f"{self._partition.topic} at offset {record.offset} is not DATA ({error!r}): who else writes there?"
                ) from error
            if verdict is Verdict.TAKE:
                taken.append(Effective(seqno, record.offset, kind, fields, headers, record.value))
        if records:
            self.position = records[-1].offset + 1
        return taken
