"""A group at a site that agrees with others, in the process engine: records in, entries and DATA out.

It has no rule of its own: `ordering.agreement.group` decides. It buffers the records that are read and not sequenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from connectors.engine.batch import COLUMNS_FROM, Output, OutputTopics, by_columns, by_rows
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.entry_codec import read_entry, write_entry
from connectors.kafka.codec.headers import VERSION
from connectors.kafka.codec.inputs import Input, of_log, original
from connectors.kafka.transport import Record
from ordering.agreement.group import after_takeover
from ordering.agreement.log import OrderedRun, Range, ranges_of
from ordering.agreement.site import Site
from ordering.agreement.site_state import CopyMark, Notice, SiteState
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.records import HEARTBEAT, STRAY, Exclusion, Partition
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState

OWN_BYTES = 16 * 1024 * 1024
"""The bytes of an own FORWARD partition's records, read and not sequenced, from which on it is not read further."""
OTHERS_BYTES = 256 * 1024 * 1024
"""The same for a partition of another site: more than the other site may have under way."""
_OF_LOGS = tuple(f"{VERSION} {kind} ".encode("ascii") for kind in WITHOUT_SEQNO)
_IDLE = f"{VERSION} {HEARTBEAT} ".encode("ascii")
_RECORD_BYTES = 200
"""The memory of a record besides its payload, roughly."""


@dataclass(slots=True)
class _Buffer:
    """The buffer of a FORWARD partition: records that are read and not sequenced."""

    records: deque[Record] = field(default_factory=deque)
    size: int = 0

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.size += len(record.value or b"") + _RECORD_BYTES

    def offsets(self, part: Range) -> Iterator[tuple[int, int]]:
        """Return the offsets of the records in a range, each as a range of its own."""
        is_last = bool(self.records) and self.records[-1].offset < part.end
        found = deque[int]()
        for record in reversed(self.records) if is_last else self.records:
            if is_last and record.offset >= part.first:
                found.appendleft(record.offset)
            elif not is_last and part.first <= record.offset < part.end:
                found.append(record.offset)
            elif record.offset < part.first if is_last else record.offset >= part.end:
                break
        return ((offset, offset + 1) for offset in found)

    def take(self, part: Range) -> list[Record]:
        """Return the records in a range, and remove them and all before it."""
        taken = []
        while self.records and self.records[0].offset < part.end:
            record = self.records.popleft()
            self.size -= len(record.value or b"") + _RECORD_BYTES
            if record.offset >= part.first:
                taken.append(record)
        return taken


class AgreeingGroup:
    """A group that was taken over. `state` comes from the site's log, `taken` from the site's DATA."""

    def __init__(self, state: SiteState, taken: SequencerState) -> None:
        self._group = after_takeover(state, taken)
        self._topics = OutputTopics.of(state.group, self.site.me.name)
        self._buffers: dict[str, _Buffer] = {}
        self._group.keep_with(lambda part: self._buffers.setdefault(part.place, _Buffer()).offsets(part))

    @property
    def site(self) -> Site:
        """The site's part in the agreement."""
        return self._group.site

    @property
    def name(self) -> str:
        """The group's name."""
        return self.site.group

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notices of the last step, for an operator."""
        return self.site.notices

    @property
    def pipeline(self) -> Pipeline:
        """The group's pipeline, as `GroupSupervisor` needs it: with the positions of the site's own FORWARD only."""
        state, own = self.site.sequenced.state, f".forward.{self.site.me.name}"
        positions = {place: offset for place, offset in state.positions.items() if place.topic.endswith(own)}
        return Pipeline(replace(state, positions=positions), self._group.written)

    # Writes

    @property
    def sent(self) -> int:
        """The last seqno that was passed to Kafka."""
        return self._group.sent

    def see_written(self, seqno: int) -> None:
        """Note that Kafka has DATA up to this seqno."""
        self._group.written = seqno

    # Reads

    def mark(self, source: Input) -> CopyMark:
        """Return the mark from which an input is to be read; for a log, which has none, CopyMark(0, 0)."""
        return self._group.mark(source.place) if source.place else CopyMark(0, 0)

    def start_of(self, source: Input, beginning: int, *, is_changed: bool = False) -> int:
        """Return the offset from which an input is to be read. Raises HistoryUnavailable.

        `beginning`: the first offset that the input still has. `is_changed`: the input is a copy without its mark.
        """
        if not source.place:
            return self._group.start_of_log(source.site, beginning)
        return self._group.start_of(source.place, beginning, is_copy=source.is_copy, is_changed=is_changed)

    def is_full(self, source: Input) -> bool:
        """Whether an input is not to be read for now."""
        if not source.place:
            return self.site.is_behind
        kept = self._buffers.get(source.place)
        limit = OWN_BYTES if source.site == self.site.me.name else OTHERS_BYTES
        return kept is not None and kept.size >= limit and not self._group.lacks(source.place)

    def take(self, source: Input, records: Sequence[Record]) -> None:
        """Take records of an input, in the order of its log. Raises ProtocolViolation."""
        if source.place:
            self._take_forward(source, records)
        else:
            self._take_log(source, records)

    def _take_forward(self, source: Input, records: Sequence[Record]) -> None:
        read = [original(raw, source.site, source.place) for raw in records] if source.is_copy else records
        known = [record for record in read if record is not None]
        if not known:
            return
        last = max(record.offset for record in known)
        is_idle = all(bool(raw.headers) and (raw.headers[0][1] or b"").startswith(_IDLE) for raw in known)
        kept_from = self._group.arrived(source.place, known[0].offset, last, records[-1].offset + 1, is_idle=is_idle)
        kept = self._buffers.setdefault(source.place, _Buffer())
        for record in known:
            if record.offset >= kept_from:
                kept.add(record)
                kept_from = record.offset + 1

    def _take_log(self, source: Input, records: Iterable[Record]) -> None:
        for raw in records:
            # A shared log also has all DATA of its site, which does not concern this one.
            if not raw.headers or not (raw.headers[0][1] or b"").startswith(_OF_LOGS):
                continue
            record = of_log(raw, is_copy=source.is_copy)
            if record.kind != STRAY:
                self._group.hear(source.site, raw.offset + 1, record, read_entry)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass."""
        self._group.tick(elapsed_ms)

    def exclude(self, exclusions: Iterable[Exclusion]) -> None:
        """Apply exclusions that operators have decided, however long ago."""
        self._group.exclusions.add(exclusions)

    # Outputs

    def end_step(self, *, is_last: bool = False) -> Output | None:
        """Return the entry to write, or None if there is nothing to say. `is_last`: the job ends with this step."""
        entry = self._group.end_step(is_last=is_last)
        return None if entry is None else (self._topics.data, encode_data(write_entry(entry)))

    def due(self) -> list[Output]:
        """Return DATA and dead letters of the next run that is ordered and read; [] if there is none.

        The caller passes them to Kafka. Raises HistoryUnavailable if retention has dropped records of the run,
        Disagreement if other records were read.
        """
        outputs: list[Output] = []
        while not outputs and (run := self._group.due()) is not None:
            outputs = self._sequence(run)
        return outputs

    def _sequence(self, run: OrderedRun) -> list[Output]:
        opening = [(self._topics.data, encode_data(each)) for each in self._group.open()]
        rows = [
            (TopicPartition(*Partition.parse(part.place)), self._buffers.setdefault(part.place, _Buffer()).take(part))
            for part in sorted(ranges_of(run.run), key=lambda part: Partition.parse(part.place))
        ]
        rows = [(place, records) for place, records in rows if records]
        decide = by_rows if sum(len(records) for _, records in rows) < COLUMNS_FROM else by_columns
        state, outputs = decide(self.site.sequenced.state, rows, self._topics)
        data = [output for output in outputs if output[0] == self._topics.data]
        decided = self._group.decided(state, is_refused=len(data) < len(outputs))
        if not decided.has_dead_letters:
            outputs = data
        outputs = [*outputs, *((self._topics.data, encode_data(each)) for each in decided.closing)]
        return [*opening, *_without_first(outputs, self._topics.data, decided.written)]


def _without_first(outputs: Iterable[Output], data: str, count: int) -> list[Output]:
    """Return the outputs without the first `count` records of DATA, which are written already."""
    to_skip, kept = count, []
    for output in outputs:
        if output[0] == data and to_skip:
            to_skip -= 1
        else:
            kept.append(output)
    return kept
