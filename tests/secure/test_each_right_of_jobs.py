"""`abcast acl` gives the ledger and the relays no right too many: without any one of them, they say which."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Direction, Mode
from connectors.kafka.topics.rights import Right, rights_of_relay
from connectors.kafka.topics.topics import create_topics, delete_topics, ensure_topic, find_topics
from connectors.ledger.casts.job import CastLedgerJob
from connectors.ledger.job import LedgerJob
from connectors.local.broker import EmbeddedBroker
from connectors.relay.kinds import relays_of
from connectors.relay.spark.job import SparkRelay
from connectors.spark.job import JobOptions
from connectors.testing.sequencer_thread import SequencerThread
from jobs.terminal.streaming import await_ready, running
from ordering.base.names import BY_RELAYS, Topic
from tests.secure.test_each_right import SITE, Trial, what_fails
from tests.secure.two_kafkas import Kafkas, admins, allow, sites_as
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(900)]


def test_a_ledger(
    secure_broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both of its tables. The log names the topics that it may not see: other groups go on."""
    trial = Trial(secure_broker, "each-ledger", "ledger")
    with (
        SequencerThread(trial.admin, trial.group, SITE),
        Member(trial.group, f"{SITE}/a", connection=trial.admin, casts=True) as alice,
    ):
        alice.broadcast(b"x").result(WAIT)
        alice.broadcast(b"y", order="fifo").result(WAIT)

    def work(connection: Connection, name: str) -> None:
        options = JobOptions(connection, SITE, tmp_path / name, look_every_s=1.0)
        with running([LedgerJob, CastLedgerJob], spark, options) as jobs:
            await_ready(jobs)

    trial.check(work, caplog, unneeded=set())
    rows = {table: DeltaTable(tmp_path / "all" / table).to_pyarrow_table().num_rows for table in ("ledger", "casts")}
    assert rows["ledger"] >= 1
    assert rows["casts"] == 1


class RelayTrial:
    """A group at two secure Kafkas, and users with some of the rights of the relays of one direction."""

    def __init__(self, kafkas: Kafkas, mode: Mode, direction: Direction) -> None:
        self.kafkas, self.mode, self.direction = kafkas, mode, direction
        self.admins = admins(kafkas)
        self.group = f"each-{mode}-{direction.source}"
        self.rights = rights_of_relay(sites_as("admin", kafkas, mode), self.group, direction)
        for site, connection in self.admins.items():
            create_topics(connection, self.group, [site])
            if mode != "hub" or site == next(iter(kafkas)):
                with SequencerThread(connection, self.group, site):
                    pass
            append(connection, str(Topic(self.group, "forward", site)), (b"x/y", b"x", []))

    def work(self, spark: SparkSession, user: str, directory: Path) -> None:
        """Start all relays of the direction, until each has copied all records, or failed."""
        sites = sites_as(user, self.kafkas, self.mode)
        makers = [
            functools.partial(SparkRelay, kind=kind, sites=sites, direction=self.direction)
            for kind in relays_of(sites, self.direction)
        ]
        options = JobOptions(sites.connections[self.direction.source], "-", directory, look_every_s=1.0)
        with running(makers, spark, options) as jobs:
            await_ready(jobs)

    def lack(self, right: Right) -> None:
        """Make the right needed: delete its topic, or let it lack a partition."""
        topic = Topic.parse(right.name)
        if topic is None or right.operation not in ("CREATE", "ALTER"):
            return
        for site, connection in self.admins.items():
            is_own = topic.site == site and topic.role not in BY_RELAYS
            if not is_own and topic in find_topics(connection):
                delete_topics(connection, [topic])
                eventually(lambda: topic not in find_topics(connection), what="it is deleted")  # noqa: B023
        if right.operation == "ALTER":
            source, target = (self.admins[site] for site in self.direction)
            ensure_topic(target, topic, 1)
            ensure_topic(source, Topic(self.group, "forward", self.direction.source), 2)

    def fill(self) -> None:
        """Append a record that no reader accepts to each topic that a relay may read."""
        for connection in self.admins.values():
            for topic in find_topics(connection):
                if topic.group == self.group:
                    append(connection, str(topic), (b"x", b"x", []))


@pytest.mark.parametrize(
    ("mode", "direction"),
    [
        ("hub", Direction("a", "b")),
        ("hub", Direction("b", "a")),
        ("mesh", Direction("a", "b")),
        ("isis", Direction("a", "b")),
    ],
)
def test_a_relay(
    secure_broker: EmbeddedBroker,
    second_secure_broker: EmbeddedBroker,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mode: Mode,
    direction: Direction,
) -> None:
    """Each role of its topics has a job of its own, so the job that lacks a right names it in its log.

    With `isis`, EPOCH of the source is read only if retention was ahead of the relay (tests/relay/test_positions.py).
    """
    kafkas = {"a": secure_broker, "b": second_secure_broker}
    trial = RelayTrial(kafkas, mode, direction)

    def says(user: str) -> str:
        caplog.clear()
        error = what_fails(lambda: trial.work(spark, user, tmp_path / user))
        return "".join(text for text in (error, *caplog.messages) if "may not" in text)

    everything = f"{trial.group}-all"
    allow(everything, kafkas, trial.rights)
    eventually(lambda: says(everything) == "", what="the rights are known")
    trial.fill()
    silent = []
    seldom = str(Topic(trial.group, "epoch", direction.source)) if mode == "isis" else ""
    needed = [right for right in trial.rights if right.kind == "topic" and right.name != seldom]
    for number, right in enumerate(needed):  # a sign of the neighbour only saves time
        user = f"{trial.group}-{number}"
        allow(user, kafkas, [each for each in trial.rights if each != right])
        trial.lack(right)
        told = says(user)
        if right.name not in told:
            silent.append((right, told))
    assert silent == []
