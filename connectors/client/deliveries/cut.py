"""A cut through all orders of a group: where a joiner goes on that got its application's state from a member.

Invariant. A cut says what had been delivered to the supplier's application when `get_state` was called, in all orders,
and from where on to read what was not. It is a state of `ordering.casts.merging` taken between two deliveries, with
nothing delivered by the rules and not yet given to the application. So it is closed under "delivered before", and who
begins there is given exactly what is not in it (`ordering.casts.causal`, "Late joiners").

Offsets mean something in the Kafka that they are of. In another one a joiner reads all casts that are there, and its
receivers discard what the cut has: all that is cast in views. Of casts in no view, it may be given some that were sent
before the supplier itself began to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from ordering.base.canonical import canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.casts.merging import MergedState

FORMAT = 1
_LENGTH_BYTES = 4


class Cut(NamedTuple):
    """What was delivered, and of each partition of casts the offset to read on from. `cluster_id`: of which Kafka."""

    state: MergedState
    offsets: Mapping[TopicPartition, int]
    cluster_id: str = ""

    @property
    def seqno(self) -> int:
        """The last one that it counts."""
        return self.state.causal.seqno

    def to_bytes(self) -> bytes:
        """As JSON."""
        offsets = [[*place, offset] for place, offset in sorted(self.offsets.items())]
        body = {"format": FORMAT, "cluster": self.cluster_id, "offsets": offsets, "state": self.state.to_bytes().hex()}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Cut:
        """Inverse of `to_bytes`. Raises ProtocolViolation for anything else."""
        try:
            body = json.loads(raw)
            if body["format"] != FORMAT:
                raise ValueError("unknown format")
            offsets = {
                TopicPartition(str(topic), int(number)): int(offset) for topic, number, offset in body["offsets"]
            }
            return cls(MergedState.from_bytes(bytes.fromhex(body["state"])), offsets, str(body["cluster"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolViolation(f"not a cut that this version can read: {error}") from error


def packed(cut: Cut, state: bytes) -> bytes:
    """A cut, and the application's state there, as one."""
    raw = cut.to_bytes()
    return len(raw).to_bytes(_LENGTH_BYTES, "big") + raw + state


def unpacked(raw: bytes) -> tuple[Cut, bytes]:
    """Inverse of `packed`. Raises ProtocolViolation."""
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    return Cut.from_bytes(raw[_LENGTH_BYTES:end]), raw[end:]
