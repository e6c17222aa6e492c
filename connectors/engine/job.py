"""The sequencer job in a plain Python process: the same core, takeover and DATA as the job on Spark, in milliseconds.

One thread reads FORWARD of all the site's groups, decides, and writes. Another one, the attendant, looks after claims,
ticks and new groups (`connectors.engine.attendant`).

Invariant: what is in DATA is all that was ever decided, and it is the same whenever this process ends.

* *Killed between any two sends.* DATA has a prefix of what was passed to Kafka. The next start reads the state from it,
  whatever its engine is, and FORWARD again from the last snapshot (`connectors.sequencer.takeover`).
* *A write fails, is uncertain, or only a part of it arrives.* The memory may then know numbers that DATA does not have.
  So it is thrown away: `WriteFailed` ends the attempt, and the next one takes over with an epoch of its own. Retries
  inside the producer are invisible: it is idempotent, with one request in flight (KAFKA-15591).
* *Several batches in flight* are one sequence in one partition (`ordering.pipeline`).
* *Another sequencer takes over.* Readers ignore what stands behind its seal with our epoch. The attendant sees its
  claim within a second, and this process ends with `Fenced`. Until then the two differ in nothing that counts.
* *The order* is what a batch has in the log: topic, partition, offset. What falls into one batch is decided by what was
  there to be read, as in a micro-batch of Spark, and from then on DATA tells it.

Failures that may pass are tried again (`connectors.kafka.retrying`); each attempt begins with a takeover.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.engine.attendant import Attendant, Taken
from connectors.engine.batch import Polled
from connectors.engine.group import GroupSequencer
from connectors.engine.intake import Intake
from connectors.engine.writing import Writer
from connectors.kafka.connection import Connection
from connectors.kafka.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.retrying import Retries
from connectors.kafka.topic_finder import TopicFinder
from connectors.kafka.transport import Record
from connectors.sequencer.takeover import yield_to_rival
from connectors.storage.location import Location
from ordering.errors import AbcastError

STOP_S = 10.0
"""How long a stop waits for what is in flight."""
IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""With more payload in flight, a group waits for its oldest batch."""

_logger = logging.getLogger(__name__)


AnyAttendant = TypeVar("AnyAttendant", bound=Attendant)
_Attended = TypeVar("_Attended", bound=Attendant, contravariant=True)


class AnyLoop(Protocol[_Attended]):
    """What an attempt runs between its takeover and its end."""

    def take(self, taken: Taken) -> None: ...  # noqa: D102
    def run(self, attendant: _Attended) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class EngineOptions(NamedTuple):
    """What the engine has to know. `ledger`: the Delta table, for a DATA topic that retention has emptied. `groups`:
    those to serve. `look_every_s`: how often new topics are looked for.
    """

    connection: Connection
    site: str
    ledger: Location | None = None
    groups: GroupChoice = ALL_GROUPS
    look_every_s: float = LOOK_EVERY_S


class EngineJob:
    """Sequences all groups that have a DATA topic at the site. `run` blocks until `stop`, which any thread may call."""

    name = "sequence"
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._epochs: dict[str, int] = {}
        self._failed: dict[str, float] = {}
        self._finder = TopicFinder(options.connection, options.groups, options.look_every_s)

    def stop(self) -> None:
        """Ask `run` to return after the batch in hand."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises what will not pass, such as Fenced, EnvironmentProblem or HistoryUnavailable."""
        options = self.options
        if yield_to_rival(options.connection, options.site, self._stop.wait, options.groups):
            return
        retries = Retries(self.name)
        with contextlib.closing(self._finder):
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    self._attempt()
                except AbcastError as error:
                    if self._stop.is_set() and error.retriable:
                        return
                    self._stop.wait(retries.failed(error, time.monotonic() - started))

    def _attempt(self) -> None:
        """From a takeover to the stop, or to the first failure."""
        options = self.options
        self._work(
            lambda: Attendant(
                options.connection, options.site, options.ledger, self._finder, self._epochs, self._failed
            ),
            lambda: Loop(options.connection, options.site, self._stop),
        )

    def _work(self, open_attendant: Callable[[], AnyAttendant], open_loop: Callable[[], AnyLoop[AnyAttendant]]) -> None:
        options = self.options
        try:
            with contextlib.ExitStack() as opened:
                attendant = open_attendant()
                opened.callback(attendant.close)
                taken = attendant.take_all()
                loop = open_loop()
                opened.callback(loop.close)
                loop.take(taken)
                attendant.start()
                self.ready.set()
                loop.run(attendant)
        except KafkaError as error:
            if error.retriable:
                raise options.connection.unreachable() from error
            raise options.connection.refused(error) from error


class Loop:
    """Reads, decides and writes, in one thread."""

    def __init__(self, connection: Connection, site: str, stop: threading.Event) -> None:
        self._connection = connection
        self._site = site
        self._stop = stop
        self._groups: dict[str, GroupSequencer] = {}
        self._group_of: dict[TopicPartition, str] = {}
        self._writer = Writer(connection)
        try:
            self._intake = Intake(connection, stop)
        except BaseException:
            self._writer.abandon()
            raise

    def run(self, attendant: Attendant) -> None:
        """Work until stopped; then wait for what is in flight. Raises what ends the attempt."""
        while not self._stop.is_set():
            attendant.raise_failure()
            for change in attendant.changes():
                self.take(change)
            for group in self._groups.values():
                group.see_written()
            attendant.pipelines = {name: group.pipeline for name, group in self._groups.items()}
            polled = self._intake.poll()
            for name, of_group in self._by_group(polled).items():
                self._decide(self._groups[name], of_group)
        deadline = time.monotonic() + STOP_S
        for group in self._groups.values():
            while group.oldest is not None and self._writer.wait(group.oldest, lambda: time.monotonic() > deadline):
                group.see_written()

    def take(self, taken: Taken) -> None:
        """Read other partitions from now on, of groups that may be new."""
        for state in taken.states.values():
            self._groups[state.group] = GroupSequencer(state, self._site)
        for group in taken.gone:
            self._groups.pop(group, None)
        for partition, (group, offset) in taken.partitions.items():
            self._group_of[partition], self._intake.positions[partition] = group, offset
        for partition in [place for place, group in self._group_of.items() if group not in self._groups]:
            del self._group_of[partition], self._intake.positions[partition]
        self._intake.read(self._group_of)

    def _by_group(self, polled: Polled) -> Mapping[str, Polled]:
        groups: dict[str, dict[TopicPartition, Sequence[Record]]] = {}
        for partition, records in polled.items():
            groups.setdefault(self._group_of[partition], {})[partition] = records
        return groups

    def _decide(self, group: GroupSequencer, polled: Polled) -> None:
        """Decide a batch, as soon as that may be. Stopped meanwhile, leave it to the next start."""
        while (outputs := group.decide(polled) if group.bytes_in_flight < IN_FLIGHT_BYTES else None) is None:
            assert group.oldest is not None
            if not self._writer.wait(group.oldest, self._stop.is_set):
                return
            group.see_written()
        group.passed(self._writer.write(outputs))

    def close(self) -> None:
        """Close the connections. What is still in flight is left to chance."""
        self._writer.abandon()
        self._intake.close()
