"""A job of the process engine in a thread, on a Kafka in memory, with the groups that have topics there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.engine.site_job import SiteJob
from connectors.kafka.codec.inputs import Neighbours
from connectors.takeover.agreement import AgreementSettings
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from tests.waiting import WAIT

SITE = "nyc"


@contextmanager
def serving(kafka: MemoryConnection, engine: str, sites: tuple[str, ...] = (SITE,)) -> Iterator[EngineJob]:
    """Run `engine` ("process", or "agreeing" with these sites) for the block; raise the error that ends it."""
    names = sorted({place.topic for place in kafka.topics.partitions})
    found = [topic for topic in map(Topic.parse, names) if topic]
    topics = {topic: 1 for topic in found if topic.role != "relayed" or topic.neighbour in sites}
    job: EngineJob = EngineJob(EngineOptions(kafka, SITE))
    if engine == "agreeing":
        job = SiteJob(kafka, AgreementSettings(Neighbours(SITE, sites, frozenset())))
    job._state.finder = SimpleNamespace(  # type: ignore[assignment]
        find=lambda **_: list(topics),
        count_partitions=lambda **_: topics,
        has_changed=lambda: False,
        has_news=lambda: False,
        close=lambda: None,
    )
    failed: list[BaseException] = []

    def run() -> None:
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, name="job", daemon=True)
    thread.start()
    try:
        yield job
    finally:
        job.stop()
        for name in names:
            kafka.topics.bring_back(name)
        thread.join(WAIT)
        assert not thread.is_alive()
    if failed:
        raise failed[0]
