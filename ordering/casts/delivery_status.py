"""The delivery status of a record or a state: whether the process's own reader, its hub, has delivered it.

Source: Group Communication (docs/sources.md): each node has one vector; here a node has several readers.

A process that takes part in casts reads the group twice. Its *hub* sends FLUSH_OK and stamps outgoing messages. Its
*application* gets the same deliveries at its own pace, from a second reader. A late joiner's application begins with
the *state* of another member's application.

Invariant. From its beginning on, an application gets exactly the deliveries of its hub, each behind its causes. So the
deliveries that a member reports in its FLUSH_OK are the ones of its application. A crash changes nothing: the status is
a function of two states. docs/protocols/casts.md ("Hub and application") has the cases.
"""

from __future__ import annotations

from enum import Enum
from operator import le

from ordering.casts.casts import NO_VIEW, Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState


class DeliveryStatus(Enum):
    """The delivery status of a record, or of a state, at a hub."""

    NOT_YET = "not yet"
    """The hub may still deliver it, from records that are in the logs."""
    DELIVERED = "delivered"
    """The hub has delivered it, or began behind it (a newcomer), or the view was long ago."""
    NEVER = "never"
    """The hub will not deliver it: its sender is gone, and the flush that ended its view did not agree on it."""


def fate_of_record(hub: CausalReceiver, record: Cast | OrderedRecord) -> DeliveryStatus:
    """Return the status of a record that another reader has delivered. A cast outside of views counts as delivered."""
    if isinstance(record, OrderedRecord):
        return DeliveryStatus.DELIVERED if hub.seqno >= record.seqno else DeliveryStatus.NOT_YET
    if record.view == NO_VIEW:
        return DeliveryStatus.DELIVERED
    if record.view > hub.view:
        return DeliveryStatus.NOT_YET
    is_over = record.view < hub.view
    delivered = hub.ended.delivered(record.member, record.view) if is_over else hub.delivered_of(record.member)
    if delivered is None or delivered >= record.local_seqno:
        return DeliveryStatus.DELIVERED
    return DeliveryStatus.NEVER if is_over else DeliveryStatus.NOT_YET


def fate_of_state(hub: CausalReceiver, state: CausalState) -> DeliveryStatus:
    """Return the status of a member's state, taken in a view that the hub is in, or was in."""
    if hub.seqno < state.seqno or hub.view < state.view:
        return DeliveryStatus.NOT_YET
    if hub.view == state.view:
        is_there = not hub.is_new and all(map(le, state.vector, hub.vector))
        return DeliveryStatus.DELIVERED if is_there else DeliveryStatus.NOT_YET
    for member, count in zip(state.members, state.vector, strict=True):
        delivered = hub.ended.delivered(member, state.view)
        if delivered is not None and count > delivered:
            return DeliveryStatus.NEVER
    return DeliveryStatus.DELIVERED
