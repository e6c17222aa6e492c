"""Mutations of members that send in all orders, as they ship: each breaks a rule, with the anomaly that it must show.

`tests.simulator.orders_mutations` has the classes for the core.
"""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from connectors.client.tail.merged_log import Begin, MergedLog
from connectors.relay.marks import Copy, last_copy
from ordering.base.records import Source
from ordering.casts.causal import CausalReceiver
from ordering.casts.unwritten_casts import Course
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, LOST, VIEW_VIOLATION
from tests.simulator.mutation import Mutation
from tests.simulator.orders_mutations import (
    BlindToOthers,
    BlindToOtherSites,
    BlindToTotal,
    CausalBeforeOwnTotal,
    DropsInsteadOfHolding,
    Forgetful,
    OneLife,
    TakesAhead,
    TakesOlder,
    TornState,
    TotalAlone,
)
from tests.world.casts_actions import NO_FLUSH, POWERS


def without_new_up_to(log: MergedLog, tailer: Any, topics: Any, begin: Begin) -> None:
    """Take the place before a flush for a place in the newest view."""
    true_init(log, tailer, topics, begin._replace(new_up_to=0))


true_init = MergedLog.__init__
true_last_copy = last_copy


def counts_its_copies(connection: Any, topic: str, partition: int, source: Source, *_: Any) -> Copy | None:
    """Go on at the number of a copy's records."""
    copy = true_last_copy(connection, topic, partition, source)
    if copy is None or ".cast." not in topic:
        return copy
    return copy._replace(made_from=len(connection.topics.partitions[TopicPartition(topic, partition)]) - 1)


RECEIVER = "ordering.casts.merging.CausalReceiver"
OUTGOING = "connectors.client.casts.caster.Outgoing"
COURSE = "connectors.client.casts.caster.course_of"
LOG = "connectors.client.tail.merged_log"


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
        "retention-goes-by-offsets",
        "Retention drops casts that a joiner with another site's state has to read",
        LOST,
        (("tests.world.casts_actions.lacks", lambda *_: False),),
        from_seed=500,
        needs=POWERS,
    ),
    Mutation(
        "proof-without-the-end",
        "A reader takes a cast that it has not read yet for missing",
        LOST,
        (("connectors.client.tail.cast_buffer.CastBuffer.has_taken_all", property(lambda _: True)),),
    ),
    Mutation(
        "relay-counts-its-copies",
        "A relay goes on at the number of its copies, not behind the last copy's mark",
        LOST,
        (("connectors.relay.job.last_copy", counts_its_copies),),
        from_seed=500,
        needs=POWERS,
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
)
