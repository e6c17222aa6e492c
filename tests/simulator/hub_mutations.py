"""Each rule of the hub broken on purpose: the simulator must then name what is broken."""

from __future__ import annotations

from typing import Any

from connectors.kafka.data_log import DataLog
from connectors.kafka.epochs import Move, encode_move
from connectors.kafka.sending import append
from connectors.relay.job import Relay
from ordering.checker import DIVERGENT, LOST
from tests.simulator.hub import FALSE_RECEIPT, STUCK, Mutation

_PROMOTION = "connectors.relay.promotion"
_DECIDED, _CARRY = f"{_PROMOTION}.DataLog.has_decided", "connectors.relay.hub.SiteForward.first_to_carry"
_TWO_HOMES = (DIVERGENT, FALSE_RECEIPT)
ANY = (DIVERGENT, FALSE_RECEIPT, LOST, STUCK)


def move_only(old_home: DataLog, new_home: str) -> None:
    """A fence is no more than a move."""
    append(old_home.connection, old_home.claims_topic, (None, *encode_move(Move(new_home, old_home.highest_epoch()))))


def is_claimed(log: DataLog) -> bool:
    """A site that was made the home, and has not started, is none."""
    return bool(log.claims())


def nothing(*_: Any) -> None:
    """Nothing is done, nor looked at."""


MUTATIONS = (
    Mutation("fence-by-move", "no claim and no seal", _TWO_HOMES, ((f"{_PROMOTION}.fence", move_only),)),
    Mutation("no-fence", "the old home goes on", _TWO_HOMES, ((f"{_PROMOTION}.fence", nothing),)),
    Mutation("fence-if-claimed", "a home that has not started is none", ANY, ((_DECIDED, is_claimed),)),
    Mutation("no-rest", "what others have is not copied", ANY, ((f"{_PROMOTION}.copy_rest", nothing),)),
    Mutation("hole-stops", "a relay stops at a retention", ANY, ((_CARRY, Relay.first_to_carry),)),
)
