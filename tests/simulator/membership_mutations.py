"""Mutations of the participant: each breaks a rule on purpose, and the members' histories must name the violation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from ordering.base.records import Forward, Headers
from ordering.checker.anomalies import DUPLICATE, LOST
from ordering.membership.log_time import Watch
from ordering.membership.membership import with_unknown
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
from ordering.participant.rejoin import next_entries
from ordering.sequencer.sequencer import step
from ordering.sequencer.state import SequencerState
from tests.simulator.membership import (
    BLOCKED,
    DEAF,
    FROM_OUTSIDE,
    ILLEGAL,
    LATE,
    OTHER_STATE,
    OTHER_VIEW,
    RETURNED,
    SPOKE,
    STUCK,
    UNPAIRED,
    UNWANTED,
    WRONG_VIEW,
    Group,
)

_true_hear = Watch.hear
Rows = Mapping[tuple[ParticipantPhase, Cause], Transition]


def forgetting_the_table(state: SequencerState, _: bool) -> CaughtUp:
    return CaughtUp(state)


def known_only(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    return {**with_unknown(kind, body), "unknown": {}}


class MemberMutation(NamedTuple):
    """A broken rule: its error, the anomaly it must show, the rows that break it, and any other patch."""

    name: str
    why: str
    expected: str
    rows: Rows = {}  # noqa: RUF012
    patches: tuple[tuple[str, Any], ...] = ()
    from_seed: int = 0
    """First seed of the tests: a mutation that needs a rare coincidence begins near one."""
    has_versions: bool = False
    """Whether jobs of earlier and later versions take over."""


NONE = MemberMutation("none", "all rules hold", "", has_versions=True)
P, C = ParticipantPhase, Cause


def without(action: Action, keys: Iterable[tuple[ParticipantPhase, Cause]] = tuple(TRANSITIONS)) -> Rows:
    """The rows without that action."""
    rows = {key: TRANSITIONS[key] for key in keys}
    return {
        key: row._replace(actions=tuple(each for each in row.actions if each != action))
        for key, row in rows.items()
        if action in row.actions
    }


def staying(cause: Cause, phases: Iterable[ParticipantPhase]) -> Rows:
    """The cause changes nothing."""
    return {(phase, cause): Transition(phase) for phase in phases}


def leading(cause: Cause, after: ParticipantPhase, *actions: Action, to: ParticipantPhase) -> Rows:
    """Lead to another phase instead of one."""
    return {key: Transition(to, actions) for key, row in TRANSITIONS.items() if key[1] is cause and row.phase is after}


def ignoring(here: ParticipantStep, *_: object, **__: object) -> ParticipantStep:
    """Ignore the event."""
    return here


def always(_: object) -> bool:
    """A property that is true in every phase."""
    return True


def never(*_: object) -> bool:
    """A question to which the answer is no."""
    return False


def not_the_join(pending: Iterable[Pending], *, joins: bool) -> Iterator[tuple[bytes, Headers]]:
    """The next life's table has the messages only."""
    return next_entries(pending, joins=False)


def no_answer(_: Iterable[Pending]) -> int:
    """Begin without a look into the table."""
    return 0


_P = "ordering.participant.participant"
_SENDS = f"{_P}.Participant.sends_messages"


def by_the_newest(watch: Watch, record: Forward) -> None:
    """A leader that was ahead, once, stops the clock until its time has come."""
    at_ms = max(record.timestamp_ms, watch.stamped.get(record.source.topic_partition, 0))
    _true_hear(watch, replace(record, timestamp_ms=at_ms))


MEMBER_MUTATIONS = (
    MemberMutation("no-join", "JOIN is not sent", WRONG_VIEW, {(P.STRANGER, C.JOIN): Transition(P.JOINING)}),
    MemberMutation(
        "no-join-to-a-closed-group",
        "the same, there",
        WRONG_VIEW,
        {(P.KEPT_OUT, C.JOIN): Transition(P.AWAITING)},
        from_seed=10,
    ),
    MemberMutation(
        "no-admission",
        "it does not see its view",
        STUCK,
        staying(C.ADMITTED, (P.JOINING, P.AWAITING)),
        from_seed=24,
    ),
    MemberMutation(
        "sends-from-outside",
        "what a closed group's stranger has to say is sent",
        FROM_OUTSIDE,
        patches=((_SENDS, property(always)),),
        from_seed=10,
    ),
    MemberMutation(
        "kept-out-for-good",
        "a group that opens is not noticed",
        LATE,
        staying(C.OPENED, (P.KEPT_OUT, P.AWAITING)),
        from_seed=17,
    ),
    MemberMutation(
        "deaf-to-the-close",
        "a stranger does not notice that the group closes",
        WRONG_VIEW,
        staying(C.CLOSED, (P.STRANGER, P.JOINING)),
        from_seed=10,
    ),
    MemberMutation(
        "stranded-for-good",
        "whose JOIN can't be ordered waits for it",
        WRONG_VIEW,
        patches=((f"{_P}.Participant.is_stranded", never),),
        from_seed=190,
    ),
    MemberMutation(
        "unheard-for-long",
        "what was dropped for an earlier start's answer waits for the next resend",
        LATE,
        staying(C.HEARD, (P.STRANGER, P.JOINING, P.MEMBER, P.BLOCKING)),
        from_seed=50,
    ),
    MemberMutation("kept-back", "what was kept back waits for the next resend", LATE, without(SEND_TABLE)),
    MemberMutation(
        "born-loud",
        "who is admitted within a flush may send",
        ILLEGAL,
        leading(C.ADMITTED_IN_FLUSH, P.BORN_QUIET, to=P.MEMBER),
    ),
    MemberMutation(
        "takes-always",
        "messages are taken in every phase",
        SPOKE,
        patches=((f"{_P}.Participant.takes_messages", property(always)),),
    ),
    MemberMutation("no-block", "block() is not called", UNPAIRED, without(BLOCK)),
    MemberMutation("no-question", "nothing answers the flush", DEAF, without(ASK)),
    MemberMutation("no-answer", "FLUSH_OK is not sent", DEAF, without(SEND_FLUSH_OK)),
    MemberMutation(
        "loud",
        "it goes on to take messages after FLUSH_OK",
        OTHER_VIEW,
        {(P.BLOCKING, C.ANSWER): Transition(P.BLOCKING, (SEND_FLUSH_OK,))},
        from_seed=3,
    ),
    MemberMutation(
        "block-again",
        "a flush from scratch calls block() again",
        UNPAIRED,
        {(P.BLOCKING, C.FLUSH): Transition(P.BLOCKING, (BLOCK, ASK))},
        from_seed=21,
    ),
    MemberMutation(
        "deaf-to-the-second-start",
        "who has answered does not answer a flush that runs from scratch",
        DEAF,
        staying(C.FLUSH, (P.QUIET, P.BORN_QUIET)),
        from_seed=5,
    ),
    MemberMutation("no-end", "it does not see STOP_FLUSH", BLOCKED, staying(C.STOP, IN_A_FLUSH)),
    MemberMutation("no-unblock", "unblock() is not called", UNPAIRED, without(UNBLOCK)),
    MemberMutation(
        "no-unblock-for-the-dead",
        "who is put out of the view in a flush stays in block()",
        UNPAIRED,
        without(UNBLOCK, [(phase, cause) for phase in IN_A_FLUSH for cause in (C.EXCLUDED, C.OVER)]),
        from_seed=41,
    ),
    MemberMutation(
        "flush-not-stopped",
        "who gives up says nothing",
        UNWANTED,
        patches=((f"{_P}._stop", ignoring),),
        from_seed=4,
    ),
    MemberMutation(
        "no-exclusion",
        "it does not see that it was put out",
        WRONG_VIEW,
        {**staying(C.EXCLUDED, INSIDE), **staying(C.OVER, INSIDE)},
        from_seed=10,
    ),
    MemberMutation(
        "no-next-life",
        "who was put out stays out",
        WRONG_VIEW,
        without(BEGIN_ANEW),
        from_seed=1,
    ),
    MemberMutation(
        "over-loses",
        "a life that is over loses its messages",
        LOST,
        {(P.OVER, C.HAND_OVER): Transition(P.BETWEEN, (LOSE,))},
        from_seed=13,
    ),
    MemberMutation(
        "carried-at-once",
        "what is carried over is sent before its JOIN is ordered",
        DUPLICATE,
        patches=(("tests.simulator.membership.begins_returning", never),),
        from_seed=5_089,
    ),
    MemberMutation(
        "next-life-without-join",
        "the next life only sends its messages",
        WRONG_VIEW,
        patches=(("tests.simulator.membership.next_entries", not_the_join),),
        from_seed=9,
    ),
    MemberMutation(
        "silent-leave",
        "LEAVE is not sent",
        RETURNED,
        {(phase, C.LEAVE): Transition(P.LEAVING) for phase in INSIDE},
        from_seed=22,
    ),
    MemberMutation(
        "returns",
        "who has left joins again",
        RETURNED,
        {
            (P.LEAVING, cause): Transition(phase, (UNBLOCK, BEGIN_ANEW))
            for cause, phase in ((C.EXCLUDED, P.EXCLUDED), (C.OVER, P.OVER))
        },
        from_seed=4,
    ),
    MemberMutation(
        "newest-time",
        "a partition's clock is the newest of its timestamps",
        WRONG_VIEW,
        patches=(
            ("ordering.sequencer.sequencer.Watch.hear", by_the_newest),
            ("tests.simulator.membership.step_by_columns", step),
        ),
    ),
    MemberMutation(
        "deaf-to-states",
        "what retention has dropped is not made up for",
        WRONG_VIEW,
        patches=((f"{_P}._catch_up_view", ignoring),),
        from_seed=17,
    ),
    MemberMutation(
        "waits-for-ever",
        "who was admitted and excluded within what retention has dropped waits for its first view",
        WRONG_VIEW,
        patches=(("tests.simulator.membership.CaughtUp", forgetting_the_table),),
        from_seed=100035,
    ),
    MemberMutation(
        "unknown-dropped",
        "a job drops the fields of a later version's snapshot",
        OTHER_STATE,
        patches=(("ordering.membership.membership.with_unknown", known_only),),
        has_versions=True,
    ),
)


def run(seed: int, mutation: MemberMutation = NONE) -> list[str]:
    """Return the violations of that seed's history when the rule is broken."""
    with ExitStack() as broken:
        broken.enter_context(patch.dict(TRANSITIONS, mutation.rows))
        for target, value in mutation.patches:
            broken.enter_context(patch(target, value))
        return Group(seed, has_versions=mutation.has_versions).run()


def by_name(name: str) -> MemberMutation:
    """The mutation of that name. Raises KeyError."""
    return {mutation.name: mutation for mutation in (NONE, *MEMBER_MUTATIONS)}[name]
