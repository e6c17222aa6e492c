"""The decision of records row by row, for either engine: Kafka's records in, Kafka's records out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward, encode_data
from connectors.kafka.codec.dead_letter_codec import encode_dead_letter
from connectors.kafka.connection.sending import Record
from connectors.kafka.transport import Record as Read
from ordering.base.names import Topic
from ordering.base.records import Data, DeadLetter, Forward, Malformed, Source
from ordering.sequencer.packing import packed
from ordering.sequencer.sequencer import step
from ordering.sequencer.state import SequencerState

Output = tuple[str, Record]
"""A topic, and a record to write there."""

Rows = Sequence[tuple[TopicPartition, Sequence[Read]]]
"""Records in the order of the log, by partition."""


class OutputTopics(NamedTuple):
    """The topics of a group's outputs."""

    data: str
    dead_letters: str

    @classmethod
    def of(cls, group: str, site: str) -> OutputTopics:
        """Return the topics of the group at the site."""
        return cls(str(Topic(group, "data", site)), str(Topic(group, "dead-letter", site)))

    def encode(self, output: Data | DeadLetter, raw: Read | None) -> Output:
        """Encode a decision for Kafka. `raw`: the record that it was made from, if there is one."""
        if isinstance(output, Data):
            return self.data, encode_data(output)
        assert raw is not None
        # A value may be null: that may be the reason of the refusal.
        return self.dead_letters, encode_dead_letter(output, raw.key, raw.value, raw.headers)  # type: ignore[return-value]


def by_rows(
    state: SequencerState, rows: Rows, topics: OutputTopics, *, packs: bool = False
) -> tuple[SequencerState, list[Output]]:
    """Decide the records row by row; return the state after them, and the records to write, with `packs` among them."""
    raws = {Source(place.topic, place.partition, raw.offset): raw for place, records in rows for raw in records}
    outputs: Sequence[Data | DeadLetter]
    state, outputs = step(state, [decoded(source, raw) for source, raw in raws.items()])
    if packs:
        outputs = packed(outputs)
        counted = any(isinstance(each, Data) and each.count > 1 for each in outputs)
        state = replace(state, counted=state.counted or counted)
    return state, [topics.encode(output, raws.get(output.source)) for output in outputs]  # type: ignore[arg-type]


def decoded(source: Source, raw: Read) -> Forward | Malformed:
    """Decode a record of FORWARD."""
    return decode_forward(source, raw.key, raw.value, raw.headers, raw.timestamp)
