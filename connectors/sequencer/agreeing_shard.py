"""A shard of a site that agrees with others: the sequencer's, with the query of `connectors.sequencer.agreeing_query`.

Claims, seals, ticks for members, signs of life, the watchdog and retries are the same as in every shard. It reads other
topics: FORWARD of all sites, the logs of the other sites, and EPOCH, which has operators' exclusions. The site's own
log tells where to read on (`connectors.takeover.agreement`).

A batch has at most the records of a run of each site, since records wait in files until they are sequenced. The query
ends if retention drops a record while it is read: otherwise its offset would count as one without a record. The next
query finds out what that means.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.groups.group_backlog import backlog_of_groups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.unservable_groups import each_apart
from connectors.sequencer.agreeing_query import (
    REPORT,
    StepReport,
    agree,
    begun,
    seconds,
    with_time,
)
from connectors.sequencer.query import encode_decided
from connectors.sequencer.shard import SequencerShard
from connectors.spark.forward_rows import forward_rows
from connectors.spark.job import JobOptions
from connectors.spark.session import PythonWorker
from connectors.spark.sink import COPY_SINK_OPTIONS
from connectors.takeover.agreement import ISIS, AgreementSettings, inputs_of, known_state, starts_of
from connectors.takeover.groups import groups_at
from ordering.agreement.group import Group, after_takeover
from ordering.agreement.sites.forwards import MAX_RUN_RECORDS
from ordering.base.errors import AbcastError
from ordering.base.names import Topic
from ordering.base.records import Partition
from ordering.sequencer.state import SequencerState

MOST_BACK_S = 3.0
"""The seconds by which the clock may be set back: for so long, the group's time stops."""
MOST_AHEAD_S = 60.0
"""The seconds by which the clock may be set ahead between two checks: a batch has a row for each, and each group."""
_REPORTS = "reports"

_logger = logging.getLogger(__name__)


class QueryInputLost(AbcastError):
    """Retention was faster than the start of the query: the next query finds where to read on."""

    retriable = True


class ClockSet(AbcastError):
    """The machine's clock was set, so the query's rows with the time stay away, or are very many."""

    retriable = True
    is_failure = False


class RoomAgain(AbcastError):
    """Inputs that a waiting site had to leave out can be read now, by the next query."""

    retriable = True
    is_failure = False


class AgreeingShard(SequencerShard):
    """Agrees on the order of groups that have a DATA topic at the site. Every start of its query is a takeover."""

    agreement: ClassVar[str] = ISIS
    sink: ClassVar[Mapping[str, str]] = COPY_SINK_OPTIONS
    needs_all_records = True

    def __init__(
        self,
        spark: SparkSession,
        options: JobOptions,
        finder: TopicFinder | None = None,
        *,
        agreement: AgreementSettings,
        groups: Collection[str] | None = None,
        epochs: dict[str, int] | None = None,
        worker: PythonWorker | None = None,
        number: int = 1,
    ) -> None:
        """Take the parameters of `SequencerShard`, and the sites that agree."""
        super().__init__(spark, options, finder, groups=groups, epochs=epochs, worker=worker, number=number)
        self._agreement = agreement
        self._positions: dict[TopicPartition, int] = {}
        self._has_room = False
        self._clock_s = -math.inf

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the topics to read of the shard's groups that have FORWARD and DATA at the site."""
        found: dict[str, list[str]] = {}
        for topic in topics:
            if self._is_read(topic):
                found.setdefault(topic.group, []).append(str(topic))
        site, groups = self.options.site, groups_at(topics, self.options.site)
        return {
            group: sorted(names)
            for group, names in found.items()
            if group in groups and self.serves(group) and str(Topic(group, "forward", site)) in names
        }

    def _is_read(self, topic: Topic) -> bool:
        is_own_epoch = topic.role == "epoch" and topic.site == self.options.site
        return is_own_epoch or self._agreement.neighbours.input(topic, 0) is not None

    def sequenced(self, topics: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return the site's own FORWARD topics."""
        return {group: [str(Topic(group, "forward", self.options.site))] for group in topics}

    def check_group(self, state: SequencerState, topics: Collection[str]) -> None:
        """Check that the site's log can be continued, and each input read from where the log tells.

        Without this, each retry of a group that can't be read would cost a claim and a snapshot. Raises UsageError,
        HistoryUnavailable, ProtocolViolation, BrokerUnreachable, KafkaRefused.
        """
        self._batches.check(topics, self._starts({state.group: topics}, self._groups({state.group: state})))

    def decide(self, topics: Mapping[str, list[str]], states: Mapping[str, SequencerState]) -> DataFrame:
        """Return the rows for the sink.

        Raises QueryInputLost; UnservableGroups, or the error itself if all groups have it.
        """
        site, neighbours = self.options.site, self._agreement.neighbours
        groups = self._groups(states)
        names = [name for group in topics.values() for name in group]
        source = self._source(names, self._starts(topics, groups))
        session, at_once = self.session(len(groups))
        read = session.readStream.format("kafka").options(**source).load()
        rows = with_time(forward_rows(read, site, agreed=True), seconds(session), groups)
        self._positions, self._has_room, self._clock_s = {}, False, _clock_s()
        initial = {name: begun(group) for name, group in groups.items()}
        runs = agree(rows, neighbours, initial, at_once)
        role = F.col("role")
        reports = F.collect_list(F.when(role == REPORT, F.get("value", F.lit(0)).cast("string"))).alias(_REPORTS)
        return encode_decided(self.observed(runs, reports).filter(role != REPORT), site)

    def _groups(self, states: Mapping[str, SequencerState]) -> dict[str, Group]:
        def known(state: SequencerState) -> Group:
            return after_takeover(known_state(self.options.connection, self._agreement, state), state)

        return each_apart(states, known)

    def _source(self, names: list[str], starts: Mapping[TopicPartition, int]) -> dict[str, str]:
        source = self.kafka_source(names, starts)
        found = {
            TopicPartition(name, int(number)): start
            for name, of_partitions in json.loads(source["startingOffsets"]).items()
            for number, start in of_partitions.items()
        }
        if any(found.get(place, start) != start for place, start in starts.items()):
            raise QueryInputLost("the next records are gone: taking over again.")
        most = min(int(source["maxOffsetsPerTrigger"]), MAX_RUN_RECORDS * len(self._agreement.neighbours.names))
        return {**source, "maxOffsetsPerTrigger": str(most), "failOnDataLoss": "true"}

    def _starts(self, topics: Mapping[str, Collection[str]], groups: Mapping[str, Group]) -> dict[TopicPartition, int]:
        """Return the offset from which each partition is read, and tell it the groups.

        Raises BrokerUnreachable; UnservableGroups, or the error itself if all groups have it.
        """
        of_name = {name: group for group, names in topics.items() for name in names}
        beginnings: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
        for place, offsets in backlog_of_groups(self.options.connection, list(of_name), {}).items():
            beginnings[of_name[place.topic]][place] = offsets.beginning

        def of_group(group: Group) -> dict[TopicPartition, int]:
            begins = beginnings[group.site.group]
            sources = inputs_of(self._agreement.neighbours, begins)  # not EPOCH: that is read from its beginning
            return starts_of(self.options.connection, group, sources, begins)

        return {place: start for starts in each_apart(groups, of_group).values() for place, start in starts.items()}

    def check(self) -> None:
        """Make the checks of every shard. Raises RoomAgain and ClockSet, too."""
        self._check_clock()
        super().check()
        if self._has_room:
            raise RoomAgain("too many records waited for the other sites, so some were not read: reading them now.")

    def _check_clock(self) -> None:
        """Raise ClockSet if the wall clock was set back, or far ahead.

        Spark's rate source has a row for each second up to the highest time that it has seen. Behind a clock that was
        set back by an hour, the group's time would stop for an hour, and the other sites would go on without this one.
        """
        now, highest = _clock_s(), self._clock_s
        self._clock_s = max(now, highest)
        if now < highest - MOST_BACK_S or (now > highest + MOST_AHEAD_S and highest > -math.inf):
            raise ClockSet(f"the clock of this machine was set by {now - highest:+.0f} s: taking over again.")

    def see(self, observed: dict[str, Any]) -> None:
        """Log the notices of steps, and note their positions."""
        for raw in observed[_REPORTS]:
            report = StepReport.from_json(raw)
            for level, words in report.notices:
                _logger.log(level, "site %s, group %s: %s", self.options.site, report.group, words)
            places = {Partition.parse(place): offset for place, offset in report.positions.items()}
            self._positions |= {TopicPartition(*place): offset for place, offset in places.items()}
            self._has_room = self._has_room or report.has_room

    def considered(self) -> dict[TopicPartition, int]:
        """Return the first offsets of the site's own FORWARD that are not considered, by the last steps' reports."""
        return dict(self._positions)


def _clock_s() -> float:
    """Return the wall clock's advance over a steady clock, in seconds: it changes only if the wall clock is set."""
    return time.time() - time.monotonic()
