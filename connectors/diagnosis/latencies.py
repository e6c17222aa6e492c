"""Waits of messages: from the broker's time of the FORWARD record to that of the DATA record.

DATA has both times in each record. Samples are records from some spots of each stretch of DATA, so nothing is counted
while messages are ordered, and a reading costs the same however many there were. The first reading samples WINDOW_S in
stretches; each later one adds the stretch since the last.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import a_few_records, read_range
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError
from ordering.base.names import Topic

WINDOW_S = 900.0
LOOK_EVERY_S = 60.0
"""The least seconds between two readings."""
STRETCH_S = 60.0
SAMPLES = 100
"""The most records of a stretch, at _SPOTS: successive records waited alike, say for a takeover."""
_SPOTS = 5


class Latency(NamedTuple):
    """The waits of `samples` records: half took at most `p50_ms`, and 99 of 100 at most `p99_ms`."""

    p50_ms: int
    p99_ms: int
    samples: int


class _Stretch(NamedTuple):
    """A sampled part of DATA: its end, as a time (seconds since 1970) and an offset, and the waits in it (ms)."""

    at: float
    end: int
    waits: Sequence[int]


class Latencies:
    """The waits of the last WINDOW_S by group. Not thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stretches: dict[TopicPartition, deque[_Stretch]] = {}
        self._looked_at = float("-inf")

    def of(self, groups: Iterable[str], site: str) -> Mapping[str, Latency]:
        """Return the latency of the groups at the site; those without a message in that time are left out.

        What Kafka does not tell now is told by a later reading.
        """
        places = {group: TopicPartition(str(Topic(group, "data", site)), 0) for group in groups}
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S and places:
            self._looked_at = time.monotonic()
            self._stretches = {place: self._stretches.get(place, deque()) for place in places.values()}
            with suppress(AbcastError, KafkaError), closing(a_few_records(self._connection)) as consumer:
                for place, stretches in self._stretches.items():
                    self._look(consumer, place, stretches)
        waits = {
            group: sorted(each for part in self._stretches.get(place, ()) for each in part.waits)
            for group, place in places.items()
        }
        return {group: _latency(of_group) for group, of_group in waits.items() if of_group}

    def _look(self, consumer: Consumer, place: TopicPartition, stretches: deque[_Stretch]) -> None:
        """Sample the records since the last reading. Raises AbcastError, KafkaError."""
        now = time.time()
        while stretches and stretches[0].at < now - WINDOW_S:
            stretches.popleft()
        with self._connection.reachable():
            end = consumer.end_offsets([place])[place]
        if stretches:
            at, start, _ = stretches[-1]
        else:
            at = now - WINDOW_S
            start = self._offset_at(consumer, place, at, end)
        while at < now:
            at = min(now, at + STRETCH_S)
            below = end if at == now else self._offset_at(consumer, place, at, end)
            decoded = [
                (each.timestamp, decode_data(each.key, each.value, each.headers))
                for span in _spots(start, below)
                for each in read_range(self._connection, consumer, place, *span)
            ]
            waits = [max(0, at_ms - data.forwarded_at_ms) for at_ms, data in decoded if data.forwarded_at_ms]
            stretches.append(_Stretch(at, below, waits))
            start = below

    def _offset_at(self, consumer: Consumer, place: TopicPartition, at: float, end: int) -> int:
        with self._connection.reachable():
            found = consumer.offsets_for_times({place: int(at * 1000)}).get(place)
        return end if found is None else int(found.offset)


def _spots(start: int, below: int) -> list[tuple[int, int]]:
    """Return ranges of offsets, spread over the given one, with SAMPLES together at most."""
    if below - start <= SAMPLES:
        return [(start, below)]
    each = SAMPLES // _SPOTS
    firsts = (start + (below - start) * (2 * spot + 1) // (2 * _SPOTS) - each // 2 for spot in range(_SPOTS))
    return [(first, first + each) for first in firsts]


def _latency(waits: Sequence[int]) -> Latency:
    """Return the latency of sorted waits, at least one."""
    p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * share))] for share in (0.5, 0.99))
    return Latency(p50, p99, len(waits))
