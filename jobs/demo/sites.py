"""The demo of several sites: a Kafka for each, members at all, a link that is cut and healed in the middle."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.demo.verdict import say, show_order, show_verdict
from jobs.terminal.engine_option import Engine
from jobs.terminal.streaming import Served
from ordering.base.errors import NotOrderedInTime, UsageError
from ordering.base.names import check_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors import Delivery, Member
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.connection.sites import Direction, Sites
    from connectors.spark.job import SparkJob

GROUP = "demo"
PATIENCE_SECONDS = 180.0
CUT_SECONDS = 8.0
"""The time for which the link stays cut."""
CUT_SECONDS_OF_AGREEING = 30.0
"""The same for sites that agree: long enough for the others to go on without the one."""
_LOOK_EVERY_S = 1.0
_SERVED = Served(look_every_s=_LOOK_EVERY_S)

_ORDERS = {
    "hub": "one order for all, decided at {home}",
    "isis": "one order for all, agreed on",
    "mesh": "each site decides its own order",
}


def parse_names(text: str) -> list[str]:
    """Return the sites of a text such as `nyc,sfo`. Raises UsageError."""
    names = [check_site(name) for name in text.split(",")]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(f"--sites {text!r}: give two different names or more, such as nyc,sfo.")
    return names


def show_sites(
    messages: Sequence[Sequence[bytes]], names: Sequence[str], mode: str, directory: Path, engine: Engine
) -> bool:
    """Run the demo of several sites; return whether there are anomalies. `messages`: a list for each member."""
    with _sites(names, mode, directory) as sites, _page(sites):
        spark = None
        if engine is Engine.spark:
            from connectors.spark.session import build_session

            say("starting Spark: the sequencers and the relays (about 15 s) …")
            spark = build_session("abcast demo", cores=4)
        try:
            dealt = {f"{names[n % len(names)]}/m{n + 1}": list(part) for n, part in enumerate(messages)}
            with _sequencers(spark, sites, directory):
                observed = _cut_and_heal(spark, sites, dealt, directory)
        finally:
            if spark is not None:
                spark.stop()
        return _verdict(sites, observed)


@contextlib.contextmanager
def _sites(names: Sequence[str], mode: str, directory: Path) -> Iterator[Sites]:
    """Start a cluster with the group's topics for each site, described in `directory/sites.toml`."""
    from connectors.kafka.connection.sites import read_sites
    from connectors.kafka.topics.topics import create_topics
    from connectors.local.broker import EmbeddedBroker

    with contextlib.ExitStack() as brokers:
        text = f'mode = "{mode}"\n' + (f'home = "{names[0]}"\n' if mode == "hub" else "")
        for name in names:
            broker = brokers.enter_context(EmbeddedBroker(directory / name / "broker", 0))
            text += f'\n[sites.{name}]\nbootstrap_servers = "{broker.bootstrap_servers}"\n'
        (directory / "sites.toml").write_text(text, encoding="utf-8")
        sites = read_sites(directory / "sites.toml")
        for name, connection in sites.connections.items():
            create_topics(connection, GROUP, [name])
        say(f"{len(names)} sites, a Kafka cluster each: {', '.join(names)}; {_ORDERS[mode].format(home=names[0])}")
        yield sites


@contextlib.contextmanager
def _page(sites: Sites) -> Iterator[None]:
    """Show the order of each site as it comes, if the extra for it is installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        yield
        return
    from jobs.listening import listening

    say("a page shows the order as it comes, at each site:")
    with listening(":0", sites.connections, None, Served(), sites, payloads=True):
        yield


@contextlib.contextmanager
def _sequencers(spark: SparkSession | None, sites: Sites, directory: Path) -> Iterator[None]:
    """Run the sequencers of the sites, on Spark if there is one. Sites that agree need none."""
    from jobs.terminal.engine_option import agreement_of, engine_job

    def at(site: str, connection: Connection) -> SparkJob:
        if spark is None or sites.mode == "isis":
            agreement = agreement_of(sites, site, None)
            return engine_job(connection, site, directory / site, agreement, _SERVED)
        from connectors.sequencer.job import SequencerJob
        from connectors.spark.job import JobOptions

        return SequencerJob(spark, JobOptions(connection, site, directory / site, look_every_s=_LOOK_EVERY_S))

    with _ready(at(site, connection) for site, connection in sites.connections.items() if sites.sequences(site)):
        yield


@contextlib.contextmanager
def _link(spark: SparkSession | None, sites: Sites, directory: Path, directions: Sequence[Direction]) -> Iterator[None]:
    """Run the relays of these directions, on Spark if there is one."""
    from jobs.terminal.jobs_process import process_relays
    from jobs.terminal.streaming import Relays, relay_makers

    relays = Relays(sites, directions)
    jobs: Sequence[SparkJob] = process_relays(relays, _SERVED) if spark is None else ()
    if spark is not None:
        from connectors.kafka.connection.connection import Connection
        from connectors.spark.job import JobOptions

        options = JobOptions(Connection(), "-", directory, look_every_s=_LOOK_EVERY_S)
        jobs = [make(spark, options) for make in relay_makers(relays)]
    with _ready(jobs):
        yield


@contextlib.contextmanager
def _ready(each: Iterable[SparkJob]) -> Iterator[None]:
    """Run jobs, ready, until the block ends."""
    from jobs.terminal.streaming import await_ready, working

    with working(list(each)) as jobs:
        await_ready(jobs)
        yield


def _cut_and_heal(
    spark: SparkSession | None, sites: Sites, dealt: Mapping[str, list[bytes]], directory: Path
) -> dict[str, list[Delivery]]:
    """Send a third of the messages with the link, a third while it is cut, and the rest after it is healed.

    Returns the deliveries at each site.
    """
    from connectors import Member

    total = sum(map(len, dealt.values()))
    with contextlib.ExitStack() as closing:
        members = {
            name: closing.enter_context(Member(GROUP, name, connection=sites.connection(name.split("/")[0])))
            for name in dealt
        }
        observers = {site: _Observer(sites, site, total) for site in sites.connections}
        say(f"{len(members)} members broadcast {total} messages, one observer delivers at each site")
        cut = _cut(sites)
        closing.enter_context(_link(spark, sites, directory, [way for way in sites.directions() if way not in cut]))
        with _link(spark, sites, directory, cut):
            _broadcast(members, dealt, 0, 3)
            _show(observers, total, "the link is up", until=sum(len(part) // 3 for part in dealt.values()))
        is_one = len(cut) < len(sites.directions())
        say(f"{list(sites.connections)[-1]} is cut off" if is_one else "the link is cut")
        _broadcast(members, dealt, 1, 3)
        time.sleep(CUT_SECONDS_OF_AGREEING if is_one else CUT_SECONDS)
        _show(observers, total, "while it is cut")
        with _link(spark, sites, directory, cut):
            say("the link is healed")
            _broadcast(members, dealt, 2, 3)
            for member in members.values():
                member.wait_ordered(PATIENCE_SECONDS)
            _show(observers, total, "in the end", until=total)
        return {site: observer.taken for site, observer in observers.items()}


def _cut(sites: Sites) -> list[Direction]:
    """Return the directions to cut: all; if three or more sites agree, only the directions from and to the last one."""
    last = list(sites.connections)[-1]
    is_one = sites.mode == "isis" and len(sites.connections) > 2
    return [way for way in sites.directions() if not is_one or last in way]


def _broadcast(members: Mapping[str, Member], dealt: Mapping[str, list[bytes]], part: int, parts: int) -> None:
    for name, member in members.items():
        third = len(dealt[name]) // parts
        end = None if part == parts - 1 else (part + 1) * third
        for message in dealt[name][part * third : end]:
            member.broadcast(message)


class _Observer:
    """A member that delivers in a thread until it has `total` messages."""

    def __init__(self, sites: Sites, site: str, total: int) -> None:
        self.taken: list[Delivery] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(sites, site, total), daemon=True)
        self._thread.start()

    def _run(self, sites: Sites, site: str, total: int) -> None:
        from connectors import Member

        try:
            with Member(GROUP, f"{site}/observer", connection=sites.connection(site)) as member:
                for delivery in member.deliveries(timeout=PATIENCE_SECONDS):
                    self.taken.append(delivery)
                    if len(self.taken) == total:
                        return
        except BaseException as error:  # noqa: BLE001 - raised in the main thread by _show
            self.failure = error


def _show(observers: Mapping[str, _Observer], total: int, when: str, until: int = 0) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(len(observer.taken) < until for observer in observers.values()):
        for site, observer in observers.items():
            if observer.failure is not None:
                raise observer.failure
            if time.monotonic() > deadline:
                raise NotOrderedInTime(f"{site} has {len(observer.taken)} of {until} after {PATIENCE_SECONDS:g} s.")
        time.sleep(0.1)
    counts = ", ".join(f"{len(observer.taken)} at {site}" for site, observer in observers.items())
    say(f"{when}: of {total} messages, {counts} are delivered")


def _verdict(sites: Sites, observed: Mapping[str, Sequence[Delivery]]) -> bool:
    from connectors.diagnosis.check import check_sites
    from ordering.base.records import MessageId

    verdict = check_sites(
        GROUP, {site: sites.connection(site) for site in sites.connections}, one_order=sites.one_order
    )
    for site, deliveries in observed.items():
        for d in deliveries:
            message = MessageId(d.sender, d.incarnation, d.local_seqno)
            verdict.checkers[site].delivery(f"{site}/observer", d.seqno, message, d.payload)
    say("the order, as the observer at each site saw it" + (":" if sites.one_order else " (each site has its own):"))
    show_order(observed)
    anomalies = verdict.anomalies(settled=True)
    show_verdict(anomalies)
    return bool(anomalies)
