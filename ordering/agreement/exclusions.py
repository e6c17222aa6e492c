"""The exclusions of sites that operators have decided, for one group at one site.

Invariant. The protocol takes each exclusion once, in the view that it names. An exclusion for a later view waits. For
an earlier view it is dropped. The group's state has both lists, so after a crash no exclusion is taken twice in a view.
"""

from __future__ import annotations

from collections.abc import Iterable

from ordering.base.records import Exclusion


class Exclusions:
    """The exclusions: `waiting` for this view's next step or for a later view, and `done` in this view."""

    def __init__(self, waiting: Iterable[Exclusion], done: Iterable[Exclusion]) -> None:
        self.waiting, self.done = list(waiting), list(done)

    def add(self, exclusions: Iterable[Exclusion]) -> None:
        """Take operators' decisions, which may be old, or for a view that this site has not seen yet."""
        known = {*self.waiting, *self.done}
        self.waiting += [each for each in exclusions if each not in known]

    def due(self, view: int) -> list[Exclusion]:
        """Return the exclusions to carry out in this view, and count them as done. Drops the ones for earlier views."""
        now = [each for each in self.waiting if each.view == view]
        self.done = [each for each in self.done if each.view == view] + now
        self.waiting = [each for each in self.waiting if each.view > view]
        return now
