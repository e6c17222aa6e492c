"""Rules of members, views and flushes that are broken on purpose; the histories must name each violation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from connectors.client.incarnation.incarnations import Beginning, Incarnations
from connectors.kafka.log.effective import Effective
from ordering.base.records import MAX_NUMBER, Forward
from ordering.checker.anomalies import DUPLICATE, LOST, VIEW_VIOLATION
from ordering.membership.flush import Flush
from ordering.membership.log_time import Watch
from ordering.membership.membership import Membership, ReceivedRow, with_unknown
from ordering.membership.view_change import Decision, _remote_view, next_decision
from ordering.participant.forward_table import Pending
from ordering.participant.participant import ParticipantStep
from ordering.participant.participant_events import CaughtUp
from ordering.participant.participant_table import (
    ASK,
    BEGIN_ANEW,
    BLOCK,
    IN_A_FLUSH,
    INSIDE,
    LOSE,
    SEND_FLUSH_OK,
    SEND_TABLE,
    TRANSITIONS,
    UNBLOCK,
    Action,
    Cause,
    ParticipantPhase,
    Transition,
)
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world.members import DEAF, FROM_OUTSIDE, ILLEGAL, LATE, RETURNED, SPOKE, UNPAIRED, UNWANTED, Process
from tests.world.membership_checks import (
    BLOCKED,
    HANGING,
    OTHER_STATE,
    OTHER_VIEW,
    REMOTE_VIEW,
    STUCK,
    SURVIVORS,
    WRONG_VIEW,
)
from tests.world.neighbour import Relay

_true_hear, _true_beginning, _true_deliver = Watch.hear, Incarnations._anew, Process.deliver
Patches = tuple[tuple[str, Any], ...]


def forgetting_the_table(state: SequencerState, _: bool) -> CaughtUp:
    return CaughtUp(state)


def known_only(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    return {**with_unknown(kind, body), "unknown": {}}


P, C = ParticipantPhase, Cause


def rows(broken: Mapping[tuple[ParticipantPhase, Cause], Transition]) -> Patches:
    """Other rows of the table."""
    return (("ordering.participant.participant_table.TRANSITIONS", broken),)


def without(action: Action, keys: Iterable[tuple[ParticipantPhase, Cause]] = tuple(TRANSITIONS)) -> Patches:
    """The rows without that action."""
    found = {key: TRANSITIONS[key] for key in keys if action in TRANSITIONS[key].actions}
    return rows(
        {key: row._replace(actions=tuple(each for each in row.actions if each != action)) for key, row in found.items()}
    )


def staying(cause: Cause, phases: Iterable[ParticipantPhase]) -> Patches:
    """The cause changes nothing."""
    return rows({(phase, cause): Transition(phase) for phase in phases})


def leading(cause: Cause, after: ParticipantPhase, *actions: Action, to: ParticipantPhase) -> Patches:
    """Lead to another phase instead of one."""
    found = (key for key, row in TRANSITIONS.items() if key[1] is cause and row.phase is after)
    return rows({key: Transition(to, actions) for key in found})


def ignoring(here: ParticipantStep, *_: object, **__: object) -> ParticipantStep:
    """Ignore the event."""
    return here


def always(_: object) -> bool:
    """A property that is true in every phase."""
    return True


def never(*_: object) -> bool:
    """A question to which the answer is no."""
    return False


def no_answer(_: Iterable[Pending]) -> int:
    """Begin without a look into the table."""
    return 0


def without_join(lives: Incarnations, *given: Any, joins: bool) -> Beginning:
    """The next life's table has the messages only."""
    del joins
    return _true_beginning(lives, *given, joins=False)


def at_once(membership: Membership, received: Mapping[str, ReceivedRow]) -> Decision | None:
    """Everybody has answered."""
    everybody = tuple(member.address for member in membership.members)
    return next_decision(replace(membership, flush=replace(membership.flush, answered=everybody)), received)


def forgotten(flush: Flush, _: str) -> Flush:
    """The last answer replaces all earlier ones by none."""
    return replace(flush, answered=())


def accepted(*_: object) -> str:
    """No request is refused."""
    return ""


def silent_only(membership: Membership) -> Decision | None:
    """A site's silence is decided, and its return is not."""
    decided = _remote_view(membership)
    return decided if decided and decided.payload["silent"] else None


def misses_some(process: Process, record: Effective) -> None:
    """Applications of some names miss some messages."""
    if process.name > "c" or record.seqno % 3:
        _true_deliver(process, record)


class Careless(Relay):
    """A relay that tells the view in force to nobody."""

    def __init__(self, position: int) -> None:
        super().__init__(position, told_epoch=MAX_NUMBER)


_P = "ordering.participant.participant"
_SENDS = f"{_P}.Participant.sends_messages"


def by_the_newest(watch: Watch, record: Forward) -> None:
    """Take the newest timestamp: after a leader with a fast clock, the time stops until it catches up."""
    at_ms = max(record.timestamp_ms, watch.stamped.get(record.source.topic_partition, 0))
    _true_hear(watch, replace(record, timestamp_ms=at_ms))


MUTATIONS = (
    Mutation(
        "no-join", "A stranger does not send JOIN", WRONG_VIEW, rows({(P.STRANGER, C.JOIN): Transition(P.JOINING)})
    ),
    Mutation(
        "no-join-to-a-closed-group",
        "A stranger does not send JOIN to a closed group",
        WRONG_VIEW,
        rows({(P.KEPT_OUT, C.JOIN): Transition(P.AWAITING)}),
    ),
    Mutation(
        "no-admission",
        "A joiner does not see the view that admits it",
        STUCK,
        staying(C.ADMITTED, (P.JOINING, P.AWAITING)),
    ),
    Mutation(
        "sends-from-outside",
        "A stranger sends messages to a closed group",
        FROM_OUTSIDE,
        ((_SENDS, property(always)),),
    ),
    Mutation(
        "kept-out-for-good",
        "A stranger does not notice that the group opens",
        LATE,
        staying(C.OPENED, (P.KEPT_OUT, P.AWAITING)),
    ),
    Mutation(
        "deaf-to-the-close",
        "A stranger does not notice that the group closes",
        WRONG_VIEW,
        staying(C.CLOSED, (P.STRANGER, P.JOINING)),
    ),
    Mutation(
        "stranded-for-good",
        "A joiner waits for a JOIN that can't be ordered",
        WRONG_VIEW,
        ((f"{_P}.Participant.is_stranded", never),),
    ),
    Mutation(
        "unheard-for-long",
        "A member leaves messages dropped for an earlier start's answer to the next resend",
        LATE,
        staying(C.HEARD, (P.STRANGER, P.JOINING, P.MEMBER, P.BLOCKING)),
    ),
    Mutation(
        "kept-back", "A member leaves the messages that it kept back to the next resend", LATE, without(SEND_TABLE)
    ),
    Mutation(
        "born-loud",
        "A joiner sends in the flush that admits it",
        ILLEGAL,
        leading(C.ADMITTED_IN_FLUSH, P.BORN_QUIET, to=P.MEMBER),
    ),
    Mutation(
        "takes-always",
        "A member takes messages in every phase",
        SPOKE,
        ((f"{_P}.Participant.takes_messages", property(always)),),
    ),
    Mutation("no-block", "A member does not call block()", UNPAIRED, without(BLOCK)),
    Mutation("no-question", "A member does not report that block() has returned", DEAF, without(ASK)),
    Mutation("no-answer", "A member does not send FLUSH_OK", DEAF, without(SEND_FLUSH_OK)),
    Mutation(
        "loud",
        "A member goes on to take messages after FLUSH_OK",
        OTHER_VIEW,
        rows({(P.BLOCKING, C.ANSWER): Transition(P.BLOCKING, (SEND_FLUSH_OK,))}),
    ),
    Mutation(
        "block-again",
        "A member calls block() again when a flush starts over",
        UNPAIRED,
        rows({(P.BLOCKING, C.FLUSH): Transition(P.BLOCKING, (BLOCK, ASK))}),
    ),
    Mutation(
        "deaf-to-the-second-start",
        "A member that has answered a flush ignores its second start",
        DEAF,
        staying(C.FLUSH, (P.QUIET, P.BORN_QUIET)),
    ),
    Mutation("no-end", "A member does not see STOP_FLUSH", BLOCKED, staying(C.STOP, IN_A_FLUSH)),
    Mutation("no-unblock", "A member does not call unblock()", UNPAIRED, without(UNBLOCK)),
    Mutation(
        "no-unblock-for-the-dead",
        "A member that is excluded in a flush stays in block()",
        UNPAIRED,
        without(UNBLOCK, [(phase, cause) for phase in IN_A_FLUSH for cause in (C.EXCLUDED, C.OVER)]),
    ),
    Mutation(
        "flush-not-stopped",
        "A member that gives up its flush does not send STOP_FLUSH",
        UNWANTED,
        ((f"{_P}._stop", ignoring),),
    ),
    Mutation(
        "no-exclusion",
        "A member does not see its exclusion",
        WRONG_VIEW,
        (*staying(C.EXCLUDED, INSIDE), *staying(C.OVER, INSIDE)),
    ),
    Mutation(
        "no-next-life",
        "An excluded member does not begin a new incarnation",
        WRONG_VIEW,
        without(BEGIN_ANEW),
    ),
    Mutation(
        "over-loses",
        "An incarnation that is over loses its messages",
        LOST,
        rows({(P.OVER, C.HAND_OVER): Transition(P.BETWEEN, (LOSE,))}),
    ),
    Mutation(
        "carried-at-once",
        "A new incarnation sends carried messages before its JOIN is ordered",
        DUPLICATE,
        (("connectors.client.incarnation.forwarder.begins_returning", never),),
    ),
    Mutation(
        "next-life-without-join",
        "A new incarnation sends carried messages without a JOIN",
        WRONG_VIEW,
        (("connectors.client.incarnation.incarnations.Incarnations._anew", without_join),),
    ),
    Mutation(
        "silent-leave",
        "A leaving member does not send LEAVE",
        RETURNED,
        rows({(phase, C.LEAVE): Transition(P.LEAVING) for phase in INSIDE}),
    ),
    Mutation(
        "returns",
        "A member that has left joins again",
        RETURNED,
        rows(
            {
                (P.LEAVING, cause): Transition(phase, (UNBLOCK, BEGIN_ANEW))
                for cause, phase in ((C.EXCLUDED, P.EXCLUDED), (C.OVER, P.OVER))
            }
        ),
    ),
    Mutation(
        "newest-time",
        "The failure detector takes a partition's newest timestamp for its clock",
        WRONG_VIEW,
        (
            ("ordering.sequencer.sequencer.Watch.hear", by_the_newest),
            ("connectors.engine.batch.COLUMNS_FROM", MAX_NUMBER),
        ),
    ),
    Mutation(
        "deaf-to-states",
        "A member does not make up for views that retention has dropped",
        WRONG_VIEW,
        ((f"{_P}._catch_up_view", ignoring),),
    ),
    Mutation(
        "waits-for-ever",
        "A member waits for a first view that retention has dropped, with its exclusion",
        WRONG_VIEW,
        (("connectors.client.incarnation.own_records.CaughtUp", forgetting_the_table),),
    ),
    Mutation(
        "unknown-dropped",
        "A job drops the fields of a later version's snapshot",
        OTHER_STATE,
        (("ordering.membership.membership.with_unknown", known_only),),
        needs=("versions",),
    ),
    Mutation(
        "misses-some",
        "An application misses some messages of a view",
        SURVIVORS,
        (("tests.world.members.Process.deliver", misses_some),),
    ),
    Mutation(
        "view-at-once",
        "A view does not wait for the members' FLUSH_OK",
        (OTHER_VIEW, VIEW_VIOLATION),
        (("ordering.sequencer.sequencer.next_decision", at_once),),
    ),
    Mutation(
        "refuses-nothing",
        "The sequencer refuses no START_FLUSH and no JOIN",
        (STUCK, HANGING, BLOCKED, WRONG_VIEW, VIEW_VIOLATION),
        (("ordering.membership.membership.refusal", accepted),),
    ),
    Mutation(
        "answers-forgotten",
        "The sequencer forgets the answers to a flush",
        (STUCK, HANGING, BLOCKED, WRONG_VIEW),
        (("ordering.membership.membership.Flush.answer", forgotten),),
    ),
    Mutation(
        "told-once",
        "A relay does not tell the view in force again behind a takeover",
        REMOTE_VIEW,
        (("tests.world.neighbour.Relay", Careless),),
    ),
    Mutation(
        "silent-for-good",
        "The group does not see that a silent site is back",
        REMOTE_VIEW,
        (("ordering.membership.view_change._remote_view", silent_only),),
    ),
)
