"""What the sequencer's job makes of Spark's progress reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.connection import Connection
from connectors.sequencer_job import SequencerJob
from connectors.streaming_job import JobOptions
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS


def report(batch: int, rows: int = 1, changes: int | None = 0) -> Any:
    observed = {} if changes is None else {"memberships": {"changes": changes}}
    return SimpleNamespace(batchId=batch, numInputRows=rows, observedMetrics=observed)


@pytest.fixture
def reports() -> list[Any]:
    return []


@pytest.fixture
def job(reports: list[Any], tmp_path: Path) -> SequencerJob:
    job = SequencerJob(None, JobOptions(Connection("nowhere:1"), "nyc", tmp_path))  # type: ignore[arg-type]
    job._query = SimpleNamespace(recentProgress=reports)  # type: ignore[assignment]
    return job


def test_a_change_is_seen_once(job: SequencerJob, reports: list[Any]) -> None:
    seen = []
    for batch in (report(0), report(1, changes=1), report(2), report(3, changes=None)):
        reports.append(batch)
        seen.append(job._news().memberships_changed)
    assert seen == [False, True, False, False]
    assert not job._news().memberships_changed


def test_an_idle_report_does_not_hide_the_batch_it_announces(job: SequencerJob, reports: list[Any]) -> None:
    reports += [report(0), report(1, rows=0, changes=None)]
    assert not job._news().memberships_changed
    reports.append(report(1, changes=1))
    assert job._news().memberships_changed


def test_reports_that_were_missed_count_as_a_change(job: SequencerJob, reports: list[Any]) -> None:
    reports += [report(0)]
    assert not job._news().memberships_changed
    reports[:] = [report(7), report(8)]
    assert job._news().memberships_changed
    assert not job._news().memberships_changed


def test_a_large_batch_wants_a_snapshot_once(job: SequencerJob, reports: list[Any]) -> None:
    reports += [report(0), report(1, rows=SNAPSHOT_EVERY_RECORDS), report(2, rows=0, changes=None)]
    assert job._news().is_snapshot_late
    assert not job._news().is_snapshot_late
    reports.append(report(2))
    assert not job._news().is_snapshot_late
