"""The sequencer's machine in the process engine: FORWARD records in, DATA and dead letters out.

It has no rules of its own. `ordering.sequencer.pipeline` decides when a batch may begin,
`ordering.sequencer.sequencer` decides its records, and the codec encodes them for Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafka.structs import TopicPartition

from connectors.engine.batch import Polled, decide
from connectors.kafka.transport import Record
from connectors.takeover.rows import Output, OutputTopics
from ordering.base.formats import PACKS
from ordering.base.records import Exclusion
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.sequencer import end_batch
from ordering.sequencer.state import SequencerState

HELD_RECORDS, HELD_BYTES = 5_000, 16 * 1024 * 1024
"""The undecided records, and their bytes, at which a group is read no further."""


class Sequencing:
    """A sequencer of one group. `pipeline`: its state, decided and written.

    Records are held until a batch may begin: they are its step. While DATA can't be written, `is_full` bounds them.
    """

    def __init__(self, state: SequencerState, site: str) -> None:
        self.pipeline = Pipeline.after_takeover(state)
        self.topics = OutputTopics.of(state.group, site)
        self._held: dict[TopicPartition, Sequence[Record]] = {}
        self._is_full: bool | None = False
        """None: not measured since the last `take`. Most batches are decided at once, and never measured."""

    @property
    def is_due(self) -> bool:
        """Whether records are held that are not decided yet."""
        return bool(self._held)

    @property
    def is_full(self) -> bool:
        """Whether so many records are held that the group is read no further for now."""
        if self._is_full is None:
            held = self._held.values()
            self._is_full = (
                sum(map(len, held)) >= HELD_RECORDS
                or sum(len(record.value or b"") for records in held for record in records) >= HELD_BYTES
            )
        return self._is_full

    @property
    def reads_on(self) -> bool:
        """Never: records that come now are soon in a batch of their own."""
        return False

    def wants(self, place: TopicPartition) -> bool:  # noqa: ARG002 - all partitions of a group are held together
        """Whether the partition is to be read now."""
        return self._is_full is False or not self.is_full

    def take(self, place: TopicPartition, records: Sequence[Record]) -> None:
        """Hold records until they are decided."""
        before = self._held.get(place)
        self._held[place] = records if before is None else [*before, *records]
        self._is_full = None

    def absorb(self, decisions: Iterable[Exclusion]) -> None:
        """Do nothing: a sequencer waits for no other site."""

    def tick(self, elapsed_ms: int) -> None:
        """Do nothing: a sequencer's time is that of its records."""

    def writes(self) -> Sequence[Output] | None:
        """Decide the held records; return the records to write, or None if an earlier batch has to be written first."""
        begun = self.pipeline.begin() if self._held else None
        if begun is None:
            return None
        held, self._held, self._is_full = self._held, {}, False
        state, decided = self.decide(begun.state, held)
        state, closing = end_batch(state)
        self.pipeline = self.pipeline.decided(state)
        encode = self.topics.encode
        return [
            *(encode(record, None) for record in begun.opening),
            *decided,
            *(encode(each, None) for each in closing),
        ]

    def decide(self, state: SequencerState, held: Polled) -> tuple[SequencerState, list[Output]]:
        """Decide a batch's records; return the state after them, and the records to write."""
        return decide(state, held, self.topics, packs=state.format >= PACKS.number)

    def acknowledge(self) -> None:
        """Note that Kafka has the oldest batch in flight."""
        self.pipeline = self.pipeline.acknowledged()

    def finish(self) -> None:
        """Do nothing: every batch leaves a state from which the next start goes on."""
