"""Measures the CPU time of an entry of sites that agree, and of its readers: three sites on one Kafka in memory.

    python [-m cProfile -s tottime] -m tests.bench.entries [ROUNDS]

The loops of the process engine take turns in this thread. In a round each site gets a message: when nothing is under
way (`rare`), or a turn after the last message (`busy`).
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from kafka.structs import TopicPartition

from connectors.engine.group_supervisor import Taken
from connectors.engine.loop import Loop
from connectors.engine.site_job import AgreeingSites
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.inputs import Neighbours
from connectors.takeover.agreement import ISIS, AgreementSettings, inputs_of
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic

SITES = ("nyc", "sfo", "lax")


class Cluster:
    """Three sites, each with the loop of a job that has taken over."""

    def __init__(self) -> None:
        self._kafka = MemoryConnection()
        self._kafka.topics.longest_poll_s = 0.0
        for site in SITES:
            self._kafka.create("g", site)
        self._loops = list(map(self._start, SITES))
        self._supervisor: Any = SimpleNamespace(raise_failure=lambda: None, changes=lambda: (), pipelines={})
        self._logs = [self._kafka.topics.partitions[TopicPartition(f"abcast.g.data.{site}", 0)] for site in SITES]

    def _start(self, site: str) -> Loop[Any]:
        settings = AgreementSettings(Neighbours(site, SITES, frozenset(SITES) - {site}), suspect_after_ms=3_600_000)
        by = Claimer(self._kafka, site, agreement=ISIS)
        states = take_over_groups(by, {"g": [str(Topic("g", "forward", site))]})
        loop: Loop[Any] = Loop(self._kafka, site, AgreeingSites(self._kafka, settings), threading.Event())
        inputs = inputs_of(settings.neighbours, sorted(self._kafka.topics.partitions))
        loop.take(Taken(states, dict.fromkeys(inputs, ("g", 0))))
        return loop

    def turn(self) -> int:
        """Let each loop take a turn; return the number of records in DATA of all sites."""
        for loop in self._loops:
            loop.turn(self._supervisor)
        return sum(map(len, self._logs))

    def send(self, number: int, *, is_busy: bool) -> None:
        """Send the message with this local seqno at each site. Unless `is_busy`, each waits until all have the last."""
        for site in SITES:
            place = TopicPartition(f"abcast.g.forward.{site}", 0)
            self._kafka.topics.append(place, f"{site}/a".encode(), bytes(100), forward_headers(1, number))
            end = self.turn()
            while not is_busy and end != (end := self.turn()):
                pass

    def entries(self) -> int:
        """Return the number of entries of all sites."""
        return sum(b" entry " in record.headers[0][1] for log in self._logs for record in log)


def main(rounds: int = 200) -> None:
    """Measure both ways. The fastest tenth of the rounds counts, since others use the machine, too."""
    for name, is_busy in {"rare": False, "busy": True}.items():
        cluster, spent_us = Cluster(), list[float]()
        for number in range(1, rounds + 1):
            began = time.process_time()
            cluster.send(number, is_busy=is_busy)
            spent_us.append(1e6 * (time.process_time() - began))
        messages, us = 3 * rounds, statistics.quantiles(spent_us, n=10)[0] / 3
        entries = cluster.entries() / messages
        print(f"{name}: {us / entries:,.0f} µs an entry; {entries:.2f} entries and {us:,.0f} µs a message")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
