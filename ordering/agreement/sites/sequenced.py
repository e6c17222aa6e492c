"""The sequencer of a site, which takes the ordered runs one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ordering.agreement.log import OrderedRun
from ordering.agreement.site_state import SiteState
from ordering.base.records import Data
from ordering.membership.log_time import without_sites
from ordering.sequencer.sequencer import end_batch
from ordering.sequencer.state import SequencerState


class Sequenced:
    """The sequencer of a site: the same at all sites after a run, but for the epoch it writes."""

    def __init__(self, state: SiteState, epoch: int, known: SequencerState | None = None, position: int = 0) -> None:
        """Begin from the snapshot; or from a state that is `known`, after the run that ends at `position`."""
        if known is None:
            known, position = SequencerState.from_bytes(state.snapshot), state.sequenced
        self.state = replace(known, epoch=epoch)
        self.position = position
        self._runs = deque(run for run in state.since if run.first > position)

    def expect(self, runs: Iterable[OrderedRun]) -> None:
        """Take the runs that follow."""
        self._runs += runs

    @property
    def runs(self) -> Sequence[OrderedRun]:
        """Return the ordered runs that are still to be sequenced, the next one first."""
        return self._runs

    def next(self) -> OrderedRun | None:
        """Return the next run, None if there is none."""
        return self._runs[0] if self._runs else None

    def end_run(self, state: SequencerState) -> tuple[Data, ...]:
        """Note that the next run's records are decided, with `state` after them; return the records that follow."""
        run = self._runs.popleft()
        membership = without_sites(state.membership, run.absent)
        self.state, closing = end_batch(replace(state, membership=membership))
        self.position = run.last
        return closing
