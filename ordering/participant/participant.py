"""A sender's side of the membership protocol, through all its incarnations: joins, flushes, leaves, exclusions.

Source: FLUSH (docs/sources.md), "FLUSH on view change", "Design change: flushing and block() / unblock() callbacks"
and "Crash handling during FLUSH", for the members' side; SEQUENCER, "Reliability on failover", for sending again.

`step(participant, event)` gives the next participant and its actions, by the table in
`ordering.participant.participant_table`. Events are the control records of DATA, in their order, and requests of the
application (`ordering.participant.participant_events`). The driver keeps the forward table and performs the actions in
their order. It sends a message only while the participant `sends_messages`, and takes one from the application only
while it `takes_messages`. An event that the phase does not allow raises ProtocolViolation and changes nothing.

Invariant. Each message of the application is ordered once, or its receipt fails with a named outcome, through flushes,
exclusions, closed groups, forgetting and new starts. FLUSH_OK is the last message before a view, and each block() is
followed by one unblock(). A crash loses only the participant, which is a function of DATA and of the forward table.
docs/protocols/participant.md has the picture, each invariant, and the proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ordering.base.errors import ProtocolViolation
from ordering.base.records import (
    FLUSH_COMPLETED,
    FORGET,
    JOIN,
    REFUSED,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    Data,
)
from ordering.membership.flush import FlushPhase
from ordering.membership.forgetting import from_payload
from ordering.membership.membership import MemberIncarnation, payload_of
from ordering.membership.settings import DEFAULT_SETTINGS, Settings
from ordering.participant.events import KnownGroup, Unblock, ViewChange
from ordering.participant.forward_table import Pending, is_control, kind_of
from ordering.participant.participant_events import (
    Answered,
    Asked,
    Began,
    CaughtUp,
    Event,
    FloorKnown,
    FlushDone,
    FlushUnwanted,
    FlushWanted,
    Renewed,
    RowKnown,
)
from ordering.participant.participant_table import (
    ADMISSIONS,
    BLOCK,
    DEAD,
    ENDING,
    FORGETTABLE,
    INSIDE,
    KEEPING_BACK,
    KEPT_FROM_OUTSIDE,
    OF_A_FLUSH,
    OUTSIDE,
    SENDING_FROM_OUTSIDE,
    SILENT,
    TRANSITIONS,
    UNBLOCK,
    Action,
    Cause,
    Do,
    ParticipantPhase,
)
from ordering.sequencer.state import SequencerState

STOPPED = "it was stopped"
NOTHING_KNOWN = KnownGroup()
RUN_AGAIN = "its members ran it again without this one"
DROPPED_BY_RETENTION = "Kafka's retention has dropped what became of it"


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """A quiet point that the application has asked for. `id` is the seqno of its START_FLUSH, 0 until it is ordered.

    `is_ended`: the application has ended it; STOP_FLUSH was sent, unless the flush was over already. `outcome` is the
    reason why it is over. A request that is not wanted any more is kept until it has its id, so that the flush can be
    stopped.
    """

    local_seqno: int
    id: int = 0
    is_wanted: bool = True
    is_quiet: bool = False
    is_ended: bool = False
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Participant:
    """The state of a participant; see the module. `member`: its present incarnation. `joined_at`: its first view.

    `owes_unblock`: block() was called, and unblock() was not. `is_returning`: its table has messages of the last
    incarnation, and its JOIN is not ordered yet. `has_row`: the received table has its name. `incarnation_floor`: a
    name without a row needs a higher incarnation, as far as states and `forget` records have told.
    """

    member: MemberIncarnation
    phase: ParticipantPhase = ParticipantPhase.BETWEEN
    known: KnownGroup = NOTHING_KNOWN
    settings: Settings = DEFAULT_SETTINGS
    joined_at: ViewChange | None = None
    request: FlushRequest | None = None
    owes_unblock: bool = False
    is_returning: bool = False
    has_row: bool = False
    incarnation_floor: int = 0

    @property
    def takes_messages(self) -> bool:
        """Whether the application may broadcast now.

        If not: after the flush if `is_silent`, never if `is_ending`, else in the next incarnation.
        """
        return self.phase in OUTSIDE or self.phase in (ParticipantPhase.MEMBER, ParticipantPhase.BLOCKING)

    @property
    def is_silent(self) -> bool:
        """Whether the participant takes no message of the application until the flush is over."""
        return self.phase in SILENT

    @property
    def sends_messages(self) -> bool:
        """Whether messages of the forward table may be sent (again)."""
        return self.phase not in KEEPING_BACK and not self.is_returning

    def may_send(self, pending: Pending) -> bool:
        """Whether this entry of the forward table may be sent (again)."""
        if self.is_returning:
            return kind_of(pending) == JOIN
        return self.sends_messages or is_control(pending)

    @property
    def is_dead(self) -> bool:
        """Whether no incarnation is in use: the last one was excluded, is over or is forgotten, or none has begun."""
        return self.phase in DEAD

    @property
    def is_ending(self) -> bool:
        """Whether the participant leaves, or is gone."""
        return self.phase in ENDING

    @property
    def is_heard(self) -> bool:
        """Whether the participant has to send heartbeats: the group watches it, or will as soon as it is admitted."""
        return self.phase in INSIDE or self.phase in (
            ParticipantPhase.JOINING,
            ParticipantPhase.AWAITING,
            ParticipantPhase.LEAVING,
        )

    @property
    def name_is_in(self) -> bool:
        """Whether the newest view has its name, in this incarnation or an earlier one."""
        return self.known.view is not None and self.member.address in self.known.view.members

    @property
    def is_unheard(self) -> bool:
        """Whether its messages may be dropped: an earlier start of its name may have answered the running flush."""
        return self.phase in SENDING_FROM_OUTSIDE and bool(self.known.flush_id) and self.name_is_in

    def is_stranded(self, pending: Iterable[Pending]) -> bool:
        """Whether the forward table has, before the JOIN, entries that a closed group does not take."""
        if self.phase is not ParticipantPhase.AWAITING or self.name_is_in:
            return False
        kinds = [kind_of(entry) for entry in pending]
        return JOIN in kinds and kinds[0] != JOIN


class ParticipantStep(NamedTuple):
    """The result of `step`: the next participant, and its actions, in this order."""

    participant: Participant
    actions: tuple[Action, ...] = ()

    def turn(self, cause: Cause) -> ParticipantStep:
        """Apply the row of the table for the cause. Raises ProtocolViolation if the phase has none."""
        now = self.participant
        row = TRANSITIONS.get((now.phase, cause))
        if row is None:
            raise ProtocolViolation(f"{cause.value}: {now.member} can't, {now.phase.value}.")
        actions = tuple(
            action._replace(flush_id=now.known.flush_id) if action in OF_A_FLUSH else action
            for action in row.actions
            if action is not UNBLOCK or now.owes_unblock
        )
        owes = (now.owes_unblock or BLOCK in actions) and UNBLOCK not in actions
        joined_at = now.known.view if cause in ADMISSIONS else now.joined_at
        after = replace(now, phase=row.phase, joined_at=joined_at, owes_unblock=owes)
        return ParticipantStep(after, self.actions + actions)

    def and_send(self, kind: str, flush_id: int = 0) -> ParticipantStep:
        """Add the sending of a control record."""
        return self._replace(actions=(*self.actions, Action(Do.SEND, kind, flush_id)))

    def but(self, **changes: Any) -> ParticipantStep:
        """Change other fields of the participant, in the same phase."""
        return self._replace(participant=replace(self.participant, **changes))


def step(now: Participant, event: Event) -> ParticipantStep:
    """Return the participant after an event, and its actions.

    Raises ProtocolViolation for an event that the phase does not allow.
    """
    if isinstance(event, Data):
        return _send_again(now, _take(now, event))
    if isinstance(event, CaughtUp):
        return _send_again(now, _catch_up(ParticipantStep(now), event.state, joins=event.joins))
    if isinstance(event, Began):
        has_asked = event.joins or event.member in event.state.membership.joining
        born = ParticipantStep(now).turn(Cause.BEGIN_JOINING if has_asked else Cause.BEGIN)
        born = born.but(
            member=event.member, known=KnownGroup(), joined_at=None, request=None, is_returning=event.returns
        )
        return _catch_up(born, event.state, event.answered)
    if isinstance(event, Renewed):
        return ParticipantStep(now).turn(Cause.RENEW).but(member=now.member._replace(incarnation=event.incarnation))
    if isinstance(event, Asked):
        return ParticipantStep(now).turn(event.cause)
    if isinstance(event, RowKnown):
        return ParticipantStep(replace(now, has_row=True))
    if isinstance(event, FloorKnown):
        return _see_whether_forgotten(ParticipantStep(now), event.incarnation_floor, has_row=False)
    if isinstance(event, Answered):
        # An answer to a flush that is over, or has started over, comes too late.
        is_due = (
            now.phase in (ParticipantPhase.BLOCKING, ParticipantPhase.ASKED_AGAIN)
            and now.known.flush_id == event.flush_id
        )
        return ParticipantStep(now).turn(Cause.ANSWER) if is_due else ParticipantStep(now)
    return _request(now, event)


# --- the control records of DATA ---


def _take(now: Participant, record: Data) -> ParticipantStep:
    known, event = now.known.after(record.kind, record.seqno, record.view, record.sender, record.payload)
    here = ParticipantStep(replace(now, known=known))
    if now.is_returning and _is_own(now, record):  # this is its JOIN: it has sent nothing else
        return here.but(is_returning=False).turn(Cause.RETURNED)
    if record.kind == SETTINGS:
        return _take_settings(here, record.payload)
    if record.kind == FORGET:
        return _take_forgotten(here, record.payload)
    if isinstance(event, ViewChange):
        return _take_view(here, event)
    if record.kind == START_FLUSH:
        return _take_start(here, record)
    if isinstance(event, Unblock):
        reason = STOPPED if record.sender else str(payload_of(record).get("reason", ""))
        return _end_flush(here, reason)
    request = now.request
    if request is None:
        return here
    if record.kind == FLUSH_COMPLETED and request.id and request.id == payload_of(record).get("flush"):
        return here.but(request=replace(request, is_quiet=True))
    if record.kind == REFUSED and _is_own(now, record) and record.local_seqno == request.local_seqno:
        refused = replace(request, outcome=str(payload_of(record).get("reason", "")))
        return here.but(request=refused if request.is_wanted else None)
    return here


def _is_own(now: Participant, record: Data) -> bool:
    return MemberIncarnation(record.sender, record.incarnation) == now.member


def _take_settings(here: ParticipantStep, payload: bytes) -> ParticipantStep:
    here = here.but(settings=here.participant.settings.decided(payload))
    return _see_whether_closed(here, here.participant.settings.closed)


def _take_forgotten(here: ParticipantStep, payload: bytes) -> ParticipantStep:
    """Take a `forget` record: a sender without a row needs a higher incarnation than the dropped ones."""
    rows, now = from_payload(payload) or (), here.participant
    has_row = now.has_row and now.member.address not in {row.sender for row in rows}
    return _see_whether_forgotten(here, max((row.incarnation for row in rows), default=0), has_row=has_row)


def _see_whether_forgotten(here: ParticipantStep, named: int, *, has_row: bool) -> ParticipantStep:
    """Raise the floor to the incarnation `named`, if that is higher. Below it, a name without a row is forgotten."""
    now = here.participant
    floor = max(now.incarnation_floor, named)
    is_below = not has_row and now.member.incarnation <= floor
    here = here.but(has_row=has_row, incarnation_floor=floor)
    return here.turn(Cause.FORGOTTEN) if is_below and now.phase in FORGETTABLE else here


def _see_whether_closed(here: ParticipantStep, is_closed: bool) -> ParticipantStep:
    """Apply the setting `closed`. When a group closes, a stranger's messages outside DATA are not ordered."""
    phase = here.participant.phase
    if is_closed and (phase in SENDING_FROM_OUTSIDE or phase is ParticipantPhase.EXCLUDED):
        return here.turn(Cause.CLOSED)
    if not is_closed and phase in KEPT_FROM_OUTSIDE:
        return here.turn(Cause.OPENED)
    return here


def _send_again(before: Participant, here: ParticipantStep) -> ParticipantStep:
    """Send dropped messages again once the flush is over, or has started over, or the view has lost the name."""
    now = here.participant
    is_heard = not now.is_unheard or now.known.flush_id != before.known.flush_id
    is_due = before.is_unheard and is_heard and (now.phase, Cause.HEARD) in TRANSITIONS
    return here.turn(Cause.HEARD) if is_due else here


def _take_view(here: ParticipantStep, view: ViewChange) -> ParticipantStep:
    now = here.participant
    if now.member in view.incarnations:
        if not _may_be_admitted(now):
            return here
        return here.turn(Cause.ADMITTED_IN_FLUSH if now.known.flush_id else Cause.ADMITTED)
    if not _is_in(now) or now.member.address in view.members:
        return here
    # The settings at the view count, not later ones. If the view does not suspect the name, an earlier start has left.
    was_suspected = now.member.address in view.suspected
    is_over = now.settings.closed or (now.settings.flush and was_suspected)
    return here.turn(Cause.OVER if is_over else Cause.EXCLUDED)


def _may_be_admitted(now: Participant) -> bool:
    """Whether no view has had this incarnation yet."""
    return now.phase in OUTSIDE or (now.phase is ParticipantPhase.LEAVING and now.joined_at is None)


def _is_in(now: Participant) -> bool:
    """Whether the participant was in the view until now, as far as it knows."""
    return now.phase in INSIDE or (now.phase is ParticipantPhase.LEAVING and now.joined_at is not None)


def _take_start(here: ParticipantStep, record: Data) -> ParticipantStep:
    now, request = here.participant, here.participant.request
    if not _is_in(now):
        return here
    here = here.turn(Cause.FLUSH)
    if not _is_own(now, record):
        if request is not None and request.id:
            here = here.but(request=replace(request, outcome=request.outcome or RUN_AGAIN))
        return here
    if request is not None and request.local_seqno == record.local_seqno:
        if request.is_wanted:
            return here.but(request=replace(request, id=record.seqno))
        here = here.but(request=None)
    return _stop(here, record.seqno)


def _end_flush(here: ParticipantStep, outcome: str) -> ParticipantStep:
    request = here.participant.request
    if request is not None and request.id:
        here = here.but(request=replace(request, outcome=request.outcome or outcome))
    return here.turn(Cause.STOP) if _is_in(here.participant) else here


def _stop(here: ParticipantStep, flush_id: int) -> ParticipantStep:
    """End a flush that is not wanted. A leaving participant's LEAVE ends it anyway."""
    return here.and_send(STOP_FLUSH, flush_id) if flush_id and here.participant.phase in INSIDE else here


# --- a state, in the place of records ---


def _catch_up(
    here: ParticipantStep, state: SequencerState, answered: int = 0, *, joins: bool = True
) -> ParticipantStep:
    before, flush = here.participant, state.membership.flush
    was_in, knew_flush = _is_in(before), before.known.flush_id
    here = _catch_up_request(here, state)
    if before.is_returning and state.ordered(before.member.address).incarnation == before.member.incarnation:
        here = here.but(is_returning=False).turn(Cause.RETURNED)
    if was_in and knew_flush and knew_flush != flush.id:
        here = here.turn(Cause.STOP)
    membership, has_row = state.membership, before.member.address in state.received
    here = here.but(known=KnownGroup.of_state(state), settings=membership.settings, has_row=has_row)
    here = here.but(incarnation_floor=membership.incarnation_floor)
    here = _catch_up_view(here, state, answered, joins=joins)
    now = here.participant
    if not _is_in(now) or not flush.id or (was_in and knew_flush == flush.id):
        return here
    if not now.is_silent:
        here = here.turn(Cause.FLUSH)
    is_wanted = now.request is not None and now.request.id == flush.id
    if flush.requested and flush.requester == now.member.address and not is_wanted:
        here = _stop(here, flush.id)
    return here


def _catch_up_view(here: ParticipantStep, state: SequencerState, answered: int, *, joins: bool) -> ParticipantStep:
    now, membership = here.participant, state.membership
    is_closed = membership.settings.closed
    if now.member in membership.members:
        if not _may_be_admitted(now):
            return here
        if 0 < answered == membership.flush.id:
            return here.turn(Cause.ADMITTED_QUIET)  # the entries before its answer still have to be sent
        has_answered = now.member.address in membership.flush.answered  # a joiner admitted within the flush counts, too
        return here.turn(Cause.ADMITTED_IN_FLUSH if has_answered else Cause.ADMITTED)
    was_admitted = (
        now.phase in (ParticipantPhase.JOINING, ParticipantPhase.AWAITING)
        and not joins
        and now.member not in membership.joining
    )
    if _is_in(now) or was_admitted:  # its JOIN is ordered and not waiting: a view had it, and a later one has not
        return here.turn(Cause.OVER if is_closed or state.is_over(*now.member) else Cause.EXCLUDED)
    if now.phase in FORGETTABLE and state.is_over(*now.member):
        return here.turn(
            Cause.OVER if now.phase in (ParticipantPhase.JOINING, ParticipantPhase.AWAITING) else Cause.FORGOTTEN
        )
    return _see_whether_closed(here, is_closed)


def _catch_up_request(here: ParticipantStep, state: SequencerState) -> ParticipantStep:
    request, flush, member = here.participant.request, state.membership.flush, here.participant.member
    if request is None:
        return here
    if request.id and request.id == flush.id:
        return here.but(request=replace(request, is_quiet=flush.phase is FlushPhase.BLOCKED))
    ordered = state.ordered(member.address)
    if request.id or (ordered.incarnation == member.incarnation and ordered.local_seqno >= request.local_seqno):
        over = replace(request, outcome=request.outcome or DROPPED_BY_RETENTION)
        return here.but(request=over if request.is_wanted else None)
    return here


# --- quiet points ---


def _request(now: Participant, event: FlushWanted | FlushUnwanted | FlushDone) -> ParticipantStep:
    request = now.request
    if isinstance(event, FlushWanted):
        if request is not None or now.is_dead or now.is_ending or now.is_returning:
            raise ProtocolViolation(f"{now.member} can't ask for a flush, {now.phase.value}, with {request}.")
        return ParticipantStep(replace(now, request=FlushRequest(event.local_seqno))).and_send(START_FLUSH)
    if request is None:
        raise ProtocolViolation(f"{now.member} has asked for no flush.")
    goes_on = bool(request.id) and not request.outcome and not request.is_ended
    if isinstance(event, FlushUnwanted) and not request.id and not request.outcome:
        return ParticipantStep(replace(now, request=replace(request, is_wanted=False)))
    after = replace(request, is_ended=True) if isinstance(event, FlushDone) else None
    here = ParticipantStep(replace(now, request=after))
    return _stop(here, request.id) if goes_on else here
