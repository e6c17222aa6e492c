"""ISIS between sites: one order without a home. A site's part in it, around the processes of
`ordering.agreement.views`.

Each site is one process of the agreement. It submits *runs*: each has all of the site's FORWARD since the last run, by
reference (partition and offsets). The output, at every site, is one sequence of runs, and so of FORWARD records; the
*position* of a record is its number there. Every site puts the same records in the same order through the same
`ordering.sequencer.sequencer`, from the same state. So every site's DATA is the same, views and refusals included,
except for the epoch, which says which job of the site wrote it.

    FORWARD ─→ run ─→ agreement ─→ entry ─→ the site's log ─→ relays ─→ the other sites' agreement
                                               └→ runs that are ordered ─→ `Sequenced` ─→ DATA

A *step* takes all input: the site's FORWARD, FORWARD that relays have brought, entries of other sites' logs, the time.
If anything is to leave the site by the step, the site's whole state is written with it as one entry
(`ordering.agreement.log`). DATA is made of runs of entries in the log, never of a job's own memory, which may be lost.

Rules.

1. *Nothing leaves but by the log.* Letters are part of entries, and DATA follows the entry that has its runs. A step
   without an entry may be forgotten: a restarted job reads the same inputs again, from the places in the last entry. So
   letters and runs that nobody waits for (`_is_urgent`: all are runs of heartbeats, and signs of life) may wait in the
   job, and go out with one entry a turn (`TURN`).
2. *One chain.* An entry that counts was made from the state of the one that counts before it. A job claims an epoch,
   seals the log, reads it up to the seal, and continues from the last entry that counts. Entries that a job of a lower
   epoch writes behind the seal do not count. Readers of the log, at home and elsewhere, know it by
   `ordering.base.reader`: entries are numbered 1, 2, 3 …, with seals among them.
3. *Payload first.* A site proposes for another's run only when all its records are in its own Kafka. Records that
   relays bring are taken in the order of their offsets at home, each once. So a payload crosses a link once, and a site
   can read all ordered records without asking another site.
4. *A run that one site has ordered is ordered.* An entry lists ordered runs. A site takes them over from any entry that
   counts, in the order of positions, besides the deliveries of its own process. So a site that was away, or left out of
   a view, catches up by reading the others' logs; they need not be asked.

Why no two sites have different DATA, under any cut, kill, double start or wrong suspicion:

* *A site is a process that forgets nothing.* By (2) the entries that count are one history of steps of one process. By
  (1) no letter and no DATA of it was ever seen that is not in that history. Other steps of a killed or replaced job
  have no effect. So the sites are processes as `ordering.agreement.views` demands, of one incarnation each, that store
  each step before its outputs leave.
* *So all deliveries are the same.* By the invariants of `ordering.agreement.views` the run at a position is the same at
  all sites that deliver one there. By (4) a site takes a run over only from one that has delivered it, or has taken it
  over itself. So by induction there is one sequence. A site may count its own knowledge of a final number, as
  `ordering.agreement.isis` does, since the entry that delivers has that knowledge in it.
* *The same runs are the same records.* A run names offsets of one log, whose records never change, and by (3) each site
  has exactly these. A copy of the log that was made anew, or lacks a record, would break that. So the submitter of a
  run says at which offsets it has read records (`ReadReport`), in the same entry or before, and no site sequences a run
  if it has read others (`ordering.agreement.group`). There is no report on runs that an older version has submitted,
  nor on a run that another site's log has told before the submitter's did.
* *The same records are the same DATA.* `Sequenced` goes from run to run, and its state after a run depends only on the
  runs up to it. It is never rebuilt from DATA, which lacks some of it (times, dropped records). An entry names the
  entry with the last snapshot, and has all runs since. A restarted job makes the same DATA from them, and does not
  write again the part that the log has.

Each message is ordered once. A run's records follow the records of the run before it (`submitted`), the process gives
each run one number for ever, `ordering.agreement.views` orders each number once, and the received table drops a message
that a member has sent twice.

Members of a dead site leave the group's view as any dead member does. A run lists the *absent* sites: the ones outside
the view of sites in which it was ordered. Behind its records their members count as silent
(`ordering.membership.log_time.without_sites`), so the group's next view is without them. All sites put that view in the
same place. A process delivers a run in the view whose end or whose agreement has it, so by the invariants of
`ordering.agreement.views` all that deliver at a position do so in the same view, and a site that takes a run over takes
its absent sites over, too. The time at which a site learns of a view of sites, or its own silence, decides nothing.

Waiting. With a majority of the last view, the sites in the view continue. A site outside it orders no FORWARD of its
own, and reports so (`Outside`, `Stuck`); its members' messages wait in its FORWARD, and are ordered when it is back.
Two sites need each other, or an operator's `Exclude`.

A site whose log is lost, or the end of it, has forgotten promises. It is not the same site any more, and must not come
back under its name. Suppose that it does.

* *A site that has read any lost entry never takes an entry of the new log.* Entries are a chain
  (`ordering.agreement.log`), and the entry that it has read is not in the new one: by the digest nothing there follows.
  To this site the lost one is as dead behind the last entry that it has read, which `ordering.agreement.views` allows.
  Its entries go on naming that entry.
* *Any such site tells it, whenever that may be, and it ends (`OtherLogs`).* Each entry of such a site names an epoch, a
  number and a digest of the lost log. If the new log is shorter, that is seen. If it is not, another digest is there.
  The site knows its digests (`trail`) from the last entry on that the other one was heard to know, which is before all
  lost ones; beyond `MAX_TRAIL` the middle is not kept. And a site that reads an entry that does not follow says so at
  once, by an entry for that alone (`is_broken`). All entries are compared, so it does not matter what the site has
  done, or how often it has begun again, before it heard the first one.
* A site that has read no lost entry knows of no promise in it, and takes the new log for the old one. As long as the
  two hear only each other, as in a cut, they continue, and may decide again what the others had agreed on with the old
  log. Nothing there tells such a site from one that was only away: no protocol does without that log.

Bounds. At most `MAX_RUNS_IN_FLIGHT` runs of a site are under way, of `MAX_RUN_RECORDS` each; later records wait in
FORWARD. From `UNPACED_RUNS` on, a run begins only when another site was heard. Runs that wait for their records are at
most the runs in flight; one too many is dropped, and sent again. `MAX_AHEAD_RUNS` may be known before their
predecessors; more are dropped, and read in another site's log. `MAX_UNSNAPPED_RUNS` may be ordered whose records are
not here; then `is_behind` says that FORWARD is to be read first. An entry is O(runs in flight and not sequenced). One
of `SNAPSHOT_EVERY_ENTRIES`, or of the entries of `SNAPSHOT_EVERY_RUNS` runs, has the snapshot, which is O(senders of
the group).
"""

from __future__ import annotations

from collections.abc import Iterable

from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.log import (
    OVERHEARD,
    Entry,
    OrderedRun,
    SiteMessage,
    absent_from,
    ranges_of,
    read_letter,
    read_told,
    run_of,
    write_letter,
)
from ordering.agreement.messages import DeliverRun, Installed, Message, Output, To
from ordering.agreement.process import awake
from ordering.agreement.site_state import Arrived, GroupState, Heard, Notice, Pace, SiteEvent, SiteState, Waiting
from ordering.agreement.sites.forwards import Forwards, is_of
from ordering.agreement.sites.other_logs import OtherLogs
from ordering.agreement.sites.own_log import OwnLog
from ordering.agreement.sites.sequenced import Sequenced
from ordering.agreement.state import Propose, Send
from ordering.agreement.views import Process
from ordering.base.errors import Disagreement, ProtocolViolation
from ordering.base.formats import FIRST
from ordering.base.records import Data
from ordering.sequencer.state import SequencerState

MAX_RUNS_IN_FLIGHT = 8
"""Runs of a site that are not known to be delivered everywhere in the view."""

UNPACED_RUNS = 2
"""Runs in flight up to which a new run begins as its records come. Above, one begins when another site is heard."""

TURN = 0.4
"""The part of a suspicion timeout after which a silent site says even what nobody waits for."""

MAX_WAITING_RUNS = 256
"""Runs of other sites that may wait for their records."""

MAX_AHEAD_RUNS = 65_536
"""Runs that may be known to be ordered before all that come before them are."""

MAX_UNSNAPPED_RUNS = 1_024
"""Runs that may be ordered and not in a snapshot. There are more than a snapshot takes where records are not here."""

_OF_NOW = frozenset({"known", "beat", "join"})
"""The kinds of letters that tell how it is now."""

PATIENT = frozenset({"send", "propose", "finals"}) | _OF_NOW
"""The kinds of letters that wait for a turn, unless they are about what somebody waits for."""


class Site:
    """A site in the job of one epoch: take events, `end_step`, write the entry, then the DATA of the runs that are
    `due`.

    A cursor on the state of the job, which is complete after `end_step`; not thread-safe.
    """

    def __init__(self, job: GroupState, sequenced: Sequenced) -> None:
        self.job, self.state, self.sequenced = job, job.site, sequenced
        self.group, self.epoch, self.format = job.site.group, job.epoch, job.of_format
        self.process = Process(job.site.process)
        self.me = self.process.me
        self._absent = absent_from(self.process.view)
        self.forwards = Forwards(job, self.me.name)
        self.logs = OtherLogs(job, self.process)
        self._own_log = OwnLog(job, self.forwards, self.logs, sequenced)
        self.notices: tuple[Notice, ...] = ()
        """The notices of the last step."""

    @property
    def is_behind(self) -> bool:
        """Whether so many ordered runs wait for their records that other sites' logs are to be left alone for now."""
        return len(self.state.since) + len(self.job.unsaid.ordered) >= MAX_UNSNAPPED_RUNS

    def take(self, event: SiteEvent) -> None:
        """Take one event; its outputs come with `end_step`."""
        if isinstance(event, Arrived):
            if self.forwards.arrive(event):
                waiting, self.state.waiting = self.state.waiting, []
                for run in waiting:
                    self._take_send(run.sender, run.message)
        elif isinstance(event, Heard):
            entry = self.logs.read(event)
            self.job.has_heard = True
            if entry is not None:
                self._take_entry(event.site, entry)
        else:
            if self.process.agreement is not None:
                self.process.agreement.slack_ms = 2 * self._idle_ms()
            self.process.take(event)

    # Other sites' entries

    def _take_entry(self, site: str, entry: Entry) -> None:
        try:
            for told in read_told(entry.letters):
                if is_of(site, told.place):
                    self.forwards.note_told(told)
        except ProtocolViolation:
            self.state.rejected += 1
        for ordered in entry.ordered:
            self._order(ordered)
        for letter in entry.letters:
            is_for_me = self.me.name in letter.receivers
            if not is_for_me and letter.kind != OVERHEARD:
                continue
            try:
                message = read_letter(letter)
            except ProtocolViolation:
                self.state.rejected += 1
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
            self.state.rejected += 1
            return
        for number, (run, proposal) in enumerate(zip(message.runs, message.numbers, strict=True), message.first):
            alone = Send(message.view, number, (run,), (proposal,))
            try:
                is_here = self.forwards.is_here(OrderedRun(0, sender, run))
            except ProtocolViolation:
                self.state.rejected += 1
                return
            if is_here or message.view != self.process.view.id:
                self.process.receive(sender, alone)
            elif Waiting(sender, alone) not in self.state.waiting and len(self.state.waiting) < MAX_WAITING_RUNS:
                self.state.waiting.append(Waiting(sender, alone))

    # The step

    def end_step(self, *, is_last: bool = False) -> Entry | None:
        """Return the entry to write, if something is to leave. Nothing else may be done before it is in the log.

        All DATA and dead letters before must be in Kafka. `is_last`: the job ends with this step.
        """
        state = self.state
        has_begun = self._submit()
        state.waiting = [run for run in state.waiting if run.message.view == self.process.view.id]
        self._take_outputs(self.process.end_batch())
        broken, self.logs.broken = self.logs.broken, []
        self.notices = (*self.notices, *broken)
        is_snapshot_due = self._own_log.is_snapshot_due(is_last=is_last)
        is_due = broken or state.refused > state.complete or is_snapshot_due
        may_wait = not (has_begun or is_last or self._is_turn() or self._is_urgent())
        if not is_due and (may_wait or not (self.job.unsaid.letters or self.job.unsaid.ordered)):
            return None
        return self._own_log.next_entry(is_snapshot_due=is_snapshot_due)

    def _submit(self) -> bool:
        """Begin one run of all new records, as long as not too many are under way; return whether one was begun.

        Steps are often much shorter than the way to another site. A run for each of them would fill the runs in flight
        with few records, and all later ones would wait until one of these is done. So runs begin at the pace at which
        other sites are heard; those in flight can't be done before. Heartbeats alone wait for a turn: they only tell
        the time.
        """
        now_ms = self.process.state.now_ms
        if self.forwards.is_idle() and now_ms - self.job.pace.begun_at_ms < self._idle_ms():
            return False
        if self.process.in_flight >= (MAX_RUNS_IN_FLIGHT if self.job.has_heard else UNPACED_RUNS):
            return False
        ranges = self.forwards.submit()
        if ranges:
            self.job.has_heard = False
            self.job.pace.begun_at_ms = now_ms
            self.process.submit(run_of(ranges, self.format))
        return bool(ranges)

    def _idle_ms(self) -> int:
        of_members = self.sequenced.state.membership.settings.suspect_after_ms
        return int(TURN * min(self.process.state.suspect_after_ms, of_members))

    def _is_turn(self) -> bool:
        """Whether the site has been silent for so long that it says even what nobody waits for."""
        said_at_ms = self.job.pace.said_at_ms
        return said_at_ms is None or self.process.state.now_ms - said_at_ms >= self._idle_ms()

    def _is_urgent(self) -> bool:
        """Whether somebody waits for the next entry: it has more than runs of heartbeats and signs of life.

        While a flush runs, members wait for the time that heartbeats tell.
        """
        if self.sequenced.state.membership.flush.id:
            return True
        held = () if self.process.agreement is None else self.process.agreement.state.held
        runs = (*(each.run for each in held), *(ordered.run for ordered in self.job.unsaid.ordered))
        return any(letter.kind not in PATIENT for letter in self.job.unsaid.letters) or any(
            self.forwards.is_urgent(part) for run in runs for part in ranges_of(run)
        )

    def _take_outputs(self, outputs: Iterable[Output]) -> None:
        """Note the ordered runs, and the messages to send, each once. Newer signs of state replace older ones."""
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
            self.job.unsaid.letters = [each for each in self.job.unsaid.letters if not _is_outdone(each, letter)]
            self.job.unsaid.letters.append(letter)

    def _order(self, ordered: OrderedRun) -> None:
        """Take a run that some process has delivered at its position. It comes out after all before it."""
        state = self.state
        if ordered.first <= state.position:
            return
        known = state.ahead.get(ordered.first)
        if known is not None and known != ordered:
            raise Disagreement(f"{known} and {ordered} are both ordered.")
        if ordered.first == state.position + 1 or len(state.ahead) < MAX_AHEAD_RUNS:
            state.ahead[ordered.first] = ordered
        while (following := state.ahead.pop(state.position + 1, None)) is not None:
            state.position = following.last
            self.job.unsaid.ordered.append(following)
            for part in ranges_of(following.run):
                self.forwards.note_ordered(part)

    # DATA

    def due(self) -> OrderedRun | None:
        """Return the next run to sequence if its records are here. Call this when the last entry is in the log."""
        run = self.sequenced.next()
        return run if run is not None and self.forwards.is_here(run) else None

    def end_run(self, state: SequencerState, *, is_refused: bool) -> tuple[tuple[Data, ...], bool]:
        """Record that the due run was decided, with `state` after it. `is_refused`: it has dead letters.

        Return the DATA that ends the run, and whether this site writes its dead letters: not if they are known to be
        written. The next entry tells that they are. One is made for that alone, so that no later start repeats them.
        """
        run = self.sequenced.next()
        assert run is not None
        is_to_write = is_refused and run.sender == self.me and run.last > self.state.complete
        if is_to_write:
            self.state.refused = run.last
        closing = self.sequenced.end_run(state)
        self.job.position = self.sequenced.position
        return closing, is_to_write


def begin(state: SiteState, epoch: int, *, sent: int = 0, now_ms: int = 0, of_format: int = FIRST.number) -> Site:
    """Return a site in a new job, which was away until `now_ms`, and says that it is back."""
    state.process = process = awake(state.process, now_ms)
    pace = Pace(process.now_ms, process.now_ms)
    job = GroupState(state, epoch, state.sequenced, sent, pace=pace, of_format=of_format)
    site = Site(job, Sequenced(state, epoch))
    site.process.beat()
    return site


def _is_outdone(letter: SiteMessage, by: SiteMessage) -> bool:
    """Whether a letter says no more than a later one: it is the same, or an earlier report of the site's progress."""
    is_alike = (letter.receivers, letter.kind) == (by.receivers, by.kind)
    return is_alike and (letter.kind in _OF_NOW or letter.body == by.body)
