"""The events of a participant (`ordering.participant.participant`), beside the control records of DATA."""

from __future__ import annotations

from typing import NamedTuple

from ordering.base.records import Data
from ordering.membership.membership import MemberIncarnation
from ordering.participant.participant_table import Cause
from ordering.sequencer.state import SequencerState


class Began(NamedTuple):
    """The begin of an incarnation, at the place in the log where the group's state is `state`.

    `joins`: its forward table has a JOIN. `returns`: behind it are messages of the last incarnation
    (`begins_returning`). `answered`: the flush of the newest FLUSH_OK that an earlier start has left in the table
    (`newest_answer`).
    """

    member: MemberIncarnation
    state: SequencerState
    joins: bool = False
    answered: int = 0
    returns: bool = False


class CaughtUp(NamedTuple):
    """The state of the log, in place of records that retention has dropped.

    `joins`: the JOIN may still be ordered, since the forward table has it. The driver has dropped all entries there
    that the state counts as ordered.
    """

    state: SequencerState
    joins: bool = True


class Renewed(NamedTuple):
    """A change of the incarnation, before anything was sent under the last one."""

    incarnation: int


class Asked(NamedTuple):
    """A request: of the application to join, to leave or to close, or of the driver to end the incarnation.

    The driver, which has the forward table, asks with STRANDED as soon as the participant `is_stranded`.
    """

    cause: Cause


class RowKnown(NamedTuple):
    """The sign that the name has a received row: some record of it was ordered, in any incarnation."""


class FloorKnown(NamedTuple):
    """The group's incarnation floor, from a state that has no row of the name, and tells that this incarnation is over.

    The records up to that state came before this event. A `forget` names the rows that it drops, a view does not.
    """

    incarnation_floor: int


class Answered(NamedTuple):
    """The return of block(), which was called for the flush `flush_id`."""

    flush_id: int


class FlushWanted(NamedTuple):
    """The application's request for a quiet point. Its START_FLUSH will have this local seqno."""

    local_seqno: int


class FlushUnwanted(NamedTuple):
    """The end of the application's wish for a quiet point that it has not had yet."""


class FlushDone(NamedTuple):
    """The end of the application's quiet point. `request.outcome` then tells whether the group was quiet to its end."""


Event = (
    Data
    | Began
    | CaughtUp
    | Renewed
    | Asked
    | RowKnown
    | FloorKnown
    | Answered
    | FlushWanted
    | FlushUnwanted
    | FlushDone
)
