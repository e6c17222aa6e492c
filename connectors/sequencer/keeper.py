"""What a sequencer looks after beside its batches, with either engine: claims, signs of life, ticks, settings.

None of it decides anything: a keeper that sleeps delays a snapshot or a suspicion, or lets a fenced sequencer write on,
which readers ignore. So it keeps nothing that a crash could cost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Literal

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog, consumer_of_logs
from connectors.kafka.sign_of_life import SignsOfLife
from connectors.kafka.topics import wrong_in_logs
from connectors.kafka.transport import Consumer, Producer
from connectors.sequencer.takeover import check_not_fenced
from connectors.sequencer.ticks import tick
from ordering.names import Topic

_ASK_MS = 3000
"""How long a check asks for the newest claims. It has other groups to look after than one whose topics are gone."""

LOOK_AT_SETTINGS_S = 3600.0
"""How often it looks whether somebody has set a retention where there must be none."""

_Role = Literal["data", "epoch"]
_ROLES: tuple[_Role, ...] = ("data", "epoch")

_logger = logging.getLogger(__name__)


class Keeper:
    """Looks after groups that were taken over. Not thread-safe; close it.

    `epochs`: what this process has claimed, by group; takeovers keep it up to date. `engine`: what it is, in a word.
    """

    def __init__(self, connection: Connection, site: str, epochs: Mapping[str, int], engine: str) -> None:
        """Raises BrokerUnreachable."""
        self.forward: dict[str, list[str]] = {}
        """The groups, each with its forward topics."""
        self._connection = connection
        self._site = site
        self._epochs = epochs
        self._consumer: Consumer = connection.consumer()
        self._reader: Consumer | None = None  # of all logs
        self._ticker: Producer | None = None
        self._next_look = time.monotonic() + LOOK_AT_SETTINGS_S  # a start has looked
        self._signs = SignsOfLife(connection, site, engine)
        self._logs: dict[str, DataLog] = {}
        self._claims_seen: dict[str, int] = {}  # where EPOCH ended when it was last looked at

    def take(self, forward: Mapping[str, list[str]]) -> None:
        """Look after these groups, too; or read other forward topics of them. Raises BrokerUnreachable."""
        with self._connection.reachable():
            for group in forward.keys() - self.forward.keys():
                for role in _ROLES:
                    # kafka-python tells no offset of a topic that is younger than what it knows of the cluster.
                    self._consumer.partitions_for_topic(str(Topic(group, role, self._site)))
        self.forward |= forward

    def release(self, group: str) -> None:
        """Look after it no longer."""
        self.forward.pop(group, None)
        self._claims_seen.pop(group, None)
        self._logs.pop(group, None)

    def log(self, group: str) -> DataLog:
        """The group's DATA, for the keeper's thread."""
        if group not in self._logs:
            if self._reader is None:
                self._reader = consumer_of_logs(self._connection)
            self._logs[group] = DataLog(self._connection, group, self._site, self._reader)
        return self._logs[group]

    def ends_of_data(self, groups: Iterable[str]) -> dict[str, int]:
        """The offset after the last record of DATA, by group. Raises BrokerUnreachable."""
        return self._ends("data", groups)

    def check_not_fenced(self) -> None:
        """See that no newer epoch has begun, with one question for all groups. Raises Fenced, BrokerUnreachable."""
        if not self.forward:
            return
        for group, end in self._ends("epoch", self.forward, _ASK_MS).items():
            if end != self._claims_seen.get(group):
                check_not_fenced(self.log(group), self._epochs[group])
                self._claims_seen[group] = end

    def sign(self, considered: Mapping[TopicPartition, int], now: float) -> None:
        """Give a sign of life for all groups, right after `check_not_fenced`, if it is time to.

        `considered`: of forward partitions, the first offset that is not considered yet.
        """
        self._signs.give({group: self._epochs[group] for group in self.forward}, considered, now)

    def attend(self, watched: Mapping[str, int], now: float) -> None:
        """Tick for `watched`, each with a seqno that stands in DATA, and see now and then that DATA and EPOCH are kept.

        `now`: seconds of a steady clock. Raises BrokerUnreachable.
        """
        ticked = {**dict.fromkeys(self._look_at_settings(now), 0), **watched}
        if not ticked:
            return
        if self._ticker is None:
            self._ticker = self._connection.producer()
        try:
            for group, seqno in sorted(ticked.items()):
                for topic in self.forward[group]:
                    tick(self._ticker, topic, self._ticker.partitions_for(topic), seqno)
        except KafkaError as error:  # made up for by the next
            _logger.warning("a tick could not be written: %r", error)

    def _look_at_settings(self, now: float) -> list[str]:
        """Groups whose DATA or EPOCH Kafka may delete, told as an error; a tick has their DATA hold a snapshot."""
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_AT_SETTINGS_S
        wrong = wrong_in_logs(self._connection, self.forward, self._site)
        for sentence in wrong.values():
            _logger.error("%s", sentence)
        return sorted(wrong)

    def close(self) -> None:
        """Close all connections."""
        self._signs.close()
        self._logs = {}
        if self._reader is not None:
            self._reader.close()
        self._consumer.close()
        if self._ticker is not None:
            self._ticker.close(timeout=1)

    def _ends(self, role: _Role, groups: Iterable[str], timeout_ms: int | None = None) -> dict[str, int]:
        """Where the groups' topics of that role end. Raises BrokerUnreachable."""
        partitions = {group: TopicPartition(str(Topic(group, role, self._site)), 0) for group in groups}
        with self._connection.reachable():
            try:
                ends = self._consumer.end_offsets(list(partitions.values()), timeout_ms=timeout_ms)
            except KeyError as error:  # how kafka-python says that a topic is gone
                raise self._connection.unreachable() from error
        return {group: ends[partition] for group, partition in partitions.items()}
