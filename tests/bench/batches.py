"""Time of each part of a Spark query's batch, as Spark reports it for the newest batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_DURATION = {
    "all": "triggerExecution",
    "offsets": "latestOffset",
    "log before": "walCommit",
    "planning": "queryPlanning",
    "run": "addBatch",
    "log after": "commitOffsets",
}
"""Our names of Spark's `durationMs`."""
_OF_STATE = {"state and Python": "allUpdatesTimeMs", "state's commit": "commitTimeMs"}
"""Our names of the stateful operator's times; both are parts of the run."""


def newest_batches(spark: SparkSession) -> list[dict[str, Any]]:
    """Return Spark's reports of the application's running queries: some 50 batches of each."""
    running = spark._jsparkSession.sharedState().activeStreamingQueries()  # each session knows its own only
    reports = [report for query in running.values() for report in query.recentProgress()]
    return [json.loads(report.json()) for report in reports]


def time_of_parts(batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each part in ms, over batches with records; and of the records."""
    parts: dict[str, list[float]] = {}
    for batch in batches:
        if not batch["numInputRows"]:
            continue
        parts.setdefault("records", []).append(batch["numInputRows"])
        for names, times in [
            (_OF_DURATION, batch["durationMs"]),
            *((_OF_STATE, operator) for operator in batch.get("stateOperators", ())),
        ]:
            for name, of_spark in names.items():
                if of_spark in times:
                    parts.setdefault(name, []).append(times[of_spark])
    return {name: float(median(values)) for name, values in parts.items()}
