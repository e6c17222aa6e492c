"""One group in the process engine: FORWARD records in, DATA and dead letters out, `ordering` in between.

It has no rule of its own. `ordering.sequencer.pipeline` says when a batch may begin, `ordering.sequencer.sequencer`
what it decides, and the codec how that looks on Kafka.
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
from ordering.sequencer.sequencer import SequencerState, end_batch

PATIENCE_S = 0.2
"""A group is late if Kafka has not taken its oldest batch for so long: then it decides no further one."""
IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""With more payload in flight, a group waits for its oldest batch."""
HELD_RECORDS, HELD_BYTES = 5_000, 16 * 1024 * 1024
"""Of what was read and can't be decided yet: with more of it, no more is read."""


class GroupSequencer:
    """A group that was taken over: `pipeline` is what it knows.

    What is read is held until a batch may begin. While DATA can't be written, as much is held as `is_full` allows.
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
        """Of payloads."""
        return sum(written.size for written, _ in self._in_flight)

    @property
    def late_s(self) -> float:
        """For how long the oldest batch has been in flight."""
        return time.monotonic() - self._in_flight[0][1] if self._in_flight else 0.0

    @property
    def is_late(self) -> bool:
        """Whether Kafka takes long."""
        return self.late_s >= PATIENCE_S

    @property
    def holds(self) -> bool:
        """Whether something was read that is not decided."""
        return bool(self._held)

    @property
    def is_full(self) -> bool:
        """Whether it is not to be read for now."""
        return self._held_records >= HELD_RECORDS or self._held_bytes >= HELD_BYTES

    def see_written(self) -> None:
        """Note what Kafka has by now. Raises WriteFailed."""
        while self._in_flight and self._in_flight[0][0].is_there():
            self._in_flight.popleft()
            self.pipeline = self.pipeline.acknowledged()

    def take(self, polled: Polled) -> None:
        """Hold what was read. Of a partition it comes in the order of offsets."""
        for place, records in polled.items():
            before = self._held.get(place)
            self._held[place] = records if before is None else [*before, *records]

    def measure(self) -> None:
        """See how much is held, when something was read that could not be decided at once."""
        self._held_records = sum(map(len, self._held.values()))
        self._held_bytes = sum(len(record.value or b"") for records in self._held.values() for record in records)

    def decide(self) -> list[Output] | None:
        """Decide what is held: the records to write; None if something has to be written before.

        What it returns has to be passed to Kafka, and `passed` to be told.
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
        """What was decided last is on its way."""
        self.pipeline = self.pipeline.decided(self._decided)
        self._in_flight.append((written, time.monotonic()))
