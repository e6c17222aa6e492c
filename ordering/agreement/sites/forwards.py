"""The partitions of FORWARD at a site: how far each has arrived, is submitted, ordered, and in the snapshot.

`ordering.agreement.site` decides when a run begins, and proves that all sites order the same records.
"""

from __future__ import annotations

from collections.abc import Callable

from ordering.agreement.log import Contents, OrderedRun, Range, ReadReport, ranges_of
from ordering.agreement.site_state import Arrived, CopyMark, GroupState, Place

MAX_RUN_RECORDS = 20_000
"""FORWARD records in one run, about: a partition more or less."""

MAX_MARKS = 16
"""Places from which the records of one partition can be read again."""

IDLE_RECORDS = 1_024
"""Least number of records between two such places, if the records are heartbeats."""


class Forwards:
    """The part of a `Site` that follows FORWARD, its own and the other sites'."""

    def __init__(self, job: GroupState, site: str) -> None:
        self._state, self._unsaid, self._site = job.site, job.unsaid, site
        self.contents: Callable[[Range], Contents | None] | None = None
        """The function that gives the job's contents of a range, None if not all of it was read yet. None: not told."""

    def place(self, name: str) -> Place:
        """Return the offsets of a partition."""
        return self._state.places.get(name) or Place(name)

    def arrive(self, event: Arrived) -> bool:
        """Note that records of a partition have arrived; return whether they are new."""
        name, end, state, urgent = event.place, event.end, self._state, self._unsaid.urgent
        place = self.place(name)
        if is_of(self._site, name) and event.begin > place.submitted:
            # Dropped records that were not submitted are in no run. Their senders send them again.
            place = state.places[name] = place._replace(submitted=event.begin)
        if end <= place.end:
            if not event.is_idle:  # it is read again
                urgent[name] = max(end, urgent.get(name, 0))
            return False
        marks = place.marks or (CopyMark(0, 0),)
        if not event.is_idle or end - marks[-1].end >= IDLE_RECORDS:
            marks = (*marks, CopyMark(end, event.at))
        if len(marks) > MAX_MARKS:
            marks = _without_nearest(marks)
        if not event.is_idle:
            urgent[name] = end
        state.places[name] = place._replace(end=end, marks=marks)
        return True

    def is_here(self, ordered: OrderedRun) -> bool:
        """Whether all records of a run have arrived at this site."""
        return all(part.end <= self.place(part.place).end for part in ranges_of(ordered.run))

    def is_idle(self) -> bool:
        """Whether only heartbeats of the own partitions are not submitted yet."""
        urgent = self._unsaid.urgent.items()
        return all(self.place(name).submitted >= end for name, end in urgent if is_of(self._site, name))

    def is_urgent(self, part: Range) -> bool:
        """Whether a range has more than heartbeats."""
        return part.first < self._unsaid.urgent.get(part.place, 0)

    def submit(self) -> tuple[Range, ...]:
        """Return the ranges of a new run, and count them as submitted: all arrived records of the own partitions.

        The submitter reports the contents of each range; the records of one that is not wholly read stay.
        """
        ranges, room, places = list[Range](), MAX_RUN_RECORDS, self._state.places
        for name in sorted(places):
            place = places[name]
            part = Range(name, place.submitted, min(place.end, place.submitted + room))
            if is_of(self._site, name) and part.first < part.end and self._tell(part):
                ranges.append(part)
                room -= part.end - part.first
                places[name] = place._replace(submitted=part.end)
        return tuple(ranges)

    def _tell(self, part: Range) -> bool:
        """Report the contents of a range; return whether the job has read all of it."""
        if self.contents is None:
            return True
        read = self.contents(part)
        if read is not None:
            told = ReadReport(part.place, part.first, part.end, (read,) if read.digest else ())
            self._unsaid.told.append(told)
            self.note_told(told)
        return read is not None

    def note_told(self, told: ReadReport) -> None:
        """Take a report on the records of runs, from the site that submits them."""
        known = self._state.told.get(told.place)
        self._state.told[told.place] = told if known is None else known.followed(told)

    def told(self, part: Range) -> Contents | None:
        """Return the contents of the range that its submitting site has reported; None if it has not."""
        told = self._state.told.get(part.place)
        return None if told is None else told.of(part)

    def note_ordered(self, part: Range) -> None:
        """Note that a range is ordered."""
        place = self.place(part.place)
        ordered = max(place.ordered, part.end)
        self._state.places[part.place] = place._replace(ordered=ordered, submitted=max(place.submitted, ordered))

    def note_snapshot(self, part: Range) -> None:
        """Note that the snapshot has a range, and all before it.

        Forget the reports on it, and all marks but the latest before the records that are in no snapshot.
        """
        place, told = self.place(part.place), self._state.told.get(part.place)
        if told is not None:  # a run whose holes are forgotten has no report any more
            holes = tuple(hole for hole in told.holes if hole.end > part.end)
            first = max(told.first, min(part.end, told.end))
            self._state.told[part.place] = told._replace(first=first, holes=holes)
        passed = sum(mark.end <= part.end for mark in place.marks)
        self._state.places[part.place] = place._replace(marks=place.marks[max(0, passed - 1) :])


def is_of(site: str, place: str) -> bool:
    """Whether a partition is of the site's own FORWARD."""
    return place.rpartition("-")[0].endswith(f".forward.{site}")


def _without_nearest(marks: tuple[CopyMark, ...]) -> tuple[CopyMark, ...]:
    """Return the marks without the one whose neighbours are nearest, so that their distances stay about equal."""
    gaps = [after.end - before.end for before, after in zip(marks, marks[2:], strict=False)]
    nearest = 1 + gaps.index(min(gaps))
    return (*marks[:nearest], *marks[nearest + 1 :])
