"""One group in the process engine: FORWARD records in, DATA and dead letters out, `ordering` in between.

It has no rule of its own. `ordering.pipeline` says when a batch may begin, `ordering.sequencer` what it decides, and
the codec how that looks on Kafka.
"""

from __future__ import annotations

from collections import deque

from connectors.engine.batch import Output, Polled, Topics, decide
from connectors.engine.writing import Written
from ordering.pipeline import Pipeline
from ordering.sequencer import SequencerState, end_batch


class GroupSequencer:
    """A group that was taken over: `pipeline` is what it knows."""

    def __init__(self, state: SequencerState, site: str) -> None:
        self.pipeline = Pipeline.after_takeover(state)
        self._topics = Topics.of(state.group, site)
        self._in_flight: deque[Written] = deque()

    @property
    def oldest(self) -> Written | None:
        """The oldest batch in flight."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def bytes_in_flight(self) -> int:
        """Of payloads."""
        return sum(written.size for written in self._in_flight)

    def see_written(self) -> None:
        """Note what Kafka has by now. Raises WriteFailed."""
        while self._in_flight and self._in_flight[0].is_there():
            self._in_flight.popleft()
            self.pipeline = self.pipeline.acknowledged()

    def decide(self, polled: Polled) -> list[Output] | None:
        """Decide a batch: the records to write; None if something has to be written before.

        What it returns has to be passed to Kafka, and `passed` to be told.
        """
        begun = self.pipeline.begin()
        if begun is None:
            return None
        state, decided = decide(begun.state, polled, self._topics)
        self._decided, closing = end_batch(state)
        encode = self._topics.encode
        return [
            *(encode(record, None) for record in begun.opening),
            *decided,
            *(encode(each, None) for each in closing),
        ]

    def passed(self, written: Written) -> None:
        """What was decided last is on its way."""
        self.pipeline = self.pipeline.decided(self._decided)
        self._in_flight.append(written)
