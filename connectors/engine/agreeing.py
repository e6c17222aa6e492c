"""One group at a site that agrees with others: what was read in, entries and DATA out, `ordering.isis_site` in between.

It has no rule of its own. It keeps the records that are read and not sequenced, and tells the site how far they go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from connectors.engine.batch import COLUMNS_FROM, Output, Topics, by_columns, by_rows
from connectors.engine.inputs import Input, of_log, original
from connectors.engine.writing import Written
from connectors.kafka.codec import VERSION, encode_data
from connectors.kafka.entries import judge, read_entry, write_entry
from connectors.kafka.epochs import Exclusion
from connectors.kafka.transport import Record
from ordering.errors import HistoryUnavailable, ProtocolViolation
from ordering.isis import Tick
from ordering.isis_log import Entry, Ordered, Range, ranges_of
from ordering.isis_messages import Exclude
from ordering.isis_site import Arrived, Heard, Notice, Site, SiteState
from ordering.pipeline import Pipeline
from ordering.records import ENTRY, EPOCH, STRAY, WITHOUT_SEQNO, Partition
from ordering.sequencer import SequencerState, begin_batch

OWN_BYTES = 16 * 1024 * 1024
"""With more payload of its own that is not sequenced, a site reads no more of its FORWARD."""
OTHERS_BYTES = 256 * 1024 * 1024
"""The same of a partition of another site: more than that one may have under way."""
_OF_LOGS = tuple(f"{VERSION} {kind} ".encode("ascii") for kind in WITHOUT_SEQNO)
_RECORD_BYTES = 200
"""What a record takes besides its payload, about."""


@dataclass(slots=True)
class _Place:
    """The records of a FORWARD partition that are read and not sequenced. All from `begin` to below `end` were read.

    Those below `needed` are in the snapshot, and not kept: a mark may be far before them.
    """

    begin: int
    end: int
    needed: int
    records: deque[Record] = field(default_factory=deque)
    size: int = 0

    def add(self, record: Record) -> None:
        self.end = record.offset + 1
        if record.offset >= self.needed:
            self.records.append(record)
            self.size += len(record.value or b"") + _RECORD_BYTES

    def take(self, part: Range) -> list[Record]:
        """The records of a run, which are not needed any more after that."""
        taken = []
        while self.records and self.records[0].offset < part.end:
            record = self.records.popleft()
            self.size -= len(record.value or b"") + _RECORD_BYTES
            if record.offset >= part.first:
                taken.append(record)
        return taken


class AgreeingGroup:
    """A group that was taken over. `state` is what the site's log tells, `taken` what the site's DATA tells."""

    def __init__(self, state: SiteState, taken: SequencerState) -> None:
        self.site = Site(state, taken.epoch, now_ms=state.process.now_ms)
        # Which epoch has decided what is this site's own business, and not agreed on.
        self.site.sequenced.state = replace(self.site.sequenced.state, seals=taken.seals, unsnapped=0)
        self.sent = self.written = taken.seqno
        """The last seqnos that were passed to Kafka, and that Kafka has."""
        self.dropped = 0
        """Records of relays' topics that no relay can have written."""
        self._topics = Topics.of(state.group, self.site.me.name)
        self._places: dict[str, _Place] = {}
        self._needed = {place.name: place.ordered for place in state.places}
        """From where the records of a partition are still to be sequenced."""
        for part in (part for ordered in state.since for part in ranges_of(ordered.run)):
            self._needed[part.place] = min(self._needed.get(part.place, part.first), part.first)
        self._in_flight: deque[tuple[Written, int]] = deque()
        self._unsure = (
            set() if state.number else {life.name for life in state.process.view.members} - {self.site.me.name}
        )
        """Other sites of which it is not known whether they have read more of this site's log than there is."""
        self._now_ms = state.process.now_ms
        self._excluded: set[Exclusion] = set()

    @property
    def name(self) -> str:
        """The group's."""
        return self.site.group

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What an operator may want to know of the last step."""
        return self.site.notices

    @property
    def pipeline(self) -> Pipeline:
        """For those who look after the group."""
        state, own = self.site.sequenced.state, f".forward.{self.site.me.name}"
        positions = {place: offset for place, offset in state.positions.items() if place.topic.endswith(own)}
        return Pipeline(replace(state, positions=positions), self.written)

    # What is written

    @property
    def oldest(self) -> Written | None:
        """The oldest DATA in flight."""
        return self._in_flight[0][0] if self._in_flight else None

    def see_written(self) -> None:
        """Note what Kafka has by now. Raises WriteFailed."""
        while self._in_flight and self._in_flight[0][0].is_there():
            self.written = self._in_flight.popleft()[1]

    def passed(self, written: Written) -> None:
        """What `due` gave is on its way."""
        self._in_flight.append((written, self.sent))

    # What is read

    def start_of(self, source: Input, beginning: int) -> int:
        """From which offset an input is to be read, whose first one is `beginning`."""
        if not source.place:
            return max(self.site.log_row(source.site).at, beginning)
        marks = self.site.place(source.place).marks
        mark = marks[0] if marks else None
        at, end = (mark.at, mark.end) if mark is not None else (0, 0)
        if source.place not in self._places:
            # What retention has dropped is not there, and must not be taken for offsets without a record.
            needed = self._needed.get(source.place, 0)
            self._places[source.place] = _Place(end if at >= beginning else -1, end, needed)
        return max(at, beginning)

    def is_full(self, source: Input) -> bool:
        """Whether an input is to be left alone for now."""
        if not source.place:
            return self.site.is_behind
        place = self._places.get(source.place)
        limit = OWN_BYTES if source.site == self.site.me.name else OTHERS_BYTES
        return place is not None and place.size >= limit and not self._lacks(source.place, place.end)

    def _lacks(self, place: str, end: int) -> bool:
        """Whether the next run has records of the partition from that offset on: it may be larger than the limit."""
        run = self.site.sequenced.next()
        return run is not None and any(part.place == place and part.end > end for part in ranges_of(run.run))

    def take(self, source: Input, records: Sequence[Record]) -> None:
        """Take what was read, in its order. Raises ProtocolViolation."""
        if source.place:
            self._take_forward(source, records)
        else:
            self._take_log(source, records)

    def _take_forward(self, source: Input, records: Sequence[Record]) -> None:
        place = self._places[source.place]
        for raw in records:
            record = original(raw, source.site, source.place) if source.is_copy else raw
            if record is None:
                self.dropped += 1
                continue
            if place.begin < 0:
                place.begin = place.end = record.offset
            if record.offset >= place.end:
                place.add(record)
        self.site.take(Arrived(source.place, place.end, records[-1].offset + 1))

    def _take_log(self, source: Input, records: Iterable[Record]) -> None:
        for raw in records:
            # A log that is shared has all the DATA of its site, which is none of our business.
            if not raw.headers or not (raw.headers[0][1] or b"").startswith(_OF_LOGS):
                continue
            try:
                record = of_log(raw, is_copy=source.is_copy)
                if record.kind == STRAY:
                    self.dropped += 1
                    continue
                counts = judge(self.site.log_row(source.site), record)[1]
                entry = read_entry(record) if record.kind == ENTRY and counts else None
                known = (
                    self._known_of_us(source.site, entry) if source.site in self._unsure and entry is not None else 0
                )
            except ProtocolViolation:
                self.dropped += 1
                continue
            if known > self.site.number:
                raise ProtocolViolation(
                    f"site {source.site} has read entry {known} of the log of {self.site.me.name}, which ends at "
                    f"{self.site.number} now: it was lost. Have the others exclude this site, and take a new name."
                )
            if entry is not None or record.kind == EPOCH:
                self.site.take(Heard(source.site, raw.offset + 1, record.epoch, entry))

    def _known_of_us(self, site: str, entry: Entry) -> int:
        """How far the other site had read this site's log. When it has read this epoch, all is well from then on."""
        row = next((row for row in SiteState.from_bytes(entry.state).logs if row.site == self.site.me.name), None)
        if row is not None and row.epoch == self.site.epoch:
            self._unsure.discard(site)
        return 0 if row is None else row.number

    def tick(self, elapsed_ms: int) -> None:
        """So much time has passed."""
        self._now_ms += elapsed_ms
        self.site.take(Tick(self._now_ms))

    def exclude(self, exclusions: Iterable[Exclusion]) -> None:
        """Operators have decided these, maybe long ago."""
        for exclusion in exclusions:
            if exclusion not in self._excluded and exclusion.view == self.site.process.view.id:
                self._excluded.add(exclusion)
                self.site.take(Exclude(exclusion.sites))

    # What comes out

    def end_step(self) -> Output | None:
        """The entry to write, if something is to leave the site."""
        entry = self.site.end_step()
        return None if entry is None else (self._topics.data, encode_data(write_entry(entry)))

    def due(self) -> list[Output]:
        """DATA of the next run that is ordered and read; none if there is none. To be passed on, and `passed` told.

        Raises HistoryUnavailable if retention has dropped records of it.
        """
        outputs: list[Output] = []
        while not outputs and (run := self.site.due()) is not None and self._is_read(run):
            outputs = self._sequence(run)
        return outputs

    def _is_read(self, run: Ordered) -> bool:
        parts = ranges_of(run.run)
        places = [self._places.get(part.place) for part in parts]
        if any(place is None or place.end < part.end for place, part in zip(places, parts, strict=True)):
            return False
        if lost := [part for place, part in zip(places, parts, strict=True) if place and part.first < place.begin]:
            raise HistoryUnavailable(
                f"{lost[0].place} was ordered from offset {lost[0].first} on, and retention has dropped some of it "
                "here before it was in DATA. Exclude this site (`abcast site exclude`), and go on under another name."
            )
        return True

    def _sequence(self, run: Ordered) -> list[Output]:
        sequenced, opening = self.site.sequenced, list[Output]()
        if sequenced.state.seqno == self.written and not self._in_flight:
            state, snapshots = begin_batch(sequenced.state)
            sequenced.state = state
            opening = [(self._topics.data, encode_data(each)) for each in snapshots]
        before = sequenced.state
        rows = [
            (TopicPartition(*Partition.parse(part.place)), self._places[part.place].take(part))
            for part in sorted(ranges_of(run.run), key=lambda part: Partition.parse(part.place))
        ]
        rows = [(place, records) for place, records in rows if records]
        decide = by_rows if sum(len(records) for _, records in rows) < COLUMNS_FROM else by_columns
        state, outputs = decide(before, rows, self._topics)
        outputs += [(self._topics.data, encode_data(each)) for each in sequenced.end_run(state)]
        if run.sender != self.site.me:  # the dead letters are at the site of their senders
            outputs = [output for output in outputs if output[0] == self._topics.data]
        known = max(0, min(self.sent, sequenced.state.seqno) - before.seqno)
        self.sent = max(self.sent, sequenced.state.seqno)
        return [*opening, *_without_first(outputs, self._topics.data, known)]


def _without_first(outputs: Iterable[Output], data: str, count: int) -> list[Output]:
    """All but the first `count` records of DATA, which stand there already."""
    left, kept = count, []
    for output in outputs:
        if output[0] == data and left:
            left -= 1
        else:
            kept.append(output)
    return kept
