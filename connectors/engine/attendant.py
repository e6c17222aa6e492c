"""The attendant of the process engine: takes groups over, and looks after them while the loop decides.

It has a thread of its own, so that no question to Kafka stands on the way of a message. It tells the loop what has
changed by values that it puts into a queue, and reads the loop's pipelines, which are values, too.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.backlog import find_backlog
from connectors.kafka.connection import Connection
from connectors.kafka.retrying import News
from connectors.kafka.topic_finder import TopicFinder
from connectors.kafka.topics import check_topics
from connectors.kafka.unfit import UnfitGroups
from connectors.sequencer.groups import forward_topics, positions_of
from connectors.sequencer.keeper import Keeper
from connectors.sequencer.takeover import take_over_groups
from connectors.sequencer.watchdog import Watchdog
from connectors.storage.location import Location
from ordering.errors import AbcastError, BrokerUnreachable, EnvironmentProblem, Fenced
from ordering.pipeline import Pipeline
from ordering.sequencer import SequencerState

WATCH_S = 1.0
"""How often it looks: for a newer epoch, for new groups, and for those that need a tick."""
RETRY_S = 30.0
"""After so long, a group that came later and could not be taken over is tried again."""
_CLOSE_S = 15.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """What the loop is to do from now on.

    `states`: groups that were taken over. `partitions`: what else is to be read, of which group and from where. `gone`:
    groups to be left alone.
    """

    states: Mapping[str, SequencerState] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()


class Attendant:
    """For one attempt of the job. `take_all`, then `start`; `close` it."""

    agreement: ClassVar[str] = ""

    def __init__(
        self,
        connection: Connection,
        site: str,
        ledger: Location | None,
        finder: TopicFinder,
        epochs: dict[str, int],
        failed: dict[str, float],
    ) -> None:
        """`epochs`: what this process has claimed, by group. `failed`: when it last failed to take over a group that
        came later. Both are kept up to date, and outlive the attempt. Raises BrokerUnreachable.
        """
        self.pipelines: Mapping[str, Pipeline] = {}
        """The loop's, by group; it puts a new mapping here."""
        self._connection = connection
        self._site = site
        self._ledger = ledger
        self._finder = finder
        self._epochs = epochs
        self._keeper = Keeper(connection, site, epochs, "process")
        self._watchdogs: dict[str, Watchdog] = {}
        self._told: dict[str, int] = {}  # what each watchdog knows to be written
        self._failed = failed
        self._news: dict[str, News] = {}
        self._places: set[TopicPartition] = set()
        self._changes: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="abcast-attendant", daemon=True)

    def take_all(self) -> Taken:
        """Take over every group that there is. Those that can't be are tried again later; raises if none can be."""
        topics = self._topics(fresh=True)
        while True:
            try:
                return self._take({group: names for group, names in topics.items() if group not in self._failed})
            except UnfitGroups as unfit:
                for group, error in unfit.errors.items():
                    if self._news.setdefault(group, News()).has(str(error)):
                        _logger.error(
                            "sequence: %s The other groups go on. It is tried again every %g s.", error, RETRY_S
                        )
                    self._failed[group] = time.monotonic()

    def start(self) -> None:
        """Look after the groups, in a thread."""
        self._thread.start()

    def changes(self) -> Iterator[Taken]:
        """What has changed since the last call."""
        while True:
            try:
                yield self._changes.get_nowait()
            except queue.Empty:
                return

    def raise_failure(self) -> None:
        """Raise what ended the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread and close all connections."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        self._keeper.close()

    def _run(self) -> None:
        try:
            while not self._ends.wait(WATCH_S):
                try:
                    self._look()
                except (BrokerUnreachable, KafkaError) as error:
                    if isinstance(error, KafkaError) and not error.retriable:
                        raise
                    # What is being written has its own patience with a broker that restarts. Of a topic that is gone,
                    # nothing is answered either: the next look finds that.
                    if not self._finder.has_news():
                        _logger.warning("sequence: the broker does not answer")
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread
            self._failure = error

    def _look(self) -> None:
        # First of all: what is asked of a topic that is gone is asked for seconds.
        self._find_changes()
        self._keeper.check_not_fenced()
        now = time.monotonic()
        # What is decided and not yet written counts as considered: that is so for some milliseconds.
        self._keeper.sign(positions_of(pipeline.state for pipeline in self.pipelines.values()), now)
        self._keeper.attend(self._to_be_ticked(), now)
        for group, pipeline in self.pipelines.items():
            watchdog = self._watchdogs.get(group)
            if watchdog is not None and (seqnos := pipeline.written - self._told[group]) > 0:
                watchdog.decided([group], seqnos)
                self._told[group] = pipeline.written
            if watchdog is not None:
                watchdog.look(now)

    def _to_be_ticked(self) -> dict[str, int]:
        """Groups with members, and those that have left a snapshot for the next batch, which may be long in coming."""
        return {
            group: pipeline.written
            for group, pipeline in self.pipelines.items()
            if group in self._keeper.forward
            and (pipeline.state.membership.is_watched or pipeline.state.due_for_snapshot())
        }

    def _topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        found = forward_topics(self._finder.find(fresh=fresh), self._site)
        return {group: names for group, names in found.items() if names}

    def _find_changes(self) -> None:
        topics, known = self._topics(), self._keeper.forward
        claimed = {topic.group for topic in self._finder.find() if topic.role == "epoch" and topic.site == self._site}
        # A group that has lost a topic is taken over anew, as one that has come. Without EPOCH it is left alone until
        # then: the keeper asks for the claims of all groups at once.
        gone = frozenset(
            group
            for group, names in known.items()
            if group not in claimed or not set(names) <= set(topics.get(group, ()))
        )
        for group in gone:
            self._release(group)
        if gone:
            _logger.info("sequence: topics are gone of: %s", ", ".join(sorted(gone)))
            self._changes.put(Taken(gone=gone))
        self._find_partitions({group: topics[group] for group in known})
        for group in sorted(topics.keys() - known.keys()):
            if time.monotonic() - self._failed.get(group, float("-inf")) >= RETRY_S:
                self._take_later(group, topics[group])

    def _find_partitions(self, topics: Mapping[str, list[str]]) -> None:
        """Have the partitions read that have come to known groups: those have nothing to take over."""
        # What has no count was deleted just now.
        counts = Counter({str(topic): count for topic, count in self._finder.count_partitions().items()})
        grown = {
            group: names
            for group, names in topics.items()
            if any(TopicPartition(name, number) not in self._places for name in names for number in range(counts[name]))
        }
        if not grown:
            return
        found = self._starts(grown, {})
        new = {partition: start for partition, start in found.items() if partition not in self._places}
        self._keeper.take(grown)
        self._places.update(new)
        self._changes.put(Taken(partitions=new))

    def _take_later(self, group: str, names: list[str]) -> None:
        """Take over a group that was not there at the start. If that fails, the others go on."""
        try:
            taken = self._take({group: names})
        except (Fenced, EnvironmentProblem):
            raise
        except AbcastError as error:
            if self._news.setdefault(group, News()).has(str(error)):
                _logger.error("sequence: %s It is tried again every %g s.", error, RETRY_S)
            self._failed[group] = time.monotonic()
            return
        self._failed.pop(group, None)
        self._news.pop(group, None)
        _logger.info("sequence: a new group: %s", group)
        self._changes.put(taken)

    def _take(self, topics: Mapping[str, list[str]]) -> Taken:
        if not topics:
            return Taken()
        check_topics(self._connection, topics, self._site)
        states = take_over_groups(
            self._connection,
            topics,
            self._site,
            self._epochs,
            agreement=self.agreement,
            fitness=self._check_group,
        )
        self._keeper.take(topics)
        ends = self._keeper.ends_of_data(topics)
        for group, state in states.items():
            watchdog = self._watchdogs[group] = Watchdog(self._keeper.log)
            watchdog.watch(group, state.epoch, state.seqno, ends.get(group, 0))
            self._told[group] = state.seqno
        partitions = self._starts(topics, positions_of(states.values()))
        self._places.update(partitions)
        return Taken(states, partitions)

    def _check_group(self, state: SequencerState) -> None:
        """Raises what keeps this group from being served, if its DATA does not tell; called before it is claimed."""

    def _release(self, group: str) -> None:
        names = self._keeper.forward[group]
        self._places = {partition for partition in self._places if partition.topic not in names}
        self._keeper.release(group)
        self._watchdogs.pop(group, None)

    def _starts(
        self, topics: Mapping[str, Iterable[str]], positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[str, int]]:
        """Every partition of the topics: its group, and from where it is to be read."""
        consumer = self._connection.consumer()
        try:
            with self._connection.reachable():
                return {
                    partition: (group, offsets.start)
                    for group, names in topics.items()
                    for partition, offsets in find_backlog(consumer, names, positions).items()
                }
        except KeyError as error:  # how kafka-python says that a topic is gone
            raise self._connection.unreachable() from error
        finally:
            consumer.close()
