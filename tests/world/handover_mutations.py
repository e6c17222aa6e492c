"""Mutations of handovers: each breaks a rule of `connectors.engine.standby`, for a request of an operator."""

from __future__ import annotations

import time
from collections.abc import Mapping

from connectors.kafka.codec import epochs as epochs_codec
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.standby_sign import REQUEST_S
from tests.simulator.mutation import Mutation
from tests.world.handovers import UNASKED, UNHEARD


def _rules(epochs: Epochs) -> tuple[bool, bool, bool]:
    """Return whether the newest request is for this process, for the newest epoch, and new."""
    asked = epochs.handover
    if asked is None:
        return False, False, False
    is_new = 0 <= time.time_ns() / 1e6 - asked.signed_ms <= REQUEST_S * 1_000
    return (asked.host, asked.pid) == epochs_codec.this_process(), asked.epoch == epochs.newest_epoch, is_new


def of_another(epochs: Epochs, _since_ms: int) -> bool:
    """Follow a request that names another standby."""
    _, is_of_epoch, is_new = _rules(epochs)
    return is_of_epoch and is_new


def twice(epochs: Epochs, _since_ms: int) -> bool:
    """Follow a request that was followed."""
    is_own, _, is_new = _rules(epochs)
    return is_own and is_new


def for_good(epochs: Epochs, _since_ms: int) -> bool:
    """Follow a request of any age."""
    is_own, is_of_epoch, _ = _rules(epochs)
    return is_own and is_of_epoch


def no_epoch(*_: object) -> Mapping[str, Epochs]:
    """Tell no epoch of the group."""
    return {"": Epochs("s")}


_IS_ASKED, _ASKED = "connectors.engine.standby.is_asked", "connectors.engine.standby._Lookout.asked"
MUTATIONS = tuple(
    Mutation(name, why, expected, ((target, rule),), needs=("standbys",))
    for name, why, expected, rule, target in (
        ("asked-another", "A standby follows a request that names another one", UNASKED, of_another, _IS_ASKED),
        ("asked-twice", "A standby follows a request that was followed already", UNASKED, twice, _IS_ASKED),
        ("asked-for-good", "A standby follows a request of any age", UNASKED, for_good, _IS_ASKED),
        ("asked-in-vain", "A standby follows no request", UNHEARD, lambda *_: False, _IS_ASKED),
        ("asked-and-begun", "A takeover that has begun on request fences a newer sequencer", UNASKED, no_epoch, _ASKED),
    )
)
