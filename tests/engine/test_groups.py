"""Jobs that share the groups of a site: real Kafka, the process engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from connectors import Member
from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import GroupChoice
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import create_topics, delete_topics, find_topics
from connectors.local.broker import EmbeddedBroker
from jobs.terminal.streaming import JobThread, working
from ordering.base.errors import Fenced
from ordering.base.names import Topic
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.broker

SITE = "shared"


@contextmanager
def serving(connection: Connection, groups: str, look_every_s: float = 0.5) -> Iterator[JobThread]:
    options = EngineOptions(connection, SITE, groups=GroupChoice.parse(groups), look_every_s=look_every_s)
    with working([EngineJob(options)]) as [job]:
        assert job.ready.wait(WAIT)
        yield job


def ordered(connection: Connection, group: str) -> int:
    with Member(group, f"{SITE}/alice", connection=connection) as alice:
        return alice.broadcast(b"x").result(WAIT)


def test_a_group_that_lacks_a_topic_keeps_nobody_from_the_others(broker: EmbeddedBroker) -> None:
    """The other group is ordered, and the incomplete one, too, once it has its topics."""
    connection = Connection(broker.bootstrap_servers)
    for group in ("lacking", "whole"):
        create_topics(connection, group, [SITE])
    with connection.admin() as admin:
        admin.delete_topics([str(Topic("lacking", "dead-letter", SITE))])
    with serving(connection, "lacking,whole"):
        assert ordered(connection, "whole") == 1
        create_topics(connection, "lacking", [SITE])
        assert ordered(connection, "lacking") == 1


def test_a_group_whose_epoch_topic_is_recreated_is_left_alone(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The running sequencer finds that its claim is gone, or already that the topic is. Its takeover refuses, and the
    other group goes on.
    """
    connection = Connection(broker.bootstrap_servers)
    for group in ("claimless", "claimed"):
        create_topics(connection, group, [SITE])
    epoch = Topic("claimless", "epoch", SITE)
    with serving(connection, "claim*", look_every_s=600.0):  # no look finds that the topic is gone
        assert ordered(connection, "claimless") == ordered(connection, "claimed") == 1
        delete_topics(connection, [epoch])
        eventually(lambda: epoch not in find_topics(connection), what="the topic is gone")
        create_topics(connection, "claimless", [SITE])
        eventually(lambda: f"{epoch} was recreated, or a broker has lost all of it" in caplog.text, what="the refusal")
        assert ordered(connection, "claimed") == 2
    with DataLog(connection, "claimless", SITE) as data:
        assert not data.epochs.read().claims
        assert data.state().seqno == 1


@pytest.mark.long
def test_each_job_serves_its_own_groups(broker: EmbeddedBroker) -> None:
    """Also groups that are created later. A job started for another's group fences that job, and no other."""
    connection = Connection(broker.bootstrap_servers)
    for group in ("shared-orders", "shared-pay-eu"):
        create_topics(connection, group, [SITE])
    with (
        suppress(Fenced),  # by which the first ends
        serving(connection, "shared-orders") as first,
        serving(connection, "shared-pay-*") as second,
    ):
        assert ordered(connection, "shared-orders") == ordered(connection, "shared-pay-eu") == 1
        create_topics(connection, "shared-pay-us", [SITE])
        assert ordered(connection, "shared-pay-us") == 1
        assert not first.done.is_set()
        with serving(connection, "shared-or*"):
            eventually(first.done.is_set, what="the job whose group was taken has ended")
            assert ordered(connection, "shared-orders") == 2
        assert not second.done.is_set()
        assert ordered(connection, "shared-pay-eu") == 2
    with pytest.raises(Fenced):
        first.raise_failure()
    second.raise_failure()
