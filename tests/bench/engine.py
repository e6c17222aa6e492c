"""The process engine (`--engine process`) with each transport: latency, throughput, memory, recovery."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from connectors import Member
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.transport import TRANSPORTS, VARIABLE
from ordering.base.errors import NotOrderedInTime
from tests.bench.backlog import fill
from tests.bench.lab import Lab, Place
from tests.bench.latency import summary
from tests.bench.load import Pace, stamped_payload
from tests.bench.plan import Case
from tests.bench.processes import MemorySampler, cpu_seconds, cpu_since
from tests.bench.recovery import kills

_PATIENCE_S = 300.0
_SETTLE_S = 2.0
_TOO_LATE_S = 1.0
_CASE = Case(100, 16, 4)
_ROOT = Path(__file__).resolve().parents[2]


def measure(lab: Lab) -> dict[str, Any]:
    """Both transports in turn, of the engine and of the members."""
    results: dict[str, Any] = {transport: {} for transport in TRANSPORTS}
    # A backlog is filled by Spark, whose JVM takes time from then on.
    for name, section in {"latency": _latency, "kills": _kills, "drain": _drain}.items():
        for transport, result in results.items():
            lab.environment[VARIABLE] = transport
            try:
                result[name] = section(lab, transport)
            finally:
                del lab.environment[VARIABLE]
    return results


def _kills(lab: Lab, _transport: str) -> dict[str, Any]:
    return kills(lab, "process")


def _latency(lab: Lab, transport: str) -> dict[str, Any]:
    plan = lab.plan
    lab.say(f"engine: latency at {plan.latency_rate:,} messages/s by {transport}, {plan.latency_s:g} s")
    # There is no JVM but the broker's.
    how_long = plan.latency_warm_up_s / 10, plan.latency_s
    windows = broadcast_to_delivery(lab, "process", transport, [plan.latency_rate], *how_long)
    return windows[plan.latency_rate]


def broadcast_to_delivery(
    lab: Lab, engine: str, transport: str, rates: Sequence[int], warm_up_s: float, window_s: float
) -> dict[int, dict[str, Any]]:
    """Measure from `broadcast` in this process to `deliveries` in another one, by messages a second, at each rate in
    turn.

    The measurement ends with the first rate that the sender can't keep. Each rate has a window of `window_s`;
    `warm_up_s` comes before the first one, a tenth of it before each of the others.
    """
    out, windows = lab.path("seen"), dict[int, tuple[int, int, float]]()
    with contextlib.ExitStack() as cleanup:
        place = cleanup.enter_context(lab.place("engine"))
        child = cleanup.enter_context(lab.sequencer(place, lab.path("data"), engine))
        child.wait_said("ready;")
        deliverer = cleanup.enter_context(_deliverer(lab, place, transport, out))
        sender = Member(place.group, f"{place.site}/sender", connection=lab.member_connection(transport))
        cleanup.callback(_close, sender)
        for rate in rates:
            windows[rate] = _window(sender, rate, warm_up_s if not windows else warm_up_s / 10, window_s)
            if windows[rate][2] > _TOO_LATE_S:
                break
        time.sleep(_SETTLE_S)
        deliverer.communicate(timeout=30)
    seen = [tuple(map(int, line.split())) for line in out.read_text(encoding="ascii").splitlines()]
    return {
        rate: {
            **summary([(end - begin) / 1e6 for begin, end in seen if first <= begin < last]),
            "sender_behind_ms": behind * 1000,
        }
        for rate, (first, last, behind) in windows.items()
    }


def _window(sender: Member, rate: int, warm_up_s: float, seconds: float) -> tuple[int, int, float]:
    """Return the window's begin and end on the machine's clock in ns, and the sender's delay in s."""
    pace = Pace(lambda: sender.broadcast(stamped_payload()), rate)
    try:
        time.sleep(warm_up_s)
        first = time.monotonic_ns()
        pace.behind = 0.0
        time.sleep(seconds)
        last = time.monotonic_ns()
    finally:
        pace.stop()
    return first, last, pace.behind


@contextlib.contextmanager
def _deliverer(lab: Lab, place: Place, transport: str, out: Path) -> Any:
    script = Path(__file__).with_name("deliverer.py")
    arguments = [lab.connection.bootstrap_servers, place.group, f"{place.site}/receiver", str(out)]
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=lab.directory,
        env=lab.environment_of_children({"PYTHONPATH": str(_ROOT)}),
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"delivering\n", transport
            yield process
        finally:
            process.kill()


def _close(sender: Member) -> None:
    with contextlib.suppress(NotOrderedInTime):
        sender.close(timeout=0)


def _drain(lab: Lab, transport: str) -> dict[str, Any]:
    records = max(50_000, lab.plan.records // 4)
    with lab.place("engine", _CASE.partitions) as place:
        fill(lab, place, records, _CASE)
        lab.say(f"engine: a backlog of {records:,} records by {transport}")
        return drain(lab, place, records)


def drain(lab: Lab, place: Place, messages: int) -> dict[str, float]:
    """Drain a backlog: return messages a second from ready to the last one, CPU of the process, and its memory."""
    with lab.sequencer(place, lab.path("data"), "process") as process, MemorySampler(process.pid) as memory:
        ready = moved = process.wait_said("ready;")
        before, seen = cpu_seconds(process.pid), -1
        with DataLog(lab.connection, place.group, place.site) as log:
            # To read the state costs both cores time: not while DATA grows.
            while (end := log.end()) != seen or log.state().seqno < messages:
                if end != seen:
                    seen, moved = end, time.monotonic()
                if time.monotonic() - ready > _PATIENCE_S or process.popen.poll() is not None:
                    raise RuntimeError(f"the engine did not order {messages:,} messages; see {process.log}")
                time.sleep(0.05)
            used = sum(cpu_since(before, process.pid).values())
        process.stop()
    return {
        "records_per_s": messages / (moved - ready),
        "cpu_us": used / messages * 1e6,
        "peak_mib": sum(memory.peak.values()),
    }
