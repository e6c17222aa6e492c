"""Mutations of a restore from a ledger: each breaks a rule on purpose, and the world must name the violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from connectors.relay import restore
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.sequencer import absorb
from tests.simulator.mutation import Mutation
from tests.world.restores import DUPLICATE, GIVEN_AGAIN, STUCK, UNTOLD

_RESTORE = "connectors.relay.restore"
_read_back = restore._read_back


def without_senders(*arguments: Any) -> Any:
    """Return the state of a group that knows no message of its senders."""
    state = absorb(*arguments)
    return replace(state, received=dict.fromkeys(state.received, ReceivedRow(0, 0)))


def believed(*arguments: Any) -> Any:
    """Take the mark to be right behind the rows."""
    found = _read_back(*arguments)
    return found if found.mark is None else found._replace(before=found.mark.data.seqno - 1)


def none(*_: object) -> None:
    """Find nothing."""


MUTATIONS = (
    Mutation("no-leap", "A restore passes over one seqno only", GIVEN_AGAIN, (("tests.world.restores.LEAP", 1),)),
    Mutation(
        "told-nobody",
        "A reader does not look whether its seqno was lost",
        UNTOLD,
        (("connectors.kafka.log.data_log.lost_at", none),),
    ),
    Mutation(
        "same-epochs",
        "A restored history has the epochs of the lost one",
        (GIVEN_AGAIN, STUCK),
        ((f"{_RESTORE}.epochs_above", lambda known: known),),
    ),
    Mutation(
        "starts-in-between",
        "A sequencer starts before a restore has ended",
        (GIVEN_AGAIN, UNTOLD),
        (("connectors.takeover.fencing.check_is_home", none),),
    ),
    Mutation(
        "not-read-back",
        "A restore does not read back its records",
        (GIVEN_AGAIN, STUCK, UNTOLD),
        ((f"{_RESTORE}._read_back", believed), (f"{_RESTORE}._is_same", lambda *_: True)),
    ),
    Mutation(
        "no-senders",
        "A restored group does not know which messages it has of its senders",
        DUPLICATE,
        ((f"{_RESTORE}.absorb", without_senders),),
    ),
)
