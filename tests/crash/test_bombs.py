"""A record of some kilobytes that no JVM can hold, as a hostile client may write: the sequencer on Spark goes on."""

from __future__ import annotations

import time
from typing import cast

import confluent_kafka
import pytest

from connectors.kafka.codec.codec import UNREAD, forward_headers
from connectors.kafka.codec.dead_letter_codec import decode_dead_letter
from ordering.base.names import Topic
from tests.crash.scenario import Scenario
from tests.waiting import WAIT

MIB = 600
WITHIN_S = 60.0
"""Time for a machine that is otherwise idle; a loaded one may take four times as long."""


@pytest.mark.crash
@pytest.mark.broker
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_record_that_fits_into_no_memory(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record comes while the job runs, and again at its start, after no message in DATA, or after some."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 800m pyspark-shell")
    process = scenario.sequencer()
    member = scenario.member("alice")
    seqnos = [member.broadcast(b"before").result(WAIT)]
    topic = str(Topic(scenario.group, "forward", scenario.site))
    for round_ in range(2):
        began = time.monotonic()
        write_bomb(scenario.connection.bootstrap_servers, topic, round_)
        receipts = [member.broadcast(b"behind %d" % number) for number in range(10)]
        seqnos += [receipt.result(4 * WITHIN_S) for receipt in receipts]
        print(f"behind the record after {time.monotonic() - began:.1f} s")
        if round_:
            began = time.monotonic()
            process.stop()
            process = scenario.sequencer()
            seqnos.append(member.broadcast(b"after a restart").result(4 * WITHIN_S))
            print(f"restarted in {time.monotonic() - began:.1f} s")
    assert seqnos == sorted(set(seqnos))
    assert len(dead_letters(scenario)) >= 2
    assert set(dead_letters(scenario)) == {UNREAD}


def write_bomb(servers: str, topic: str, number: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "compression.type": "zstd", "message.max.bytes": 1_000_000_000}
    )
    producer.produce(topic, bytes(MIB << 20), b"x/mallory", 0, headers=dict(forward_headers(5, number + 1)))
    assert producer.flush(60) == 0


def dead_letters(scenario: Scenario) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": scenario.connection.bootstrap_servers, "group.id": "bombs", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(str(Topic(scenario.group, "dead-letter", scenario.site)), 0, 0)])
    reasons: list[str] = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        headers = cast("list[tuple[str, bytes]]", message.headers() or [])
        reasons.append(decode_dead_letter(headers)[1])
    consumer.close()
    return reasons
