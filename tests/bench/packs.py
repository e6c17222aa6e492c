"""Packs: the process engine drains the same backlog with single records and with packs, in turn.

    python -m tests.bench.packs --records 200000 --rounds 2

A line has the messages a second, the CPU time of the engine's process a message, and the bytes of DATA a message. The
senders write in turn, so many messages each: with one sender, or long turns, packs are full.
"""

from __future__ import annotations

import argparse
import random
import time

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.backlog import partition_bytes
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.upgrade import upgrade
from connectors.kafka.transport import VARIABLE
from tests.bench.lab import Lab, Place
from tests.bench.plan import Plan
from tests.bench.processes import cpu_seconds, cpu_since

_PATIENCE_S = 300.0
_TURNS = ((1, 1), (16, 100), (16, 5), (16, 1))
"""Senders, and the messages of each in a turn."""


def fill(lab: Lab, place: Place, records: int, senders: int, turn: int) -> None:
    """Write messages of 100 random bytes."""
    noise, incarnation = random.Random(7).randbytes(1 << 20), time.time_ns() // 10
    producer = lab.member_connection("confluent").producer()
    sent = [0] * senders
    for number in range(records):
        sender = number // turn % senders
        sent[sender] += 1
        payload = noise[number % (1 << 19) :][:100]
        producer.send(
            *(place.forward, payload, f"{place.site}/m{sender}".encode(), forward_headers(incarnation, sent[sender])), 0
        )
    producer.flush(timeout=_PATIENCE_S)
    producer.close(timeout=10)


def drain(lab: Lab, records: int, senders: int, turn: int, *, packs: bool) -> str:
    """Fill a group, drain it, and return the line."""
    with lab.place("packs") as place:
        if packs:
            upgrade(lab.connection, place.group, place.site)
        fill(lab, place, records, senders, turn)
        with lab.sequencer(place, lab.path("data"), "process") as process:
            ready, cpu = process.wait_said("ready;"), cpu_seconds(process.pid)
            with DataLog(lab.connection, place.group, place.site) as log:
                while log.state().seqno < records:
                    assert time.monotonic() - ready < _PATIENCE_S, process.log
                    time.sleep(0.25)
                took, used, end = time.monotonic() - ready, sum(cpu_since(cpu, process.pid).values()), log.end()
            process.stop()
        partition = TopicPartition(place.data, 0)
        with lab.connection.admin() as admin:
            size = partition_bytes(admin, [partition])[partition]
    return (
        f"{senders} senders, {turn} in a turn, {'packs ' if packs else 'single'}: {records / took / 1000:.0f} k/s, "
        f"{used / records * 1e6:.1f} µs, {size / records:.0f} bytes, {records / end:.0f} messages a record"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.packs", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with Lab(Plan(options.records), print) as lab:
        lab.environment[VARIABLE] = "confluent"
        for senders, turn in _TURNS:
            for packs in [False, True] * options.rounds:
                print(drain(lab, options.records, senders, turn, packs=packs), flush=True)


if __name__ == "__main__":
    main()
