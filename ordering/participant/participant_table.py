"""The transition table of `ordering.participant.participant`: phases, causes, actions."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ordering.base.records import FLUSH_OK, JOIN, LEAVE


class ParticipantPhase(Enum):
    """The phase of a participant."""

    BETWEEN = "between two incarnations"  # or before the first
    STRANGER = "stranger"  # sends to an open group, and is in no view
    JOINING = "joining"  # has sent JOIN to an open group
    KEPT_OUT = "kept out"  # a stranger of a closed group, without a JOIN
    AWAITING = "awaiting its view"  # has sent JOIN, and the group is closed
    MEMBER = "member"  # in the view, and no flush runs
    BLOCKING = "blocking"  # a flush runs: block() was called, and may send
    QUIET = "quiet"  # has sent FLUSH_OK
    BORN_QUIET = "quiet from its first view on"  # was admitted within a flush
    ASKED_AGAIN = "quiet, and asked again"  # the flush starts over; block() has returned before
    LEAVING = "leaving"  # has sent LEAVE, if there was anything to leave
    EXCLUDED = "excluded"  # a view came without it; its pending messages may be ordered as a stranger's
    OVER = "over"  # nothing more of this incarnation is ordered: a view, a `forget` or a lost JOIN has ended it
    FORGOTTEN = "forgotten"  # its row was dropped while it was in no view and had not asked to join
    GONE = "gone"  # has left, or was closed


class Cause(Enum):
    """The cause of a change of phase."""

    BEGIN = "begin"
    BEGIN_JOINING = "begin with a JOIN"
    JOIN = "join"
    LEAVE = "leave"
    CLOSE = "close"
    HAND_OVER = "hand over"
    RENEW = "renew"
    ANSWER = "answer"
    FLUSH = "START_FLUSH"
    STOP = "STOP_FLUSH"
    ADMITTED = "a view with it"
    ADMITTED_IN_FLUSH = "a view with it, within a flush"
    ADMITTED_QUIET = "a view with it, within a flush that an earlier start has answered"
    EXCLUDED = "a view without it"
    OVER = "a view without it, after which nothing of it is ordered"
    FORGOTTEN = "its name is forgotten"
    CLOSED = "the group is closed"
    OPENED = "the group is open"
    STRANDED = "its JOIN can't be ordered"
    RETURNED = "its JOIN is ordered, and nothing of its last incarnation is any more"
    HEARD = "an earlier start has not answered for it any more"


class Do(Enum):
    """The kind of an action."""

    SEND = "send"
    """Put a control record at the end of the forward table, and send it."""
    SEND_TABLE = "send the table"
    """Send the whole forward table again, from its beginning."""
    BLOCK = "block"
    """Call block()."""
    ASK = "ask"
    """Report `Answered` when block() has returned, at once if it has returned before."""
    UNBLOCK = "unblock"
    """Call unblock()."""
    BEGIN_ANEW = "begin anew"
    """In the phase EXCLUDED, wait for messages that may still be ordered. Then hand over and begin the next
    incarnation, which joins if this one has asked to."""
    CARRY = "carry over"
    """Hand the messages in the table to the next incarnation (`next_entries`), with their receipts."""
    LOSE = "lose"
    """Fail the receipts of the messages in the table."""


class Action(NamedTuple):
    """An action for the driver. `kind`: of the record to SEND. `flush_id`: of the flush that the action belongs to."""

    do: Do
    kind: str = ""
    flush_id: int = 0

    @property
    def payload(self) -> bytes:
        """The payload of the record to send."""
        return b"%d" % self.flush_id if self.flush_id else b""


class Transition(NamedTuple):
    """A row of the table: the next phase, and the actions of the change, in this order."""

    phase: ParticipantPhase
    actions: tuple[Action, ...] = ()


SEND_JOIN, SEND_LEAVE, SEND_FLUSH_OK = Action(Do.SEND, JOIN), Action(Do.SEND, LEAVE), Action(Do.SEND, FLUSH_OK)
SEND_TABLE, BLOCK, ASK, UNBLOCK, BEGIN_ANEW, CARRY, LOSE = (Action(do) for do in list(Do)[1:])
OF_A_FLUSH = (SEND_FLUSH_OK, ASK)
"""The actions that name the running flush."""

P, C = ParticipantPhase, Cause
ENDS = (C.OVER, C.FORGOTTEN)
TRANSITIONS: dict[tuple[ParticipantPhase, Cause], Transition] = {
    # An incarnation begins, ...
    (P.BETWEEN, C.BEGIN): Transition(P.STRANGER),
    (P.BETWEEN, C.BEGIN_JOINING): Transition(P.JOINING),
    (P.BETWEEN, C.LEAVE): Transition(P.GONE),
    (P.STRANGER, C.RENEW): Transition(P.STRANGER),
    (P.KEPT_OUT, C.RENEW): Transition(P.KEPT_OUT),
    # ... and asks to join, in an open group or a closed one.
    (P.STRANGER, C.JOIN): Transition(P.JOINING, (SEND_JOIN,)),
    (P.STRANGER, C.CLOSED): Transition(P.KEPT_OUT),
    (P.STRANGER, C.LEAVE): Transition(P.LEAVING),
    (P.STRANGER, C.FORGOTTEN): Transition(P.FORGOTTEN, (BEGIN_ANEW,)),
    (P.STRANGER, C.ADMITTED): Transition(P.MEMBER),
    (P.STRANGER, C.ADMITTED_IN_FLUSH): Transition(P.BORN_QUIET),
    (P.STRANGER, C.ADMITTED_QUIET): Transition(P.QUIET),
    (P.JOINING, C.JOIN): Transition(P.JOINING),
    (P.JOINING, C.CLOSED): Transition(P.AWAITING),
    (P.JOINING, C.LEAVE): Transition(P.LEAVING, (SEND_LEAVE,)),
    (P.JOINING, C.ADMITTED): Transition(P.MEMBER),
    (P.JOINING, C.ADMITTED_IN_FLUSH): Transition(P.BORN_QUIET),
    (P.JOINING, C.ADMITTED_QUIET): Transition(P.QUIET),
    **{(phase, cause): Transition(P.OVER, (BEGIN_ANEW,)) for phase in (P.JOINING, P.AWAITING) for cause in ENDS},
    (P.KEPT_OUT, C.JOIN): Transition(P.AWAITING, (SEND_JOIN,)),
    (P.KEPT_OUT, C.OPENED): Transition(P.STRANGER, (SEND_TABLE,)),
    (P.KEPT_OUT, C.LEAVE): Transition(P.LEAVING),
    (P.KEPT_OUT, C.FORGOTTEN): Transition(P.FORGOTTEN, (BEGIN_ANEW,)),
    (P.KEPT_OUT, C.ADMITTED): Transition(P.MEMBER, (SEND_TABLE,)),
    (P.KEPT_OUT, C.ADMITTED_IN_FLUSH): Transition(P.BORN_QUIET),
    (P.JOINING, C.EXCLUDED): Transition(P.EXCLUDED, (BEGIN_ANEW,)),
    (P.AWAITING, C.EXCLUDED): Transition(P.EXCLUDED, (SEND_TABLE, BEGIN_ANEW)),
    (P.AWAITING, C.JOIN): Transition(P.AWAITING),
    (P.AWAITING, C.OPENED): Transition(P.JOINING, (SEND_TABLE,)),
    (P.AWAITING, C.LEAVE): Transition(P.LEAVING, (SEND_LEAVE,)),
    (P.AWAITING, C.ADMITTED): Transition(P.MEMBER, (SEND_TABLE,)),
    (P.AWAITING, C.ADMITTED_IN_FLUSH): Transition(P.BORN_QUIET),
    (P.AWAITING, C.STRANDED): Transition(P.OVER, (BEGIN_ANEW,)),
    # Messages sent in a flush that an earlier start has answered were dropped.
    **{(phase, C.HEARD): Transition(phase, (SEND_TABLE,)) for phase in (P.STRANGER, P.JOINING, P.MEMBER, P.BLOCKING)},
    # Messages carried over may be sent from here on, wherever messages may be.
    (P.JOINING, C.RETURNED): Transition(P.JOINING, (SEND_TABLE,)),
    (P.AWAITING, C.RETURNED): Transition(P.AWAITING),
    (P.LEAVING, C.RETURNED): Transition(P.LEAVING, (SEND_TABLE,)),
    # A flush.
    (P.MEMBER, C.FLUSH): Transition(P.BLOCKING, (BLOCK, ASK)),
    (P.MEMBER, C.LEAVE): Transition(P.LEAVING, (SEND_LEAVE,)),
    (P.BLOCKING, C.FLUSH): Transition(P.BLOCKING, (ASK,)),
    (P.BLOCKING, C.ANSWER): Transition(P.QUIET, (SEND_FLUSH_OK,)),
    (P.BLOCKING, C.STOP): Transition(P.MEMBER, (UNBLOCK,)),
    (P.BLOCKING, C.LEAVE): Transition(P.LEAVING, (SEND_LEAVE,)),
    (P.QUIET, C.FLUSH): Transition(P.ASKED_AGAIN, (ASK,)),
    (P.QUIET, C.STOP): Transition(P.MEMBER, (UNBLOCK,)),
    (P.QUIET, C.LEAVE): Transition(P.LEAVING, (SEND_LEAVE,)),
    (P.BORN_QUIET, C.FLUSH): Transition(P.ASKED_AGAIN, (ASK,)),
    (P.BORN_QUIET, C.STOP): Transition(P.MEMBER, (SEND_TABLE,)),
    (P.BORN_QUIET, C.LEAVE): Transition(P.LEAVING, (SEND_LEAVE,)),
    (P.ASKED_AGAIN, C.FLUSH): Transition(P.ASKED_AGAIN, (ASK,)),
    (P.ASKED_AGAIN, C.ANSWER): Transition(P.QUIET, (SEND_TABLE, SEND_FLUSH_OK)),
    (P.ASKED_AGAIN, C.STOP): Transition(P.MEMBER, (UNBLOCK, SEND_TABLE)),
    (P.ASKED_AGAIN, C.LEAVE): Transition(P.LEAVING, (SEND_TABLE, SEND_LEAVE)),
    # The group takes the participant for dead, ...
    (P.MEMBER, C.EXCLUDED): Transition(P.EXCLUDED, (BEGIN_ANEW,)),
    (P.MEMBER, C.OVER): Transition(P.OVER, (BEGIN_ANEW,)),
    (P.BLOCKING, C.EXCLUDED): Transition(P.EXCLUDED, (UNBLOCK, BEGIN_ANEW)),
    (P.BLOCKING, C.OVER): Transition(P.OVER, (UNBLOCK, BEGIN_ANEW)),
    (P.QUIET, C.EXCLUDED): Transition(P.EXCLUDED, (UNBLOCK, BEGIN_ANEW)),
    (P.QUIET, C.OVER): Transition(P.OVER, (UNBLOCK, BEGIN_ANEW)),
    (P.BORN_QUIET, C.EXCLUDED): Transition(P.EXCLUDED, (SEND_TABLE, BEGIN_ANEW)),
    (P.BORN_QUIET, C.OVER): Transition(P.OVER, (BEGIN_ANEW,)),
    (P.ASKED_AGAIN, C.EXCLUDED): Transition(P.EXCLUDED, (UNBLOCK, SEND_TABLE, BEGIN_ANEW)),
    (P.ASKED_AGAIN, C.OVER): Transition(P.OVER, (UNBLOCK, BEGIN_ANEW)),
    # ... which ends this incarnation; its messages are carried over or lost.
    (P.EXCLUDED, C.CLOSED): Transition(P.OVER),
    (P.EXCLUDED, C.FORGOTTEN): Transition(P.OVER),
    (P.EXCLUDED, C.HAND_OVER): Transition(P.BETWEEN, (LOSE,)),
    (P.EXCLUDED, C.LEAVE): Transition(P.GONE),
    (P.OVER, C.HAND_OVER): Transition(P.BETWEEN, (CARRY,)),
    (P.OVER, C.LEAVE): Transition(P.GONE),
    (P.FORGOTTEN, C.HAND_OVER): Transition(P.BETWEEN, (CARRY,)),
    (P.FORGOTTEN, C.LEAVE): Transition(P.GONE),
    # The participant leaves. Messages kept back are sent before its LEAVE is ordered.
    (P.LEAVING, C.ADMITTED): Transition(P.LEAVING, (SEND_TABLE,)),
    (P.LEAVING, C.ADMITTED_IN_FLUSH): Transition(P.LEAVING),
    (P.LEAVING, C.FLUSH): Transition(P.LEAVING, (SEND_TABLE,)),
    (P.LEAVING, C.STOP): Transition(P.LEAVING, (UNBLOCK, SEND_TABLE)),
    (P.LEAVING, C.LEAVE): Transition(P.LEAVING),
    (P.LEAVING, C.EXCLUDED): Transition(P.GONE, (UNBLOCK,)),
    (P.LEAVING, C.OVER): Transition(P.GONE, (UNBLOCK,)),
    (P.LEAVING, C.FORGOTTEN): Transition(P.GONE, (UNBLOCK,)),
    (P.GONE, C.LEAVE): Transition(P.GONE),
    **{(phase, C.CLOSE): Transition(P.GONE, (UNBLOCK,)) for phase in ParticipantPhase},
}

SENDING_FROM_OUTSIDE = frozenset({P.STRANGER, P.JOINING})
KEPT_FROM_OUTSIDE = frozenset({P.KEPT_OUT, P.AWAITING})
OUTSIDE = SENDING_FROM_OUTSIDE | KEPT_FROM_OUTSIDE
FORGETTABLE = OUTSIDE | {P.EXCLUDED, P.LEAVING}
IN_A_FLUSH = frozenset({P.BLOCKING, P.QUIET, P.BORN_QUIET, P.ASKED_AGAIN})
ADMISSIONS = frozenset({C.ADMITTED, C.ADMITTED_IN_FLUSH, C.ADMITTED_QUIET})
INSIDE = IN_A_FLUSH | {P.MEMBER}
KEEPING_BACK = KEPT_FROM_OUTSIDE | {P.BORN_QUIET, P.ASKED_AGAIN}
SILENT = frozenset({P.QUIET, P.BORN_QUIET, P.ASKED_AGAIN})
DEAD = frozenset({P.BETWEEN, P.EXCLUDED, P.OVER, P.FORGOTTEN})
ENDING = frozenset({P.LEAVING, P.GONE})
