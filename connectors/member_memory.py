"""What Kafka remembers of a member's name between two runs of it: its incarnation, how far it has delivered, and how
far it has taken its letters.

All are committed offsets of the consumer group `abcast.member.<group>.<site>.<name>`. Two have their number in the
commit's metadata: `incarnation=N` on partition 0 of the FORWARD topic, `seqno=N` on the DATA topic. The third, on the
member's partition of the INBOX topic, is the offset itself. Kafka forgets them when
nothing was committed for `offsets.retention.minutes` (7 days unless the broker says otherwise). The incarnation does
not depend on that alone: what was ever ordered is found in DATA too.
"""

from __future__ import annotations

import time

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.connection import Connection
from ordering.errors import TopicMissing
from ordering.names import Address, Topic

_INCARNATION = "incarnation="
_SEQNO = "seqno="
_TAKEN_TIMEOUT_MS = 2000  # deliveries wait for this commit, and the next one makes up for it


class MemberMemory:
    """The memory of one member's name, and the consumer it is reached by. Not thread-safe; close it."""

    def __init__(self, connection: Connection, group: str, address: Address) -> None:
        """Raises BrokerUnreachable, TopicMissing."""
        self.connection = connection
        self.forward = TopicPartition(str(Topic(group, "forward", address.site)), 0)
        self.data = TopicPartition(str(Topic(group, "data", address.site)), 0)
        self.consumer: KafkaConsumer = connection.consumer(
            group_id=f"abcast.member.{group}.{address.site}.{address.name}"
        )
        try:
            for partition in (self.forward, self.data):
                with connection.reachable():
                    found = self.consumer.partitions_for_topic(partition.topic)
                if not found:
                    raise TopicMissing(
                        f"topic {partition.topic} does not exist: create the group's topics with "
                        f"`abcast topics create --group {group} --site {address.site}`."
                    )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self.consumer.close(timeout_ms=1000)

    def incarnation(self) -> int:
        """The highest incarnation that was ever claimed, 0 if none is remembered. Raises BrokerUnreachable."""
        return self._recall(self.forward, _INCARNATION)

    def remember_incarnation(self, incarnation: int) -> None:
        """Must return before the first message of the incarnation is sent. Raises BrokerUnreachable."""
        self._remember(self.forward, 0, f"{_INCARNATION}{incarnation}", self._timeout_ms)

    def claim_incarnation(self, above: int, claimed: set[int]) -> int:
        """A new incarnation, remembered: higher than all claimed before and than `above`. Raises BrokerUnreachable.

        It is added to `claimed` first: it may be remembered although nobody says so.

        For a name that Kafka has long forgotten, it is higher than those before in time.
        """
        incarnation = max(time.time_ns() // 1_000_000, self.incarnation() + 1, above + 1)
        claimed.add(incarnation)
        self.remember_incarnation(incarnation)
        return incarnation

    def taken(self) -> int:
        """The last seqno that the application took, 0 if none is remembered. Raises BrokerUnreachable."""
        return self._recall(self.data, _SEQNO)

    def remember_taken(self, seqno: int, offset: int) -> None:
        """`offset`: where to read on, shown as the lag by Kafka's own tools. Raises BrokerUnreachable (after 2 s)."""
        self._remember(self.data, offset, f"{_SEQNO}{seqno}", _TAKEN_TIMEOUT_MS)

    def letters_taken(self, inbox: TopicPartition) -> int:
        """The offset up to which the application took its letters, 0 if unknown. Raises BrokerUnreachable."""
        with self.connection.reachable():
            committed = self.consumer.committed(inbox, timeout_ms=self._timeout_ms)
        return int(committed or 0)

    def remember_letters_taken(self, inbox: TopicPartition, offset: int) -> None:
        """`offset`: the first whose record the application has not taken. Raises BrokerUnreachable (after 2 s)."""
        self._remember(inbox, offset, "", _TAKEN_TIMEOUT_MS)

    def _recall(self, partition: TopicPartition, prefix: str) -> int:
        with self.connection.reachable():
            committed = self.consumer.committed(partition, metadata=True, timeout_ms=self._timeout_ms)
        if committed is None or not committed.metadata.startswith(prefix):
            return 0
        return int(committed.metadata.removeprefix(prefix))

    def _remember(self, partition: TopicPartition, offset: int, metadata: str, timeout_ms: int) -> None:
        with self.connection.reachable():
            self.consumer.commit({partition: OffsetAndMetadata(offset, metadata, -1)}, timeout_ms=timeout_ms)

    @property
    def _timeout_ms(self) -> int:
        return int(self.connection.timeout * 1000)
