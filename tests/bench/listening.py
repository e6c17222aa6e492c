"""The cost of `--listen`: CPU time of the process engine for a message, with the port scraped and without it.

    python -m tests.bench.listening [ROUNDS [MESSAGES]]

Each round orders as many messages with the port as without it, as fast as it can. With it, `/metrics` is asked each
five seconds, three times as often as Prometheus asks. The result is the ratio of the medians.

A reading of the status in a flood may take a second, and the next one then waits for a hundred: so a run of less than
some minutes tells too much, or too little.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

from connectors.kafka.log.data_log import DataLog
from tests.bench.backlog import fill
from tests.bench.lab import Lab
from tests.bench.plan import Case, Plan
from tests.bench.processes import cpu_seconds

RECORDS = 5_000_000
_CASE = Case(100, 16, 4)
_SCRAPE_S = 5.0
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
        used = cpu_seconds(process.pid)["driver"] - before
        process.stop()
    return used / records * 1e6


def scrape(log: Path) -> None:
    """Ask for the metrics, at the address that the process has told."""
    addresses = [line.split()[-1] for line in log.read_text().splitlines() if line.startswith("listening at ")]
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{addresses[-1]}/metrics", timeout=30) as answer:
        answer.read()


if __name__ == "__main__":
    main()
