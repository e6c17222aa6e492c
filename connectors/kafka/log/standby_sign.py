"""A standby's sign of life: it tells operators and `abcast takeover` that a process waits to take groups over.

It is kept beside the sequencer's signs (`connectors.kafka.log.sign_of_life`), as the offset of a topic without one: the
dead letters'. It costs no record. Two standbys of a group overwrite each other's.

No promise depends on it. `signed_ms` is compared with the standby's own clock only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.codec.epochs import this_process
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.log.sign_of_life import SILENT_AFTER_S, committed_of, group_id
from ordering.base.names import Topic

STANDBY_SIGN_S = 1.0
"""The time between two signs of a standby."""
REQUEST_S = 10.0
"""The age of a standby's sign from which on it follows no request that answers the sign."""
_ASK_S = 3.0


class StandbySign(NamedTuple):
    """The newest sign of a standby. `since_ms`, `signed_ms`: by the clock of `host`."""

    host: str
    pid: int
    since_ms: int
    signed_ms: int

    @property
    def who(self) -> str:
        """A description of the process."""
        return f"process {self.pid} on host {self.host}"

    def is_beside(self, host: str, pid: int) -> bool:
        """Whether it waits now, as far as clocks agree, beside that sequencer, and has not become it."""
        is_new = abs(time.time_ns() / 1e6 - self.signed_ms) < SILENT_AFTER_S * 1_000
        return is_new and (self.host, self.pid) != (host, pid)

    def encode(self) -> OffsetAndMetadata:
        """Return the offset to commit."""
        return OffsetAndMetadata(0, f"{self.host} {self.pid} {self.since_ms} {self.signed_ms}", -1)

    @classmethod
    def decode(cls, committed: OffsetAndMetadata) -> StandbySign | None:
        """Invert `encode`; None for anything else. Later versions may add fields at the end."""
        try:
            host, *numbers = (committed.metadata or "").split()
            pid, since_ms, signed_ms = map(int, numbers[:3])
        except ValueError:
            return None
        return cls(host, pid, since_ms, signed_ms)


def sign_as_standby(metadata: MetadataClient, groups: Iterable[str], site: str, since_ms: int) -> StandbySign:
    """Give a sign of this process for the groups. Raises BrokerUnreachable, KafkaRefused, KafkaError."""
    sign = StandbySign(*this_process(), since_ms, time.time_ns() // 1_000_000)
    metadata.commit(group_id(site), {_place(group, site): sign.encode() for group in groups}, _ASK_S)
    return sign


def read_standbys(metadata: MetadataClient, groups: Iterable[str], site: str) -> Mapping[str, StandbySign]:
    """Return the newest sign of each group that has one. Raises BrokerUnreachable; KafkaRefused for a single group."""
    places = {_place(group, site): group for group in groups}
    committed = committed_of(metadata, site, [[place] for place in places])
    signs = {places[place]: StandbySign.decode(found) for place, found in committed.items()}
    return {group: sign for group, sign in signs.items() if sign is not None}


def _place(group: str, site: str) -> TopicPartition:
    return TopicPartition(str(Topic(group, "dead-letter", site)), 0)
