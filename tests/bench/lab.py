"""The laboratory of all measurements: the broker, a Spark session, a directory, topics that are deleted after use."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics, find_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.names import Topic
from tests.bench.plan import Plan
from tests.bench.processes import Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
ABCAST = Path(sys.executable).with_name("abcast")


@dataclass(frozen=True, slots=True)
class Place:
    """A group at a site of its own, so that a job at the site serves nothing else."""

    group: str
    site: str

    @property
    def forward(self) -> str:
        """The FORWARD topic."""
        return str(Topic(self.group, "forward", self.site))

    @property
    def data(self) -> str:
        """The DATA topic."""
        return str(Topic(self.group, "data", self.site))


class Lab:
    """A context manager: starts the broker (Spark only when it is asked for), and leaves nothing behind.

    Its directory is in `parent`; without one, where temporary files are.
    """

    def __init__(self, plan: Plan, say: Say, parent: Path | None = None) -> None:
        self.plan = plan
        self.say = say
        self._parent = parent
        self.environment: dict[str, str] = {}
        """Variables of the processes that it starts."""
        self._numbers = itertools.count(1)
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        with contextlib.ExitStack() as cleanup:
            self.directory = Path(tempfile.mkdtemp(prefix="abcast-bench-", dir=self._parent))
            cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
            # Spark leaves odd files in the working directory.
            cleanup.callback(os.chdir, Path.cwd())
            os.chdir(self.directory)
            self.say(f"starting the broker in {self.directory}")
            self.broker = EmbeddedBroker(self.directory / "broker", port=0)
            self.broker.start()
            cleanup.callback(self.broker.stop)
            self.connection = Connection(self.broker.bootstrap_servers, timeout=30.0)
            with self.connection.admin() as admin:
                # Deleted topics leave the disk at once, not after a minute.
                admin.alter_configs(
                    [
                        ConfigResource(ConfigResourceType.BROKER, node, configs={"log.segment.delete.delay.ms": "500"})
                        for node in map(str, range(self.broker.nodes))
                    ]
                )
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @cached_property
    def spark(self) -> SparkSession:
        """The one Spark session, with the jobs' own settings."""
        from connectors.spark.session import build_session

        self.say("starting Spark")
        session = build_session("abcast bench")
        self._cleanup.callback(_stop_spark, session)
        return session

    @contextlib.contextmanager
    def hushed_when_interrupted(self) -> Iterator[None]:
        """Keep Spark from printing the stack of every task that a Ctrl-C cuts off."""
        try:
            yield
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                self.spark.sparkContext.setLogLevel("OFF")
            raise

    def path(self, name: str) -> Path:
        """Return a path of its own."""
        return self.directory / f"{next(self._numbers)}-{name}"

    @contextlib.contextmanager
    def place(self, name: str, partitions: int = 1) -> Iterator[Place]:
        """A new group and its topics, deleted at the end."""
        place = Place(f"{name}-{next(self._numbers)}", f"s{next(self._numbers)}")
        create_topics(self.connection, place.group, [place.site], partitions)
        try:
            yield place
        finally:
            self.delete(place.group)

    @contextlib.contextmanager
    def output(self, place: Place) -> Iterator[Place]:
        """Another site of the place's group, whose DATA topic takes what one drain writes; deleted at the end."""
        other = Place(place.group, f"s{next(self._numbers)}")
        create_topics(self.connection, other.group, [other.site])
        try:
            yield other
        finally:
            self.delete(other.group, site=other.site)

    def delete(self, *groups: str, site: str | None = None) -> None:
        """Delete the topics of groups, or those they have at one site, and wait until their files are gone."""
        gone = [
            str(topic) for topic in find_topics(self.connection) if topic.group in groups and site in (None, topic.site)
        ]
        if not gone:
            return
        with self.connection.admin() as admin:
            admin.delete_topics(gone)
        data = self.broker.directory / "node-0" / "data"
        deadline = time.monotonic() + 30
        files = [f"abcast.{group}.*.{site or '*'}-*" for group in groups]
        while any(any(data.glob(each)) for each in files) and time.monotonic() < deadline:
            time.sleep(0.1)

    def end_of(self, topic: str) -> int:
        """Count a topic's records from its beginning."""
        with contextlib.closing(self.connection.consumer()) as consumer:
            places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            return sum(consumer.end_offsets(places).values())

    def sequencer(self, place: Place, data: Path, engine: str = "spark", options: Sequence[str] = ()) -> Child:
        """The real thing: `abcast sequence` in a process of its own."""
        return Child(
            [
                *(ABCAST, "sequence", "--bootstrap-servers", self.connection.bootstrap_servers),
                *("--site", place.site, "--data", data, "--engine", engine, *options),
            ],
            self.path("logs") / "sequence.log",
            self.environment,
        )

    def environment_of_children(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return a child process's whole environment."""
        return {**os.environ, **self.environment, **more}

    def member_connection(self, transport: str) -> Connection:
        """Return a connection for members in this process."""
        return Connection(self.broker.bootstrap_servers, timeout=30.0, transport=transport)

    @property
    def pid(self) -> int:
        """Return the process whose tree has Spark and the broker."""
        return os.getpid()


def _stop_spark(session: SparkSession) -> None:
    """Stop Spark, or find it gone: a signal to our process group ends the JVM before us."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()
