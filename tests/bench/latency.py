"""Broadcast to delivery at a steady rate: the sequencer job, and the stateless copy in its place."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from connectors.sequencer.job import SequencerJob
from connectors.spark.job import JobOptions
from jobs.terminal.streaming import running
from tests.bench.batches import newest_batches, time_of_parts
from tests.bench.drain import copy_of, read, to_kafka
from tests.bench.lab import Lab, Place
from tests.bench.load import Arrivals, BareSender, Pace, stamped_payload

KINDS = {"copy": "the copy", "sequencer": "the sequencer"}
_SETTLE_S = 3.0


def measure(lab: Lab) -> dict[str, Any]:
    """Both kinds in turn, with the same client."""
    plan = lab.plan
    latencies: dict[str, list[float]] = {kind: [] for kind in KINDS}
    behind: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    batches: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for turn in range(plan.rounds):
        for kind, called in KINDS.items():
            lab.say(
                f"latency, round {turn + 1}/{plan.rounds}: {called} at {plan.latency_rate:,} records/s, "
                f"{plan.latency_warm_up_s:g} s warm-up, then {plan.latency_s:g} s"
            )
            taken, late, newest = _measure(lab, kind)
            latencies[kind] += taken
            batches[kind] += newest
            behind[kind] = max(behind[kind], late)
    summaries = {
        kind: {
            **summary(latencies[kind]),
            "sender_behind_ms": behind[kind] * 1000,
            "batch_ms": time_of_parts(batches[kind]),
        }
        for kind in KINDS
    }
    return {
        "records_per_s": plan.latency_rate,
        "seconds": plan.latency_s * plan.rounds,
        **summaries,
        "p50_ratio": summaries["sequencer"]["p50_ms"] / summaries["copy"]["p50_ms"],
    }


def _measure(lab: Lab, kind: str) -> tuple[list[float], float, list[dict[str, Any]]]:
    """Latencies in ms, how far the sender was behind in s, and what Spark reports of its newest batches."""
    with lab.place("latency") as place, sequencing(lab, place) if kind == "sequencer" else copying(lab, place):
        return *measure_latency(lab, place, place.data), newest_batches(lab.spark)


def measure_latency(
    lab: Lab, place: Place, topic: str, *, committed: bool = False, is_java: bool = True
) -> tuple[list[float], float]:
    """Return, from FORWARD of the place to `topic`, the latencies in ms after the warm-up, and the sender's delay
    behind its pace, in s.

    `committed`: read committed records only. `is_java`: whether Java is on the way: else a tenth of
    the warm-up will do.
    """
    plan = lab.plan
    with contextlib.ExitStack() as cleanup:
        arrivals = Arrivals(lab, topic, committed=committed)
        cleanup.callback(arrivals.stop)
        sender = BareSender(lab.connection, place, "sender")
        cleanup.callback(sender.close)
        pace = Pace(lambda: sender.send(stamped_payload()), plan.latency_rate)
        cleanup.callback(pace.halt)
        time.sleep(plan.latency_warm_up_s if is_java else plan.latency_warm_up_s / 10)
        measured_from = time.monotonic_ns()
        pace.behind = 0.0
        time.sleep(plan.latency_s)
        measured_to = time.monotonic_ns()
        pace.stop()
        behind = pace.behind
        time.sleep(_SETTLE_S)
    # Messages sent within the window count, also if they arrived after it.
    return [(end - begin) / 1e6 for begin, end in arrivals.seen if measured_from <= begin < measured_to], behind


@contextlib.contextmanager
def sequencing(lab: Lab, place: Place) -> Iterator[None]:
    """The sequencer job of `abcast sequence`, in this process, ready."""
    data = lab.path("data")
    with running([SequencerJob], lab.spark, JobOptions(lab.connection, place.site, data)) as jobs:
        while not jobs[0].ready.wait(0.2):
            jobs[0].raise_failure()
        with lab.hushed_when_interrupted():
            yield
    shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def copying(lab: Lab, place: Place) -> Iterator[None]:
    """The stateless copy from FORWARD to DATA, running."""
    checkpoint = lab.path("checkpoint")
    rows = copy_of(read(lab, place.forward), place.data)
    query = to_kafka(lab, rows).option("checkpointLocation", str(checkpoint)).start()
    try:
        with lab.hushed_when_interrupted():
            yield
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def summary(latencies: list[float]) -> dict[str, Any]:
    """Percentiles in ms."""
    p50, p99 = (float(value) for value in np.percentile(latencies, [50, 99]))
    return {"records": len(latencies), "p50_ms": p50, "p99_ms": p99, "max_ms": max(latencies)}
