"""One group in the process engine: FORWARD records in, DATA and dead letters out, `ordering` in between.

It has no rule of its own. `ordering.pipeline` says when a batch may begin, `ordering.sequencer` what it decides, and
the codec how that looks on Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka.structs import TopicPartition

from connectors.engine.writing import Written
from connectors.kafka.codec import dead_letter_headers, decode_forward, encode_data
from connectors.kafka.sending import Record
from ordering.names import Topic
from ordering.pipeline import Pipeline
from ordering.records import Data, DeadLetter, Source
from ordering.sequencer import SequencerState, end_batch, step

Polled = Mapping[TopicPartition, Sequence[Any]]
"""Records as a consumer gives them, by partition."""


class GroupSequencer:
    """A group that was taken over: `pipeline` is what it knows."""

    def __init__(self, state: SequencerState, site: str) -> None:
        self.pipeline = Pipeline.after_takeover(state)
        self._data = str(Topic(state.group, "data", site))
        self._dead_letters = str(Topic(state.group, "dead-letter", site))
        self._in_flight: deque[Written] = deque()

    @property
    def oldest(self) -> Written | None:
        """The oldest batch in flight."""
        return self._in_flight[0] if self._in_flight else None

    def see_written(self) -> None:
        """Note what Kafka has by now. Raises WriteFailed."""
        while self._in_flight and self._in_flight[0].is_there():
            self._in_flight.popleft()
            self.pipeline = self.pipeline.acknowledged()

    def decide(self, polled: Polled) -> list[tuple[str, Record]] | None:
        """Decide a batch: the records to write, with their topics; None if something has to be written before.

        What it returns has to be passed to Kafka, and `passed` to be told.
        """
        begun = self.pipeline.begin()
        if begun is None:
            return None
        originals = dict(_in_log_order(polled))
        records = [
            decode_forward(source, raw.key, raw.value, raw.headers, raw.timestamp) for source, raw in originals.items()
        ]
        state, decided = step(begun.state, records)
        state, closing = end_batch(state)
        self._decided = state
        outputs: Iterable[Data | DeadLetter] = (*begun.opening, *decided, *closing)
        return [self._encode(output, originals) for output in outputs]

    def passed(self, written: Written) -> None:
        """What was decided last is on its way."""
        self.pipeline = self.pipeline.decided(self._decided)
        self._in_flight.append(written)

    def _encode(self, output: Data | DeadLetter, originals: Mapping[Source, Any]) -> tuple[str, Record]:
        if isinstance(output, Data):
            return self._data, encode_data(output)
        raw = originals[output.source]
        return self._dead_letters, (raw.key, raw.value, dead_letter_headers(output, raw.headers))


def _in_log_order(polled: Polled) -> Iterator[tuple[Source, Any]]:
    """The one place where a batch gets its order: topic, partition, offset."""
    for partition in sorted(polled):
        for record in polled[partition]:
            yield Source(partition.topic, partition.partition, record.offset), record
