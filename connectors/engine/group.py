"""A group in the process engine: a machine that decides, and its writes that Kafka does not have yet."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from kafka.structs import TopicPartition

from connectors.engine.batch import Polled
from connectors.engine.writing import WriteFailed, Writer, WrittenBatch
from connectors.kafka.transport import Record
from connectors.takeover.rows import Output
from connectors.tracing import passing
from ordering.machine import LogMachine

if TYPE_CHECKING:
    from connectors.tracing.spans import BatchSpan

PATIENCE_S = 0.2
"""The age of its oldest write in flight at which a group is late. It writes nothing until Kafka has that one."""
IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""The payload in flight at which a group waits for its oldest write."""
LATE_S = 5.0
"""The delay of a write after which the log says that DATA of a group can't be written."""

_logger = logging.getLogger(__name__)


class EngineMachine(LogMachine[TopicPartition, Record, Output], Protocol):
    """A machine with bounds for the records that it holds."""

    @property
    def is_full(self) -> bool:
        """Whether no input is to be read until a write is acknowledged."""

    @property
    def reads_on(self) -> bool:
        """Whether the input is to be read once more before the next write: what it misses waits for a whole step."""

    def wants(self, place: TopicPartition) -> bool:
        """Whether this input is to be read now."""


AnyMachine = TypeVar("AnyMachine", bound=EngineMachine)


class BatchInFlight(NamedTuple):
    """A batch that was passed to Kafka, at a time of the monotonic clock; and its span, if it has one."""

    written: WrittenBatch
    passed_at: float
    span: BatchSpan | None


class GroupDriver(Generic[AnyMachine]):
    """A group that this process has taken over, driven by one thread."""

    def __init__(
        self, name: str, machine: AnyMachine, writer: Writer, ends: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Drive the machine. `ends`: the offsets of the takeover's last records, by topic."""
        self.name, self.machine = name, machine
        self._writer = writer
        self.in_flight: deque[BatchInFlight] = deque()
        """The writes that Kafka does not have as far as is known."""
        self._ends = dict(ends)
        """The offset of the last acknowledged record of each topic."""
        self._ticked_at = time.monotonic()
        self._is_warned = False

    @property
    def epoch(self) -> int:
        """The epoch with which the group was taken over."""
        return self.machine.pipeline.state.epoch

    @property
    def is_on_time(self) -> bool:
        """Whether the group waits for a write that Kafka should have soon."""
        return self.machine.is_due and bool(self.in_flight) and self._late_s < PATIENCE_S

    @property
    def _late_s(self) -> float:
        """The age of the oldest write in flight, in seconds; 0 if there is none."""
        return time.monotonic() - self.in_flight[0].passed_at if self.in_flight else 0.0

    @property
    def _may_write(self) -> bool:
        return not self.in_flight or (
            self._late_s < PATIENCE_S and sum(batch.written.size for batch in self.in_flight) < IN_FLIGHT_BYTES
        )

    def see_written(self) -> None:
        """Acknowledge the writes that Kafka has by now. Raises WriteFailed."""
        try:
            while self.in_flight and self.in_flight[0].written.is_there():
                batch = self.in_flight.popleft()
                if batch.span is not None:
                    batch.span.end()
                batch.written.note_ends(self._ends)
                self.machine.acknowledge()
        except WriteFailed as error:
            for batch in self.in_flight:
                if batch.span is not None:
                    batch.span.end(error)
            raise

    def take(self, polled: Polled) -> None:
        """Take records, each partition's in the order of offsets, and take a step. Raises like `step`."""
        for place, records in polled.items():
            self.machine.take(place, records)
        self.step()

    def step(self) -> None:
        """Let time pass, unless a step is under way; then `advance`. The fraction of a millisecond counts next time."""
        if not self.machine.is_due:
            elapsed_ms = int((time.monotonic() - self._ticked_at) * 1000)
            self._ticked_at += elapsed_ms / 1000
            self.machine.tick(elapsed_ms)
        self.advance()

    def advance(self) -> None:
        """Pass to Kafka all that may be written now. Raises WriteFailed, and what `Machine.writes` raises."""
        while self.machine.is_due and self._may_write and (outputs := self.machine.writes()) is not None:
            written = self._writer.write(outputs)
            span = passing("order", self.name, (headers for _, (_, _, headers) in outputs))
            self.in_flight.append(BatchInFlight(written, time.monotonic(), span))

    def finish(self) -> None:
        """Go on towards the end of the last step, as far as the writes in Kafka allow. Raises like `advance`."""
        self.see_written()
        self.advance()
        self.machine.finish()
        self.advance()

    def warn_if_late(self) -> None:
        """Log once that Kafka takes no DATA of the group, when a write is LATE_S old."""
        is_late = self._late_s >= LATE_S
        if is_late and not self._is_warned:
            _logger.warning("sequence: Kafka takes no DATA of group %s now. The other groups go on.", self.name)
        self._is_warned = is_late
