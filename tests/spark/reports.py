"""A streaming query as its observers see it: Spark's reports of its batches."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any


def report(batch: int, records: int = 1, **more: Any) -> dict[str, Any]:
    """Return Spark's JSON of a batch, with these fields added."""
    said = {"batchId": batch, "numInputRows": records, "timestamp": "t", "batchDuration": 1, "sources": []}
    return {**said, "observedMetrics": {}, **more}


def query_with(reports: list[dict[str, Any]], **more: Any) -> Any:
    """A query that has reported these, as they are when somebody asks; and has this more."""

    def as_java(said: dict[str, Any]) -> Any:
        return SimpleNamespace(batchId=lambda: said["batchId"], json=lambda: json.dumps(said))

    java = SimpleNamespace(
        lastProgress=lambda: as_java(reports[-1]) if reports else None,
        recentProgress=lambda: [as_java(each) for each in reports],
    )
    return SimpleNamespace(_jsq=java, **more)
