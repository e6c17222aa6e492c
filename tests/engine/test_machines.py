"""The machines of the process engine: no write overtakes one that it must not overtake, however late Kafka answers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import pytest
from kafka.structs import TopicPartition

from connectors.engine.group import EngineMachine
from connectors.engine.sequencing import Sequencing
from connectors.engine.site_job import AgreeingSites
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.inputs import Neighbours
from connectors.takeover.agreement import AgreementSettings
from connectors.takeover.rows import Output
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.records import ENTRY, EPOCH, MESSAGE
from ordering.sequencer import sequencer
from ordering.sequencer.pipeline import DEPTH

FORWARD = TopicPartition("abcast.g.forward.nyc", 0)
MESSAGES = 60


def kinds(outputs: Sequence[Output]) -> list[str]:
    return [(record[2][0][1] or b"").split(b" ")[1].decode() for _, record in outputs]


def machine_of(kafka: MemoryConnection, agreement: str) -> EngineMachine:
    kafka.create("g", "nyc")
    [state] = take_over_groups(Claimer(kafka, "nyc", agreement=agreement), {"g": [FORWARD.topic]}).values()
    if not agreement:
        return Sequencing(state, "nyc")
    alone = AgreementSettings(Neighbours("nyc", ("nyc",), frozenset()))
    sites = AgreeingSites(kafka, alone)
    machine = sites.machine(state)
    sites.starts(machine, {FORWARD: 0}, kafka.consumer().beginning_offsets)
    return machine


@pytest.mark.parametrize("agreement", ["", "isis"], ids=["sequencing", "agreeing"])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_overtaken(seed: int, agreement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA waits for the entry of its step, an entry for all DATA, and a snapshot for all before it."""
    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 7)
    monkeypatch.setattr(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 7)
    dice, kafka = random.Random(seed), MemoryConnection()
    machine, log = machine_of(kafka, agreement), kafka.topics.partitions[FORWARD]
    in_flight, written = deque[list[str]](), list[str]()
    read = 0
    while written.count(MESSAGE) < MESSAGES:
        if len(log) < MESSAGES and dice.random() < 0.5:
            kafka.topics.append(FORWARD, b"nyc/a", b"x", forward_headers(1, len(log) + 1))
        if read < len(log) and machine.wants(FORWARD):
            machine.take(FORWARD, log[read:])
            read = len(log)
        if not machine.is_due:
            machine.tick(dice.randrange(100))
        outputs = machine.writes() if machine.is_due else None
        if outputs is not None:
            told = kinds(outputs)
            assert not in_flight or not {ENTRY, EPOCH}.intersection(told)
            assert not any(ENTRY in each for each in in_flight)
            in_flight.append(told)
            assert len(in_flight) <= max(DEPTH, MESSAGES * bool(agreement))
        elif dice.random() < 0.3 and in_flight:
            written += in_flight.popleft()
            machine.acknowledge()
    assert written.count(MESSAGE) == MESSAGES
    assert written.count(EPOCH) > 2
    assert (ENTRY in written) is bool(agreement)
