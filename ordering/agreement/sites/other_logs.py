"""The logs of the other sites as a site reads them, and its own log as they have read it.

`ordering.agreement.site` proves that a site whose log was lost is told so.
"""

from __future__ import annotations

import contextlib

from ordering.agreement.codec import decode
from ordering.agreement.log import Entry, LogRow, read_on
from ordering.agreement.site_state import GroupState, Heard, OtherLog, SiteState
from ordering.agreement.views import Process
from ordering.base.errors import Disagreement, ProtocolViolation

MAX_TRAIL = 64
"""Largest number of own entries whose digests a site keeps: the ones that other sites may name next, and the last."""

OUT_FOR_GOOD = (
    "Have the other sites go on without this one (`abcast site exclude`). To replace it, begin a new "
    'group as docs/sites.md says ("A site that is lost").'
)
"""The advice to the operator of a site that can't go on."""


class OtherLogs:
    """The part of a `Site` that reads logs. `broken`: logs whose next entry does not follow, found in this step."""

    def __init__(self, job: GroupState, process: Process) -> None:
        self._state, self._process, self._epoch = job.site, process, job.epoch
        self._paced: dict[str, int] = {}
        """The epoch of each other site in which its suspicion timeout was read."""
        self.broken: list[OtherLog] = []

    def row(self, site: str) -> LogRow:
        """Return the place up to which another site's log was read."""
        return self._state.logs.get(site) or LogRow(site, 0, 0, 0)

    def read(self, event: Heard) -> Entry | None:
        """Take a record of another site's log; return the entry if it counts. Raises Disagreement."""
        site, entry, me = event.site, event.entry, self._process.me.name
        if entry is not None and entry.is_whole and entry.origin != self._process.view.origin:
            raise Disagreement(f"site {site} is of another group of sites than {me}: give both the same sites' file.")
        before = self.row(site)
        row, counts = read_on(before._replace(at=max(before.at, event.at)), event.epoch, entry)
        self._state.logs[site] = row
        if row.is_broken and not before.is_broken:
            self.broken.append(OtherLog(site))
        if entry is None or not counts:
            return None
        self._compare(site, entry)
        self._note_pace(site, entry)
        return entry

    def _compare(self, site: str, entry: Entry) -> None:
        """Compare this site's log with another site's reading of it. Raises Disagreement if the log was lost."""
        state, me = self._state, self._process.me.name
        named = next((row for row in entry.logs if row.site == me), LogRow("", 0, 0, 0))
        here = state.trail.get(named.number, named.digest)  # the digest of an old entry is not known any more
        if named.epoch > self._epoch or named.number > state.number or named.digest != here or named.is_broken:
            raise Disagreement(
                f"site {site} has read the log of {me} up to entry {named.number} of epoch {named.epoch}. "
                f"That log was lost: the one here ends at entry {state.number} of epoch {self._epoch}. {OUT_FOR_GOOD}"
            )
        state.logs[site] = state.logs[site]._replace(known=named.number)

    def _note_pace(self, site: str, entry: Entry) -> None:
        """Note after how long another site suspects. It is in its file, so its next job may have another value."""
        if self._paced.get(site) == entry.epoch or not entry.is_whole:
            return
        self._paced[site] = entry.epoch
        with contextlib.suppress(ProtocolViolation):  # of another version
            self._process.note_pace(site, decode(SiteState, entry.state).process.suspect_after_ms)

    def forget_trail(self) -> None:
        """Drop own entries that no site will name again. Beyond `MAX_TRAIL`, drop the ones in the middle."""
        state, view = self._state, self._process.view
        others = {process.name for process, _ in view.rows} | {member.name for member in view.members}
        first = min((self.row(name).known for name in others - {self._process.me.name}), default=state.number)
        numbers = [number for number in state.trail if number >= min(first, state.number)]
        if len(numbers) > MAX_TRAIL:
            numbers = numbers[: MAX_TRAIL // 2] + numbers[-MAX_TRAIL // 2 :]
        state.trail = {number: state.trail[number] for number in numbers}
