"""Mutations of the care for groups that share a job: each breaks a rule on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from kafka.errors import KafkaError, NoError
from kafka.structs import TopicPartition

from connectors.engine.group_supervisor import GroupSupervisor
from connectors.engine.loop import Loop
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.takeover.watchdog import Watchdog
from ordering.base.errors import AbcastError
from ordering.checker.anomalies import LOST
from tests.simulator.mutation import Mutation
from tests.world.groups import CLAIMED, DELAYED, ENDED, UNSIGNED


def ends_all(loop: Loop[Any], name: str, error: AbcastError, _: int) -> None:
    """A group's error ends the attempt."""
    loop._drop(name)
    raise error


def asks_for_all(_: GroupSupervisor, ask: Callable[[], object]) -> None:
    """An unservable group ends the attempt."""
    ask()


def watches_all(_: GroupSupervisor, __: str, watchdog: Watchdog, now: float) -> None:
    """A stuck group ends the attempt."""
    watchdog.look(now)


def refuses_all(answers: Mapping[TopicPartition, type[KafkaError]]) -> Set[TopicPartition]:
    """A commit fails as a whole if Kafka refuses one partition."""
    for error in answers.values():
        if error is not NoError:
            raise error
    return frozenset()


def is_never_due(suspended: SuspendedGroups, group: str) -> bool:
    """A suspended group is not tried again."""
    return group not in suspended


def takes_all_again(loop: Loop[Any], name: str, error: AbcastError, epoch: int) -> None:
    """A group's error takes all groups over again."""
    _true_fail(loop, name, error, epoch)
    for other, group in list(loop._groups.items()):
        loop._drop(other)
        loop._failed[other] = group.epoch, error


def waits_for_an_answer(log: SameLogConsumer, places: Set[TopicPartition]) -> None:
    """A reader of many partitions waits for Kafka's answer about one."""
    log._looks = True
    try:
        _true_pass_over_dropped(log, places)
    finally:
        log._looks = False


_true_fail = Loop._fail
_true_pass_over_dropped = SameLogConsumer._pass_over_dropped
_SUPERVISOR = "connectors.engine.group_supervisor.GroupSupervisor"
_LOOP = "connectors.engine.loop.Loop"
MUTATIONS = (
    Mutation("one-for-all", "A group's error ends the job's attempt", ENDED, ((f"{_LOOP}._fail", ends_all),)),
    Mutation(
        "unservable-for-all",
        "A group that can't be served ends the job's attempt",
        ENDED,
        ((f"{_SUPERVISOR}._suspend_unservable", asks_for_all),),
    ),
    Mutation(
        "watched-for-all",
        "A group that does not count on ends the job's attempt",
        ENDED,
        ((f"{_SUPERVISOR}._watch", watches_all),),
    ),
    Mutation(
        "refused-for-all",
        "A sign of life that Kafka refuses for a group costs the others theirs",
        UNSIGNED,
        (("connectors.testing.memory_kafka.refused_in", refuses_all),),
    ),
    Mutation(
        "takes-all-again",
        "A group's error takes all groups over again",
        (CLAIMED, DELAYED),
        ((f"{_LOOP}._fail", takes_all_again),),
    ),
    Mutation(
        "never-again",
        "A suspended group is not tried again",
        LOST,
        (("connectors.kafka.groups.suspended_groups.SuspendedGroups.is_due", is_never_due),),
    ),
    Mutation(
        "waits-for-an-answer",
        "A reader of many partitions waits for Kafka's answer about one",
        DELAYED,
        (("connectors.kafka.log.same_log_consumer.SameLogConsumer._pass_over_dropped", waits_for_an_answer),),
    ),
)
