"""A group in the process engine: FORWARD records in, DATA and dead letters out, `ordering` in between.

This module has no rules of its own. `ordering.sequencer.pipeline` decides when a batch may begin,
`ordering.sequencer.sequencer` decides its records, and the codec encodes them for Kafka.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from kafka.structs import TopicPartition

from connectors.engine.batch import Output, OutputTopics, Polled, decide
from connectors.engine.writing import WrittenBatch
from connectors.kafka.transport import Record
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.sequencer import end_batch
from ordering.sequencer.state import SequencerState

PATIENCE_S = 0.2
"""The age of its oldest batch in flight at which a group is late. It decides no batch until Kafka has that one."""
IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""The payload in flight at which a group waits for its oldest batch."""
HELD_RECORDS, HELD_BYTES = 5_000, 16 * 1024 * 1024
"""The undecided records, and their bytes, at which a group is read no further."""


class GroupSequencer:
    """A group that this process has taken over. `pipeline`: its state, decided and written.

    Records are held until a batch may begin. While DATA can't be written, `is_full` bounds the records held.
    """

    def __init__(self, state: SequencerState, site: str) -> None:
        self.pipeline = Pipeline.after_takeover(state)
        self._topics = OutputTopics.of(state.group, site)
        self._in_flight: deque[tuple[WrittenBatch, float]] = deque()
        self._held: dict[TopicPartition, Sequence[Record]] = {}
        self._held_records = self._held_bytes = 0

    @property
    def oldest(self) -> WrittenBatch | None:
        """The oldest batch in flight."""
        return self._in_flight[0][0] if self._in_flight else None

    @property
    def bytes_in_flight(self) -> int:
        """The payload of all batches in flight."""
        return sum(written.size for written, _ in self._in_flight)

    @property
    def late_s(self) -> float:
        """The age of the oldest batch in flight, in seconds; 0 if there is none."""
        return time.monotonic() - self._in_flight[0][1] if self._in_flight else 0.0

    @property
    def is_late(self) -> bool:
        """Whether Kafka has not taken the oldest batch within PATIENCE_S."""
        return self.late_s >= PATIENCE_S

    @property
    def holds(self) -> bool:
        """Whether records are held that are not decided yet."""
        return bool(self._held)

    @property
    def is_full(self) -> bool:
        """Whether the group holds so much that it is read no further for now. As of the last `measure`."""
        return self._held_records >= HELD_RECORDS or self._held_bytes >= HELD_BYTES

    def see_written(self) -> None:
        """Acknowledge the batches that Kafka has by now. Raises WriteFailed."""
        while self._in_flight and self._in_flight[0][0].is_there():
            self._in_flight.popleft()
            self.pipeline = self.pipeline.acknowledged()

    def take(self, polled: Polled) -> None:
        """Hold records until they are decided. The caller passes each partition in the order of offsets."""
        for place, records in polled.items():
            before = self._held.get(place)
            self._held[place] = records if before is None else [*before, *records]

    def measure(self) -> None:
        """Count the held records and their bytes, for `is_full`. Called after records could not be decided at once."""
        self._held_records = sum(map(len, self._held.values()))
        self._held_bytes = sum(len(record.value or b"") for records in self._held.values() for record in records)

    def decide(self) -> list[Output] | None:
        """Decide the held records; return the records to write, or None if an earlier batch has to be written first.

        The caller passes the records to Kafka and then calls `passed`.
        """
        must_wait = self.is_late or self.bytes_in_flight >= IN_FLIGHT_BYTES
        begun = None if must_wait else self.pipeline.begin()
        if begun is None:
            return None
        held, self._held, self._held_records, self._held_bytes = self._held, {}, 0, 0
        state, decided = decide(begun.state, held, self._topics)
        self._decided, closing = end_batch(state)
        encode = self._topics.encode
        return [
            *(encode(record, None) for record in begun.opening),
            *decided,
            *(encode(each, None) for each in closing),
        ]

    def passed(self, written: WrittenBatch) -> None:
        """Record that the batch decided last is in flight."""
        self.pipeline = self.pipeline.decided(self._decided)
        self._in_flight.append((written, time.monotonic()))
