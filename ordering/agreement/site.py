"""ISIS between sites: one order without a home. A site's part in it, around the processes of
`ordering.agreement.views`.

Each site is one process of the agreement. What it submits are *runs*: all of its FORWARD that has come since the last
one, by reference (partition and offsets). What comes out, at every site, is one sequence of runs, and so of FORWARD
records; the *position* of a record is its number there. Every site puts the same records in the same order through the
same `ordering.sequencer.sequencer`, from the same state. So every site's DATA is the same, views and refusals included,
but for the epoch, which says which job of the site wrote it.

    FORWARD ─→ run ─→ agreement ─→ entry ─→ the site's log ─→ relays ─→ the other sites' agreement
                                               └→ runs that are ordered ─→ `Sequenced` ─→ DATA

A *step* takes what has come: FORWARD of its own, FORWARD that relays have brought, entries of other sites' logs, the
time. If something is to leave the site by it, all that the site knows is written with it as one entry
(`ordering.agreement.log`). DATA is made of runs of entries that are in the log, never of what a job knows and may
forget.

Rules.

1. *Nothing leaves but by the log.* Letters are part of entries, and DATA follows the entry that has its runs. A step
   that makes no entry may be forgotten: a job that starts again reads the same inputs from where the last entry stood.
   So what nobody waits for (`_is_urgent`: all is runs of heartbeats, and signs of life) may wait in the job, letters
   and runs alike, and goes out with one entry a turn (`TURN`).
2. *One chain.* An entry that counts was made from the state of the one that counts before it. A job claims an epoch,
   seals the log, reads it up to the seal, and goes on from the last entry that counts. What a job of a lower epoch
   writes behind the seal does not count. Readers of the log, at home and elsewhere, know it by `ordering.base.reader`:
   entries are numbered 1, 2, 3 …, and seals stand among them.
3. *Payload first.* A site proposes for another's run only when all its records stand in its own Kafka. What relays
   bring is taken in the order of its offsets at home, each once. So a payload crosses a link once, and a site can
   read all that is ordered without asking another one.
4. *What one site has ordered is ordered.* An entry says which runs were ordered. A site takes that over from any
   entry that counts, in the order of positions, besides what its own process delivers. So a site that was away, and
   one that was left out of a view, catch up by reading the others' logs; they need not be asked.

Why no two sites have different DATA, whatever is cut off, killed at any point, started twice or suspected wrongly:

* *A site is a process that forgets nothing.* By (2) the entries that count are one history of steps of one process. By
  (1) no letter and no DATA of it was ever seen that is not in that history. What a killed job, or one that was
  replaced, had done besides is as if it had not been. So the sites are processes as `ordering.agreement.views` demands,
  of one life each, that store each step before its outputs leave.
* *So all that is delivered is the same.* By the invariants of `ordering.agreement.views` the run at a position is the
  same at all sites that deliver one there; by (4) a site takes a run over only where a process has delivered it, or
  took it over itself; so by induction there is one sequence. Counting its own knowledge of a final number, as
  `ordering.agreement.isis` does, is right since the entry that delivers has that knowledge in it.
* *The same runs are the same records.* A run names offsets of one log, whose records never change, and by (3) each site
  has exactly these. A copy of the log that was made anew, or lacks a record, would break that. So who submits a run
  says at which offsets it has read records (`ReadReport`), in the same entry or before; no site sequences a run of
  which it has read others (`ordering.agreement.group`). Nothing is known of what an older version has submitted, nor of
  a run that another site's log has told before the submitter's did.
* *The same records are the same DATA.* `Sequenced` goes from run to run, and its state after a run depends on nothing
  but the runs up to it. It is never rebuilt from DATA, which does not tell all of it (times, records dropped): an entry
  names the one with the last snapshot, and has all runs since. A job that starts again makes the same DATA from them.
  What of it stands in the log is not written again.

Each message is ordered once: a run's records follow those of the run before it (`submitted`), the process gives each
run one number for ever, `ordering.agreement.views` orders each number once, and what a member has sent twice is dropped
by the received table.

Members of a site that is gone leave the group's view as any dead member does. A run says which sites are *absent*: not
in the view of sites in which it was ordered. Behind its records their members count as silent
(`ordering.membership.log_time.without_sites`), so the group's next view is without them. All sites put that view in the
same place: a process delivers a run in the view whose end or whose agreement has it, so by the invariants of
`ordering.agreement.views` the view of a position is the same for all that deliver there, and who takes a run over takes
that over, too. When a site knows of a view of sites, or how long it has heard nothing, decides nothing.

What waits. With a majority of the last view everything goes on, at the sites that are in the view. A site outside it
orders nothing of its own, and says so (`Outside`, `Stuck`); its members' messages stand in its FORWARD, and are ordered
when it is back. Two sites need each other, or an operator's `Exclude`.

A site whose log is lost, or the end of it, has forgotten promises. It is not the same site any more, and must not come
back under its name. Suppose that it does.

* *Who has read anything that was lost never takes anything of the new log.* Entries are a chain
  (`ordering.agreement.log`), and what it has read is not in the new one: by the digest nothing there follows. To these
  sites it is as one that has died behind the last entry that they have read, which `ordering.agreement.views` allows.
  Their entries go on naming that entry.
* *The site is told by any of them, whenever that may be, and ends (`_compare`).* Each entry of such a site names an
  epoch, a number and a digest of the log that was lost. If the new log has not come so far, that is seen. If it has,
  another digest is there. The site knows its digests (`trail`) from the last entry on that the other one was heard to
  know, which is before all that was lost; of more than `MAX_TRAIL` the middle is not kept. And who reads an entry that
  does not follow says so at once, by an entry for that alone (`is_broken`). All entries are compared, so it does not
  matter what the site has done, or how often it has begun again, before it heard the first one.
* A site that has read nothing of what was lost knows of no promise in it, and takes the new log for the old one. As
  long as it alone is heard, as in a cut, the two go on, and may decide again what the others had agreed on with the old
  log. Nothing there tells such a site from one that was only away: no protocol does without that log.

Bounds. At most `MAX_RUNS_IN_FLIGHT` runs of a site are under way, of `MAX_RUN_RECORDS` each; what has come besides
stands in FORWARD. From `UNPACED_RUNS` on, a run begins only when another site was heard. Runs that wait for their
records are at most the runs in flight; one that is too many is dropped, and sent again. `MAX_AHEAD_RUNS` may be known
before those that come before them; what is beyond is dropped, and read in another site's log. `MAX_UNSNAPPED_RUNS`
may be ordered whose records are not here; then `is_behind` says that FORWARD is to be read first. An entry is O(runs in
flight and not sequenced). One of `SNAPSHOT_EVERY_ENTRIES`, or of those of `SNAPSHOT_EVERY_RUNS` runs, has the snapshot,
which is O(senders of the group).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.log import (
    OVERHEARD,
    Contents,
    Entry,
    LogRow,
    OrderedRun,
    OwnEntry,
    Range,
    ReadReport,
    SiteMessage,
    absent_from,
    ranges_of,
    read_letter,
    read_on,
    read_told,
    run_of,
    write_letter,
    write_told,
)
from ordering.agreement.messages import DeliverRun, Installed, Message, Output, To
from ordering.agreement.process import awake
from ordering.agreement.site_state import (
    NOTHING_UNSAID,
    Arrived,
    CopyMark,
    Heard,
    Notice,
    OtherLog,
    Pace,
    Place,
    SiteEvent,
    SiteState,
    Unsaid,
    Waiting,
    changes,
    stated,
)
from ordering.agreement.state import Propose, Send
from ordering.agreement.views import Process
from ordering.base.errors import Disagreement, ProtocolViolation
from ordering.base.formats import ADDITIONS, FIRST
from ordering.base.records import Data
from ordering.membership.log_time import without_sites
from ordering.sequencer.sequencer import end_batch
from ordering.sequencer.state import SequencerState

MAX_RUNS_IN_FLIGHT = 8
"""Runs of a site that are not known to be delivered everywhere in the view."""

UNPACED_RUNS = 2
"""Runs in flight up to which a new run begins as its records come. Above, one begins when another site is heard."""

TURN = 0.4
"""A site that says nothing else says what nobody waits for after so much of the time of a suspicion."""

MAX_RUN_RECORDS = 20_000
"""FORWARD records in one run, about: a partition more or less."""

MAX_WAITING_RUNS = 256
"""Runs of other sites that may wait for their records."""

MAX_AHEAD_RUNS = 65_536
"""Runs that may be known to be ordered before all that come before them are."""

MAX_UNSNAPPED_RUNS = 1_024
"""Runs that may be ordered and not in a snapshot. There are more than a snapshot takes where records are not here."""

MAX_MARKS = 16
"""Places from which the records of one partition can be read again."""

IDLE_RECORDS = 1_024
"""Least number of records between two such places, if the records are heartbeats."""

MAX_TRAIL = 64
"""Largest number of own entries whose digests a site keeps: the ones that other sites may name next, and the last."""

_OF_NOW = frozenset({"known", "beat", "join"})
"""The kinds of letters that tell how it is now."""

PATIENT = frozenset({"send", "propose", "finals"}) | _OF_NOW
"""The kinds of letters that wait for a turn, unless they are about what somebody waits for."""

OUT_FOR_GOOD = (
    "Have the other sites go on without this one (`abcast site exclude`). To replace it, begin a new "
    'group as docs/sites.md says ("A site that is lost").'
)
"""The advice to the operator of a site that can't go on."""

SNAPSHOT_EVERY_RUNS = 32
"""Runs between two snapshots, about, if they have many records: what a job that starts has to sequence again."""

MANY_RUNS = 256
"""The same where they have few."""

SNAPSHOT_EVERY_ENTRIES = 64
"""Entries between two that have a snapshot: what a job that starts has to read back, about."""

SNAPSHOT_AFTER_MS = 60_000
"""Longest time that records of DATA are in no snapshot while a job works, in ms."""

SNAPSHOT_AFTER_SUSPICIONS = 6
"""The same in times of `suspect_after_ms`, where that is shorter."""


class Site:
    """A site in the job of one epoch: take events, `end_step`, write the entry, then the DATA of the runs that are
    `due`.

    Mutable, as a cursor is; not thread-safe.
    """

    def __init__(
        self,
        state: SiteState,
        epoch: int,
        *,
        now_ms: int = 0,
        sequenced: Sequenced | None = None,
        has_heard: bool = False,
        pace: Pace | None = None,
        unsaid: Unsaid = NOTHING_UNSAID,
        of_format: int = FIRST.number,
    ) -> None:
        """`sequenced`, `has_heard`, `pace`, `unsaid`: of a job that goes on. One that begins was away until `now_ms`.

        `of_format`: the group's at this site (`ordering.base.formats`).
        """
        self.group, self.epoch, self.format = state.group, epoch, of_format
        self.process = Process(awake(state.process, now_ms) if sequenced is None else state.process)
        if sequenced is None:
            self.process.beat()
        self.me = self.process.me
        self._absent = absent_from(self.process.view)
        self.position, self.number, self.rejected = state.position, state.number, state.rejected
        self._trail = dict(state.trail)
        self._paced: dict[str, int] = {}  # of each other site, the epoch that has said how it suspects
        self.complete, self._refused = state.complete, state.refused
        self._places = {place.name: place for place in state.places}
        self._logs = {row.site: row for row in state.logs}
        self._waiting = list(state.waiting)
        self._ahead = {ordered.first: ordered for ordered in state.ahead}
        self._since = deque(state.since)
        self._snapshot, self._sequenced, self._base = state.snapshot, state.sequenced, state.base
        self.pace = Pace(self.process.state.now_ms, self.process.state.now_ms) if pace is None else pace
        self._told = {told.place: told for told in state.told}
        self.contents: Callable[[Range], Contents | None] | None = None
        """The function that gives the job's contents of a range, None if not all of it was read yet. None: not told."""
        self._unsaid, self._news, self._just_told = list(unsaid.letters), list(unsaid.ordered), list(unsaid.told)
        self._urgent, self._before = dict(unsaid.urgent), unsaid.before
        self._broken: list[OtherLog] = []
        self.has_heard = has_heard
        """Whether another site was heard since the last run was begun. (A job that begins need not know.)"""
        self.notices: tuple[Notice, ...] = ()
        """The notices of the last step."""
        self.sequenced = Sequenced(state, epoch) if sequenced is None else sequenced

    def state(self) -> SiteState:
        """The value of it, at the end of a step."""
        return SiteState(
            group=self.group,
            process=self.process.state,
            snapshot=self._snapshot,
            number=self.number,
            position=self.position,
            sequenced=self._sequenced,
            since=tuple(self._since),
            ahead=tuple(self._ahead[first] for first in sorted(self._ahead)),
            places=tuple(self._places[name] for name in sorted(self._places)),
            logs=tuple(self._logs[site] for site in sorted(self._logs)),
            waiting=tuple(self._waiting),
            rejected=self.rejected,
            base=self._base,
            trail=tuple(OwnEntry(*each) for each in self._trail.items()),
            complete=self.complete,
            refused=self._refused,
            told=tuple(self._told[place] for place in sorted(self._told)),
        )

    def unsaid(self) -> Unsaid:
        """Return the content of the next entry that may wait, at the end of a step."""
        urgent = tuple(sorted(self._urgent.items()))
        return Unsaid(tuple(self._unsaid), tuple(self._news), tuple(self._just_told), urgent, self._before)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of this site's own can be ordered now: it is outside the view, or a view is being left."""
        return self.process.is_waiting

    @property
    def unsnapped(self) -> Sequence[OrderedRun]:
        """Runs that are ordered, and not in the snapshot."""
        return self._since

    @property
    def is_behind(self) -> bool:
        """Whether so much is ordered that waits for its records that other sites' logs are to be left alone for now."""
        return len(self._since) + len(self._news) >= MAX_UNSNAPPED_RUNS

    def place(self, name: str) -> Place:
        """Return the offsets of a partition of FORWARD."""
        return self._places.get(name) or Place(name)

    def log_row(self, site: str) -> LogRow:
        """Return the place up to which another site's log was read."""
        return self._logs.get(site) or LogRow(site, 0, 0, 0)

    def take(self, event: SiteEvent) -> None:
        """Take one event; what follows from it goes out with `end_step`."""
        if isinstance(event, Arrived):
            self._arrive(event)
        elif isinstance(event, Heard):
            self._hear(event)
        else:
            if self.process.agreement is not None:
                self.process.agreement.slack_ms = 2 * self._idle_ms()
            self.process.take(event)

    def end_step(self, *, is_last: bool = False) -> Entry | None:
        """Return the entry to write, if something is to leave. Nothing else may be done before it is in the log.

        All DATA and dead letters before must be in Kafka. `is_last`: the job ends with this step.
        """
        has_begun = self._submit()
        self._waiting = [run for run in self._waiting if run.message.view == self.process.view.id]
        self._take_outputs(self.process.end_batch())
        self.notices, broken, self._broken = (*self.notices, *self._broken), self._broken, []
        is_snapshot_due = self._is_snapshot_due(is_last=is_last)
        is_due = broken or self._refused > self.complete or is_snapshot_due
        may_wait = not (has_begun or is_last or self._is_turn() or self._is_urgent())
        if not is_due and (may_wait or not (self._unsaid or self._news)):
            return None
        letters, self._unsaid = tuple(self._unsaid), []
        told, self._just_told = self._just_told, []
        self.pace = self.pace._replace(said_at_ms=self.process.state.now_ms)
        self.complete = max(self.complete, self.sequenced.position)
        ordered, self._news = tuple(self._news), []
        before = self._trail.get(self.number, b"")
        self._forget_trail()
        self.number += 1
        self._since += ordered
        is_base = not self._base or self.number - self._base >= SNAPSHOT_EVERY_ENTRIES
        is_base = is_base or (self.format > FIRST.number and not self._before)
        if is_base or is_snapshot_due or self._has_much_unsnapped():
            is_base = self._take_snapshot() or is_base
        self._base = self.number if is_base else self._base
        entry = self._entry(letters, tuple(told), ordered, before)
        self._trail[self.number] = entry.digest
        self.sequenced.expect(ordered)
        return entry

    def _entry(
        self,
        letters: tuple[SiteMessage, ...],
        told: tuple[ReadReport, ...],
        ordered: tuple[OrderedRun, ...],
        before: bytes,
    ) -> Entry:
        """Return the entry of the present number, with the site's whole state."""
        known, is_base = self.state(), self._base == self.number
        entry = Entry(
            self.process.view.origin,
            self.epoch,
            self.number,
            letters,
            ordered,
            base=self._base,
            snapshot=self._snapshot if is_base else b"",
            before=before,
            logs=known.logs,
        )
        if self.format == FIRST.number:
            all_told = (write_told(known.told),) if known.told else ()
            return entry._replace(
                letters=(*letters, *all_told), state=replace(known, snapshot=b"", logs=(), told=()).to_bytes()
            )
        last, self._before = self._before, stated(known)
        entry = entry._replace(since=known.since, trail=known.trail) if is_base else entry._replace(origin=0)
        return entry._replace(
            letters=(*letters, write_told(told)) if told else letters,
            state=self._before if is_base else changes(last, self._before),
            written=ADDITIONS.number,
            readable_from=ADDITIONS.number,
            version=ADDITIONS.version,
            seqno=self.sequenced.state.seqno,
        )

    def _has_much_unsnapped(self) -> bool:
        """Whether a job that starts would have to sequence much again."""
        runs, records = len(self._since), self.position - self._sequenced
        if self.format == FIRST.number:  # each entry has all of it
            return runs >= SNAPSHOT_EVERY_RUNS
        return runs >= MANY_RUNS or (runs >= SNAPSHOT_EVERY_RUNS and records >= MAX_RUN_RECORDS)

    def due(self) -> OrderedRun | None:
        """The next run to be sequenced, if its records are here. To be asked when the last entry is in the log."""
        run = self.sequenced.next()
        return run if run is not None and self._is_here(run) else None

    def end_run(self, state: SequencerState, *, is_refused: bool) -> tuple[tuple[Data, ...], bool]:
        """Record that the due run was decided, with `state` after it. `is_refused`: it has dead letters.

        Return the DATA that ends the run, and whether this site writes its dead letters: not if they are known to be
        written. The next entry tells that they are. One is made for that alone, so that no later start repeats them.
        """
        run = self.sequenced.next()
        assert run is not None
        is_to_write = is_refused and run.sender == self.me and run.last > self.complete
        self._refused = run.last if is_to_write else self._refused
        return self.sequenced.end_run(state), is_to_write

    def _is_turn(self) -> bool:
        """Whether it has said nothing for so long that it says what nobody waits for, too."""
        said_at_ms = self.pace.said_at_ms
        return said_at_ms is None or self.process.state.now_ms - said_at_ms >= self._idle_ms()

    def _is_urgent(self) -> bool:
        """Whether somebody waits for the next entry: it has more than runs of heartbeats and signs of life.

        While a flush runs, members wait for the time that heartbeats tell.
        """
        if self.sequenced.state.membership.flush.id:
            return True
        held = () if self.process.agreement is None else self.process.agreement.state.held
        runs = (*(each.run for each in held), *(ordered.run for ordered in self._news))
        return any(letter.kind not in PATIENT for letter in self._unsaid) or any(
            part.first < self._urgent.get(part.place, 0) for run in runs for part in ranges_of(run)
        )

    # FORWARD

    def _arrive(self, event: Arrived) -> None:
        place = self.place(event.place)
        if self._is_own(event.place) and event.begin > place.submitted:
            # Dropped records that were not submitted are in no run. Their senders send them again.
            place = self._places[event.place] = place._replace(submitted=event.begin)
        if event.end <= place.end:
            if not event.is_idle:  # it is read again
                self._urgent[event.place] = max(event.end, self._urgent.get(event.place, 0))
            return
        marks = place.marks or (CopyMark(0, 0),)
        if not event.is_idle or event.end - marks[-1].end >= IDLE_RECORDS:
            marks = (*marks, CopyMark(event.end, event.at))
        if len(marks) > MAX_MARKS:
            marks = _without_nearest(marks)
        if not event.is_idle:
            self._urgent[event.place] = event.end
        self._places[event.place] = place._replace(end=event.end, marks=marks)
        waiting, self._waiting = self._waiting, []
        for run in waiting:
            self._take_send(run.sender, run.message)

    def _is_here(self, ordered: OrderedRun) -> bool:
        """Whether all records of a run have arrived at this site."""
        return all(part.end <= self.place(part.place).end for part in ranges_of(ordered.run))

    def _submit(self) -> bool:
        """Begin one run of all that has come, as long as not too many are under way.

        Steps are often much shorter than a way to another site. A run for each of them would fill what may be in flight
        with next to nothing, and all that comes then would wait until one of these is done. So runs are begun at the
        pace at which other sites are heard; those that are in flight can't be done before. Heartbeats alone wait for
        a turn: they only tell the time.

        Return whether one was begun.
        """
        is_idle = all(self.place(name).submitted >= end for name, end in self._urgent.items() if self._is_own(name))
        if is_idle and self.process.state.now_ms - self.pace.begun_at_ms < self._idle_ms():
            return False
        most = MAX_RUNS_IN_FLIGHT if self.has_heard else UNPACED_RUNS
        if self.process.in_flight >= most:
            return False
        ranges, room = [], MAX_RUN_RECORDS
        for name in sorted(self._places):
            place = self._places[name]
            end = min(place.end, place.submitted + room)
            part = Range(name, place.submitted, end)
            if self._is_own(name) and place.submitted < end and self._tell(part):
                ranges.append(part)
                room -= end - place.submitted
                self._places[name] = place._replace(submitted=end)
        if ranges:
            self.has_heard = False
            self.pace = self.pace._replace(begun_at_ms=self.process.state.now_ms)
            self.process.submit(run_of(tuple(ranges), self.format))
        return bool(ranges)

    def _idle_ms(self) -> int:
        of_members = self.sequenced.state.membership.settings.suspect_after_ms
        return int(TURN * min(self.process.state.suspect_after_ms, of_members))

    def _tell(self, part: Range) -> bool:
        """Report the contents of a range; return whether the job has read all of it."""
        if self.contents is None:
            return True
        read = self.contents(part)
        if read is not None:
            told = ReadReport(part.place, part.first, part.end, (read,) if read.digest else ())
            self._just_told.append(told)
            self._note_told(told)
        return read is not None

    def _note_told(self, told: ReadReport) -> None:
        known = self._told.get(told.place)
        self._told[told.place] = told if known is None else known.followed(told)

    def told(self, part: Range) -> Contents | None:
        """Return the contents of the range that its submitting site has reported; None if it has not."""
        told = self._told.get(part.place)
        return None if told is None else told.of(part)

    def _is_own(self, place: str) -> bool:
        return self._is_of(self.me.name, place)

    @staticmethod
    def _is_of(site: str, place: str) -> bool:
        return place.rpartition("-")[0].endswith(f".forward.{site}")

    # Other sites' logs

    def _hear(self, event: Heard) -> None:
        entry = event.entry
        if entry is not None and entry.is_whole and entry.origin != self.process.view.origin:
            raise Disagreement(
                f"site {event.site} is of another group of sites than {self.me.name}: give both the same sites' file."
            )
        before = self.log_row(event.site)
        row, counts = read_on(before._replace(at=max(before.at, event.at)), event.epoch, entry)
        self._logs[event.site] = row
        self.has_heard = True
        if row.is_broken and not before.is_broken:
            self._broken.append(OtherLog(event.site))
        if entry is not None and counts:
            self._compare(event.site, entry)
            self._take_entry(event.site, entry)

    def _compare(self, site: str, entry: Entry) -> None:
        """See that what another site has read of this site's log is a beginning of what it is."""
        named = next((row for row in entry.logs if row.site == self.me.name), LogRow("", 0, 0, 0))
        here = self._trail.get(named.number, named.digest)  # that of long ago is not known any more
        if named.epoch > self.epoch or named.number > self.number or named.digest != here or named.is_broken:
            raise Disagreement(
                f"site {site} has read the log of {self.me.name} up to entry {named.number} of epoch {named.epoch}. "
                f"That log was lost: the one here ends at entry {self.number} of epoch {self.epoch}. {OUT_FOR_GOOD}"
            )
        self._logs[site] = self._logs[site]._replace(known=named.number)

    def _forget_trail(self) -> None:
        """Drop entries that no site will name again. Beyond `MAX_TRAIL`, drop the ones in the middle."""
        others = {life.name for life, _ in self.process.view.rows} | {life.name for life in self.process.view.members}
        first = min((self.log_row(name).known for name in others - {self.me.name}), default=self.number)
        numbers = [number for number in self._trail if number >= min(first, self.number)]
        if len(numbers) > MAX_TRAIL:
            numbers = numbers[: MAX_TRAIL // 2] + numbers[-MAX_TRAIL // 2 :]
        self._trail = {number: self._trail[number] for number in numbers}

    def _note_pace(self, site: str, entry: Entry) -> None:
        """After how long it suspects others is in its file, so its next job may have another value."""
        if self._paced.get(site) == entry.epoch or not entry.is_whole:
            return
        self._paced[site] = entry.epoch
        with contextlib.suppress(ProtocolViolation):  # of another version
            self.process.note_pace(site, SiteState.from_bytes(entry.state).process.suspect_after_ms)

    def _take_entry(self, site: str, entry: Entry) -> None:
        self._note_pace(site, entry)
        try:
            for told in read_told(entry.letters):
                if self._is_of(site, told.place):
                    self._note_told(told)
        except ProtocolViolation:
            self.rejected += 1
        for ordered in entry.ordered:
            self._order(ordered)
        for letter in entry.letters:
            is_for_me = self.me.name in letter.receivers
            if not is_for_me and letter.kind != OVERHEARD:
                continue
            try:
                message = read_letter(letter)
            except ProtocolViolation:
                self.rejected += 1
                continue
            if not is_for_me:
                assert isinstance(message, Propose)
                self.process.overhear(ProcessIncarnation(site), message)
            elif isinstance(message, Send):
                self._take_send(ProcessIncarnation(site), message)
            else:
                self.process.receive(ProcessIncarnation(site), message)

    def _take_send(self, sender: ProcessIncarnation, message: Send) -> None:
        """Hand on the runs whose records are here; the others wait."""
        if len(message.runs) != len(message.numbers):
            self.rejected += 1
            return
        for number, (run, proposal) in enumerate(zip(message.runs, message.numbers, strict=True), message.first):
            alone = Send(message.view, number, (run,), (proposal,))
            try:
                is_here = self._is_here(OrderedRun(0, sender, run))
            except ProtocolViolation:
                self.rejected += 1
                return
            if is_here or message.view != self.process.view.id:
                self.process.receive(sender, alone)
            elif Waiting(sender, alone) not in self._waiting and len(self._waiting) < MAX_WAITING_RUNS:
                self._waiting.append(Waiting(sender, alone))

    # Output

    def _take_outputs(self, outputs: Iterable[Output]) -> None:
        """Note the ordered runs, and the messages to send, each once. Signs of state are replaced by newer ones."""
        said: list[tuple[Message, list[str]]] = []
        notices: list[Notice] = []
        for output in outputs:
            if isinstance(output, DeliverRun):
                self._order(OrderedRun(output.seqno, output.sender, output.run, self._absent))
            elif isinstance(output, To):
                if said and said[-1][0] is output.message:
                    said[-1][1].append(output.receiver.name)
                else:
                    said.append((output.message, [output.receiver.name]))
            elif isinstance(output, Notice):
                if isinstance(output, Installed):
                    self._absent = absent_from(output.view)
                notices.append(output)  # not `Missing`, which others' logs have; nor `Refused`: too few runs are sent
        self.notices = tuple(notices)
        for message, receivers in said:
            letter = write_letter(tuple(receivers), message, self.format)
            self._unsaid = [each for each in self._unsaid if not _is_outdone(each, letter)]
            self._unsaid.append(letter)

    def _order(self, ordered: OrderedRun) -> None:
        """Some process has delivered it there. It comes out when all before it have."""
        if ordered.first <= self.position:
            return
        known = self._ahead.get(ordered.first)
        if known is not None and known != ordered:
            raise Disagreement(f"{known} and {ordered} are both ordered.")
        if ordered.first == self.position + 1 or len(self._ahead) < MAX_AHEAD_RUNS:
            self._ahead[ordered.first] = ordered
        while (following := self._ahead.pop(self.position + 1, None)) is not None:
            self.position = following.last
            self._news.append(following)
            for part in ranges_of(following.run):
                self._note_ordered(part)

    def _note_ordered(self, part: Range) -> None:
        place = self.place(part.place)
        ordered = max(place.ordered, part.end)
        submitted = max(place.submitted, ordered)
        self._places[part.place] = place._replace(ordered=ordered, submitted=submitted)

    def _is_snapshot_due(self, *, is_last: bool) -> bool:
        """Whether the last snapshot is old enough, or the job can't take one later, and DATA has records after it."""
        after_ms = min(SNAPSHOT_AFTER_MS, SNAPSHOT_AFTER_SUSPICIONS * self.process.state.suspect_after_ms)
        is_time = is_last or self.process.state.now_ms - self.pace.snapped_at_ms >= after_ms
        return is_time and self.sequenced.position > self._sequenced

    def _take_snapshot(self) -> bool:
        """The sequencer's state in the place of runs that it counts; whether there are such."""
        done = self.sequenced
        if done.position <= self._sequenced:
            return False
        self._snapshot, self._sequenced = done.state.to_bytes(), done.position
        self.pace = self.pace._replace(snapped_at_ms=self.process.state.now_ms)
        while self._since and self._since[0].last <= done.position:
            run = self._since.popleft()
            for part in ranges_of(run.run):
                self._forget_marks(part)
        return True

    def _forget_marks(self, part: Range) -> None:
        """From where to read again: at the latest mark before all that is not in the snapshot. No more is needed."""
        place, told = self.place(part.place), self._told.get(part.place)
        if told is not None:  # of a run whose holes are forgotten, nothing is said any more
            holes = tuple(hole for hole in told.holes if hole.end > part.end)
            self._told[part.place] = told._replace(first=max(told.first, min(part.end, told.end)), holes=holes)
        passed = [mark for mark in place.marks if mark.end <= part.end]
        self._places[part.place] = place._replace(marks=place.marks[max(0, len(passed) - 1) :])


def _is_outdone(letter: SiteMessage, by: SiteMessage) -> bool:
    """Whether a letter says no more than a later one: it is the same, or what a site knew some time before."""
    is_alike = (letter.receivers, letter.kind) == (by.receivers, by.kind)
    return is_alike and (letter.kind in _OF_NOW or letter.body == by.body)


def _without_nearest(marks: tuple[CopyMark, ...]) -> tuple[CopyMark, ...]:
    """Return the marks without the one whose neighbours are nearest, so that their distances stay about equal."""
    gaps = [after.end - before.end for before, after in zip(marks, marks[2:], strict=False)]
    nearest = 1 + gaps.index(min(gaps))
    return (*marks[:nearest], *marks[nearest + 1 :])


class Sequenced:
    """The sequencer of a site, which goes from run to run: the same at all sites, but for the epoch it writes."""

    def __init__(self, state: SiteState, epoch: int, known: SequencerState | None = None, position: int = 0) -> None:
        """From the snapshot; or from a state that is `known`, after the run that ends at `position`."""
        if known is None:
            known, position = SequencerState.from_bytes(state.snapshot), state.sequenced
        self.state = replace(known, epoch=epoch)
        self.position = position
        self._runs = deque(run for run in state.since if run.first > position)

    def expect(self, runs: Iterable[OrderedRun]) -> None:
        """These runs follow."""
        self._runs += runs

    @property
    def runs(self) -> Sequence[OrderedRun]:
        """The agreed runs that are still to be sequenced, the next one first."""
        return self._runs

    def next(self) -> OrderedRun | None:
        """The next run, None if there is none."""
        return self._runs[0] if self._runs else None

    def end_run(self, state: SequencerState) -> tuple[Data, ...]:
        """The records of the next run are decided, with that state behind them: what follows from them."""
        run = self._runs.popleft()
        membership = without_sites(state.membership, run.absent)
        self.state, closing = end_batch(replace(state, membership=membership))
        self.position = run.last
        return closing
