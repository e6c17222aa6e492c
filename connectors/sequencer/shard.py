"""A shard of the sequencer: it takes over its groups, and lets Spark run the query of `connectors.sequencer.query`.

A claim stops the sequencer that has the group now, so a shard that can't work must not make one. Before the first
claim, a start checks whether Spark can run a task, and whether the topics and the rights are there.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from kafka.structs import TopicPartition
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.connection.sending import append_all
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.log.beats import Beats
from connectors.kafka.log.data_log import topic_missing
from connectors.kafka.topics.topics import check_topics
from connectors.kafka.transport import Record
from connectors.ledger.last_row import LedgerEnd
from connectors.sequencer.query import encode_decided, read_by_few, sequence
from connectors.spark.job import JobOptions, QueryFailed, StreamingJob
from connectors.spark.progress import newer_than, newest
from connectors.spark.session import PythonWorker, cores_of
from connectors.spark.sink import SINK_OPTIONS, own_producer
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.groups import forward_topics, needed_to_order, positions_of
from connectors.takeover.rows import OutputTopics, by_rows
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.takeover.watchdog import Watchdog
from ordering.base.errors import AbcastError, BrokerUnreachable
from ordering.base.kinds import WATCH_KINDS, WITHOUT_SEQNO
from ordering.base.names import Topic
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS
from ordering.sequencer.state import SequencerState

HANGS_S = 5.0
"""The age of a current batch after which the others go on without a group whose leader does not answer."""
_POLL_S = 0.2
_OBSERVED = "batch"
_GROUPS = "groups"
_SEQNOS = "seqnos"

_logger = logging.getLogger(__name__)


class _BatchReport(NamedTuple):
    """The report of finished batches.

    `changed`: groups whose membership has changed. `is_snapshot_late`: the newest batch leaves its snapshot to the next
    one, which may come late. `decided`: groups in which seqnos were given. `seqnos`: their number.
    """

    changed: frozenset[str] = frozenset()
    is_snapshot_late: bool = False
    decided: frozenset[str] = frozenset()
    seqnos: int = 0


class SequencerShard(StreamingJob):
    """Sequences groups that have a DATA topic at the site. Every start of its query is a takeover."""

    name = "sequence"
    agreement: ClassVar[str] = ""
    sink: ClassVar[Mapping[str, str]] = SINK_OPTIONS

    def __init__(
        self,
        spark: SparkSession,
        options: JobOptions,
        finder: TopicFinder | None = None,
        *,
        groups: Collection[str] | None = None,
        epochs: dict[str, int] | None = None,
        worker: PythonWorker | None = None,
        number: int = 1,
    ) -> None:
        """Prepare the shard.

        `groups`: the groups to sequence; None for all. `epochs`: the epochs that this process has claimed, by group,
        which takeovers keep up to date. `worker`: nothing is claimed before it works. `number`: tells the shards of a
        site apart.
        """
        super().__init__(spark, options, finder)
        if number > 1:
            self.name = f"{self.name}-{number}"
        self.groups = None if groups is None else frozenset(groups)
        self._epochs = {} if epochs is None else epochs
        self._worker = worker
        self.has_claimed = False
        """Whether groups were claimed since this was last reset."""
        self._query: StreamingQuery | None = None
        self._maintenance: GroupMaintenance | None = None
        self._beats: Beats | None = None
        self._stale: set[str] = set()  # groups whose membership has changed since it was read
        self._watched: dict[str, int] = {}  # groups with members, and a seqno that their DATA has
        self._watchdog: Watchdog | None = None
        self._seen_batch = -1
        self._states: dict[str, SequencerState] = {}
        self._refused: set[tuple[TopicPartition, int, int]] = set()
        """Records too large for memory that have their dead letter: partition, offset and timestamp of each."""

    def run(self) -> None:
        """Run like any job. It beats between two queries, too: one that begins anew takes seconds."""
        with contextlib.closing(Beats(self.options.connection, self.options.site)) as self._beats:
            self._beats.start()
            super().run()

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the forward topics at the site, relayed ones included, of the shard's groups with DATA there."""
        forward = forward_topics(topics, self.options.site)
        return {group: names for group, names in forward.items() if self.serves(group)}

    def needs(self, topic: Topic) -> bool:
        """Whether the shard writes or claims in this topic."""
        return needed_to_order(topic, self.options.site)

    def leaderless(self, found: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Return groups without a leader, and groups that get no answer from Kafka while the current batch waits.

        If no group gets an answer, none is added.
        """
        silent: Mapping[str, str] = {}
        if self._maintenance is not None and self.stuck_s >= HANGS_S:
            silent = self._maintenance.away.reasons
            silent = {} if len(silent) == len(self._maintenance.forward) else silent
        hanging = {group: BrokerUnreachable(why) for group, why in silent.items() if group in found}
        return {**hanging, **super().leaderless(found)}

    def serves(self, group: str) -> bool:
        """Whether this is one of the shard's groups."""
        return self.groups is None or group in self.groups

    def leave(self, groups: Collection[str]) -> None:
        """Leave these groups, which were left out here, to another shard, and forget their troubles."""
        if self.groups is not None:
            self.groups = self.groups.difference(groups)
        for group in groups:
            self.suspended.forget(group)

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Take over every group, then read FORWARD from the positions in their DATA. Raises like `take_over_groups`."""
        connection, site, forward = self.options.connection, self.options.site, self.sequenced(topics)
        check_topics(connection, forward, site)
        self._await_spark()
        claimer = Claimer(
            connection,
            site,
            self._epochs,
            self.agreement,
            lambda state: self.check_group(state, topics[state.group]),
            ledger=LedgerEnd(self.options.data / "ledger"),
        )
        states = take_over_groups(claimer, forward)
        self.has_claimed = True
        self._maintenance, self._seen_batch = (
            GroupMaintenance(connection, site, self._epochs, "spark", self.options.troubles, self._beats),
            -1,
        )
        self._maintenance.take(forward, states, claimer.opened)
        self._maintenance.ends_of_data(forward)  # DATA can be read
        self._watchdog = Watchdog(self._maintenance.log, self._maintenance.signed_end, self._maintenance.trouble_of)
        for group, state in states.items():
            self._watchdog.watch(group, state.epoch, state.seqno, claimer.opened[group])
        self._watched, self._stale = _watched(states), set()
        self._query = (
            self.decide(topics, states)
            .writeStream.format("kafka")
            .queryName(f"{self.name}-{site}")
            .options(**connection.spark_options(), **self.sink, **own_producer())
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        self.options.troubles.serve(self.name, states)
        return self._query

    def sequenced(self, topics: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return the topics, among the read ones, that this shard puts in order. Ticks go there."""
        return dict(topics)

    def check_group(self, state: SequencerState, topics: Collection[str]) -> None:
        """Raise if this group can't be served for a reason that DATA does not tell. Called before the group is claimed.

        `topics`: the group's topics that the query reads.
        """
        self._batches.check(topics, positions_of([state]))
        if self.options.check_group is not None:
            self.options.check_group(state)

    def decide(self, topics: Mapping[str, list[str]], states: Mapping[str, SequencerState]) -> DataFrame:
        """Return the rows for the sink: the records read, decided."""
        site, names = self.options.site, [name for group in topics.values() for name in group]
        session, at_once = self.session(len(states))
        self._begin(states)
        source = self.kafka_source(names, positions_of(states.values()))
        states = self._states
        forward = session.readStream.format("kafka").options(**source).load()
        relayed = any(topic.role == "relayed" for topic in map(Topic.parse, names) if topic)
        runs = sequence(read_by_few(forward, at_once), site, states, at_once, relayed=relayed)
        return encode_decided(self.observed(runs), site)

    def _begin(self, states: Mapping[str, SequencerState]) -> None:
        """Begin a query with these states."""
        self._states, positions = dict(states), positions_of(states.values())
        self._refused = {
            (place, offset, at)
            for place, offset, at in self._refused
            if Topic.of(place.topic).group in states and offset >= positions.get(place, 0)
        }

    def skips(self, place: TopicPartition, before: Sequence[Record], record: Record) -> bool:
        """Whether these records give only dead letters; if so, write them: DATA never tells that they are considered.

        A query that begins before the next snapshot finds the same record again. Then its dead letter is not written
        once more, except after a crash.
        """
        group = Topic.of(place.topic).group
        topics = OutputTopics.of(group, self.options.site)
        state, outputs = by_rows(self._states[group], [(place, [*before, record])], topics)
        if any(written_to == topics.data for written_to, _ in outputs):
            return False
        refused = place, record.offset, record.timestamp
        if refused not in self._refused:
            append_all(self.options.connection, outputs)
            self._refused.add(refused)
        self._states[group] = state
        return True

    def session(self, groups: int) -> tuple[SparkSession, int]:
        """Return a session for a query of so many groups, and the number of groups that it decides at once.

        That number is the query's shuffle partitions, a setting of its session.
        """
        at_once = min(self.options.parallelism or cores_of(self.spark), groups)
        session = self.spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", at_once)
        return session, at_once

    def observed(self, runs: DataFrame, *more: Column) -> DataFrame:
        """Observe the runs, so that the driver need not read DATA to know them; `more`: columns for `see`."""
        return runs.observe(_OBSERVED, *_observed(), *more)

    def see(self, observed: dict[str, Any]) -> None:
        """Take the observations of a finished batch."""

    def _await_spark(self) -> None:
        while self._worker is not None and not self._worker.works(_POLL_S):
            if self._ends.is_set():
                raise QueryFailed("stopped before Spark had run a task.")

    def check(self) -> None:
        """Check that no newer epoch has begun and that decisions count; tick for the groups that need it.

        Raises NotCounting, BrokerUnreachable, TopicMissing; UnservableGroups, or the error itself (such as Fenced or
        HistoryChanged) if all groups have it.
        """
        maintenance, watchdog = self._maintenance, self._watchdog
        if self._query is None or maintenance is None or watchdog is None:
            return
        self._check_epochs(maintenance.forward)
        maintenance.check_not_fenced()
        maintenance.sign(self.considered(), time.monotonic(), set(self.finder.find()))
        report = self._finished_batches(maintenance.forward)
        self._stale |= report.changed
        for group in sorted(self._stale):  # including groups that got no answer the last time
            self._watched.pop(group, None)
            with maintenance.trouble_of(group):
                self._watched |= _watched({group: maintenance.log(group).state()})
                self._stale.discard(group)
        now = time.monotonic()
        late = dict.fromkeys(maintenance.forward, 0) if report.is_snapshot_late else {}
        maintenance.tick({**late, **self._watched}, now)
        watchdog.decided(report.decided, report.seqnos)
        watchdog.look(now)

    def _check_epochs(self, groups: Collection[str]) -> None:
        """Raise TopicMissing if a group has lost EPOCH: claims are read for all at once. The next start omits it."""
        site, found = self.options.site, set(self.finder.find())
        for group in groups:
            if Topic(group, "epoch", site) not in found:
                raise topic_missing(str(Topic(group, "epoch", site)), group, site)

    def considered(self) -> dict[TopicPartition, int]:
        """Return the offsets in FORWARD that finished batches have reached."""
        batch = newest(self._query) if self._query is not None else None
        offsets = batch.ends if batch is not None else {}
        return {TopicPartition(topic, int(n)): end for topic, ends in offsets.items() for n, end in ends.items()}

    def _finished_batches(self, groups: Collection[str]) -> _BatchReport:
        """Return the report of the batches that Spark has finished since the last call."""
        assert self._query is not None
        reports = newer_than(self._query, self._seen_batch)
        fresh = [batch for batch in reports if batch.records]
        if not fresh:
            return _BatchReport()
        missed = reports[0].number > self._seen_batch + 1
        self._seen_batch = fresh[-1].number
        changed: set[str] = set(groups) if missed else set()
        decided: set[str] = set()
        seqnos = 0
        for batch in fresh:
            seen = batch.observed.get(_OBSERVED)
            if seen is not None:
                changed.update(found["group"] for found in seen[_GROUPS] if found["is_change"])
                decided.update(found["group"] for found in seen[_GROUPS])
                seqnos += seen[_SEQNOS] or 0
                self.see(seen)
        is_late = fresh[-1].records >= SNAPSHOT_EVERY_RECORDS
        return _BatchReport(frozenset(changed), is_late, frozenset(decided), seqnos)

    def close_query(self) -> None:
        """Close the connections of `check`."""
        self._query = None
        self.options.troubles.serve(self.name, ())
        if self._maintenance is not None:
            self._maintenance.close()
            self._maintenance = None


def _observed() -> list[Column]:
    """Return the columns that Spark observes in each batch, so that the driver need not read DATA to know them.

    They are the groups with decisions, and whether these changed a membership or the state of a flush; and the number
    of seqnos given.
    """
    kind = F.col("kind")
    has_seqno = kind.isNotNull() & ~kind.isin(*WITHOUT_SEQNO)
    is_change = kind.isin(*WATCH_KINDS)
    return [
        F.collect_set(F.when(has_seqno, F.struct("group", is_change.alias("is_change")))).alias(_GROUPS),
        F.sum(F.when(has_seqno, F.col("seqnos"))).alias(_SEQNOS),
    ]


def _watched(states: Mapping[str, SequencerState]) -> dict[str, int]:
    return {group: state.seqno for group, state in states.items() if state.membership.is_watched}
