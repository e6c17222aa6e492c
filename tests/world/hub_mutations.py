"""Mutations of the hub: each breaks a rule on purpose, and the simulator must name the violation."""

from __future__ import annotations

from typing import Any

from connectors.kafka.codec.epochs import Move, encode_move
from connectors.kafka.connection.sending import append
from connectors.kafka.log.acts import Act
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import Epochs
from connectors.relay.relay import Relay
from ordering.base.reader import epoch_of
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, LOST
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world.group_mutations import forget_at_once
from tests.world.hub import FALSE_RECEIPT
from tests.world.hub_actions import STUCK

_PROMOTION, _COPY = "connectors.relay.promotion", "connectors.relay.home_copy"
_HOME = "connectors.takeover.fencing.check_is_home"
_DECIDED, _CARRY = (
    "connectors.kafka.log.epoch_log.Epochs.has_decided",
    "connectors.relay.hub.SiteForward.first_to_carry",
)
_TWO_HOMES = (DIVERGENT, FALSE_RECEIPT)
ANY = (DIVERGENT, DUPLICATE, FALSE_RECEIPT, LOST, STUCK)


def move_only(old_home: DataLog, new_home: str, _: Act) -> None:
    """A fence is no more than a move."""
    move = Move(new_home, old_home.epochs.read().highest_epoch)
    append(old_home.connection, old_home.epochs.topic, (None, *encode_move(move)))


def is_claimed(epochs: Epochs) -> bool:
    """A site that was made the home, and has not started, is none."""
    return bool(epochs.claims)


def next_epochs(known: int) -> int:
    """Return the next thousand million epochs above the known ones, whatever the time."""
    return (known // 10**9 + 1) * 10**9


def last_difference(one: SequencerState, other: SequencerState) -> int | None:
    """Only the last seqno of a copy is compared with its home's."""
    last = one.seqno
    return last if last and epoch_of(one.seals, last) != epoch_of(other.seals, last) else None


def nothing(*_: Any) -> None:
    """Do nothing."""


MUTATIONS = (
    Mutation(
        "fence-by-move",
        "A promotion fences the old home without a claim or a seal",
        _TWO_HOMES,
        ((f"{_PROMOTION}.fence", move_only),),
    ),
    Mutation(
        "fence-half-done",
        "A promotion takes an old home with a move for sealed",
        _TWO_HOMES,
        ((f"{_PROMOTION}._is_sealed", lambda _: True),),
    ),
    Mutation("no-fence", "A promotion lets the old home go on", _TWO_HOMES, ((f"{_PROMOTION}.fence", nothing),)),
    Mutation("home-unseen", "A sequencer does not look for moves", ANY, ((_HOME, nothing),)),
    Mutation("fence-if-claimed", "A promotion overlooks a home that has not started", ANY, ((_DECIDED, is_claimed),)),
    Mutation(
        "same-epochs",
        "Two promotions that do not see each other use the same epochs",
        ANY,
        ((f"{_PROMOTION}.epochs_above", next_epochs),),
    ),
    Mutation(
        "no-rest",
        "A promotion does not copy the records that only other sites have",
        ANY,
        ((f"{_PROMOTION}.copy_rest", nothing),),
    ),
    Mutation(
        "hole-stops", "A relay stops at records that retention has dropped", ANY, ((_CARRY, Relay.first_to_carry),)
    ),
    Mutation(
        "no-forward-table",
        "A member forgets its messages once they are sent",
        LOST,
        (("connectors.client.incarnation.driver.Driver.accept", forget_at_once),),
        needs=("outbox",),
    ),
)
FIRST_HOME_WINS = Mutation(
    "first-home-wins",
    "An earlier home fences a later one",
    ANY,
    ((f"{_PROMOTION}._check_is_later", nothing),),
)
LAST_SEQNO_ONLY = Mutation(
    "last-seqno-only",
    "A relay compares only the last seqno of a copy with its home",
    ANY,
    ((f"{_COPY}.first_difference", last_difference),),
)
RECREATED_UNSEEN = Mutation(
    "recreated-unseen", "A relay goes on in a recreated copy", ANY, ((f"{_COPY}.HomeCopy._check_goes_on", nothing),)
)
"""Mutations that need a coincidence, which a test of its own brings about."""
