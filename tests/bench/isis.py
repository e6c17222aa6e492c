"""`python -m tests.bench.isis`: ordered messages a second of plain ISIS processes over loopback, and what limits them.

All processes send, as fast as they are allowed to. Each writes what it has measured when it has delivered everything;
the figure is all messages by the time from the first delivery to the last one of the slowest. A run is valid only if
all have delivered the same, by digest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import socket
import sys
import time
from contextlib import ExitStack
from hashlib import blake2b
from multiprocessing.connection import Connection
from typing import Any

from connectors.isis.hostfile import Host
from connectors.isis.process import IsisProcess
from ordering.agreement.messages import DeliverRun
from tests.bench.machine import load_average

PATIENCE_S = 120.0
"""Seconds after which a run is given up."""


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def work(ports: list[int], me: int, messages: int, size: int, in_flight: int, out: Connection) -> None:
    """Run a process: it sends its share, delivers every message, and reports its cost."""
    process = IsisProcess([Host("127.0.0.1", port) for port in ports], me)
    payload, sent, delivered, total = bytes(size), 0, 0, messages * len(ports)
    digest, first, latencies = blake2b(), 0.0, list[float]()
    sent_at: dict[int, float] = {}
    deadline = time.monotonic() + PATIENCE_S
    while delivered < total and time.monotonic() < deadline:
        is_there = process.process.agreement is not None
        while is_there and sent < messages and process.process.in_flight < in_flight:
            sent += 1
            sent_at[sent] = time.monotonic()
            process.submit(payload)
        for event in process.work():
            if isinstance(event, DeliverRun):
                delivered += 1
                first = first or time.monotonic()
                digest.update(b"%d %s %d;" % (event.seqno, event.sender.name.encode(), event.number))
                if event.sender == process.process.me:
                    latencies.append(time.monotonic() - sent_at.pop(event.number))
    seconds = time.monotonic() - first
    used = resource.getrusage(resource.RUSAGE_SELF)
    latencies.sort()
    out.send(
        {
            "delivered": delivered,
            "seconds": seconds,
            "digest": digest.hexdigest(),
            "user_s": used.ru_utime,
            "system_s": used.ru_stime,
            "p50_ms": 1_000 * latencies[len(latencies) // 2] if latencies else 0.0,
            "p99_ms": 1_000 * latencies[len(latencies) * 99 // 100] if latencies else 0.0,
        }
    )
    until = time.monotonic() + 3  # the others may need an answer
    while time.monotonic() < until and not out.poll():
        process.work()
    process.close()


def measure(processes: int, messages: int, size: int, in_flight: int) -> dict[str, Any]:
    """Measure a run. Raise AssertionError if the processes do not agree."""
    ports = free_ports(processes)
    context = multiprocessing.get_context("spawn")  # the bench has threads, which a fork would cut off
    pipes = [context.Pipe() for _ in range(processes)]
    started = [
        context.Process(target=work, args=(ports, me, messages, size, in_flight, pipes[me][1]), daemon=True)
        for me in range(processes)
    ]
    try:
        for process in started:
            process.start()
        results = [ours.recv() for ours, _ in pipes if ours.poll(PATIENCE_S + 10)]
        for ours, _ in pipes:
            ours.send("enough")
        for process in started:
            process.join(timeout=10)
    finally:
        for process in started:
            process.kill()
    total = processes * messages
    assert [result["delivered"] for result in results] == [total] * processes, results
    assert len({result["digest"] for result in results}) == 1, results
    seconds = max(result["seconds"] for result in results)
    cpu = sum(result["user_s"] + result["system_s"] for result in results)
    return {
        "processes": processes,
        "messages": total,
        "bytes": size,
        "in_flight": in_flight,
        "ordered_per_s": total / seconds,
        "p50_ms": max(result["p50_ms"] for result in results),
        "p99_ms": max(result["p99_ms"] for result in results),
        "cpu_us_per_message": 1e6 * cpu / total,
        "system_share": sum(result["system_s"] for result in results) / cpu,
        "load_average": load_average(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.isis", description=__doc__)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000, help="of each process (default 20000)")
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--in-flight", type=int, nargs="*", default=[16, 256, 512], help="unordered messages allowed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for in_flight in options.in_flight:
        result = measure(options.processes, options.messages, options.bytes, in_flight)
        if options.json:
            print(json.dumps(result))
            continue
        print(
            f"{result['processes']} processes, {result['bytes']} B, {in_flight} in flight each: "
            f"{result['ordered_per_s']:,.0f} ordered/s, p50 {result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms, "
            f"{result['cpu_us_per_message']:.0f} µs CPU a message over all processes, "
            f"{100 * result['system_share']:.0f} % of it the kernel's (load {result['load_average']:.1f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
