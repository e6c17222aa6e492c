"""The cost of `--listen`: CPU time of the process engine for a message, with the port scraped and without it.

    python -m tests.bench.listening [ROUNDS [MESSAGES]]

Each round orders as many messages with the port as without it, as fast as it can. With it, `/metrics` is asked every 15
seconds, as by Prometheus. The result is the ratio of the medians. Other work on the machine changes it by more than the
port does: so the CPU time of a reading of the status is told, too, which is the port's cost.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

from connectors.diagnosis.monitor import CPU_SHARE
from connectors.diagnosis.statuses import read_statuses
from connectors.kafka.log.data_log import DataLog
from tests.bench.backlog import fill
from tests.bench.lab import Lab
from tests.bench.plan import Case, Plan
from tests.bench.processes import cpu_seconds

RECORDS = 5_000_000
_CASE = Case(100, 16, 4)
_SCRAPE_S = 15.0
_READINGS = 10
_PATIENCE_S = 1800.0


def main() -> None:
    """Print the CPU time of each run, and the medians."""
    rounds, records, *_ = [*map(int, sys.argv[1:]), *(5, RECORDS)[len(sys.argv) - 1 :]]
    costs: dict[str, list[float]] = {"off": [], "on": []}
    with Lab(Plan.of(records, quick=False, rounds=1), print) as lab:
        drain(lab, "warm-up", [], records // 50)
        for number in range(rounds):
            for name in ("off", "on") if number % 2 else ("on", "off"):
                costs[name].append(drain(lab, name, ["--listen", "0"] if name == "on" else [], records))
                print(f"{name}: {costs[name][-1]:.2f} µs a message", flush=True)
    off, on = (statistics.median(costs[name]) for name in ("off", "on"))
    print(f"medians: off {off:.2f} µs, on {on:.2f} µs: {100 * (on / off - 1):+.1f} %")
    cpu_s, of_thread_s = map(statistics.median, zip(*_readings, strict=True))
    every_s = max(_SCRAPE_S, of_thread_s / CPU_SHARE)
    print(f"a reading: {1000 * cpu_s:.0f} ms, one in {every_s:.0f} s: {100 * cpu_s / every_s:.1f} % of a core")


_readings: list[tuple[float, float]] = []
"""The CPU time of readings (s): all threads, and the thread that reads, which bounds their number."""


def drain(lab: Lab, name: str, options: list[str], records: int) -> float:
    """Return the CPU time (µs) that the engine takes to order a message."""
    data = lab.path(f"data-{name}")
    with (
        lab.place("listening", _CASE.partitions) as place,
        lab.sequencer(place, data, "process", options) as process,
    ):
        ready, asked_at = process.wait_said("ready;"), time.monotonic()
        if options:
            scrape(process.log)  # the first one loads modules
        before = cpu_seconds(process.pid)["driver"]
        fill(lab, place, records, _CASE)
        with DataLog(lab.connection, place.group, place.site) as log:
            while log.end() < records:
                if time.monotonic() - ready > _PATIENCE_S:
                    raise RuntimeError(f"the backlog was not ordered; see {process.log}")
                if options and time.monotonic() - asked_at >= _SCRAPE_S:
                    asked_at = time.monotonic()
                    threading.Thread(target=scrape, args=(process.log,), daemon=True).start()
                time.sleep(0.05)
            state = log.state()
        used = cpu_seconds(process.pid)["driver"] - before
        for _ in range(_READINGS if options else 0):
            began = time.process_time(), time.thread_time()
            read_statuses(lab.connection, place.site, decided=lambda _: state)
            _readings.append((time.process_time() - began[0], time.thread_time() - began[1]))
        process.stop()
    return used / records * 1e6


def scrape(log: Path) -> None:
    """Ask for the metrics, at the address that the process has told."""
    addresses = [line.split()[-1] for line in log.read_text().splitlines() if line.startswith("listening at ")]
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{addresses[-1]}/metrics", timeout=30) as answer:
        answer.read()


if __name__ == "__main__":
    main()
