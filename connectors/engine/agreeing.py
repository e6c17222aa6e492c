"""A group at a site that agrees with others, in the process engine: its records, and its machine in the loop."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from kafka.structs import TopicPartition

from connectors.engine.batch import decide
from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.codec.headers import VERSION
from connectors.kafka.codec.inputs import Input, original
from connectors.kafka.transport import Record
from connectors.takeover.agreeing import AgreeingMachine, Decided
from connectors.takeover.notices import describe
from connectors.takeover.rows import Output, OutputTopics
from ordering.agreement.group import Group
from ordering.agreement.log import Range
from ordering.agreement.site_state import Notice
from ordering.base.records import HEARTBEAT, Data, Partition
from ordering.sequencer.state import SequencerState

OWN_BYTES = 16 * 1024 * 1024
"""The bytes of an own FORWARD partition's records, read and not sequenced, from which on it is not read further."""
OTHERS_BYTES = 256 * 1024 * 1024
"""The same for a partition of another site: more than the other site may have under way."""
_IDLE = f"{VERSION} {HEARTBEAT} ".encode("ascii")
_RECORD_BYTES = 200
"""The memory of a record besides its payload, roughly."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Buffer:
    """The buffer of a FORWARD partition: records that are read and not sequenced, in the order of their offsets."""

    records: list[Record] = field(default_factory=list)
    size: int = 0

    def add(self, records: Iterable[Record]) -> None:
        before = len(self.records)
        self.records += records
        self.size += sum(map(_size_of, self.records[before:]))

    def within(self, part: Range) -> slice:
        """Return the place of a range's records."""
        return slice(*(bisect_left(self.records, at, key=lambda each: each.offset) for at in (part.first, part.end)))

    def take(self, part: Range) -> list[Record]:
        """Return the records in a range, and remove them and all before it."""
        within = self.within(part)
        taken, self.size = self.records[within], self.size - sum(map(_size_of, self.records[: within.stop]))
        del self.records[: within.stop]
        return taken


def _size_of(record: Record) -> int:
    return len(record.value or b"") + _RECORD_BYTES


class _Buffers:
    """The records of a group at a site (`connectors.takeover.agreeing.EngineRecords`)."""

    def __init__(self, group: str, site: str) -> None:
        self._site, self._topics = site, OutputTopics.of(group, site)
        self._of = defaultdict[str, _Buffer](_Buffer)

    def read(self, source: Input, records: Sequence[Record], arrived: Callable[..., int]) -> None:
        read = [original(raw, source.site, source.place) for raw in records] if source.is_copy else records
        known = [record for record in read if record is not None]
        if not known:
            return
        last = max(record.offset for record in known)
        is_idle = all(bool(raw.headers) and (raw.headers[0][1] or b"").startswith(_IDLE) for raw in known)
        kept_from = arrived(known[0].offset, last, records[-1].offset + 1, is_idle=is_idle)
        reached = accumulate((record.offset + 1 for record in known), max, initial=kept_from)
        # A relay that begins again repeats records.
        self._of[source.place].add(each for each, at in zip(known, reached, strict=False) if each.offset >= at)

    def is_full(self, source: Input) -> bool:
        return self._of[source.place].size >= (OWN_BYTES if source.site == self._site else OTHERS_BYTES)

    def offsets(self, part: Range) -> Iterator[tuple[int, int]]:
        buffer = self._of[part.place]
        within = buffer.within(part)
        if within.stop - within.start == part.end - part.first:
            return iter(((part.first, part.end),))  # a record at each offset
        return ((record.offset, record.offset + 1) for record in buffer.records[within])

    def decide(self, state: SequencerState, parts: Iterable[Range]) -> Decided[Output]:
        taken = {TopicPartition(*Partition.parse(part.place)): self._of[part.place].take(part) for part in parts}
        state, outputs = decide(state, {place: records for place, records in taken.items() if records}, self._topics)
        is_refused = any(topic != self._topics.data for topic, _ in outputs)
        return Decided(state, is_refused, partial(self._missing, outputs))

    def _missing(self, outputs: Iterable[Output], last: int, has_dead_letters: bool) -> Iterator[Output]:
        for topic, record in outputs:
            if topic == self._topics.data:
                is_missing = not last or decode_data(*record).seqno > last
            else:
                is_missing = has_dead_letters
            if is_missing:
                yield topic, record

    def data(self, record: Data) -> Output:
        return self._topics.data, encode_data(record)

    def payload_of(self, writes: Iterable[Output]) -> int:
        return sum(len(value or b"") for _, (_, value, _) in writes)


class Agreeing(AgreeingMachine[Sequence[Record], Output]):
    """The machine of one group. `sources`: the inputs that its partitions belong to."""

    def __init__(self, group: Group) -> None:
        super().__init__(group, _Buffers(group.site.group, group.site.me.name), self._log)
        self.sources: dict[TopicPartition, Input] = {}

    @property
    def is_full(self) -> bool:
        """Whether a step is under way that takes no input any more."""
        return self.is_due and not self.is_open

    @property
    def reads_on(self) -> bool:
        """Whether the input is to be read once more before the next write."""
        return self.is_open

    def wants(self, place: TopicPartition) -> bool:
        """Whether the input is to be read now."""
        return not self.is_full and self.has_room(self.sources[place])

    def take(self, place: TopicPartition, records: Sequence[Record]) -> None:
        """Take records of a partition, in the order of its log. Raises ProtocolViolation."""
        source = self.sources[place]
        (self.read if source.place else self.hear)(source, records)

    def _log(self, notice: Notice) -> None:
        level, words = describe(notice)
        _logger.log(level, "site %s, group %s: %s", self.group.site.me.name, self.group.site.group, words)
