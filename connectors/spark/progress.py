"""What Spark reports of a query's batches, read at a low price.

pyspark asks the JVM for each figure of a report by itself, some hundred questions for one report. We look each second,
at all that is new: so a report is read as one text here.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery


class BatchReport(NamedTuple):
    """A report. While a query is idle, Spark reports the batch that comes next, too, without records.

    `ends`: by topic and partition (a text) where in Kafka the first source ends. `observed`: by name what
    `DataFrame.observe` has given, column by column.
    """

    number: int
    records: int
    timestamp: str
    ms: int
    ends: dict[str, dict[str, int]]
    observed: dict[str, dict[str, Any]]


def newest(query: StreamingQuery) -> BatchReport | None:
    """The last report; None if there is none."""
    report = query._jsq.lastProgress()  # noqa: SLF001 - the public way is the dear one
    return None if report is None else _read(report)


def newer_than(query: StreamingQuery, number: int) -> list[BatchReport]:
    """The reports of later batches, in their order, as far back as Spark keeps them."""
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
