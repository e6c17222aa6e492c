"""The sequencer job in a plain Python process: the same core, takeover and DATA as the job on Spark, in milliseconds.

One thread reads FORWARD of all the site's groups, decides, and writes (`connectors.engine.loop`). Another one, the
supervisor's, handles claims, ticks and new groups (`connectors.engine.group_supervisor`).

Invariant: DATA has every decision that counts, and a process that ends at any point leaves it true.

* *Killed between any two sends.* DATA has a prefix of the records passed to Kafka. The next start, with either engine,
  reads the state from it, and FORWARD again from the last snapshot (`connectors.takeover.takeover`).
* *A write fails, is uncertain, or arrives in part.* The memory may then have numbers that DATA lacks. So it is thrown
  away: `WriteFailed` ends the work on that group, which is taken over anew with an epoch of its own. Retries inside the
  producer are invisible: it is idempotent, with one request in flight (KAFKA-15591).
* *Several batches in flight* are one sequence in one partition (`ordering.sequencer.pipeline`).
* *Another sequencer takes a group over.* Readers ignore records with this process's epoch behind the other's seal. The
  supervisor sees the claim within a second, and the loop drops the group. Until then the two differ in nothing that
  counts. If it was the last group, this process ends with `Fenced`.
* *The order* of a batch is that of the log: topic, partition, offset. All records that were read and are not decided
  make a batch, as in a micro-batch of Spark, and from then on DATA tells its order.

A fault of one group touches no other. The loop waits for no write: a group whose DATA can't be written now holds a
bounded number of records, and then is not read. A group that fails is suspended, and taken over again later and later
(`connectors.kafka.groups.suspended_groups`). If no group is left, the attempt fails. Failures that may pass are tried
again (`connectors.kafka.groups.retrying`); each attempt begins with a takeover.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.engine.group_supervisor import GroupSupervisor
from connectors.engine.loop import Beginnings, Deciders, Loop
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.sequencing import Sequencing
from connectors.engine.standby import Standby, Turn
from connectors.kafka.groups.retrying import Retries
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.log.epoch_log import Epochs
from connectors.takeover.feud import seconds_for_rival
from ordering.base.errors import AbcastError, Fenced
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)


class Sequencers:
    """The makers of sequencers."""

    def __init__(self, site: str) -> None:
        self._site = site

    def machine(self, state: SequencerState) -> Sequencing:
        """Return the group's sequencer."""
        return Sequencing(state, self._site)

    def starts(
        self,
        machine: Sequencing,  # noqa: ARG002 - a sequencer drops what it reads twice
        found: Mapping[TopicPartition, int],
        beginnings: Beginnings,  # noqa: ARG002 - the supervisor has asked
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets that the supervisor has found."""
        return found


class EngineJob:
    """Sequences the chosen groups with DATA at the site. `run` blocks until `stop`, which any thread may call."""

    name = "sequence"
    is_principal = True
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.ready = threading.Event()
        self._stop = threading.Event()
        finder = TopicFinder(options.connection, options.groups, options.look_every_s)
        self._state = JobState(finder, SuspendedGroups(self.name))

    def stop(self) -> None:
        """Ask `run` to return after the current batch."""
        self._stop.set()

    def has_claimed(self) -> bool:
        """Whether this process is a sequencer, or becomes one, and no standby that waits. For any thread."""
        return bool(self._state.epochs)

    def run(self) -> None:
        """Work until stopped. Raises errors that will not pass, such as Fenced, or come too often (`Retries`).

        A standby waits for its turn until it has claimed a group, and again when it is fenced, which does not end it.
        """
        options, retries = self.options, Retries(self.name)
        turn, has_yielded = Turn(), False
        with contextlib.closing(self._state.finder):
            standby = Standby(options, self._state.finder) if options.takeover_after_s is not None else None
            if standby is None:
                self._yield()
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    if standby is not None and not self.has_claimed():
                        self.ready.set()
                        if options.troubles is not None:
                            options.troubles.expect_signs(())  # the other sequencer gives them
                        turn = standby.wait(self._stop)
                        if self._stop.is_set():
                            return
                        has_yielded = not (turn.is_asked or has_yielded) and self._yield(turn.known)
                        if has_yielded:
                            continue  # the rival may give signs again
                        self._state.epochs |= turn.replaced  # a newer sequencer is let alone
                        started = time.monotonic()
                    self._attempt()
                except Fenced as fenced:
                    if standby is None:
                        raise
                    _logger.warning("sequence: %s It stands by.", fenced)
                    self._state.epochs.clear()  # when the other one is gone, the groups may be taken back
                except AbcastError as error:
                    if self._stop.is_set() and error.retriable:
                        return
                    if self._state.epochs.items() <= turn.replaced.items():  # it has claimed nothing
                        self._state.epochs.clear()
                    self._stop.wait(retries.failed(error, time.monotonic() - started))

    def _yield(self, known: Mapping[str, Epochs] | None = None) -> bool:
        """Wait for a rival, if there is a feud; return whether there is. `known`: as in `seconds_for_rival`."""
        options = self.options
        seconds = seconds_for_rival(options.connection, options.site, options.groups, known)
        if seconds:
            self._stop.wait(seconds)
        return seconds > 0

    def _supervisor(self) -> GroupSupervisor:
        return GroupSupervisor(self.options, self._state)

    def _deciders(self) -> Deciders[Any]:
        return Sequencers(self.options.site)

    def _attempt(self) -> None:
        """Work from a takeover to the stop, or to the first failure."""
        connection = self.options.connection
        try:
            with contextlib.ExitStack() as opened:
                supervisor = self._supervisor()
                opened.callback(supervisor.close)
                taken = supervisor.take_all()
                loop = Loop(connection, self.options.site, self._deciders(), self._stop)
                opened.callback(loop.close)
                loop.take(taken)
                supervisor.start()
                self.ready.set()
                loop.run(supervisor)
        except KafkaError as error:
            if error.retriable:
                raise connection.unreachable() from error
            raise connection.refused(error) from error
