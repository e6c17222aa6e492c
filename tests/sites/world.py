"""Sites on two real Kafka clusters, the jobs that serve them, members at each, and the verdict over all."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from connectors import Delivery, Member
from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.engine.site_job import SiteJob
from connectors.kafka.codec.headers import first_fields
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.topics import count_partitions, create_topics, find_topics
from connectors.ledger.job import LedgerJob
from connectors.relay.kinds import relays_of
from connectors.relay.process.job import ProcessRelay
from connectors.relay.relay import Relay
from connectors.relay.spark.job import SparkRelay
from connectors.sequencer.job import SequencerJob
from connectors.spark.job import JobOptions, SparkJob, StreamingJob
from connectors.takeover.agreement import AgreementSettings, neighbours_of
from jobs.terminal.streaming import JobThread, working
from ordering.base.names import Topic
from ordering.base.records import MESSAGE
from tests.crash.processes import ABCAST, Process
from tests.waiting import WAIT, eventually

MakeJob = Callable[[JobOptions], SparkJob]
_numbers = itertools.count(1)
SUSPECT_AFTER_MS = 60_000
"""Longer than Spark's start on a busy machine."""


class World:
    """A group at some sites. Their names are each test's own, so that tests share the clusters."""

    def __init__(
        self, spark: Callable[[], SparkSession], sites: Sites, directory: Path, relays_on: str = "spark"
    ) -> None:
        """Create the group. `spark` starts a session. `relays_on`: the engine of relays, unless a test names one."""
        self.spark, self.relays_on = spark, relays_on
        self.sites = sites
        self.group = f"world{next(_numbers)}"
        self.directory = directory
        for site, connection in sites.connections.items():
            create_topics(connection, self.group, [site])

    def sequencer(self, site: str) -> MakeJob:
        """Return the maker of the site's sequencer on the process engine, which starts sooner than Spark."""
        agreement = self._agreement(site)
        if agreement is not None:
            return lambda options: SiteJob(self.sites.connection(site), agreement, look_every_s=options.look_every_s)
        ledger = self.directory / site / "ledger"
        return lambda options: EngineJob(
            EngineOptions(self.sites.connection(site), site, ledger, look_every_s=options.look_every_s)
        )

    def sequencer_on_spark(self, site: str) -> MakeJob:
        """Return the maker of a sequencer on Spark. One test of each mode uses it where a sequencer meets a relay."""
        agreement = self._agreement(site)
        return lambda options: SequencerJob(self.spark(), self._at(site, options), agreement)

    def _agreement(self, site: str) -> AgreementSettings | None:
        is_agreed = self.sites.mode == "isis"
        return AgreementSettings(neighbours_of(self.sites, site), SUSPECT_AFTER_MS) if is_agreed else None

    def ledger(self, site: str) -> MakeJob:
        """Return the maker of the site's ledger job."""
        return lambda options: LedgerJob(self.spark(), self._at(site, options))

    def relay(self, source: str, target: str, engine: str = "") -> list[MakeJob]:
        """Return the makers of one direction's relays."""
        direction = Direction(source, target)
        make: Callable[..., SparkJob] = self._on_spark if (engine or self.relays_on) == "spark" else _on_process
        return [
            functools.partial(make, kind=kind, sites=self.sites, direction=direction)
            for kind in relays_of(self.sites, direction)
        ]

    def relays(self) -> list[MakeJob]:
        """Return the makers of all directions' relays."""
        return [relay for direction in self.sites.directions() for relay in self.relay(*direction)]

    def try_relay(self, source: str, target: str) -> None:
        """Start the relay of DATA alone, and raise the error that ends it, though the job might try again."""
        job = self.relay(source, target)[0](JobOptions(Connection(), "-", self.directory, look_every_s=1.0))
        assert isinstance(job, StreamingJob)
        data = {self.group: [str(Topic(self.group, "data", source))]}
        try:
            job.start_query(data, self.directory / f"tried-{next(_numbers)}").stop()
        finally:
            job.close_query()

    @contextlib.contextmanager
    def running(self, makers: Sequence[MakeJob], look_every_s: float = 1.0) -> Iterator[list[JobThread]]:
        """Run the jobs until the block ends."""
        options = JobOptions(Connection(), "-", self.directory, look_every_s=look_every_s)
        with working([make(options) for make in makers]) as jobs:
            for job in jobs:
                while not job.ready.wait(0.2):
                    job.raise_failure()
            yield jobs

    def _on_spark(self, options: JobOptions, **of_relay: Any) -> SparkJob:
        return SparkRelay(self.spark(), options, **of_relay)

    def _at(self, site: str, options: JobOptions) -> JobOptions:
        return replace(
            options,
            connection=self.sites.connection(site),
            site=site,
            data=self.directory / site,
        )

    def file(self) -> Path:
        """Return the sites' file of a user."""
        home = f'home = "{self.sites.home}"\n' if self.sites.home else f'mode = "{self.sites.mode}"\n'
        tables = (
            f'[sites.{name}]\nbootstrap_servers = "{connection.bootstrap_servers}"\n'
            for name, connection in self.sites.connections.items()
        )
        file = self.directory / "sites.toml"
        file.write_text(home + f'trigger = "{self.sites.trigger}"\n' + "".join(tables), encoding="utf-8")
        return file

    @contextlib.contextmanager
    def relay_process(self, source: str, target: str) -> Iterator[Process]:
        """`abcast relay` for one direction, ready. Killed at the end of the block."""
        command = (
            *(ABCAST, "relay", "--sites", self.file(), "--from", source, "--to", target),
            *("--data", self.directory / "relay", "--engine", self.relays_on),
        )
        process = Process(f"relay-{source}-{next(_numbers)}", command, self.directory / "logs")
        try:
            process.wait_ready()
            yield process
        finally:
            process.kill()

    def await_inboxes(self) -> None:
        """Return when every site can be written to from every other."""
        topics = [Topic(self.group, "inbox", site) for site in self.sites.connections]
        eventually(
            lambda: all(count_partitions(here, topic) for here in self.sites.connections.values() for topic in topics),
            WAIT,
            "the relays have made all inboxes",
            0.3,
        )

    def change_settings(self, site: str, **changes: Any) -> None:
        """Ask the site's sequencer for other settings of the group."""
        change_settings(self.sites.connection(site), self.group, site, **changes)

    def member(self, site: str, name: str, *, casts: bool = False) -> Member:
        """Return a member at the site."""
        return Member(self.group, f"{site}/{name}", connection=self.sites.connection(site), casts=casts)

    def broadcast(self, site: str, name: str, payloads: Iterable[bytes]) -> None:
        """Broadcast and wait until all is ordered at the site."""
        with self.member(site, name) as member:
            for payload in payloads:
                member.broadcast(payload)
            member.wait_ordered(WAIT)

    def deliveries(self, site: str, count: int) -> list[Delivery]:
        """Return the first `count` messages of the group's order at the site, or fewer, without their broker's
        times.
        """
        with self.member(site, f"reader{next(_numbers)}") as member:
            taken = itertools.islice(member.deliveries(from_seqno=1, timeout=WAIT), count)
            return [delivery._replace(sequenced_at_ms=0) for delivery in taken]

    def log(self, site: str) -> DataLog:
        """Return the site's DATA, to be closed."""
        return DataLog(self.sites.connection(site), self.group, site)

    def records(self, site: str) -> list[StoredRecord]:
        """Return the records of the site's DATA."""
        with self.log(site) as log:
            return list(log.records(log.beginning(), log.end()))

    def relayed_to(self, site: str, kind: str = MESSAGE) -> int:
        """Count the records of that kind that relays have written for the site's sequencer."""
        return sum(first_fields(record.headers, 2)[1] == kind.encode() for record in self._relayed(site))

    def _relayed(self, site: str) -> Iterator[Any]:
        connection = self.sites.connection(site)
        consumer = connection.consumer()
        places = [
            TopicPartition(str(topic), partition)
            for topic in find_topics(connection)
            if (topic.group, topic.role, topic.site) == (self.group, "relayed", site)
            for partition in consumer.partitions_for_topic(str(topic))
        ]
        beginnings, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
        for place in places:
            yield from read_range(connection, consumer, place, beginnings[place], ends[place])
        consumer.close()

    def relink(self, *links: tuple[str, str]) -> None:
        """Use another file of sites, with these links; relays that start from now on go by it."""
        self.sites = replace(self.sites, links=frozenset(map(frozenset, links)))


def _on_process(options: JobOptions, *, kind: type[Relay], sites: Sites, direction: Direction) -> ProcessRelay:
    return ProcessRelay(kind, sites, direction, look_every_s=options.look_every_s, troubles=options.troubles)


def named(make: MakeJob, suffix: str) -> MakeJob:
    """Return the same job under another name, to run beside itself in one session."""

    def renamed(options: JobOptions) -> SparkJob:
        job = make(options)
        job.name += suffix
        return job

    return renamed


def fifo(deliveries: Iterable[Delivery]) -> dict[str, list[bytes]]:
    """Return each sender's deliveries, in order."""
    of_sender: dict[str, list[bytes]] = {}
    for delivery in deliveries:
        of_sender.setdefault(delivery.sender, []).append(delivery.payload)
    return of_sender
