"""The sites of a world of sites that agree, and their members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.kafka.codec.codec import RELAYED_FIELDS, decode_data
from connectors.kafka.codec.entry_codec import read_entry
from connectors.takeover.agreement import AgreementSettings
from ordering.agreement.log import Entry
from ordering.base.records import ENTRY, STRAY, Data
from tests.world.kafka import WorldConnection, WorldKafka, partition

GROUP = "g"


class AgreeingSite:
    """A site: its Kafka, and the facts about its topics."""

    def __init__(self, kafka: WorldKafka, name: str, names: Sequence[str], format_2_from: int) -> None:
        self.kafka, self.name = kafka, name
        self.connection = WorldConnection.to(kafka, name)
        self.connection.create(GROUP, name)
        for other in names:
            if other != name:
                for role in ("relayed", "entries"):
                    kafka.topics.partitions[partition(role, name, other)] = []
        self.agreement: AgreementSettings
        self.format_2_from = format_2_from
        """The claim from which on the group has format 2 at this site: an operator has upgraded it there."""
        self.is_lost = False
        self.begun_anew: set[bytes] = set()
        """The digests of the entries behind the ones that were lost."""
        self._looked_at = 0
        self.in_data: dict[str, int] = {}
        """The end of each place's records in DATA."""
        self.settled: dict[str, int] = {}
        """The offset of each place up to which it may be dropped: all sites have had it in DATA for long enough."""

    @property
    def place(self) -> str:
        """FORWARD of the site."""
        forward = partition("forward", self.name)
        return f"{forward.topic}-0"

    @property
    def end(self) -> int:
        """The end of DATA."""
        return len(self.kafka.topics.partitions[partition("data", self.name)])

    def newest_claim(self) -> int:
        """Return the newest epoch claimed."""
        log = self.kafka.topics.partitions[partition("epoch", self.name)]
        return next((at + 1 for at in range(len(log) - 1, -1, -1) if _is_claim(log[at])), 0)

    def data(self, since: int = 0) -> Iterator[Data]:
        """Yield DATA, dropped records included."""
        for record in self.kafka.topics.partitions[partition("data", self.name)][since:]:
            data = decode_data(record.key, record.value, record.headers)
            if data.kind != STRAY:
                yield data

    def entries(self, since: int = 0) -> list[Entry]:
        """Return the entries in DATA."""
        return [read_entry(data) for data in self.data(since) if data.kind == ENTRY]

    def lose(self, end: int) -> None:
        """Note that the log was lost from this offset on."""
        self.is_lost, self._looked_at = True, end

    def has_begun(self, digest: bytes) -> bool:
        """Whether an entry with this digest was written behind the lost ones."""
        log = self.kafka.topics.partitions[partition("data", self.name)]
        for record in log[self._looked_at :]:
            data = decode_data(record.key, record.value, record.headers)
            if data.kind == ENTRY:
                self.begun_anew.add(read_entry(data).digest)
        self._looked_at = len(log)
        return digest in self.begun_anew

    def is_away(self) -> bool:
        """Whether any partition is."""
        return bool(self.kafka.topics.away)


def _is_claim(record: Any) -> bool:
    return bool(record.headers) and b" claim" in record.headers[0][1]


@dataclass
class Sender:
    """A member: sends again what it has not seen in its site's DATA, and now and then in a wrong order."""

    name: str
    site: str
    sent: int = 0
    ordered: int = 0


def made_from(record: Any) -> int:
    """Return the offset at home of the FORWARD record that a relay has copied."""
    mark = record.headers[0][1].split(b" ")[RELAYED_FIELDS.index("RELAYED_FROM")]
    return int(mark.rpartition(b":")[2])
