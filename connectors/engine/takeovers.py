"""The takeovers that an engine job runs side by side, while its loop serves other groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from connectors.engine.options import EngineOptions
from connectors.kafka.groups.unservable_groups import JOB_ERRORS, UnservableGroups
from connectors.kafka.log.same_log import Ledger
from connectors.kafka.topics.topics import check_topics
from connectors.storage.location import RemotePath
from connectors.takeover.takeover import Claimer, Takeover
from ordering.base.errors import AbcastError, StoreUnreachable
from ordering.sequencer.state import SequencerState


class Finished(NamedTuple):
    """The groups whose takeover has ended: taken over, or failed.

    `topics`: of FORWARD. `ends`: as `Claimer.opened`.
    """

    states: dict[str, SequencerState]
    topics: dict[str, list[str]]
    ends: dict[str, int]
    errors: dict[str, AbcastError]


class Takeovers:
    """The running takeovers of one attempt. A group is in one of them at most. Not thread-safe; close it."""

    def __init__(self, options: EngineOptions, claimed: dict[str, int], agreement: str) -> None:
        """Run no takeover yet. `claimed`, `agreement`: as in `Claimer`."""
        self._options = options
        self._claimer = Claimer(options.connection, options.site, claimed, agreement, options.check_group)
        self._running: list[tuple[Takeover, Mapping[str, list[str]]]] = []
        self._ended: list[Takeover] = []

    @property
    def is_running(self) -> bool:
        """Whether a takeover runs."""
        return bool(self._running)

    @property
    def groups(self) -> set[str]:
        """The groups of the running takeovers."""
        return {group for _, topics in self._running for group in topics}

    def begin(self, topics: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Begin to take over groups, given their forward topics; return the errors of groups that can't be.

        Raises EnvironmentProblem.
        """
        unservable: dict[str, AbcastError] = {}
        try:
            check_topics(self._options.connection, topics, self._options.site)
        except UnservableGroups as found:
            unservable = dict(found.errors)
        except JOB_ERRORS:
            raise
        except AbcastError as error:
            return dict.fromkeys(topics, error)
        servable = {group: names for group, names in topics.items() if group not in unservable}
        if servable:
            try:
                claimer = replace(self._claimer, ledger=self._find_ledger())
            except StoreUnreachable as error:  # groups that are served go on
                return unservable | dict.fromkeys(servable, error)
            self._running.append((Takeover(claimer, servable), servable))
        return unservable

    def results(self, timeout_s: float) -> Finished:
        """Return the groups whose takeover has ended since the last call. Waits up to `timeout_s` for each takeover.

        Raises EnvironmentProblem.
        """
        finished = Finished({}, {}, {}, {})
        for running in list(self._running):
            takeover, topics = running
            for group, found in takeover.results(timeout_s).items():
                if isinstance(found, AbcastError):
                    finished.errors[group] = found
                else:
                    finished.states[group], finished.topics[group] = found, topics[group]
                    finished.ends[group] = self._claimer.opened[group]
            if not takeover.is_running:
                self._running.remove(running)
                self._ended.append(takeover)
        return finished

    def close_ended(self) -> None:
        """Close the connections of takeovers that have ended. It takes a moment: serve their groups first."""
        while self._ended:
            self._ended.pop().close()

    def _find_ledger(self) -> Ledger | None:
        """Return the end of the ledger; None if there is no ledger, or Delta (the extra `jobs`) is not installed."""
        ledger = self._options.ledger
        if ledger is not None and not isinstance(ledger, Path | RemotePath):
            return ledger
        if ledger is None or not ledger.exists():
            return None
        try:
            from connectors.ledger.last_row import LedgerEnd
        except ModuleNotFoundError:
            return None
        return LedgerEnd(ledger)

    def close(self) -> None:
        """Claim nothing more."""
        for takeover, _ in self._running:
            takeover.close()
        self.close_ended()
