"""A job that writes tables in a plain Python process: attempts, each from the tables' last rows on, until the stop.

It loads neither Arrow nor Delta: a sequencer that starts the jobs in a child needs the options only.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.retrying import Retries
from connectors.kafka.groups.suspended_groups import SLOW_WAITS_S, SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import START_ERRORS
from connectors.ledger.table_lock import StoppedWaiting
from ordering.base.errors import AbcastError

TRIGGER_S = 1.0
"""The least seconds between two commits: each makes a file for each group in it."""
PAUSE_S = 0.05


class LedgerOptions(NamedTuple):
    """The options of the jobs. `data`: the directory of the tables. The others are the engine's, too."""

    connection: Connection
    site: str
    data: Path
    groups: GroupChoice = ALL_GROUPS
    look_every_s: float = LOOK_EVERY_S
    troubles: Troubles | None = None


class ProcessTableJob(ABC):
    """A job of the ledger. `run` blocks until `stop`, which any thread may call."""

    name: str
    is_principal: bool
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = START_ERRORS

    def __init__(self, options: LedgerOptions) -> None:
        self.options = options
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._finder = TopicFinder(options.connection, options.groups, options.look_every_s)
        self._suspended = SuspendedGroups(self.name, SLOW_WAITS_S)

    def stop(self) -> None:
        """Ask `run` to write the rows that it has read, and to return."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises errors that will not pass, or come too often (`Retries`)."""
        retries = Retries(self.name)
        with closing(self):
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    self._attempt()
                except StoppedWaiting:
                    return
                except AbcastError as error:
                    if self._stop.is_set() and error.retriable:
                        return
                    self._stop.wait(retries.failed(error, time.monotonic() - started))

    @abstractmethod
    def _attempt(self) -> None:
        """Work from the tables' last rows to the stop, or to the first failure of the tables."""

    def close(self) -> None:
        """Disconnect."""
        self._finder.close()

    def _suspend(self, group: str, error: AbcastError) -> None:
        self._suspended.suspend(group, error)
        self._report()

    def _report(self) -> None:
        """Tell which groups the job goes on without."""
        if self.options.troubles is not None:
            self.options.troubles.put(self.name, self._suspended.troubles)
