"""The committed offsets of a member's consumer group, `abcast.member.<group>.<site>.<name>`, with their metadata.

Other programs may commit here, too. So metadata that a member did not write is read as if there were none.
"""

from __future__ import annotations

import re
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.connection.metadata_client import MetadataClient
from ordering.base.names import Address

_NUMBER = re.compile(r"[0-9]{1,18}")


class CommittedOffsets:
    """The committed offsets of one name. It owns nothing."""

    def __init__(self, metadata: MetadataClient, group: str, address: Address) -> None:
        self._metadata = metadata
        self._consumer_group = f"abcast.member.{group}.{address.site}.{address.name}"

    def at(self, partition: TopicPartition) -> Any:
        """Return the committed offset with its metadata, or None. Raises BrokerUnreachable."""
        return self._metadata.committed(self._consumer_group, [partition]).get(partition)

    def number(self, partition: TopicPartition, prefix: str) -> int | None:
        """Return the number that the commit has behind a prefix, or None. Raises BrokerUnreachable."""
        committed = self.at(partition)
        return None if committed is None else told(committed, prefix)

    def commit(self, partition: TopicPartition, offset: int, metadata: str, timeout_s: float) -> None:
        """Commit an offset with its metadata. Raises BrokerUnreachable."""
        self._metadata.commit(self._consumer_group, {partition: OffsetAndMetadata(offset, metadata, -1)}, timeout_s)


def told(committed: Any, prefix: str) -> int | None:
    """Return the number behind a prefix in the metadata; None for anything else, as other programs may write here."""
    found = _NUMBER.fullmatch((committed.metadata or "").removeprefix(prefix))
    return int(found[0]) if found and committed.metadata.startswith(prefix) else None
