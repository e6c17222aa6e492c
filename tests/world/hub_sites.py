"""The sites of a world of a hub, and their members."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import HistoryUnavailable
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import Data
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka, partition

GROUP = "g"
Id = tuple[str, int, int]


@dataclass
class Sender:
    """A member: `pending` has what it has sent that has not come back."""

    address: str
    incarnation: int = 1
    last: int = 0
    pending: list[int] = field(default_factory=list)

    def begin_anew(self) -> None:
        """Send what waits in a new incarnation: the site's log is another one."""
        self.incarnation += 1
        self.last = len(self.pending)
        self.pending = list(range(1, self.last + 1))

    def has_sent(self, message: Id) -> bool:
        """Whether it waits for this message."""
        return message[:2] == (self.address, self.incarnation) and message[2] in self.pending


@dataclass
class HubSite:
    """A site's Kafka and its members. `order`: what they have delivered, by seqno; `delivered`: its last seqno."""

    name: str
    kafka: WorldKafka
    connection: WorldConnection
    senders: list[Sender]
    cursor: DataCursor | None = None
    delivered: int = 0
    order: dict[int, Id | None] = field(default_factory=dict)

    @classmethod
    def create(cls, kafka: WorldKafka, name: str, partitions: int) -> HubSite:
        """Create the group's topics at a site."""
        connection = WorldConnection.to(kafka, name)
        connection.create(GROUP, name, partitions)
        return cls(name, kafka, connection, [Sender(f"{name}/{each}") for each in "ab"])

    @property
    def data(self) -> list[Any]:
        """DATA, also its purged records."""
        return self.kafka.topics.partitions[partition("data", self.name)]

    def effective(self) -> list[Data]:
        """Return the decisions in DATA, purged ones included, and packs as their messages."""
        reader = Reader()
        found = (decode_data(record.key, record.value, record.headers) for record in self.data)
        return [each for data in found if reader.judge(data) is Verdict.TAKE for each in unpacked(data)]

    def in_ledger(self) -> list[Data]:
        """Return the rows of the delivered decisions: one for each seqno."""
        return [
            replace(data, seqno=seqno, count=1)
            for data in self.effective()
            for seqno in range(data.seqno, data.seqno + data.count)
            if data.seqno <= self.delivered
        ]

    def begin_to_read(self) -> DataCursor:
        """Read on behind `delivered`; the first time, from the beginning, or from the end where that was purged."""
        with DataLog(self.connection, GROUP, self.name) as data:
            try:
                start = data.after(self.delivered)
            except HistoryUnavailable:
                if self.delivered:
                    raise
                start = data.after(data.state().seqno)
            return DataCursor(self.connection.consumer(), data.partition, start)

    def read_anew(self) -> None:
        """Begin to read at the beginning."""
        self.cursor, self.delivered, self.order = None, 0, {}

    def write(self, sender: Sender, numbers: list[int]) -> None:
        """Write messages to FORWARD, if its partition is there."""
        topic, key = partition("forward", self.name).topic, sender.address.encode()
        place = TopicPartition(topic, sum(key) % len(self.kafka.topics.numbers(topic)))
        for number in numbers if place not in self.kafka.topics.away else ():
            with suppress(TooLarge):  # it is sent again
                self.kafka.topics.append(place, key, b"", forward_headers(sender.incarnation, number))

    def send(self, sender: Sender, count: int) -> None:
        """Send new messages."""
        for _ in range(count):
            sender.last += 1
            sender.pending.append(sender.last)
            self.write(sender, [sender.last])

    def resend(self) -> None:
        """Send all that has not come back."""
        for sender in self.senders:
            self.write(sender, sender.pending)
