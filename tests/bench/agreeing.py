"""`python -m tests.bench.agreeing`: sites that agree, in one Kafka: ordered messages a second, latency, and the costs.

Three sites have a process each. First each works off a backlog in its FORWARD; then messages come at a fixed rate. A
latency is the time from when the broker had a message in FORWARD until it had it in the DATA of a site, so it is in
whole milliseconds. A run is valid only if the DATA of all sites is the same, by digest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from connectors.engine.site_job import SiteJob
from connectors.kafka.codec import forward_headers
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog, Stored
from connectors.kafka.inputs import Neighbours
from connectors.kafka.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.sequencer.agreement import Agreement
from jobs.engine import tune
from ordering.names import Topic
from ordering.reader import Reader, Verdict
from ordering.records import ENTRY, MESSAGE
from tests.bench.machine import load_average

PATIENCE_S = 180.0
GROUP = "bench"


def work(servers: str, site: str, names: tuple[str, ...]) -> None:
    """The process of a site."""
    tune()
    SiteJob(Connection(servers), Agreement(Neighbours(site, names, frozenset(names) - {site}))).run()


@contextmanager
def running(servers: str, names: tuple[str, ...]) -> Iterator[None]:
    """All sites' processes."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(servers, name, names), daemon=True) for name in names]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def send(connection: Connection, names: Sequence[str], start: int, count: int, size: int, rate: float = 0.0) -> None:
    """At each site `count` messages from local seqno `start` on; at `rate` a second at all of them, or at once."""
    producer = connection.producer()
    began = time.monotonic()
    for number in range(count):
        for name in names:
            key, headers = f"{name}/load".encode(), forward_headers(1, start + number)
            producer.send(str(Topic(GROUP, "forward", name)), key=key, value=bytes(size), headers=headers, partition=0)
        if rate:
            time.sleep(max(0.0, began + (number + 1) * len(names) / rate - time.monotonic()))
    producer.close(timeout=60)


def await_ordered(connection: Connection, names: Sequence[str], seqno: int) -> None:
    """Until all have so many."""
    deadline = time.monotonic() + PATIENCE_S
    for name in names:
        with DataLog(connection, GROUP, name) as data:
            while data.state().seqno < seqno:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{name} has {data.state().seqno} of {seqno} after {PATIENCE_S:g} s")
                time.sleep(0.2)


def effective(connection: Connection, site: str) -> tuple[list[Stored], list[Stored]]:
    """The order at a site, and its entries."""
    reader, taken, entries = Reader(), list[Stored](), list[Stored]()
    with DataLog(connection, GROUP, site) as data:
        for stored in data.records(0, data.end()):
            record = stored.data
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE:
                taken.append(stored)
            elif record.kind == ENTRY:
                entries.append(stored)
    return taken, entries


def digest(taken: Sequence[Stored]) -> str:
    """Of what all sites must have in common."""
    said = blake2b()
    for stored in taken:
        data = stored.data
        said.update(f"{data.kind} {data.seqno} {data.view} {data.id} {data.source} {data.forwarded_at_ms};".encode())
    return said.hexdigest()


def percentile(values: Sequence[int], share: float) -> int:
    """Of sorted values."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


def measure(servers: str, sites: int, backlog: int, rate: float, seconds: float, size: int) -> dict[str, Any]:
    """A backlog, then a rate."""
    connection, names = Connection(servers), tuple(f"s{number}" for number in range(sites))
    create_topics(connection, GROUP, names)
    send(connection, names, 1, backlog, size)
    before = load_average()
    with running(servers, names):
        await_ordered(connection, names, backlog * sites)
        paced = int(rate * seconds / sites)
        send(connection, names, backlog + 1, paced, size, rate)
        await_ordered(connection, names, (backlog + paced) * sites)
    found = {name: effective(connection, name) for name in names}
    assert len({digest(taken) for taken, _ in found.values()}) == 1, "the sites differ"
    firsts = backlog * sites
    times = [(taken[0].timestamp_ms, taken[firsts - 1].timestamp_ms) for taken, _ in found.values()]
    drained_s = (max(end for _, end in times) - min(start for start, _ in times)) / 1000
    latencies = sorted(
        stored.timestamp_ms - stored.data.forwarded_at_ms
        for taken, _ in found.values()
        for stored in taken[firsts:]
        if stored.data.kind == MESSAGE
    )
    began_ms = found[names[0]][0][firsts].timestamp_ms if paced else 0
    entries = [stored for _, of_site in found.values() for stored in of_site if stored.timestamp_ms >= began_ms]
    return {
        "sites": sites,
        "bytes": size,
        "backlog": firsts,
        "drained_per_s": round(firsts / drained_s) if drained_s else None,
        "rate": rate,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "entries_per_message": round(len(entries) / max(1, paced * sites), 3),
        "entry_bytes": round(sum(len(stored.data.payload) for stored in entries) / max(1, len(entries))),
        "load_before": before,
    }


def main() -> None:
    """One measurement, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--backlog", type=int, default=30_000, help="messages at each site")
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second at all sites together")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--bytes", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory), 0) as broker:
        servers = broker.bootstrap_servers
        found = measure(servers, given.sites, given.backlog, given.rate, given.seconds, given.bytes)
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
