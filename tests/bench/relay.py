"""The relay beside the stateless copy: records per second of each kind of records, and what it adds to latency."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Iterator
from typing import Any, cast, get_args

from connectors.kafka.connection.sites import Direction, Sites, Trigger
from connectors.kafka.topics.topics import ensure_topic
from connectors.relay import rules
from connectors.relay.hub import SiteForward
from connectors.relay.spark.columns import rows_by
from connectors.relay.spark.job import SparkRelay
from connectors.spark.job import JobOptions
from jobs.terminal.streaming import running
from ordering.base.names import Topic
from tests.bench.backlog import fill
from tests.bench.drain import Drained, drain_copy, drain_sequencer, measure_drain, read, to_kafka
from tests.bench.lab import ABCAST, Lab, Place
from tests.bench.latency import measure_latency, summary
from tests.bench.plan import Case
from tests.bench.processes import Child

_CASE = Case(100, 16, 1)
_WAYS = ("kafka", "process", "micro-batch", "real-time")
_READY_S = 60.0


def measure(lab: Lab) -> dict[str, Any]:
    """Throughput, then latency: Spark with both triggers, the process engine, and one way of Kafka alone."""
    return {"throughput": _throughput(lab), "latency": _latency(lab)}


def _throughput(lab: Lab) -> list[dict[str, Any]]:
    lab.say(f"relay: {lab.plan.records:,} records of each kind beside a copy of the same")
    rows = []
    with lab.place("relay") as place, lab.output(place) as data:
        fill(lab, place, lab.plan.records, _CASE)
        drain_sequencer(lab, place, data)
        kinds = (("requests", place.forward, place), ("orders", data.data, data), ("news", data.data, place))
        for kind, source, origin in kinds:
            with lab.output(place) as target:
                copy = drain_copy(lab, place, target, source)
            with lab.output(place) as target:
                relayed = _drain(lab, kind, source, Direction(origin.site, target.site), place)
            rows.append(
                {
                    "kind": kind,
                    "copy": copy.rate,
                    "relay": relayed.rate,
                    "ratio": relayed.rate / copy.rate,
                    "cpu_us": relayed.own_cpu_us,
                    "copy_cpu_us": copy.own_cpu_us,
                }
            )
            lab.say(f"relay: {kind} {relayed.rate:,.0f} records/s, copy {copy.rate:,.0f}")
    return rows


def _drain(lab: Lab, kind: str, source: str, direction: Direction, place: Place) -> Drained:
    ensure_topic(lab.connection, Topic(place.group, "relayed", direction.target, direction.source), 1)
    return measure_drain(lab, to_kafka(lab, rows_by(_rule(kind, source, direction), read(lab, source))))


def _rule(kind: str, source: str, direction: Direction) -> rules.Rule:
    if kind == "requests":
        return rules.forward(direction)
    if kind == "orders":
        return rules.home_data(direction)
    return rules.mesh_data(direction, {source: 0}, [direction.target])


def _latency(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for way in _WAYS:
        lab.say(f"relay: latency at {lab.plan.latency_rate:,} records/s, {way}")
        with lab.place("relay") as place, lab.output(place) as target:
            relayed = str(Topic(place.group, "relayed", target.site, place.site))
            with _relaying(lab, way, place, target):
                topic, is_java = place.forward if way == "kafka" else relayed, way in get_args(Trigger)
                latencies, behind = measure_latency(lab, place, topic, is_java=is_java)
        found[way] = {**summary(latencies), "sender_behind_ms": behind * 1000}
    return found


@contextlib.contextmanager
def _relaying(lab: Lab, way: str, place: Place, target: Place) -> Iterator[None]:
    """The relay from one site to its home, ready; none for Kafka alone."""
    if way == "process":
        with _in_a_process(lab, place, target):
            yield
    elif way != "kafka":
        with _on_spark(lab, cast("Trigger", way), place, target):
            yield
    else:
        yield


@contextlib.contextmanager
def _in_a_process(lab: Lab, place: Place, target: Place) -> Iterator[None]:
    """`abcast relay`, in a process of its own."""
    server, file = lab.connection.bootstrap_servers, lab.path("sites.toml")
    ends = ((place.site, server), (target.site, f"{server},{server}"))  # two Kafkas, for the relay
    sites = "".join(f'[sites.{site}]\nbootstrap_servers = "{name}"\n' for site, name in ends)
    file.write_text(f'mode = "hub"\nhome = "{target.site}"\n{sites}')
    only = ["--from", place.site, "--to", target.site, "--groups", place.group]
    command = [ABCAST, "relay", "--sites", file, "--engine", "process", *only]
    with Child(command, lab.path("logs") / "relay.log", lab.environment) as relay:
        relay.wait_said("ready;", _READY_S)
        yield


@contextlib.contextmanager
def _on_spark(lab: Lab, trigger: Trigger, place: Place, target: Place) -> Iterator[None]:
    """The relay job in this process."""
    ends = {place.site: lab.connection, target.site: lab.connection}
    sites = Sites("hub", target.site, trigger, ends, frozenset([frozenset(ends)]))
    make = functools.partial(SparkRelay, kind=SiteForward, sites=sites, direction=Direction(place.site, target.site))
    data = lab.path("data")
    with running([make], lab.spark, JobOptions(lab.connection, place.site, data)) as jobs:
        while not jobs[0].ready.wait(0.2):
            jobs[0].raise_failure()
        time.sleep(1)
        yield
    shutil.rmtree(data, ignore_errors=True)
