"""The steps of a group at a site that agrees with others: the order of its writes.

Invariant: Kafka gets an entry only after all DATA of earlier steps, and DATA only after the entry of its step: that is
the order that `ordering.agreement.group` needs. A crash at any point leaves a prefix of these writes.

    phase    waits until Kafka has     then
    READY    nothing                   `begin` lets time pass → DATA; `write_entry` writes the entry → ENTRY
    DATA     DATA of earlier steps     → READY
    ENTRY    the step's entry          DATA of the runs that are due is written → READY

A group that is still in DATA or ENTRY when its loop stops waiting is *stuck*. It is not read, not ticked, and takes no
step, until Kafka has the write.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

from kafka.structs import TopicPartition

from connectors.engine.agreeing import AgreeingGroup
from connectors.engine.group import IN_FLIGHT_BYTES
from connectors.engine.writing import Writer, WrittenBatch
from connectors.kafka.codec.inputs import Input
from connectors.kafka.transport import Record
from connectors.takeover.notices import describe
from ordering.base.records import Exclusion

_logger = logging.getLogger(__name__)


class _Phase(Enum):
    READY = auto()
    DATA = auto()
    ENTRY = auto()


class GroupSteps:
    """The steps of one group. `sources`: the inputs that its partitions belong to."""

    def __init__(self, group: AgreeingGroup, writer: Writer) -> None:
        self.group = group
        self.sources: dict[TopicPartition, Input] = {}
        self._writer = writer
        self._phase = _Phase.READY
        self._entry: WrittenBatch | None = None
        self._ticked_at: float | None = None

    def take(self, place: TopicPartition, records: Sequence[Record]) -> None:
        """Take records of a partition, in the order of its log. Raises ProtocolViolation."""
        self.group.take(self.sources[place], records)

    def exclude(self, exclusions: Iterable[Exclusion]) -> None:
        """Apply exclusions that operators have decided, however long ago."""
        self.group.exclude(exclusions)

    @property
    def is_stuck(self) -> bool:
        """Whether the last step still waits for Kafka."""
        return self._phase is not _Phase.READY

    def begin(self, gives_up: Callable[[], bool]) -> None:
        """Begin a step: let time pass, and wait until `gives_up()` for DATA of earlier steps. Raises WriteFailed."""
        now = time.monotonic()
        before = now if self._ticked_at is None else self._ticked_at
        elapsed_ms = int((now - before) * 1000)
        self._ticked_at = before + elapsed_ms / 1000  # the fraction counts in the next step
        self.group.tick(elapsed_ms)
        self._phase = _Phase.DATA
        self.advance(gives_up)

    def write_entry(self, *, is_last: bool = False) -> None:
        """Write the entry of the step, if there is one. `is_last`: the job ends with it. Raises WriteFailed."""
        output = self.group.end_step(is_last=is_last)
        self._entry = None if output is None else self._writer.write([output])
        self._phase = _Phase.ENTRY

    def advance(self, gives_up: Callable[[], bool]) -> None:
        """Wait until `gives_up()` for the write that the phase needs. If Kafka has it, end the phase.

        The phase ENTRY ends with DATA. Raises WriteFailed, HistoryUnavailable, Disagreement.
        """
        if self._phase is _Phase.DATA and self._data_is_there(gives_up):
            self._phase = _Phase.READY
        elif self._phase is _Phase.ENTRY and self.entry_is_there(gives_up):
            self._log_notices()
            self._write_due()
            self._phase = _Phase.READY

    def write_last_entry(self, gives_up: Callable[[], bool]) -> None:
        """Write a last entry, if Kafka has all DATA before `gives_up()`. Raises WriteFailed."""
        self._entry = None
        if self._data_is_there(gives_up):
            self.write_entry(is_last=True)

    def entry_is_there(self, gives_up: Callable[[], bool]) -> bool:
        """Wait until `gives_up()` for the last entry written; return whether Kafka has it. Raises WriteFailed."""
        return self._entry is None or self._writer.wait(self._entry, gives_up)

    def _data_is_there(self, gives_up: Callable[[], bool]) -> bool:
        while self.group.oldest is not None:
            if not self._writer.wait(self.group.oldest, gives_up):
                return False
            self.group.see_written()
        return True

    def _write_due(self) -> None:
        size = 0
        while size < IN_FLIGHT_BYTES and (outputs := self.group.due()):
            written = self._writer.write(outputs)
            self.group.passed(written)
            size += written.size

    def _log_notices(self) -> None:
        for notice in self.group.notices:
            level, words = describe(notice)
            _logger.log(level, "site %s, group %s: %s", self.group.site.me.name, self.group.name, words)
