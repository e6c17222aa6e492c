"""What one reader of a group has delivered, told by what another one, the process's own, has.

Source: Group Communication (docs/sources.md): each node has one vector; here a node has several readers.

A process that takes part in casts reads the group twice. Its *hub* says FLUSH_OK, and stamps what leaves. Its
*application* is given the same, at its own pace, by a reader of its own. A late joiner's application begins with the
*state* of another member's application. The hub's receiver tells of each record, and of each state, how it stands:

* NOT_YET: the hub may deliver it yet. Who waits for that waits for what stands in the logs;
* DELIVERED: the hub has delivered it, or begins behind it (a newcomer), or the view was long ago;
* NEVER: the hub has not, and will not: it was cast by a life that is gone, and was not agreed in the flush that ended
  its view (`ordering.casts.causal`).

Invariant. An application is given exactly what its hub delivers, from where it begins, in an order that holds. So what
members that go on have said in their FLUSH_OKs is what their applications have:

* A reader that is ahead in casts and behind in DATA can deliver, by the rules, a dead member's cast before it knows of
  the flush, where the hub was in the flush already. Its application waits for the hub, and passes the cast over when
  the view has come. What depends on it is passed over, too: only casts of lives that are gone can depend on it.
* A state counts what its supplier's hub had delivered. If that is DELIVERED here, the joiner's own FLUSH_OK says it,
  so all who go on deliver it, also if the supplier dies next. If it is NEVER, the supplier has died, and the group goes
  on without some of what it had counted: the state is void, and another member is asked.

A crash changes nothing: all of it is a function of two states.
"""

from __future__ import annotations

from enum import Enum
from operator import le

from ordering.casts.casts import NO_VIEW, Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState


class DeliveryStatus(Enum):
    """How a record, or a state, stands with a hub."""

    NOT_YET = "not yet"
    DELIVERED = "delivered"
    NEVER = "never"


def fate_of_record(hub: CausalReceiver, record: Cast | OrderedRecord) -> DeliveryStatus:
    """Of what another reader has delivered. Nothing depends on casts of no view, so they count as delivered."""
    if isinstance(record, OrderedRecord):
        return DeliveryStatus.DELIVERED if hub.seqno >= record.seqno else DeliveryStatus.NOT_YET
    if record.view == NO_VIEW:
        return DeliveryStatus.DELIVERED
    if record.view > hub.view:
        return DeliveryStatus.NOT_YET
    is_over = record.view < hub.view
    delivered = (hub.delivered_of_gone if is_over else hub.delivered_of)(record.life)
    if delivered is None or delivered >= record.local_seqno:
        return DeliveryStatus.DELIVERED
    return DeliveryStatus.NEVER if is_over else DeliveryStatus.NOT_YET


def fate_of_state(hub: CausalReceiver, state: CausalState) -> DeliveryStatus:
    """Of a member's state, in a view in which the hub is, too, or was."""
    if hub.seqno < state.seqno or hub.view < state.view:
        return DeliveryStatus.NOT_YET
    if hub.view == state.view:
        is_there = not hub.is_new and all(map(le, state.vector, hub.vector))
        return DeliveryStatus.DELIVERED if is_there else DeliveryStatus.NOT_YET
    for life, count in zip(state.lives, state.vector, strict=True):
        delivered = hub.delivered_of_gone(life)
        if delivered is not None and count > delivered:
            return DeliveryStatus.NEVER
    return DeliveryStatus.DELIVERED
