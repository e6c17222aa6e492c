"""The sequencer job: finds the groups of a site, and runs their lanes side by side (`connectors.sequencer.shards`).

A group that can't be taken over, or that another sequencer has taken over, keeps no other from it: its lane leaves it
out, and it gets another, as a new group does. A lane of which nothing is left fails; it is tried again now and then. If
no lane is left, the job fails with it.

All its state is in the lanes. When a lane is closed and another opens with its groups, these are taken over, as after
any restart. The closed lane has ended by then. If it had not, readers would ignore what it writes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection

from pyspark.sql import SparkSession

from connectors.kafka.groups.retrying import LogThrottle
from connectors.kafka.groups.unservable_groups import JOB_ERRORS
from connectors.sequencer.agreeing_shard import AgreeingShard
from connectors.sequencer.shard import SequencerShard
from connectors.sequencer.shards import open_lane
from connectors.spark.job import JobOptions
from connectors.spark.session import PythonWorker
from connectors.takeover.agreement import AgreementSettings
from connectors.takeover.feud import yield_to_rival
from connectors.takeover.groups import groups_at, needed_to_order
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced

RETRY_S = 30.0
"""After so long, a lane of groups that came later, which has given up, is tried again."""
_POLL_S = 0.1
_JOIN_S = 60.0

_logger = logging.getLogger(__name__)


class SequencerJob:
    """Sequences all groups that have a DATA topic at the site. `run` blocks until `stop`."""

    name = "sequence"
    is_principal = True
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, spark: SparkSession, options: JobOptions, agreement: AgreementSettings | None = None) -> None:
        """`agreement`: of a site that agrees with others. Raises UsageError if it is none of them."""
        self.spark = spark
        self.options = options
        self._agreement = agreement.check() if agreement is not None else None
        self.ready = threading.Event()
        self.finder = options.finder()
        self._stop = threading.Event()
        self._epochs: dict[str, int] = {}
        self._lanes: list[_LaneThread] = []
        self._lanes_made = 0
        self._is_broker_away = False

    def stop(self) -> None:
        """Ask `run` to return after the batches in hand."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises what will not pass, such as Fenced, EnvironmentProblem or HistoryUnavailable."""
        options = self.options
        if yield_to_rival(options.connection, options.site, self._stop.wait, options.groups):
            return
        with contextlib.closing(PythonWorker(self.spark)) as worker:
            try:
                next_look = float("-inf")
                while not self._stop.is_set():
                    if time.monotonic() >= next_look:
                        self._look(worker)
                        next_look = time.monotonic() + self.options.look_every_s
                    self._attend()
                    self._stop.wait(_POLL_S)
            finally:
                for lane in self._lanes:
                    lane.job.stop()
                for lane in self._lanes:
                    lane.join()
                self.finder.close()
        self._attend()

    def _look(self, worker: PythonWorker) -> None:
        """Give groups that have come a lane, and take those that have gone out of theirs."""
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
        for lane in self._lanes:
            lane.job.groups = lane.groups & groups
        self._close([lane for lane in self._lanes[1:] if not lane.groups])
        if new := groups.difference(leaderless, *(lane.groups for lane in self._lanes)):
            self._open_lane(new, worker)
        elif not self._lanes and worker.works(0):
            self.ready.set()

    def _open_lane(self, new: Collection[str], worker: PythonWorker) -> None:
        # One that has given up stays apart: it would drag the others down, and costs nothing.
        lanes = [lane for lane in self._lanes if lane.failure is None]
        opening = open_lane([lane.groups for lane in lanes], new)
        self._close([lanes[index] for index in opening.closed])
        self._lanes_made += 1
        if self._lanes_made > 1:
            _logger.info("%s: more groups: %s", self.name, ", ".join(sorted(new)))
        make: Callable[..., SequencerShard] = SequencerShard
        if self._agreement is not None:
            make = functools.partial(AgreeingShard, agreement=self._agreement)
        lane = make(
            self.spark,
            self.options,
            self.finder,
            groups=opening.groups,
            epochs=self._epochs,
            worker=worker,
            number=self._lanes_made,
        )
        self._lanes.append(_LaneThread(lane))

    def _close(self, lanes: Collection[_LaneThread]) -> None:
        for lane in lanes:
            lane.job.retire()
        for lane in lanes:
            lane.join()
            self._lanes.remove(lane)
            self.options.troubles.put(lane.job.name, {})

    def _attend(self) -> None:
        """See how the lanes do. If one fails by itself, the others go on. Raises its error if there is no other."""
        has_others = any(lane.failure is None and lane.groups for lane in self._lanes)
        for lane in self._lanes:
            error = lane.failure
            if error is None:
                continue
            is_own = isinstance(error, AbcastError) and not isinstance(error, JOB_ERRORS)
            if not (is_own and has_others):
                raise error
            if lane.failed_for() == 0 and lane.throttle.is_due(str(error)):
                _logger.error("%s: %s It is tried again every %g s.", lane.job.name, error, RETRY_S)
            if not isinstance(error, Fenced):  # of what another one serves, that one tells
                self.options.troubles.put(lane.job.name, dict.fromkeys(lane.groups, str(error)))
            if lane.failed_for() >= RETRY_S:
                lane.start()
        if any(lane.job.ready.is_set() for lane in self._lanes):
            self.ready.set()


class _LaneThread:
    """A lane in a thread of its own."""

    def __init__(self, job: SequencerShard) -> None:
        self.job = job
        self.throttle = LogThrottle()
        self.start()

    @property
    def groups(self) -> frozenset[str]:
        return (self.job.groups or frozenset()) - self.job.suspended.reasons.keys()

    def start(self) -> None:
        self.failure: BaseException | None = None
        self._first_seen: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"abcast-{self.job.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.job.run()
        except BaseException as error:  # noqa: BLE001 - handed to the job's thread
            self.failure = error

    def failed_for(self) -> float:
        """Seconds since this was first asked after the failure."""
        if self._first_seen is None:
            self._first_seen = time.monotonic()
            return 0.0
        return time.monotonic() - self._first_seen

    def join(self) -> None:
        self._thread.join(_JOIN_S)
