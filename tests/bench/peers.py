"""A Kafka user's alternative on the same broker: Kafka Streams with one key, exactly once.

The program is `streams/OneKey.java`. It reads the FORWARD records that the sequencer reads. Java runs it from its
source, so a JDK is needed; without one the section says so. Its rate is that of the second half of the records: its JVM
is then as warm as Spark's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from kafka.admin import NewTopic

from connectors.local.jars import jars_directory, jars_of, retrieve
from connectors.local.java import require_java
from tests.bench.backlog import fill
from tests.bench.drain import drain_copy, drain_sequencer
from tests.bench.lab import Lab, Place
from tests.bench.latency import measure_latency, summary
from tests.bench.plan import Case
from tests.bench.processes import Child

_HERE = Path(__file__).parent / "streams"
_PROGRAM = _HERE / "OneKey.java"
_DRAINED_S = 300.0
_CASE = Case(100, 4, 4)

Figures = dict[str, float]


def measure(lab: Lab) -> dict[str, Any]:
    """A backlog through the copy, the sequencer and Kafka Streams, taking turns; then its latency."""
    jars = _jars(lab)
    records = lab.plan.peer_records
    turns: list[dict[str, Figures]] = []
    with lab.place("peers", _CASE.partitions) as place:
        lab.say(f"peers: writing {records:,} FORWARD records ({_CASE})")
        fill(lab, place, records, _CASE)
        for turn in range(lab.plan.rounds):
            turns.append(_one_round(lab, place, jars, records))
            said = ", ".join(f"{name} {each['records_per_s']:,.0f} records/s" for name, each in turns[-1].items())
            lab.say(f"peers, round {turn + 1}/{lab.plan.rounds}: {said}")
    measured = {
        name: {what: fmean(turn[name][what] for turn in turns) for what in first} for name, first in turns[0].items()
    }
    return {
        "records": records,
        **measured,
        "sequencer_to_streams": measured["sequencer"]["records_per_s"] / measured["streams"]["records_per_s"],
        "latency": _latency(lab, jars),
    }


def _one_round(lab: Lab, place: Place, jars: str, records: int) -> dict[str, Figures]:
    with lab.output(place) as output:
        copied = drain_copy(lab, place, output)
    with lab.output(place) as output:
        sequenced = drain_sequencer(lab, place, output)
    with _topic(lab) as topic, _streams(lab, jars, place.forward, topic, _CASE.partitions, records) as child:
        child.popen.wait(_DRAINED_S)
        words = child.log.read_text(encoding="utf-8").split()
        if "rates" not in words:
            raise RuntimeError(f"Kafka Streams did not finish: see {child.log}")
        whole, steady, cpu_us = map(float, words[words.index("rates") + 1 :][:3])
    return {
        **{
            name: {"records_per_s": drained.rate, "whole_records_per_s": drained.whole, "cpu_us": drained.own_cpu_us}
            for name, drained in (("copy", copied), ("sequencer", sequenced))
        },
        "streams": {"records_per_s": steady, "whole_records_per_s": whole, "cpu_us": cpu_us},
    }


def _latency(lab: Lab, jars: str) -> dict[str, Any]:
    lab.say(f"peers: Kafka Streams at {lab.plan.latency_rate:,} records/s")
    with (
        lab.place("peers-latency") as place,
        _topic(lab) as topic,
        _streams(lab, jars, place.forward, topic, 1, 0),
    ):
        taken, behind = measure_latency(lab, place, topic, committed=True)
    return {**summary(taken), "sender_behind_ms": behind * 1000}


@contextlib.contextmanager
def _topic(lab: Lab) -> Iterator[str]:
    name = f"streams-{time.monotonic_ns()}"
    with lab.connection.admin() as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
    try:
        yield name
    finally:
        with lab.connection.admin() as admin:
            of_streams = [each for each in admin.list_topics() if name in each]
            admin.delete_topics(of_streams)


@contextlib.contextmanager
def _streams(lab: Lab, jars: str, forward: str, topic: str, partitions: int, records: int) -> Iterator[Child]:
    state = lab.path("streams-state")
    arguments = [lab.connection.bootstrap_servers, forward, topic, partitions, records, state]
    # The same heap as each of the sequencer's JVMs has by default here.
    command = [require_java(), "-Xmx1g", "-cp", jars, _PROGRAM, *arguments]
    try:
        with Child(command, lab.path("logs") / "streams.log") as child:
            yield child
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _jars(lab: Lab) -> str:
    """The class path, fetched beside the other jars the first time."""
    target = jars_directory() / "bench-streams"
    if not any(target.glob("kafka-streams-*.jar")):
        lab.say("peers: fetching Kafka Streams")
        retrieve(_HERE / "ivy.xml", "streams", target)
    return os.pathsep.join(map(str, (*sorted(target.glob("*.jar")), *jars_of("broker"))))
