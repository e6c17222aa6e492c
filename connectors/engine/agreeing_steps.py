"""The machine of a group at a site that agrees with others: the order of its writes.

Invariant: Kafka gets an entry only after all DATA of earlier steps, and DATA only after the entry of its step: that is
the order that `ordering.agreement.group` needs. A crash at any point leaves a prefix of these writes.

    phase    waits until Kafka has     then
    READY    nothing                   `tick` lets time pass → DATA
    DATA     DATA of earlier steps     the entry is written → ENTRY
    ENTRY    the step's entry          → RUNS
    RUNS     nothing                   DATA of the runs that are due is written → READY

Outside READY a group is not read and not ticked. A group whose write Kafka does not take is *stuck* there; the other
groups go on without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from kafka.structs import TopicPartition

from connectors.engine.agreeing import AgreeingGroup
from connectors.engine.batch import Output
from connectors.engine.group import IN_FLIGHT_BYTES
from connectors.kafka.codec.inputs import Input
from connectors.kafka.transport import Record
from connectors.takeover.notices import describe
from ordering.base.records import Exclusion
from ordering.sequencer.pipeline import Pipeline

_logger = logging.getLogger(__name__)


class _Phase(Enum):
    READY = auto()
    DATA = auto()
    ENTRY = auto()
    RUNS = auto()


class Agreeing:
    """The machine of one group. `sources`: the inputs that its partitions belong to."""

    def __init__(self, group: AgreeingGroup) -> None:
        self.group = group
        self.sources: dict[TopicPartition, Input] = {}
        self._phase = _Phase.READY
        self._in_flight: deque[int] = deque()
        """The last seqno of DATA passed to Kafka with each write in flight, or before it."""
        self._size = 0
        """The payload that this step has passed to Kafka."""
        self._is_last = False

    @property
    def pipeline(self) -> Pipeline:
        """The group's pipeline."""
        return self.group.pipeline

    @property
    def is_due(self) -> bool:
        """Whether a step is under way."""
        return self._phase is not _Phase.READY

    @property
    def is_full(self) -> bool:
        """Whether a step is under way: it reads nothing."""
        return self.is_due

    def wants(self, place: TopicPartition) -> bool:
        """Whether the input is to be read now."""
        return not self.is_due and not self.group.is_full(self.sources[place])

    def take(self, place: TopicPartition, records: Sequence[Record]) -> None:
        """Take records of a partition, in the order of its log. Raises ProtocolViolation."""
        self.group.take(self.sources[place], records)

    def absorb(self, decisions: Iterable[Exclusion]) -> None:
        """Apply exclusions that operators have decided, however long ago."""
        self.group.exclude(decisions)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass, and begin a step."""
        self.group.tick(elapsed_ms)
        self._phase = _Phase.DATA

    def finish(self) -> None:
        """Begin the last step: a snapshot as entry, so that the next start needs nothing older."""
        if not self.is_due and not self._is_last:
            self._is_last, self._phase = True, _Phase.DATA

    def writes(self) -> Sequence[Output] | None:
        """Return the step's entry, then DATA of one run after the other; None if a write must be in Kafka first.

        Raises HistoryUnavailable, Disagreement.
        """
        if self._phase is _Phase.DATA and not self._in_flight:
            self._phase = _Phase.ENTRY
            entry = self.group.end_step(is_last=self._is_last)
            if entry is not None:
                self._in_flight.append(self.group.sent)
                return [entry]
        if self._phase is _Phase.ENTRY and not self._in_flight:
            self._log_notices()
            self._phase, self._size = _Phase.READY if self._is_last else _Phase.RUNS, 0
        if self._phase is _Phase.RUNS:
            if self._size < IN_FLIGHT_BYTES and (outputs := self.group.due()):
                self._size += sum(len(value or b"") for _, (_, value, _) in outputs)
                self._in_flight.append(self.group.sent)
                return outputs
            self._phase = _Phase.READY
        return None

    def acknowledge(self) -> None:
        """Note that Kafka has the oldest write in flight."""
        self.group.see_written(self._in_flight.popleft())

    def _log_notices(self) -> None:
        for notice in self.group.notices:
            level, words = describe(notice)
            _logger.log(level, "site %s, group %s: %s", self.group.site.me.name, self.group.name, words)
