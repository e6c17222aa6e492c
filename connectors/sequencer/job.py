"""The sequencer job: finds the groups of a site, and runs their shards side by side (`connectors.sequencer.shards`).

A group that can't be taken over, or that another sequencer has taken over, does not keep others from it: its shard
leaves it out, and tries it again later. A shard with no group left fails, and is tried again now and then. If no shard
is left, the job fails with the error of one.

All state is in the shards. When a shard is closed and another opens with its groups, these are taken over, as after any
restart. The closed shard has ended by then. If it had not, readers would ignore its records.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection

from pyspark.sql import SparkSession

from connectors.kafka.groups.retrying import HEALTHY_S, LogThrottle
from connectors.kafka.groups.suspended_groups import LONGEST_WAIT_S
from connectors.kafka.groups.unservable_groups import JOB_ERRORS
from connectors.sequencer.agreeing_shard import AgreeingShard
from connectors.sequencer.shard import SequencerShard
from connectors.sequencer.shards import open_shard
from connectors.spark.job import JobOptions
from connectors.spark.session import PythonWorker
from connectors.takeover.agreement import AgreementSettings
from connectors.takeover.feud import seconds_for_rival
from connectors.takeover.groups import groups_at, needed_to_order
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced

RETRY_S = 30.0
"""The wait before a failed shard is tried again, while another one works."""
_POLL_S = 0.1
_JOIN_S = 60.0

_logger = logging.getLogger(__name__)


class SequencerJob:
    """Sequences the chosen groups that have a DATA topic at the site. `run` blocks until `stop`."""

    name = "sequence"
    is_principal = True
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, spark: SparkSession, options: JobOptions, agreement: AgreementSettings | None = None) -> None:
        """Prepare the job. `agreement`: if sites agree on the order. Raises UsageError if the site is none of them."""
        self.spark = spark
        self.options = options
        self._agreement = agreement.check() if agreement is not None else None
        self.ready = threading.Event()
        self.finder = options.finder()
        self._stop = threading.Event()
        self._epochs: dict[str, int] = {}
        self._shards: list[_ShardThread] = []
        self._shards_opened = 0
        self._is_broker_away = False

    def stop(self) -> None:
        """Ask `run` to return after the current batches."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises a shard's error that will not pass, such as Fenced, if no shard works."""
        options = self.options
        if self._stop.wait(seconds_for_rival(options.connection, options.site, options.groups)):
            return
        with contextlib.closing(PythonWorker(self.spark)) as worker:
            try:
                next_look = float("-inf")
                while not self._stop.is_set():
                    if time.monotonic() >= next_look:
                        self._look(worker)
                        next_look = time.monotonic() + self.options.look_every_s
                    self._handle_failures()
                    self._stop.wait(_POLL_S)
            finally:
                for shard in self._shards:
                    shard.job.stop()
                for shard in self._shards:
                    shard.join()
                self.finder.close()
        self._handle_failures()

    def _look(self, worker: PythonWorker) -> None:
        """Give new groups a shard, and take groups that are gone out of theirs."""
        try:
            groups = set(groups_at(self.finder.find(), self.options.site))
            site = self.options.site
            leaderless = {topic.group for topic in self.finder.leaderless() if needed_to_order(topic, site)}
            self._is_broker_away = False
        except BrokerUnreachable as error:
            if not self._is_broker_away:
                _logger.warning("%s: %s", self.name, error)
            self._is_broker_away = True
            return
        for shard in self._shards:
            shard.job.groups = shard.groups & groups
        self._close([shard for shard in self._shards[1:] if not shard.groups])
        if new := groups.difference(leaderless, *(shard.groups for shard in self._shards)):
            self._open_shard(new, worker)
        elif not self._shards and worker.works(0):
            self.ready.set()
        self.options.troubles.expect_signs(frozenset().union(*(shard.groups for shard in self._shards)))

    def _open_shard(self, new: Collection[str], worker: PythonWorker) -> None:
        # A failed shard stays separate: its groups could make others fail, and it costs nothing.
        shards = [shard for shard in self._shards if shard.failure is None]
        opening = open_shard([shard.groups for shard in shards], new)
        self._close([shards[index] for index in opening.closed])
        for other in self._shards:
            other.job.leave(new)
        self._shards_opened += 1
        if self._shards_opened > 1:
            _logger.info("%s: new groups: %s", self.name, ", ".join(sorted(new)))
        make: Callable[..., SequencerShard] = SequencerShard
        if self._agreement is not None:
            make = functools.partial(AgreeingShard, agreement=self._agreement)
        shard = make(
            self.spark,
            self.options,
            self.finder,
            groups=opening.groups,
            epochs=self._epochs,
            worker=worker,
            number=self._shards_opened,
        )
        self._shards.append(_ShardThread(shard))

    def _close(self, shards: Collection[_ShardThread]) -> None:
        for shard in shards:
            shard.job.retire()
        for shard in shards:
            shard.join()
            self._shards.remove(shard)
            self.options.troubles.put(shard.job.name, {})

    def _handle_failures(self) -> None:
        """Handle failed shards. Raises the error of one if no shard works, or if it is no error of groups."""
        has_others = any(shard.failure is None and shard.groups for shard in self._shards)
        for shard in self._shards:
            error = shard.failure
            if error is None:
                continue
            is_own = isinstance(error, AbcastError) and not isinstance(error, JOB_ERRORS)
            if not (is_own and has_others):
                raise error
            if shard.failed_for() == 0 and shard.throttle.is_due(str(error)):
                _logger.error("%s: %s Trying again in %g s.", shard.job.name, error, shard.wait_s)
            if not isinstance(error, Fenced):  # the other sequencer reports on groups that it serves
                self.options.troubles.put(shard.job.name, dict.fromkeys(shard.groups, str(error)))
            if shard.failed_for() >= shard.wait_s:
                shard.start()
        if any(shard.job.ready.is_set() for shard in self._shards):
            self.ready.set()


class _ShardThread:
    """A shard in a thread of its own."""

    def __init__(self, job: SequencerShard) -> None:
        self.job = job
        self.throttle = LogThrottle()
        self.wait_s = RETRY_S
        """The wait between the last failure and the next start."""
        self._costly_failures = 0
        self.start()

    @property
    def groups(self) -> frozenset[str]:
        return (self.job.groups or frozenset()) - self.job.suspended.reasons.keys()

    def start(self) -> None:
        self.failure: BaseException | None = None
        self.job.has_claimed = False
        self._started = time.monotonic()
        self._first_seen: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"abcast-{self.job.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.job.run()
        except BaseException as error:  # noqa: BLE001 - handed to the job's thread
            is_costly = self.job.has_claimed and not getattr(error, "retriable", False)
            has_worked = time.monotonic() - self._started >= HEALTHY_S
            self._costly_failures = 0 if has_worked or not is_costly else self._costly_failures + 1
            self.wait_s = min(RETRY_S * 2 ** min(max(0, self._costly_failures - 1), 30), LONGEST_WAIT_S)
            self.failure = error

    def failed_for(self) -> float:
        """Return the seconds since the first call after the failure."""
        now = time.monotonic()
        if self._first_seen is None:
            self._first_seen = now
        return now - self._first_seen

    def join(self) -> None:
        self._thread.join(_JOIN_S)
