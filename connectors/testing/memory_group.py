"""A group in memory: its topics, a running sequencer, and members that are closed at the end."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from connectors.client.api.member import Member
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.names import DEFAULT_SITE


class MemoryGroup:
    """A group at one site, ordered within its `with` block.

    `partitions`: of the topic that members write to, like `abcast topics create --partitions`.
    """

    def __init__(self, name: str = "group", site: str = DEFAULT_SITE, *, partitions: int = 1) -> None:
        self.name = name
        self.site = site
        self.connection = MemoryConnection()
        self.connection.create(name, site, partitions)
        self._cleanup = ExitStack()

    def __enter__(self) -> MemoryGroup:
        """Start the sequencer."""
        self._cleanup.enter_context(SequencerThread(self.connection, self.name, self.site))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the members, the newest first, then stop the sequencer. Raises the sequencer's error, if it failed."""
        self._cleanup.__exit__(kind, error, traceback)

    def member(self, name: str, **options: Any) -> Member:
        """Return a new `Member` of that name at the group's site. `options`: as for `Member`.

        The group closes it at the end; a test may close it earlier.
        """
        member = Member(self.name, f"{self.site}/{name}", connection=self.connection, **options)
        return self._cleanup.enter_context(member)
