"""Sites that agree, with Spark's job at one of them: on a real broker that they share, beside the process engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors import Member
from connectors.engine.site_job import SiteJob
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.sequencer.job import SequencerJob
from connectors.spark.job import JobOptions, SparkJob
from connectors.takeover.agreement import AgreementSettings
from jobs.terminal.streaming import JobThread, working
from ordering.base.reader import Reader, Verdict
from ordering.base.records import Data

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]

PATIENCE_S = 90.0
SUSPECT_AFTER_MS = 60_000
"""Longer than Spark's start on a busy machine."""


@contextlib.contextmanager
def at_work(job: SparkJob) -> Iterator[JobThread]:
    with working([job]) as (thread,):
        while not thread.ready.wait(0.2):
            thread.raise_failure()
        yield thread


def order(connection: Connection, group: str, site: str) -> list[tuple[int, str, int, bytes]]:
    """Return the records that readers of the site's DATA take."""
    reader, taken = Reader(), list[Data]()
    with DataLog(connection, group, site) as log:
        for stored in log.records(log.beginning(), log.end()):
            if reader.accept(stored.data.kind, stored.data.epoch, stored.data.seqno) is Verdict.TAKE:
                taken.append(stored.data)
    return [(record.seqno, record.sender, record.local_seqno, record.payload) for record in taken]


def broadcast(connection: Connection, group: str, site: str, first: int, count: int) -> None:
    """Broadcast, and wait until all is ordered at the site."""
    with Member(group, f"{site}/alice", connection=connection) as member:
        for number in range(first, first + count):
            member.broadcast(b"%s %d" % (site.encode(), number))
        member.wait_ordered(PATIENCE_S)


def test_engines_agree_and_take_over_from_each_other(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Spark at one site, a process at the other; then the first site goes on with a process, and with Spark again."""
    connection, group, names = Connection(broker.bootstrap_servers), "engines", ("nyc-e", "sfo-e")
    nyc, sfo = names
    create_topics(connection, group, names)

    def agreement(site: str) -> AgreementSettings:
        return AgreementSettings(Neighbours(site, names, frozenset(names) - {site}), SUSPECT_AFTER_MS)

    def on_spark() -> SparkJob:
        return SequencerJob(spark, JobOptions(connection, nyc, tmp_path), agreement(nyc))

    with at_work(SiteJob(connection, agreement(sfo))):
        for number, make in enumerate([on_spark, lambda: SiteJob(connection, agreement(nyc)), on_spark]):
            with at_work(make()):
                for site in names:
                    broadcast(connection, group, site, 100 * number, 100)
                with Member(group, f"{nyc}/reader", connection=connection) as reader:
                    seen = list(islice(reader.deliveries(from_seqno=1, timeout=PATIENCE_S), 200 * (number + 1)))
                assert [delivery.seqno for delivery in seen] == list(range(1, 200 * (number + 1) + 1))
                with Member(group, f"{sfo}/reader", connection=connection) as reader:
                    list(islice(reader.deliveries(from_seqno=1, timeout=PATIENCE_S), 200 * (number + 1)))
    first, other = (order(connection, group, site) for site in names)
    assert first == other
    assert len(first) == 600
    for site in names:
        assert [payload for _, sender, _, payload in first if sender == f"{site}/alice"] == [
            b"%s %d" % (site.encode(), number) for number in range(300)
        ]
