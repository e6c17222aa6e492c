"""Spark's reports on a query's batches, read cheaply.

pyspark asks the JVM for each figure of a report separately, some hundred calls a report. Jobs read all new reports
every second, so a report is read as one text here.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery


class BatchReport(NamedTuple):
    """A report. While a query is idle, Spark also reports the next batch, without records.

    `ends`: the end offsets of the first source, by topic and partition (a text). `observed`: the columns of each
    `DataFrame.observe`, by its name.
    """

    number: int
    records: int
    timestamp: str
    ms: int
    ends: dict[str, dict[str, int]]
    observed: dict[str, dict[str, Any]]


def newest(query: StreamingQuery) -> BatchReport | None:
    """Return the last report; None if there is none."""
    report = query._jsq.lastProgress()  # noqa: SLF001 - the public way is the expensive one
    return None if report is None else _read(report)


def newer_than(query: StreamingQuery, number: int) -> list[BatchReport]:
    """Return the reports of batches after `number`, in order, as far back as Spark keeps them."""
    reports, batches = query._jsq.recentProgress(), list[BatchReport]()  # noqa: SLF001 - as above
    for at in reversed(range(len(reports))):
        if reports[at].batchId() <= number:
            break
        batches.append(_read(reports[at]))
    return batches[::-1]


def _read(report: Any) -> BatchReport:
    said = json.loads(report.json())
    ends = (said["sources"][0]["endOffset"] or {}) if said["sources"] else {}
    return BatchReport(
        said["batchId"],
        said["numInputRows"],
        said["timestamp"],
        said["batchDuration"],
        ends if isinstance(ends, dict) else {},
        said.get("observedMetrics", {}),
    )
