"""A site's own log: its next entry, and the snapshots that entries have.

`ordering.agreement.site` decides when an entry is due. It is made from the state of the entry before it.
"""

from __future__ import annotations

from dataclasses import replace

from ordering.agreement.codec import encode
from ordering.agreement.log import Entry, OrderedRun, OwnEntry, ReadReport, SiteMessage, ranges_of, write_told
from ordering.agreement.site_state import GroupState, stated
from ordering.agreement.sites.forwards import MAX_RUN_RECORDS, Forwards
from ordering.agreement.sites.other_logs import OtherLogs
from ordering.agreement.sites.sequenced import Sequenced
from ordering.base.canonical import changes
from ordering.base.formats import ADDITIONS, FIRST

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


class OwnLog:
    """The part of a `Site` that writes its log."""

    def __init__(self, job: GroupState, forwards: Forwards, logs: OtherLogs, sequenced: Sequenced) -> None:
        self._state, self._unsaid, self._pace = job.site, job.unsaid, job.pace
        self._epoch, self._format = job.epoch, job.of_format
        self._forwards, self._logs, self._sequenced = forwards, logs, sequenced

    def next_entry(self, *, is_snapshot_due: bool) -> Entry:
        """Return the next entry, with all that the site has not said yet, and count it as written."""
        state, unsaid = self._state, self._unsaid
        letters, told, ordered = tuple(unsaid.letters), tuple(unsaid.told), tuple(unsaid.ordered)
        unsaid.letters, unsaid.told, unsaid.ordered = [], [], []
        self._pace.said_at_ms = state.process.now_ms
        state.complete = max(state.complete, self._sequenced.position)
        before = state.trail.get(state.number, b"")
        self._logs.forget_trail()
        state.number += 1
        state.since += ordered
        is_base = not state.base or state.number - state.base >= SNAPSHOT_EVERY_ENTRIES
        is_base = is_base or (self._format > FIRST.number and not unsaid.before)
        if is_base or is_snapshot_due or self._has_much_unsnapped():
            is_base = self._take_snapshot() or is_base
        state.base = state.number if is_base else state.base
        entry = self._entry(letters, told, ordered, before)
        state.trail[state.number] = entry.digest
        self._sequenced.expect(ordered)
        return entry

    def _entry(
        self,
        letters: tuple[SiteMessage, ...],
        told: tuple[ReadReport, ...],
        ordered: tuple[OrderedRun, ...],
        before: bytes,
    ) -> Entry:
        """Return the entry of the present number, with the site's whole state."""
        state, is_base = self._state, self._state.base == self._state.number
        entry = Entry(
            state.process.view.origin,
            self._epoch,
            state.number,
            letters,
            ordered,
            base=state.base,
            snapshot=state.snapshot if is_base else b"",
            before=before,
            logs=tuple(state.logs[site] for site in sorted(state.logs)),
        )
        if self._format == FIRST.number:
            all_told = [state.told[place] for place in sorted(state.told)]
            bare = replace(state, snapshot=b"", logs={}, told={})
            return entry._replace(letters=(*letters, write_told(all_told)) if all_told else letters, state=encode(bare))
        last, self._unsaid.before = self._unsaid.before, stated(state)
        if is_base:
            trail = tuple(OwnEntry(*each) for each in state.trail.items())
            entry = entry._replace(since=tuple(state.since), trail=trail)
        else:
            entry = entry._replace(origin=0)
        return entry._replace(
            letters=(*letters, write_told(told, self._format)) if told else letters,
            state=self._unsaid.before if is_base else changes(last, self._unsaid.before),
            written=ADDITIONS.number,
            readable_from=ADDITIONS.number,
            version=ADDITIONS.version,
            seqno=self._sequenced.state.seqno,
        )

    def is_snapshot_due(self, *, is_last: bool) -> bool:
        """Whether the last snapshot is old enough, or the job can't take one later, and DATA has records after it."""
        process = self._state.process
        after_ms = min(SNAPSHOT_AFTER_MS, SNAPSHOT_AFTER_SUSPICIONS * process.suspect_after_ms)
        is_time = is_last or process.now_ms - self._pace.snapped_at_ms >= after_ms
        return is_time and self._sequenced.position > self._state.sequenced

    def _has_much_unsnapped(self) -> bool:
        """Whether a job that starts would have to sequence much again."""
        runs, records = len(self._state.since), self._state.position - self._state.sequenced
        if self._format == FIRST.number:  # each entry has all of it
            return runs >= SNAPSHOT_EVERY_RUNS
        return runs >= MANY_RUNS or (runs >= SNAPSHOT_EVERY_RUNS and records >= MAX_RUN_RECORDS)

    def _take_snapshot(self) -> bool:
        """Put the sequencer's state in the place of the runs that it has; return whether there are any."""
        done, state = self._sequenced, self._state
        if done.position <= state.sequenced:
            return False
        state.snapshot, state.sequenced = done.state.to_bytes(), done.position
        self._pace.snapped_at_ms = state.process.now_ms
        while state.since and state.since[0].last <= done.position:
            for part in ranges_of(state.since.popleft().run):
                self._forwards.note_snapshot(part)
        return True
