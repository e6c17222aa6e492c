"""Letters between sites: each site's inboxes have a copy of the same name in the Kafkas on the way."""

from __future__ import annotations

import logging

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame

from connectors.kafka.topics import count_partitions, ensure_topic
from connectors.relay.columns import relay_letters
from connectors.relay.job import Relay
from ordering.errors import BrokerUnreachable, KafkaRefused
from ordering.names import Topic
from ordering.records import Partition

_logger = logging.getLogger(__name__)


class Letters(Relay):
    """Letters for members at the target, or at sites behind it."""

    carries = "letters"

    def is_read(self, topic: Topic) -> bool:
        """The inboxes of the sites that lie in this direction."""
        return topic.role == "inbox" and self.sites.leads_to_inbox(self.direction, topic.site)

    def filled(self, topic: Topic) -> Topic:
        """The topic of the same name in the other Kafka."""
        return topic

    def carry(self, rows: DataFrame) -> DataFrame:
        """As they stand, with the mark of this relay instead of the last one's."""
        return relay_letters(rows, self.direction)

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """Where the copy begins, if nothing was carried on this way; that is told. Raises HistoryUnavailable else.

        A way that a new sites' file has begins so where letters were purged: those have arrived
        (`connectors.relay.letter_copies`). Inbox topics have no retention.
        """
        if position or not beginning:
            return super().first_to_carry(partition, position, beginning)
        _logger.warning(
            "letters below offset %d of %s were deleted at %s, as `abcast maintain` does with those that have arrived: "
            "the relay to %s begins behind them",
            *(beginning, Partition(*partition), self.direction.source, self.direction.target),
        )
        return beginning

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """As every relay, where there is anything to carry."""
        return super().hidden(topics) if self.is_apart else []

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """None where both ends share one Kafka. Makes sure that members at the source can write to these inboxes."""
        if not self.is_apart:
            return {}
        groups = {topic.group for topic in topics if topic.role == "data" and topic.site == self.direction.source}
        wanted = [Topic(group, "inbox", site) for site in self.sites.connections for group in sorted(groups)]
        missing = [topic for topic in wanted if self.is_read(topic) and topic not in topics]
        for topic in missing:
            # A receiver is found by its key, so every Kafka on the way must have as many partitions as the last.
            try:
                partitions = count_partitions(self.sites.connection(topic.site), topic)
            except BrokerUnreachable:
                continue  # not known yet; this is asked again
            if partitions:
                ensure_topic(self.source, topic, partitions)
                topics = [*topics, topic]
        return super().select_topics(topics)
