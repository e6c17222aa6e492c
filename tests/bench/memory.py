"""Memory of the real `abcast sequence` while it drains a long backlog."""

from __future__ import annotations

import shutil
import time
from typing import Any

from connectors.kafka.log.data_log import DataLog
from tests.bench.backlog import fill
from tests.bench.lab import Lab
from tests.bench.plan import Case
from tests.bench.processes import MemorySampler

_PATIENCE_S = 900.0


def measure(lab: Lab) -> dict[str, Any]:
    """Start it on the backlog, sample until the last record is ordered."""
    records = lab.plan.memory_records
    lab.say(f"memory: writing {records:,} FORWARD records of 100 B")
    with lab.place("memory") as place:
        fill(lab, place, records, Case(100, 16, 1))
        lab.say(f"memory: `abcast sequence` drains {records:,} records")
        data = lab.path("data")
        with lab.sequencer(place, data) as process, MemorySampler(process.pid) as memory:
            ready = process.wait_said("ready;")
            deadline = ready + _PATIENCE_S
            with DataLog(lab.connection, place.group, place.site) as log:
                while log.end() < records or log.state().seqno < records:
                    if time.monotonic() > deadline or process.popen.poll() is not None:
                        raise RuntimeError(f"`abcast sequence` did not order {records:,} records; see {process.log}")
                    time.sleep(0.5)
            took = time.monotonic() - ready
            process.stop()
        shutil.rmtree(data, ignore_errors=True)
    return {
        "records": records,
        "seconds": took,
        "peak_mib": sum(memory.peak.values()),
        "peak_parts_mib": memory.peak,
        "own_peaks_mib": memory.peaks,
    }
