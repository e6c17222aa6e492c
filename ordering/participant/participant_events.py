"""What happens to a participant (`ordering.participant.participant`): the control records of DATA, and what stands
here.
"""

from __future__ import annotations

from typing import NamedTuple

from ordering.base.records import Data
from ordering.membership.membership import MemberIncarnation
from ordering.participant.participant_table import Cause
from ordering.sequencer.sequencer import SequencerState


class Began(NamedTuple):
    """A life begins where the log stands at `state`.

    `joins`: a JOIN stands in its forward table; `returns`: with messages of its last life (`begins_returning`).
    `answered`: the flush whose FLUSH_OK an earlier start has left there
    (`newest_answer`).
    """

    life: MemberIncarnation
    state: SequencerState
    joins: bool = False
    answered: int = 0
    returns: bool = False


class CaughtUp(NamedTuple):
    """The state of the log, in the place of records that retention has dropped.

    `joins`: a JOIN may still be ordered. It stands in the forward table, from which what the state has is gone.
    """

    state: SequencerState
    joins: bool = True


class Renewed(NamedTuple):
    """It has another incarnation. Nothing was sent under the one before."""

    incarnation: int


class Asked(NamedTuple):
    """The application asks to join, to leave, or to be closed; or the driver to end a life that can't go on.

    The driver says STRANDED as soon as the participant `is_stranded`: it has the table.
    """

    cause: Cause


class RowKnown(NamedTuple):
    """Something of its name was ordered, in whichever life."""


class Answered(NamedTuple):
    """block() has returned."""

    flush_id: int


class FlushWanted(NamedTuple):
    """The application asks for a quiet point. Its START_FLUSH will have this local seqno."""

    local_seqno: int


class FlushUnwanted(NamedTuple):
    """It does not want its quiet point any more."""


class FlushDone(NamedTuple):
    """It has had its quiet point. `request.outcome` then says whether that lasted."""


Event = Data | Began | CaughtUp | Renewed | Asked | RowKnown | Answered | FlushWanted | FlushUnwanted | FlushDone
