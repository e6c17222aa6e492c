"""What the sequencer's job makes of Spark's progress reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from connectors.kafka.connection import Connection
from connectors.sequencer.lane import SequencerLane
from connectors.spark.job import JobOptions
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS

GROUPS = ("g", "h")


def report(batch: int, rows: int = 1, changed: str = "", **seqnos: int) -> Any:
    """Of a batch that gave so many seqnos in each group, or has changed the membership of one."""
    found = [*((group, False) for group in seqnos), *((group, True) for group in changed.split())]
    groups = [{"group": group, "is_change": is_change} for group, is_change in found]
    seen = Row(groups=groups, seqnos=sum(seqnos.values()) if seqnos else None)
    return SimpleNamespace(batchId=batch, numInputRows=rows, observedMetrics={"batch": seen} if rows else {})


@pytest.fixture
def reports() -> list[Any]:
    return []


@pytest.fixture
def job(reports: list[Any], tmp_path: Path) -> SequencerLane:
    job = SequencerLane(None, JobOptions(Connection("nowhere:1"), "nyc", tmp_path))  # type: ignore[arg-type]
    job._query = SimpleNamespace(recentProgress=reports, lastProgress=None)  # type: ignore[assignment]
    return job


def test_a_change_is_seen_once_and_only_for_its_group(job: SequencerLane, reports: list[Any]) -> None:
    seen = []
    for batch in (report(0), report(1, changed="g"), report(2), report(3, rows=0)):
        reports.append(batch)
        seen.append(job._finished_batches(GROUPS).changed)
    assert seen == [set(), {"g"}, set(), set()]
    assert not job._finished_batches(GROUPS).changed


def test_an_idle_report_does_not_hide_the_batch_it_announces(job: SequencerLane, reports: list[Any]) -> None:
    reports += [report(0), report(1, rows=0)]
    assert not job._finished_batches(GROUPS).changed
    reports.append(report(1, changed="h"))
    assert job._finished_batches(GROUPS).changed == {"h"}


def test_a_first_batch_without_rows_is_none_that_was_missed(job: SequencerLane, reports: list[Any]) -> None:
    reports += [report(0, rows=0), report(1)]
    assert not job._finished_batches(GROUPS).changed


def test_reports_that_were_missed_count_as_a_change_of_all(job: SequencerLane, reports: list[Any]) -> None:
    reports += [report(0)]
    assert not job._finished_batches(GROUPS).changed
    reports[:] = [report(7), report(8)]
    assert job._finished_batches(GROUPS).changed == {"g", "h"}
    assert not job._finished_batches(GROUPS).changed


def test_a_large_batch_wants_a_snapshot_once(job: SequencerLane, reports: list[Any]) -> None:
    reports += [report(0), report(1, rows=SNAPSHOT_EVERY_RECORDS), report(2, rows=0)]
    assert job._finished_batches(GROUPS).is_snapshot_late
    assert not job._finished_batches(GROUPS).is_snapshot_late
    reports.append(report(2))
    assert not job._finished_batches(GROUPS).is_snapshot_late


def test_what_batches_have_decided_is_known(job: SequencerLane, reports: list[Any]) -> None:
    reports += [report(0, g=3), report(1, g=5, h=1), report(2)]
    found = job._finished_batches(GROUPS)
    assert (set(found.decided), found.seqnos) == ({"g", "h"}, 9)
    assert job._finished_batches(GROUPS).seqnos == 0


def test_only_the_group_that_changed_is_read_back(
    job: SequencerLane, reports: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def state(group: str) -> Any:
        read.append(group)
        return SimpleNamespace(seqno=7, membership=SimpleNamespace(is_watched=True))

    ticked: list[dict[str, int]] = []
    keeper = SimpleNamespace(
        forward={"g": [], "h": []},
        log=lambda group: SimpleNamespace(state=lambda: state(group)),
        check_not_fenced=lambda: None,
        sign=lambda *_: None,
        attend=lambda watched, _: ticked.append(watched),
    )
    monkeypatch.setattr(job, "_keeper", keeper)
    monkeypatch.setattr(job, "_watchdog", SimpleNamespace(decided=lambda *_: None, look=lambda _: None))
    reports.append(report(0, changed="h"))
    job.check()
    job.check()
    assert read == ["h"]
    assert ticked == [{"h": 7}, {"h": 7}]
