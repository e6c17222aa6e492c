"""One lane of the sequencer: take over its groups, then let Spark run the query of `connectors.sequencer.query`.

A claim stops the sequencer that has the group now, so a lane that can't work must not make one. Everything that can be
wrong with a start is found before the first claim: whether Spark can run a task, what is to be read, the rights to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from kafka.structs import TopicPartition
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.codec.codec import decode_forward, encode_dead_letter
from connectors.kafka.connection.sending import append
from connectors.kafka.groups.topic_finder import TopicFinder
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
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.takeover.watchdog import Watchdog
from ordering.base.errors import AbcastError, BrokerUnreachable
from ordering.base.names import Topic
from ordering.base.records import JOIN, REMOTE_VIEW, START_FLUSH, VIEW, WITHOUT_SEQNO, DeadLetter, Source
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS, SequencerState, step

HANGS_S = 5.0
"""A batch that has been in hand for so long, and a group of which nothing is told: the others go on without it."""
_POLL_S = 0.2
_OBSERVED = "batch"
_GROUPS = "groups"
_SEQNOS = "seqnos"

_logger = logging.getLogger(__name__)


class _BatchReport(NamedTuple):
    """What finished batches tell.

    `changed`: groups whose membership has changed. `is_snapshot_late`: the newest batch has left a snapshot for the
    next to write, which may be long in coming. `decided`: groups in which seqnos were given, and `seqnos` how many.
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
        """`groups`: those to sequence, None for all. `epochs`: what this process has claimed, by group, kept up to
        date. `worker`: nothing is claimed before it works. `number` tells lanes of one site apart.
        """
        super().__init__(spark, options, finder)
        if number > 1:
            self.name = f"{self.name}-{number}"
        self.groups = None if groups is None else frozenset(groups)
        self._epochs = {} if epochs is None else epochs
        self._worker = worker
        self._query: StreamingQuery | None = None
        self._keeper: GroupMaintenance | None = None
        self._stale: set[str] = set()  # groups whose membership has changed since it was read
        self._watched: dict[str, int] = {}  # groups with members, and a seqno that stands in their DATA
        self._watchdog: Watchdog | None = None
        self._seen_batch = -1
        self._states: dict[str, SequencerState] = {}

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The site's forward topics, and those that relays fill, of the lane's groups with a DATA topic at the site."""
        forward = forward_topics(topics, self.options.site)
        return {group: names for group, names in forward.items() if self.serves(group)}

    def needs(self, topic: Topic) -> bool:
        """What it writes, and where it claims."""
        return needed_to_order(topic, self.options.site)

    def leaderless(self, found: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """And those of which Kafka tells nothing while the batch in hand waits, unless it tells of none."""
        silent: Mapping[str, str] = {}
        if self._keeper is not None and self.stuck_s >= HANGS_S:
            silent = self._keeper.away.reasons
            silent = {} if len(silent) == len(self._keeper.forward) else silent
        hanging = {group: BrokerUnreachable(why) for group, why in silent.items() if group in found}
        return {**hanging, **super().leaderless(found)}

    def serves(self, group: str) -> bool:
        """Whether it is one of the lane's groups."""
        return self.groups is None or group in self.groups

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Take over every group, then read FORWARD on from where their DATA says."""
        connection, site, forward = self.options.connection, self.options.site, self.sequenced(topics)
        check_topics(connection, forward, site)
        self._await_spark()
        states = take_over_groups(
            Claimer(
                *(connection, site, self._epochs, self.agreement, self.check_group),
                ledger=LedgerEnd(self.options.data / "ledger"),
            ),
            forward,
        )
        self._keeper, self._seen_batch = (
            GroupMaintenance(connection, site, self._epochs, "spark", self.options.troubles),
            -1,
        )
        self._keeper.take(forward)
        ends = self._keeper.ends_of_data(forward)
        self._watchdog = Watchdog(self._keeper.log, self._keeper.signed_end, self._keeper.trouble_of)
        for group, state in states.items():
            self._watchdog.watch(group, state.epoch, state.seqno, ends.get(group, 0))
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
        """Of all topics that are read, those that are put in order here; ticks go there."""
        return dict(topics)

    def check_group(self, state: SequencerState) -> None:
        """Raises what keeps this group from being served, if its DATA does not tell; called before it is claimed."""
        if self.options.fitness is not None:
            self.options.fitness(state)

    def decide(self, topics: Mapping[str, list[str]], states: Mapping[str, SequencerState]) -> DataFrame:
        """What is read, decided, as the sink takes it."""
        site, names = self.options.site, [name for group in topics.values() for name in group]
        session, at_once = self.session(len(states))
        self._states = dict(states)
        source = self.kafka_source(names, positions_of(states.values()))
        states = self._states
        forward = session.readStream.format("kafka").options(**source).load()
        relayed = any(topic.role == "relayed" for topic in map(Topic.parse, names) if topic)
        runs = sequence(read_by_few(forward, at_once), site, states, at_once, relayed=relayed)
        return encode_decided(self.observed(runs), site)

    def skips(self, place: TopicPartition, before: Sequence[Record], record: Record) -> bool:
        """Behind what gives nothing but dead letters, which are written here: DATA never tells that it was considered.

        A crash before the next snapshot finds the same record again, and writes its dead letter once more.
        """
        topic = Topic.parse(place.topic)
        assert topic is not None
        raw = [*before, record]
        decoded = [
            decode_forward(
                Source(place.topic, place.partition, each.offset), each.key, each.value, each.headers, each.timestamp
            )
            for each in raw
        ]
        state, outputs = step(self._states[topic.group], decoded)
        letters = [output for output in outputs if isinstance(output, DeadLetter)]
        if len(letters) < len(outputs):
            return False
        of_offset = {each.offset: each for each in raw}
        for letter in letters:
            it = of_offset[letter.source.offset]
            key, value, headers = encode_dead_letter(letter, it.key, it.value, it.headers)
            dead = str(Topic(topic.group, "dead-letter", self.options.site))
            append(self.options.connection, dead, (key, value or b"", headers))
        self._states[topic.group] = state
        return True

    def session(self, groups: int) -> tuple[SparkSession, int]:
        """One for this query of so many groups, and how many of them it decides at once.

        The number of a query's shuffle partitions is a setting of its session.
        """
        at_once = min(self.options.parallelism or cores_of(self.spark), groups)
        session = self.spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", at_once)
        return session, at_once

    def observed(self, runs: DataFrame, *more: Column) -> DataFrame:
        """The same runs, of which Spark reports what the driver need not read DATA for; `more` is for `see`."""
        return runs.observe(_OBSERVED, *_observed(), *more)

    def see(self, observed: dict[str, Any]) -> None:
        """Take what was observed of a batch that is finished."""

    def _await_spark(self) -> None:
        while self._worker is not None and not self._worker.works(_POLL_S):
            if self._ends.is_set():
                raise QueryFailed("stopped before Spark had run a task.")

    def check(self) -> None:
        """See that no newer epoch has begun and that what was decided counts; tick for the groups that need it.

        Raises Fenced, NotCounting, BrokerUnreachable, TopicMissing.
        """
        keeper, watchdog = self._keeper, self._watchdog
        if self._query is None or keeper is None or watchdog is None:
            return
        self._check_epochs(keeper.forward)
        keeper.check_not_fenced()
        keeper.sign(self.considered(), time.monotonic(), set(self.finder.find()))
        report = self._finished_batches(keeper.forward)
        self._stale |= report.changed
        for group in sorted(self._stale):  # also those that the broker did not tell the last time
            self._watched.pop(group, None)
            with keeper.trouble_of(group):
                self._watched |= _watched({group: keeper.log(group).state()})
                self._stale.discard(group)
        now = time.monotonic()
        late = dict.fromkeys(keeper.forward, 0) if report.is_snapshot_late else {}
        keeper.attend({**late, **self._watched}, now)
        watchdog.decided(report.decided, report.seqnos)
        watchdog.look(now)

    def _check_epochs(self, groups: Collection[str]) -> None:
        """See that EPOCH of each group is there: claims are asked for of all at once. The next start leaves it out."""
        site, found = self.options.site, set(self.finder.find())
        for group in groups:
            if Topic(group, "epoch", site) not in found:
                raise topic_missing(str(Topic(group, "epoch", site)), group, site)

    def considered(self) -> dict[TopicPartition, int]:
        """How far the batches that are finished have come in FORWARD."""
        batch = newest(self._query) if self._query is not None else None
        offsets = batch.ends if batch is not None else {}
        return {TopicPartition(topic, int(n)): end for topic, ends in offsets.items() for n, end in ends.items()}

    def _finished_batches(self, groups: Collection[str]) -> _BatchReport:
        """What the batches tell that Spark has reported since the last call."""
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
        """Close what `check` reads."""
        self._query = None
        self.options.troubles.serve(self.name, ())
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


def _observed() -> list[Column]:
    """What Spark is to report of each batch, so that the driver need not read DATA to know it.

    The groups in which something was decided, and whether that has changed a membership, or up to where DATA stands
    in a flush; and how many seqnos were given.
    """
    kind = F.col("kind")
    has_seqno = kind.isNotNull() & ~kind.isin(*WITHOUT_SEQNO)
    is_change = kind.isin(JOIN, VIEW, REMOTE_VIEW, START_FLUSH)
    return [
        F.collect_set(F.when(has_seqno, F.struct("group", is_change.alias("is_change")))).alias(_GROUPS),
        F.sum(F.when(has_seqno, F.col("size"))).alias(_SEQNOS),
    ]


def _watched(states: Mapping[str, SequencerState]) -> dict[str, int]:
    return {group: state.seqno for group, state in states.items() if state.membership.is_watched}
