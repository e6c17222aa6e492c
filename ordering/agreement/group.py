"""A group at a site that agrees with other sites, as both engines drive it: from records read to records written.

    records read ─→ `arrived`, `hear`, `exclusions`, `tick` ─→ `end_step` ─→ the entry
    `due` ─→ the engine passes the run's records through `ordering.sequencer.sequencer` ─→ `decided` ─→ DATA

A group is an `ordering.agreement.site` with the job's own knowledge: how far each partition is read, and which DATA is
written. It holds no records. An engine keeps the ones that `arrived` tells it to keep, for the run that is `due`.

Invariant. Whenever a job ends, the site's log has everything that any other site can know of it, because an engine
keeps this order of writing:

1. It writes an entry when all DATA and dead letters before it are in Kafka: the entry says so (`complete`), and may
   have a snapshot that counts them.
2. It writes DATA, and begins the next step, when the entry is in Kafka.

An engine need not wait if it passes all records to one partition in this order, and Kafka never has one without all
before it. After a crash the next job, of either engine, goes on from the last entry that counts, reads on from the
places that the entry names, and makes the same DATA from the same runs. It writes only the part that is not there yet
(`DecidedRun.written`). Two jobs of different engines are in the same state after the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ordering.agreement.log import Contents, Entry, OrderedRun, Range, contents_of, judge, ranges_of
from ordering.agreement.messages import Exclude
from ordering.agreement.site import Site, begin
from ordering.agreement.site_state import Arrived, CopyMark, Dropped, GroupState, Heard, Reading, SiteState
from ordering.agreement.sites.other_logs import OUT_FOR_GOOD
from ordering.agreement.sites.sequenced import Sequenced
from ordering.agreement.state import Tick
from ordering.base.errors import Disagreement, HistoryUnavailable, LaterVersion, ProtocolViolation
from ordering.base.records import EPOCH, Data, Exclusion
from ordering.sequencer.sequencer import begin_batch
from ordering.sequencer.state import SequencerState

LONGEST_STEP_MS = 1_000
"""Longest time that a step moves the clock, in ms: a site that stalls must not suspect others for their silence."""


class DecidedRun(NamedTuple):
    """The result of a decided run: the DATA that ends it, the number of its seqnos that are in DATA already, and
    whether this site has to write its dead letters: the site that submitted the run does, unless they are in Kafka.
    """

    closing: tuple[Data, ...]
    written: int
    has_dead_letters: bool


class Exclusions:
    """Operators' exclusions of sites.

    The protocol takes each exclusion once, in the view that it names; one for an earlier view is dropped. The group's
    state has both lists, so after a crash no exclusion is taken twice in a view.
    """

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def add(self, exclusions: Iterable[Exclusion]) -> None:
        """Take operators' decisions, which may be old, or for a view that this site has not seen yet."""
        known = {*self._state.exclusions, *self._state.excluded}
        self._state.exclusions += [each for each in exclusions if each not in known]

    def due(self, view: int) -> list[Exclusion]:
        """Return the exclusions to carry out in this view, and count them as done. Drops the ones for earlier views."""
        state = self._state
        now = [each for each in state.exclusions if each.view == view]
        state.excluded = [each for each in state.excluded if each.view == view] + now
        state.exclusions = [each for each in state.exclusions if each.view > view]
        return now


def after_takeover(state: SiteState, taken: SequencerState) -> Group:
    """Return a group after a takeover: the site's log gives `state`, and the site's DATA gives `taken`."""
    site = begin(state, taken.epoch, sent=taken.seqno, now_ms=state.process.now_ms, of_format=taken.format)
    # Sites do not agree on epochs: each has its own seals.
    site.sequenced.state = replace(site.sequenced.state, seals=taken.seals, unsnapped=0)
    return Group(site)


def going_on(state: GroupState, sequencer: SequencerState) -> Group:
    """Return a group as it was at the end of a step. Raises ProtocolViolation."""
    return Group(Site(state, Sequenced(state.site, state.epoch, sequencer, state.position)))


class Group:
    """A group at a site: a cursor on `state`, which is complete after a step. Not thread-safe.

    `written` is the last seqno in Kafka.
    """

    def __init__(self, site: Site) -> None:
        self.site, self.state = site, site.job
        self.written = self.state.sent
        self.exclusions = Exclusions(self.state)
        self._kept: Callable[[Range], Iterable[tuple[int, int]]] | None = None

    @property
    def sent(self) -> int:
        """Return the last seqno that was passed to Kafka."""
        return self.state.sent

    def keep_with(self, kept: Callable[[Range], Iterable[tuple[int, int]]]) -> None:
        """Set `kept`, which yields the offsets of a range's kept records, as (first, end) pairs in their order."""
        self._kept, self.site.forwards.contents = kept, self._contents

    def _contents(self, part: Range) -> Contents | None:
        reading = self.state.readings.get(part.place)
        if self._kept is None or reading is None or reading.end < part.end:
            return None
        return contents_of(part, self._kept(part))

    # Input

    def start_of_log(self, site: str, beginning: int) -> int:
        """Return the offset here at which to read another site's log, whose copy begins at `beginning`.

        Raises HistoryUnavailable if there may have been an entry before that.
        """
        at = self.site.logs.row(site).at
        if at < beginning:
            raise HistoryUnavailable(
                f"site {self.site.me.name} has read the log of {site} up to offset {at} here, and retention has "
                f"dropped the entries up to offset {beginning}. So it is not known what {site} has promised in them. "
                f"{OUT_FOR_GOOD}"
            )
        return at

    def mark(self, name: str) -> CopyMark:
        """Return the mark from which a partition of FORWARD is read."""
        return next(iter(self.site.forwards.place(name).marks), CopyMark(0, 0))

    def start_of(self, name: str, beginning: int, *, is_copy: bool, is_changed: bool = False) -> int:
        """Begin to read a partition of FORWARD, which begins at `beginning`. Return the offset here to read from.

        `is_changed`: the partition is a copy, and no longer has the records that its mark names.
        """
        mark = self.mark(name)
        if is_changed:
            self.state.readings.setdefault(name, Reading(name, 0, 0, self._needed(name), is_cut=True))
            return beginning
        if name not in self.state.readings:
            # Dropped records must not be taken for offsets without a record.
            is_cut, needed = mark.at < beginning, self._needed(name)
            if is_cut and not is_copy:  # offsets are those at home
                self.state.readings[name] = Reading(name, beginning, beginning, needed)
                self.site.take(Arrived(name, beginning, beginning, beginning))
            else:
                self.state.readings[name] = Reading(name, mark.end, mark.end, needed, is_cut)
        return max(mark.at, beginning)

    def _needed(self, name: str) -> int:
        """Return the offset from which its records are still to be sequenced: a mark may be far before that."""
        runs = (part for ordered in self.site.state.since for part in ranges_of(ordered.run))
        return min([self.site.forwards.place(name).ordered, *(part.first for part in runs if part.place == name)])

    def arrived(self, name: str, first: int, last: int, at: int, *, is_idle: bool = False) -> int:
        """Take records with these first and last offsets at home, read up to `at` here. Return the offset to keep from.

        Call `start_of` first. `is_idle`: all of the records are heartbeats.
        """
        reading = self.state.readings[name]
        if reading.is_cut:
            reading = reading._replace(begin=first, end=first, is_cut=False)
        kept = max(reading.end, reading.needed)
        self.state.readings[name] = reading = reading._replace(end=max(reading.end, last + 1))
        self.site.take(Arrived(name, reading.end, at, reading.begin, is_idle))
        return kept

    def lacks(self, name: str) -> bool:
        """Whether the next run has records of the partition that were not read yet."""
        run, reading = self.site.sequenced.next(), self.state.readings[name]
        return run is not None and any(part.place == name and part.end > reading.end for part in ranges_of(run.run))

    def hear(self, site: str, at: int, record: Data, read_entry: Callable[[Data], Entry]) -> None:
        """Take a record of another site's log. One that no site can have written is counted as rejected.

        `read_entry` parses the record as an entry. Raises Disagreement, LaterVersion.
        """
        try:
            entry = read_entry(record) if judge(self.site.logs.row(site), record) else None
        except LaterVersion:
            raise
        except ProtocolViolation:
            self.site.state.rejected += 1
            return
        if entry is not None or record.kind == EPOCH:
            self.site.take(Heard(site, at, record.epoch, entry))

    def tick(self, elapsed_ms: int) -> None:
        """Advance the clock by the time since the last tick, but at most by LONGEST_STEP_MS."""
        self.site.take(Tick(self.site.process.state.now_ms + min(elapsed_ms, LONGEST_STEP_MS)))

    # Output

    def end_step(self, *, is_last: bool = False) -> Entry | None:
        """Return the entry to write, if something is to leave the site. `is_last`: the job ends with this step."""
        for exclusion in self.exclusions.due(self.site.process.view.id):
            self.site.take(Exclude(exclusion.sites))
        entry = self.site.end_step(is_last=is_last)
        self.site.notices += tuple(self._missed())
        return entry

    def _missed(self) -> Iterator[Dropped]:
        """Yield each partition, once, whose dropped records the order needs next and only a relay may bring again."""
        for name, reading in self.state.readings.items():
            if reading.is_cut and not reading.is_told and self.lacks(name):
                self.state.readings[name] = reading._replace(is_told=True)
                yield Dropped(name)

    def due(self) -> OrderedRun | None:
        """Return the next ordered run if this site has read its records; otherwise None.

        The run is to be decided from `site.sequenced.state`. Call this only when the entry that `end_step` returned is
        in Kafka. Raises HistoryUnavailable if retention has dropped records of the run, and Disagreement if this site
        has read other records of the run than the site that submitted it.
        """
        run = self.site.due()
        if run is None:
            return None
        readings = [(part, self.state.readings.get(part.place)) for part in ranges_of(run.run)]
        if any(reading is None or reading.end < part.end for part, reading in readings):
            return None
        for part, reading in readings:
            if reading is not None and part.first < reading.begin and not self._is_whole(part):
                raise HistoryUnavailable(self._what_is_lost(run, part))
            self._compare(run, part)
        return run

    def _is_whole(self, part: Range) -> bool:
        """Whether this site has read all records of the range that the submitting site has: the rest may be holes."""
        told = self.site.forwards.told(part)
        return told is not None and told == self._contents(part)

    def _compare(self, run: OrderedRun, part: Range) -> None:
        told, read = self.site.forwards.told(part), self._contents(part)
        if told is not None and read is not None and told != read:
            raise Disagreement(
                f"{part.place} from offset {part.first} to {part.end}: site {run.sender.name} has read {told.records} "
                f"records of it, and {self.site.me.name} {read.records}, or at other offsets. The topic here was "
                f"recreated, or lacks records. DATA here has none of them. {OUT_FOR_GOOD}"
            )

    def _what_is_lost(self, run: OrderedRun, part: Range) -> str:
        is_in_data = "and DATA may lack it"
        if run.last <= self.site.state.complete:
            is_in_data = "and no snapshot covers it, though DATA has it"
        return (
            f"{part.place} was ordered from offset {part.first} on, and retention has dropped some of it here, "
            f"{is_in_data}. {OUT_FOR_GOOD}"
        )

    def open(self) -> tuple[Data, ...]:
        """Return a snapshot to write before the DATA of the due run, if one is due and all before it is written."""
        sequenced = self.site.sequenced
        if not sequenced.state.seqno == self.written == self.sent:
            return ()
        sequenced.state, snapshots = begin_batch(sequenced.state)
        return snapshots

    def decided(self, state: SequencerState, *, is_refused: bool) -> DecidedRun:
        """Record that the due run was decided, with `state` after it. The engine then writes the run's missing DATA.

        `is_refused`: some of the run's records are dead letters.
        """
        before = self.site.sequenced.state.seqno
        closing, has_dead_letters = self.site.end_run(state, is_refused=is_refused)
        after = self.site.sequenced.state.seqno
        written = max(0, min(self.sent, after) - before)
        self.state.sent = max(self.sent, after)
        return DecidedRun(closing, written, has_dead_letters)
