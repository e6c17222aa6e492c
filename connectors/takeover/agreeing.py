"""The machine of a group at a site that agrees with others, for both engines: records in, entries and DATA out.

It decides nothing itself: `ordering.agreement.group` decides by offsets. An engine's `EngineRecords` hold the records,
and decide each.

Invariant: the log gets an entry only after all DATA of earlier steps, and DATA only after the entry of its step: that
is the order that `ordering.agreement.group` needs. A crash at any point leaves a prefix of these writes.

    phase    waits until the log has   then
    READY    nothing                   `tick` lets time pass → DATA
    DATA     DATA of earlier steps     the entry is written → ENTRY
    ENTRY    the step's entry          → RUNS
    RUNS     nothing                   DATA of the runs that are due is written → READY

Outside READY a group is not ticked. It is read until its entry is made (`is_open`): input that comes while DATA of
earlier steps is on its way gets its answer in this step's entry, not in the one after it. To the site that is the same
as input that came a little earlier, since nothing of the step has left yet. A group whose write Kafka does not take is
*stuck*; the other groups go on without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from connectors.kafka.codec.entry_codec import read_entry, write_entry
from connectors.kafka.codec.headers import VERSION
from connectors.kafka.codec.inputs import Input, of_log
from connectors.kafka.codec.plain_record import Record
from ordering.agreement.group import Group
from ordering.agreement.log import OrderedRun, Range, ranges_of
from ordering.agreement.site_state import Notice
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.records import STRAY, Data, Exclusion
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState

STEP_BYTES = 16 * 1024 * 1024
"""The payload of DATA with which a step ends: the rest waits for the next one."""
_OF_LOGS = tuple(f"{VERSION} {kind} ".encode("ascii") for kind in WITHOUT_SEQNO)

Read = TypeVar("Read", contravariant=True)
Write = TypeVar("Write")


class Decided(NamedTuple, Generic[Write]):
    """A decided run: the state after it, whether it has dead letters, and the writes.

    `missing` returns them without DATA up to a seqno, which is written already (0: none is), and with the dead letters
    or without.
    """

    state: SequencerState
    is_refused: bool
    missing: Callable[[int, bool], Iterable[Write]]


class EngineRecords(Protocol[Read, Write]):
    """The records of a group that are read and not sequenced, and the writes made of them, in an engine's form."""

    def read(self, source: Input, records: Read, arrived: Callable[..., int]) -> None:
        """Keep records of FORWARD from the offset that `arrived` returns (`Group.arrived` of this partition)."""

    def is_full(self, source: Input) -> bool:
        """Whether so many records of the partition are kept that it is read no further for now."""

    def offsets(self, part: Range) -> Iterable[tuple[int, int]]:
        """Return the offsets of a range's records, as (first, end) pairs in their order."""

    def decide(self, state: SequencerState, parts: Iterable[Range]) -> Decided[Write]:
        """Remove the records of a run, and decide them."""

    def data(self, record: Data) -> Write:
        """Return the write of a record that the job itself makes."""

    def payload_of(self, writes: Iterable[Write]) -> int:
        """Return the payload that counts towards STEP_BYTES."""


class AgreeingMachine(Generic[Read, Write]):
    """The machine (`ordering.machine`). `tell` gets the notices of each step whose entry is in the log."""

    def __init__(self, group: Group, records: EngineRecords[Read, Write], tell: Callable[[Notice], None]) -> None:
        self.group = group
        self._records, self._tell = records, tell
        self._phase = _Phase.READY
        self._in_flight: deque[int] = deque()
        """The last seqno of DATA passed to the log with each write in flight, or before it."""
        self._size = 0
        """The payload of this step's DATA."""
        self._is_last = False
        self._last: tuple[SequencerState, Pipeline] | None = None
        """The last pipeline asked for, and the state that it was made of: a loop asks each turn."""
        group.keep_with(records.offsets)

    @property
    def pipeline(self) -> Pipeline:
        """The group's pipeline, with the positions of the site's own FORWARD only: the job looks after no other."""
        site, written = self.group.site, self.group.written
        state = site.sequenced.state
        if self._last is None or self._last[0] is not state or self._last[1].written != written:
            own = f".forward.{site.me.name}"
            positions = {place: offset for place, offset in state.positions.items() if place.topic.endswith(own)}
            self._last = state, Pipeline(replace(state, positions=positions), written)
        return self._last[1]

    @property
    def is_due(self) -> bool:
        """Whether a step is under way."""
        return self._phase is not _Phase.READY

    @property
    def is_open(self) -> bool:
        """Whether the step under way still takes input: its entry is not made yet."""
        return self._phase is _Phase.DATA

    def has_room(self, source: Input) -> bool:
        """Whether an input may be read further."""
        if not source.place:
            return not self.group.site.is_behind
        return not self._records.is_full(source) or self.group.lacks(source.place)

    def read(self, source: Input, records: Read) -> None:
        """Take records of FORWARD, in the order of their log. Call `Group.start_of` first."""
        self._records.read(source, records, partial(self.group.arrived, source.place))

    def hear(self, source: Input, records: Iterable[Record]) -> None:
        """Take records of another site's log. Raises ProtocolViolation."""
        for raw in records:
            # A shared log also has all DATA of its site, which does not concern this one.
            if not raw.headers or not (raw.headers[0][1] or b"").startswith(_OF_LOGS):
                continue
            record = of_log(raw, is_copy=source.is_copy)
            if record.kind != STRAY:
                self.group.hear(source.site, raw.offset + 1, record, read_entry)

    def absorb(self, decisions: Iterable[Exclusion]) -> None:
        """Apply exclusions that operators have decided, however long ago."""
        self.group.exclusions.add(decisions)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass, and begin a step."""
        self.group.tick(elapsed_ms)
        self._phase = _Phase.DATA

    def finish(self) -> None:
        """Begin the last step: a snapshot as entry, so that the next start needs nothing older."""
        if not self.is_due and not self._is_last:
            self._is_last, self._phase = True, _Phase.DATA

    def writes(self) -> Sequence[Write] | None:
        """Return the step's entry, then DATA of one run after the other; None if a write must be in the log first.

        Raises HistoryUnavailable if retention has dropped records of a run, Disagreement if other records were read.
        """
        if self._phase is _Phase.DATA and not self._in_flight:
            self._phase = _Phase.ENTRY
            entry = self.group.end_step(is_last=self._is_last)
            if entry is not None:
                self._in_flight.append(self.group.sent)
                return [self._records.data(write_entry(entry))]
        if self._phase is _Phase.ENTRY and not self._in_flight:
            for notice in self.group.site.notices:
                self._tell(notice)
            self._phase, self._size = _Phase.READY if self._is_last else _Phase.RUNS, 0
        if self._phase is _Phase.RUNS:
            while self._size < STEP_BYTES and (run := self.group.due()) is not None:
                if writes := self._sequence(run):
                    self._size += self._records.payload_of(writes)
                    self._in_flight.append(self.group.sent)
                    return writes
            self._phase = _Phase.READY
        return None

    def acknowledge(self) -> None:
        """Note that the log has the oldest write in flight."""
        self.group.written = self._in_flight.popleft()

    def _sequence(self, run: OrderedRun) -> list[Write]:
        """Return DATA and dead letters of a due run, without the ones that are written already."""
        group, data = self.group, self._records.data
        opening = group.open()
        before = group.site.sequenced.state
        decided = self._records.decide(before, ranges_of(run.run))
        closing, written, has_dead_letters = group.decided(decided.state, is_refused=decided.is_refused)
        last = before.seqno + written if written else 0
        missing = decided.missing(last, has_dead_letters)
        return [*map(data, opening), *missing, *(data(each) for each in closing if each.seqno > last)]


class _Phase(Enum):
    READY = auto()
    DATA = auto()
    ENTRY = auto()
    RUNS = auto()
