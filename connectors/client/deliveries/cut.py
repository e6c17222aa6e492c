"""A cut through all orders of a group: the place where a joiner goes on behind a state that a member has supplied.

Invariant. A cut has the messages, in all orders, that the supplier's application had been given when `get_state` was
called, and the place to read the others from. It is a state of `ordering.casts.merging`, taken between two deliveries,
while the rules have delivered nothing more than the application was given. So it is closed under "delivered before",
and a joiner that begins there gets exactly the messages that are not in it (docs/protocols/causal.md, "Late joiners").

Offsets are valid in one Kafka only. In another Kafka a joiner reads all casts from their beginning. Its receivers
discard the casts in views that the cut has. Of casts in no view, it may get some that were sent before the supplier
itself began to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.casts.merging import MergedState

FORMAT = 1
_LENGTH_BYTES = 4


class Cut(NamedTuple):
    """The messages delivered, as a `state`, and the offset to read on from for each partition of casts.

    `cluster_id` names the Kafka that the offsets are of; the supplier sets it when it sends the cut.
    """

    state: MergedState
    offsets: Mapping[TopicPartition, int]
    cluster_id: str = ""

    @property
    def seqno(self) -> int:
        """Return the last seqno that the cut counts."""
        return self.state.causal.seqno

    def to_bytes(self) -> bytes:
        """Encode it as JSON."""
        offsets = [[*place, offset] for place, offset in sorted(self.offsets.items())]
        body = {"format": FORMAT, "cluster": self.cluster_id, "offsets": offsets, "state": self.state.to_bytes().hex()}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Cut:
        """Decode the result of `to_bytes`. Raises ProtocolViolation for anything else."""
        try:
            body = json.loads(raw)
            if body["format"] != FORMAT:
                raise ValueError("unknown format")
            offsets = {
                TopicPartition(str(topic), int(number)): int(offset) for topic, number, offset in body["offsets"]
            }
            return cls(MergedState.from_bytes(bytes.fromhex(body["state"])), offsets, str(body["cluster"]))
        except UNREADABLE as error:
            raise ProtocolViolation(f"not a cut that this version can read: {error}") from error


def packed(cut: Cut, state: bytes) -> bytes:
    """Encode a cut, and the application's state there, as one string of bytes."""
    raw = cut.to_bytes()
    return len(raw).to_bytes(_LENGTH_BYTES, "big") + raw + state


def unpacked(raw: bytes) -> tuple[Cut, bytes]:
    """Decode the result of `packed`. Raises ProtocolViolation."""
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    return Cut.from_bytes(raw[_LENGTH_BYTES:end]), raw[end:]
