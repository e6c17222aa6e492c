"""The process engine (`--engine process`) with each transport: latency, throughput, memory, recovery."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from connectors import Member
from connectors.kafka.data_log import DataLog
from connectors.kafka.transport import TRANSPORTS, VARIABLE
from ordering.errors import NotOrderedInTime
from tests.bench.backlog import fill
from tests.bench.lab import Lab, Place
from tests.bench.latency import summary
from tests.bench.load import Pace, stamped_payload
from tests.bench.plan import Case
from tests.bench.processes import MemorySampler
from tests.bench.recovery import kills

_PATIENCE_S = 300.0
_SETTLE_S = 2.0
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
    """From `broadcast` in this process to `deliveries` in another one."""
    plan = lab.plan
    warm_up_s = plan.latency_warm_up_s / 10  # there is no JVM but the broker's
    lab.say(f"engine: latency at {plan.latency_rate:,} messages/s by {transport}, {plan.latency_s:g} s")
    out = lab.path("seen")
    with contextlib.ExitStack() as cleanup:
        place = cleanup.enter_context(lab.place("engine"))
        child = cleanup.enter_context(lab.sequencer(place, lab.path("data"), "process"))
        child.wait_said("ready;")
        deliverer = cleanup.enter_context(_deliverer(lab, place, transport, out))
        sender = Member(place.group, f"{place.site}/sender", connection=lab.member_connection(transport))
        cleanup.callback(_close, sender)
        pace = Pace(lambda: sender.broadcast(stamped_payload()), plan.latency_rate)
        cleanup.callback(pace.halt)
        time.sleep(warm_up_s)
        measured_from = time.monotonic_ns()
        pace.behind = 0.0
        time.sleep(plan.latency_s)
        measured_to = time.monotonic_ns()
        pace.stop()
        behind = pace.behind
        time.sleep(_SETTLE_S)
        deliverer.communicate(timeout=30)
    seen = [tuple(map(int, line.split())) for line in out.read_text(encoding="ascii").splitlines()]
    latencies = [(end - begin) / 1e6 for begin, end in seen if measured_from <= begin < measured_to]
    return {**summary(latencies), "sender_behind_ms": behind * 1000}


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
    """A backlog: records a second from ready to the last one, and the memory it took."""
    records = max(50_000, lab.plan.records // 4)
    with lab.place("engine", _CASE.partitions) as place:
        fill(lab, place, records, _CASE)
        lab.say(f"engine: a backlog of {records:,} records by {transport}")
        with lab.sequencer(place, lab.path("data"), "process") as process, MemorySampler(process.pid) as memory:
            ready = process.wait_said("ready;")
            with DataLog(lab.connection, place.group, place.site) as log:
                while log.end() < records:
                    if time.monotonic() - ready > _PATIENCE_S or process.popen.poll() is not None:
                        raise RuntimeError(f"the engine did not order {records:,} records; see {process.log}")
                    time.sleep(0.05)
                took = time.monotonic() - ready
                assert log.state().seqno == records
            process.stop()
    return {"records": records, "records_per_s": records / took, "peak_mib": sum(memory.peak.values())}
