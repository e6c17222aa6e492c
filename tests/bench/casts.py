"""Orders side by side: FIFO, causal and total messages, on each transport; total ones through the process engine.

Latency is from `broadcast` in this process to `deliveries` in another one, in a view of both. Throughput is one
member's, until all receipts have their result. Growth is with members in a few processes, each with shared connections:
each casts in causal order, and the first one delivers.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.cast_codec import decode_cast
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.transport import TRANSPORTS, VARIABLE
from ordering.base.names import Topic
from ordering.casts.casts import ORDERS
from tests.bench.lab import Lab, Place
from tests.bench.latency import summary
from tests.bench.load import Pace, stamped_payload
from tests.bench.processes import cpu_seconds

_PROCESSES = 3
_SETTLE_S = 2.0
_PATIENCE_S = 300.0
_ROOT = Path(__file__).resolve().parents[2]


class Crowd(NamedTuple):
    """A process with members. `out` exists when it has ended."""

    process: subprocess.Popen[bytes]
    out: Path

    def say(self, word: str) -> None:
        """Tell the process this word."""
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def wait_in(self) -> None:
        """Wait until its members are in a view."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"in\n":
            raise RuntimeError("members with casts did not get into their view")

    def seen(self) -> list[tuple[str, int, int]]:
        """End it; return its first member's deliveries: order, sent at, delivered at."""
        self.process.communicate(timeout=_PATIENCE_S)
        rows = [line.split() for line in self.out.read_text(encoding="ascii").splitlines()]
        return [(order, int(sent), int(delivered)) for order, sent, delivered in rows]


def measure(lab: Lab) -> dict[str, Any]:
    """Both transports in turn, of the engine and of the members."""
    return {transport: _measure(lab, transport) for transport in TRANSPORTS}


def _measure(lab: Lab, transport: str) -> dict[str, Any]:
    lab.environment[VARIABLE] = transport
    try:
        return {
            "orders": _orders(lab, transport),
            "growth": [_grown(lab, transport, members) for members in lab.plan.cast_members],
        }
    finally:
        del lab.environment[VARIABLE]


@contextlib.contextmanager
def _flushing(lab: Lab, place: Place) -> Iterator[None]:
    change_settings(lab.connection, place.group, place.site, flush=True, suspect_after_ms=60_000)
    with lab.sequencer(place, lab.path("data"), "process") as engine:
        engine.wait_said("ready;")
        yield


@contextlib.contextmanager
def _crowd(lab: Lab, place: Place, prefix: str, count: int, rate: float) -> Iterator[Crowd]:
    out = lab.path("seen")
    script = Path(__file__).with_name("cast_members.py")
    command = [
        sys.executable,
        script,
        lab.connection.bootstrap_servers,
        place.group,
        place.site,
        prefix,
        count,
        rate,
        out,
    ]
    with subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=lab.directory,
        env=lab.environment_of_children({"PYTHONPATH": str(_ROOT)}),
    ) as process:
        try:
            yield Crowd(process, out)
        finally:
            process.kill()


def _orders(lab: Lab, transport: str) -> dict[str, Any]:
    plan = lab.plan
    lab.say(f"casts: fifo, causal, total at {plan.latency_rate:,} messages/s by {transport}")
    with lab.place("casts") as place, _flushing(lab, place), _crowd(lab, place, "receiver", 1, 1) as receiver:
        receiver.wait_in()
        windows, rates, cpu = {}, {}, {}
        with Member(
            place.group, f"{place.site}/sender", connection=lab.member_connection(transport), casts=True
        ) as sender:
            sender.connect(timeout=_PATIENCE_S)
            for order in ORDERS:
                before = cpu_seconds(lab.pid)
                windows[order] = _window(sender, order, plan.latency_rate, plan.latency_warm_up_s / 20, plan.window_s)
                cpu[order] = cpu_seconds(lab.pid).get("driver", 0.0) - before.get("driver", 0.0)
                time.sleep(_SETTLE_S)
            for order in ORDERS:
                rates[order] = _throughput(sender, order, plan.member_records)
        seen = receiver.seen()
    return {
        order: {
            **summary([(end - begin) / 1e6 for of, begin, end in seen if of == order and first <= begin < last]),
            "sender_behind_ms": behind * 1000,
            "sender_cpu_s": cpu[order],
            "records_per_s": rates[order],
        }
        for order, (first, last, behind) in windows.items()
    }


def _window(sender: Member, order: str, rate: int, warm_up_s: float, seconds: float) -> tuple[int, int, float]:
    """Return the window's begin and end on the machine's clock in ns, and the sender's delay in s."""
    pace = Pace(lambda: sender.broadcast(stamped_payload(), order=order), rate)  # type: ignore[call-overload]
    try:
        time.sleep(warm_up_s)
        first, pace.behind = time.monotonic_ns(), 0.0
        time.sleep(seconds)
        last = time.monotonic_ns()
    finally:
        pace.stop()
    return first, last, pace.behind


def _throughput(sender: Member, order: str, count: int) -> float:
    """Return records a second, until all receipts have their result."""
    began = time.monotonic()
    for _ in range(count):
        receipt = sender.broadcast(stamped_payload(), order=order, timeout=_PATIENCE_S)  # type: ignore[call-overload]
    receipt.result(_PATIENCE_S)
    return count / (time.monotonic() - began)


def _grown(lab: Lab, transport: str, members: int) -> dict[str, Any]:
    plan = lab.plan
    counts = [members // _PROCESSES] * _PROCESSES
    lab.say(f"casts: {members} members in {_PROCESSES} processes by {transport}")
    with lab.place("casts") as place, _flushing(lab, place), contextlib.ExitStack() as cleanup:
        crowds = [
            cleanup.enter_context(_crowd(lab, place, f"m{number}", count, plan.cast_rate / _PROCESSES))
            for number, count in enumerate(counts)
        ]
        for crowd in crowds:
            crowd.wait_in()
        for crowd in crowds:
            crowd.say("go")
        time.sleep(plan.latency_warm_up_s / 20)
        first = time.monotonic_ns()
        time.sleep(plan.window_s)
        last = time.monotonic_ns()
        for crowd in crowds:
            crowd.say("stop")
        time.sleep(_SETTLE_S)
        seen = [row for crowd in crowds for row in crowd.seen()]
        clocks = _clock_bytes(lab, place)
    return {
        "members": members,
        "per_s": plan.cast_rate,
        "clock_bytes": sum(clocks) / max(1, len(clocks)),
        **summary([(end - begin) / 1e6 for _, begin, end in seen if first <= begin < last]),
    }


def _clock_bytes(lab: Lab, place: Place) -> Sequence[int]:
    """Return the clock's bytes in the last casts of the log."""
    found: list[int] = []
    with contextlib.closing(lab.connection.consumer()) as consumer:
        places = [TopicPartition(str(Topic(place.group, "cast", place.site)), 0)]
        consumer.assign(places)
        consumer.seek(places[0], max(0, consumer.end_offsets(places)[places[0]] - 1_000))
        for record in consumer.poll(timeout_ms=2_000).get(places[0], ()):
            cast = decode_cast(record.key, record.value, record.headers, record.timestamp)
            if not isinstance(cast, str):
                found.append(len(cast.clock))
    return found
