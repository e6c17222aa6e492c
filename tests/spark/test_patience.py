"""Report a batch that waits for a core, and the end of the wait."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.spark.patience import SILENCE_S, Patience
from tests.spark.reports import query_with, report


@pytest.fixture
def reports() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def query(reports: list[dict[str, Any]]) -> Any:
    """Return a query that runs its first batch."""
    return query_with(reports, status={"isTriggerActive": True})


def told_at(patience: Patience, query: Any, until: int, first: int = 0, *, runs_tasks: bool = False) -> list[int]:
    """Return the seconds at which the batch is reported, with a question each second."""
    return [second for second in range(first, until) if patience.ends(second, query, lambda: runs_tasks)]


def test_a_batch_without_a_task_is_told_of_again_and_again(query: Any) -> None:
    patience = Patience(0)
    assert SILENCE_S == 10
    assert told_at(patience, query, 35) == [11, 22, 33]
    assert patience.since == 0


def test_a_batch_that_takes_long_is_not(query: Any) -> None:
    """A batch that has lost its executor is not reported either, before it has waited as long."""
    patience = Patience(0)
    assert told_at(patience, query, 60, runs_tasks=True) == []
    assert told_at(patience, query, 80, 60) == [66, 77]


def test_who_has_no_batch_in_hand_waits_for_none(query: Any) -> None:
    query.status["isTriggerActive"] = False
    assert told_at(Patience(0), query, 60) == []


def test_a_batch_that_is_through_begins_anew(query: Any, reports: list[dict[str, Any]]) -> None:
    patience = Patience(0)
    assert told_at(patience, query, 12) == [11]
    reports.append(report(1))
    assert told_at(patience, query, 30, 12) == [23]
