"""Mutations of members that send in all orders, as they ship: each breaks a rule, with the anomaly that it must show.

`tests.world.casts_broken` has the broken parts of the core.
"""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from connectors.client.deliveries.cut import Cut
from connectors.client.deliveries.merged_deliveries import MergedDeliveries
from connectors.client.tail.merged_log import Begin, MergedLog
from connectors.relay.casts import Casts
from ordering.casts.causal import CausalReceiver
from ordering.casts.unwritten_casts import Course, InheritedCast, course_of
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, LOST, VIEW_VIOLATION
from ordering.participant.participant import Participant
from tests.relay.carrying import memory
from tests.simulator.mutation import Mutation
from tests.world.casts_actions import AWAY, LIES, NO_FLUSH
from tests.world.casts_broken import (
    BlindToOthers,
    BlindToOtherSites,
    BlindToTotal,
    CausalBeforeOwnTotal,
    DropsInsteadOfHolding,
    Forgetful,
    Hasty,
    NeverBlocks,
    OneLife,
    TakesAhead,
    TakesOlder,
    TalksAfterFlushOk,
    TornState,
    TotalAlone,
    lagging_hub,
    state_at_once,
    state_of_the_dead,
)


def without_new_up_to(log: MergedLog, tailer: Any, topics: Any, begin: Begin) -> None:
    """Take the place before a flush for a place in the newest view."""
    true_init(log, tailer, topics, begin._replace(new_up_to=0))


true_init = MergedLog.__init__


def again_if_delivered(inherited: InheritedCast, *where: Any) -> Course:
    """Cast an inherited cast again that was delivered."""
    course = true_course_of(inherited, *where)
    return Course.ANEW if course is Course.DELIVERED else course


def cut_at_once(deliveries: MergedDeliveries) -> Cut | None:
    """Supply a state that counts deliveries which the application was not given."""
    log = deliveries._log
    return Cut(log.behind.state, log.behind.offsets) if log is not None else None


def count_of_copies(relay: Casts, partition: TopicPartition, position: int, beginning: int) -> int:
    """Go on at the number of the copies, if there are any."""
    return max(len(memory(relay.target).partitions[partition]) if position else 0, beginning)


true_course_of = course_of
true_takes_messages: Any = vars(Participant)["takes_messages"].fget

RECEIVER = "ordering.casts.merging.CausalReceiver"
OUTGOING = "connectors.client.casts.caster.Outgoing"
COURSE = "connectors.client.casts.caster.course_of"
LOG = "connectors.client.tail.merged_log"
HUB = "connectors.client.tail.cast_hub"
PARTICIPANT = "ordering.participant.participant.Participant"


def receives(name: str, why: str, expected: str | tuple[str, ...], receiver: type[CausalReceiver]) -> Mutation:
    """Return a mutation of the receiver."""
    return Mutation(name, why, expected, ((RECEIVER, receiver),))


MUTATIONS = (
    receives(
        "blind-to-others",
        "A causal cast does not wait for other senders' casts that its sender had delivered",
        CAUSAL_VIOLATION,
        BlindToOthers,
    ),
    receives(
        "blind-to-other-sites",
        "A causal cast does not wait for other sites' casts that its sender had delivered",
        CAUSAL_VIOLATION,
        BlindToOtherSites,
    ),
    receives(
        "forgets-to-merge",
        "A member does not merge delivered casts into its clock",
        (CAUSAL_VIOLATION, VIEW_VIOLATION, LOST),
        Forgetful,
    ),
    receives("takes-older", "A member delivers a delivered cast again", DUPLICATE, TakesOlder),
    receives(
        "takes-ahead", "A member delivers a fifo cast before an earlier one of the sender", FIFO_VIOLATION, TakesAhead
    ),
    receives(
        "drops-instead-of-holding", "A member drops casts that it can't deliver at once", LOST, DropsInsteadOfHolding
    ),
    receives(
        "ignores-after",
        "A cast does not wait for the total messages that its sender had delivered",
        CAUSAL_VIOLATION,
        BlindToTotal,
    ),
    receives(
        "ignores-depends",
        "A total message does not wait for the casts that it depends on",
        CAUSAL_VIOLATION,
        TotalAlone,
    ),
    receives("one-life", "A new incarnation continues the clock of the last one", LOST, OneLife),
    receives(
        "torn-state",
        "A donor's state for a late joiner counts one cast too many",
        (LOST, FIFO_VIOLATION),
        TornState,
    ),
    Mutation(
        "causal-before-own-total",
        "A causal cast does not wait for its sender's own broadcasts",
        CAUSAL_VIOLATION,
        ((OUTGOING, CausalBeforeOwnTotal),),
    ),
    Mutation(
        "forgets-what-was-not-delivered",
        "A new incarnation takes every inherited cast for delivered",
        LOST,
        ((COURSE, lambda *_: Course.DELIVERED),),
    ),
    Mutation(
        "full-is-not-read-again",
        "A reader does not read casts again that found the queue full",
        LOST,
        ((f"{LOG}.MergedLog._read_again", lambda *_, **__: None),),
    ),
    Mutation(
        "proof-without-the-end",
        "A reader takes a cast that it has not read yet for missing",
        LOST,
        (("connectors.client.tail.cast_buffer.CastBuffer.has_taken_all", property(lambda _: True)),),
    ),
    Mutation(
        "views-without-a-flush",
        "Members of a group without flush cast in its views",
        (LOST, VIEW_VIOLATION, FIFO_VIOLATION),
        (("ordering.casts.merging.separates", lambda *_, **__: True),),
        needs=(NO_FLUSH,),
    ),
    Mutation(
        "begins-in-an-earlier-view",
        "A newcomer counts on casts of views that began before it",
        LOST,
        (("connectors.client.tail.merged_log.MergedLog.__init__", without_new_up_to),),
    ),
    receives(
        "never-blocks",
        "A member in a flush delivers casts beyond the agreed cut",
        (VIEW_VIOLATION, LOST),
        NeverBlocks,
    ),
    Mutation(
        "total-before-casts-are-written",
        "A total message does not wait until its sender's casts are written",
        LOST,
        ((OUTGOING, Hasty),),
    ),
    Mutation(
        "talks-after-flush-ok",
        "A member goes on sending after its FLUSH_OK",
        (LOST, VIEW_VIOLATION),
        (
            (OUTGOING, TalksAfterFlushOk),
            (f"{PARTICIPANT}.takes_messages", property(lambda now: true_takes_messages(now) or now.is_silent)),
        ),
    ),
    Mutation(
        "application-is-given-what-the-hub-is-not",
        "An application gets casts that its hub skips with a view",
        VIEW_VIOLATION,
        ((f"{HUB}.fate_of_record", lagging_hub),),
    ),
    Mutation(
        "state-of-the-dead",
        "A joiner takes a state with casts that the group goes on without",
        LOST,
        ((f"{HUB}.fate_of_state", state_of_the_dead),),
    ),
    Mutation(
        "state-before-the-hub",
        "A joiner takes a state before its hub has delivered the casts in it",
        LOST,
        ((f"{HUB}.fate_of_state", state_at_once),),
    ),
    Mutation(
        "state-in-midst-of-a-delivery",
        "A donor supplies its state in the middle of a delivery",
        (LOST, FIFO_VIOLATION, CAUSAL_VIOLATION),
        (("connectors.client.deliveries.merged_deliveries.MergedDeliveries.cut", cut_at_once),),
    ),
    Mutation(
        "casts-again-what-was-delivered",
        "A new incarnation sends delivered inherited casts again",
        (DUPLICATE, LOST),
        ((COURSE, again_if_delivered),),
    ),
    Mutation(
        "waits-for-ever",
        "A reader accepts no proof that a clock is wrong",
        LOST,
        ((f"{LOG}.MergedLog._see_whether_stalled", lambda _: None),),
        needs=(LIES,),
    ),
    Mutation(
        "proof-by-other-sites",
        "A reader takes another site's cast that has not arrived for missing",
        LOST,
        ((f"{LOG}.MergedLog._is_own", lambda *_: True),),
    ),
    Mutation(
        "casts-before-its-count",
        "A process that goes on under its incarnation casts in the view, and does not know its count of casts",
        LOST,
        (("ordering.casts.outgoing.Outgoing.knows_its_count", property(lambda _: True)),),
    ),
    Mutation(
        "relay-counts-its-copies",
        "A relay goes on at the number of its copies, not behind the last copy's mark",
        LOST,
        (("connectors.relay.casts.Casts.first_to_carry", count_of_copies),),
        needs=(AWAY,),
    ),
)
