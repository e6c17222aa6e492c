"""A sequencer's job in a thread, on a Kafka in memory, with the groups that have topics there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.engine.site_job import SiteJob
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from connectors.kafka.groups.troubles import Troubles
from connectors.sequencer.agreeing_shard import AgreeingShard
from connectors.sequencer.job import SequencerJob
from connectors.spark.job import JobOptions, QueryFailed
from connectors.takeover.agreement import AgreementSettings
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from tests.waiting import WAIT, eventually

SITE = "nyc"


@pytest.fixture(autouse=True)
def no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each start find no rival, and topics that are as they should be. A module that imports it has it for all."""
    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lambda *_: {})
    monkeypatch.setattr("connectors.engine.job.seconds_for_rival", lambda *_: 0.0)


@contextmanager
def serving(kafka: MemoryConnection, engine: str, sites: tuple[str, ...] = (SITE,)) -> Iterator[EngineJob]:
    """Run `engine` ("process", or "agreeing" with these sites) for the block; raise the error that ends it."""
    job: EngineJob = EngineJob(EngineOptions(kafka, SITE))
    if engine == "agreeing":
        job = SiteJob(kafka, AgreementSettings(Neighbours(SITE, sites, frozenset())))
    job._state.finder = finder_of(kafka, sites)
    with running(kafka, job):
        yield job


@contextmanager
def started_job(
    kafka: MemoryConnection, takeover_after_s: float | None, groups: GroupChoice = ALL_GROUPS
) -> Iterator[EngineJob]:
    """Run a job until it is ready, and for the block; with `takeover_after_s` a standby."""
    job = EngineJob(EngineOptions(kafka, SITE, groups=groups, troubles=Troubles(), takeover_after_s=takeover_after_s))
    job._state.finder = finder_of(kafka, (SITE,), groups)
    with running(kafka, job):
        eventually(job.ready.is_set, what="a job that is ready")
        yield job


@contextmanager
def serving_on_spark(kafka: MemoryConnection, sites: tuple[str, ...]) -> Iterator[SequencerJob]:
    """Run the job of a site that agrees on Spark, but for its queries: these take over their groups, and then wait."""

    def wait(shard: AgreeingShard, _: int) -> Any:
        shard._ends.wait(WAIT)
        raise QueryFailed("stopped")

    spark, agreement = MagicMock(), AgreementSettings(Neighbours(SITE, sites, frozenset()))
    with (
        TemporaryDirectory() as where,
        patch("connectors.sequencer.job.PythonWorker"),
        patch("connectors.sequencer.job.seconds_for_rival", return_value=0.0),
        patch("connectors.sequencer.shard.check_topics"),
        patch.object(AgreeingShard, "session", wait),
    ):
        job = SequencerJob(spark, JobOptions(kafka, SITE, Path(where), look_every_s=0.05), agreement)
        job.finder = finder_of(kafka, sites)
        with running(kafka, job):
            yield job


def finder_of(kafka: MemoryConnection, sites: tuple[str, ...], groups: GroupChoice = ALL_GROUPS) -> Any:
    """Return a finder of the topics that Kafka has now."""
    parsed = [topic for place in kafka.topics.partitions if (topic := Topic.parse(place.topic))]
    found = [topic for topic in parsed if groups.has(topic.group)]
    topics = {topic: 1 for topic in found if topic.role != "relayed" or topic.neighbour in sites}
    return SimpleNamespace(
        find=lambda **_: list(topics),
        count_partitions=lambda **_: topics,
        leaderless=list,
        has_changed=lambda: False,
        has_news=lambda: False,
        close=lambda: None,
    )


@contextmanager
def running(kafka: MemoryConnection, job: EngineJob | SequencerJob) -> Iterator[None]:
    """Run a job for the block; raise the error that ends it."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, name="job", daemon=True)
    thread.start()
    try:
        yield
    finally:
        job.stop()
        for name in {place.topic for place in kafka.topics.partitions}:
            kafka.topics.bring_back(name)
        thread.join(WAIT)
        assert not thread.is_alive()
    if failed:
        raise failed[0]
