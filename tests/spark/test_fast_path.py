"""The ledger's fast path, against the reading rule on random logs; and the writer behind it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka.log.data_log import Start
from connectors.ledger.fast_path import Next, contiguous, counted_in
from connectors.ledger.table import LedgerWriter, create_tables, ledger_rows, read_table_state
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, VIEW, Data
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.spark.kafka_rows import Row, data, source_frame_by_task
from tests.spark.test_ledger import BEGINNING, expected, log_of, message, rows_of, writer_of

pytestmark = pytest.mark.spark

EPOCH_IN_FORCE = 5
LOGS = 60


class Log(NamedTuple):
    """A batch of a group's DATA, and the next record expected before it."""

    group: str
    next: Next
    records: list[tuple[int, Data]]

    def rows(self) -> list[Row]:
        """Return the records as rows of the topic."""
        return [data(record, offset, group=self.group) for offset, record in self.records]


def random_log(number: int) -> Log:
    """Return a log, mostly of the next record each; nearly every other log has some other records."""
    rng = random.Random(number)
    group, first = f"g{number}", Next(rng.randrange(50), rng.randrange(1, 50), EPOCH_IN_FORCE)
    offset, seqno, epoch = first
    disturbs = rng.choice((0.0, 0.05, 0.3))
    records: list[tuple[int, Data]] = []
    for _ in range(rng.randrange(1, 14)):
        record = message(seqno, epoch=epoch)
        if rng.random() < disturbs:
            if rng.random() < 0.25:
                offset += 1
            else:
                epoch += rng.random() < 0.2
                odd = message(seqno + rng.choice((-2, -1, 1, 2)), epoch=epoch)
                stale = message(seqno, epoch=epoch - 1)
                view = Data(VIEW, epoch, seqno, 3, payload=b'{"members": []}')
                record = rng.choice((odd, odd, stale, view, seal(epoch), snapshot_at(seqno - 1, epoch, group)))
        elif rng.random() < 0.15:
            record = rng.choice((snapshot_at(seqno - 1, epoch, group), Data(ENTRY, epoch, local_seqno=seqno)))
        records.append((offset, record))
        offset += 1
        seqno = max(seqno, record.seqno + 1)
    return Log(group, first, records)


def snapshot_at(seqno: int, epoch: int, group: str) -> Data:
    return snapshot(SequencerState(group, epoch=epoch, seqno=max(0, seqno)))


def by_the_rule(log: Log) -> tuple[list[int], bool]:
    """Return the seqnos up to the first record that is not contiguous, and whether there is none."""
    offset, seqno, epoch = log.next
    reader, taken = Reader(epoch, seqno - 1), list[int]()
    for at, record in log.records:
        verdict = reader.accept(record.kind, record.epoch, record.seqno)
        is_next = at == offset and record.epoch == epoch and record.kind != VIEW
        if not is_next or verdict not in (Verdict.TAKE, Verdict.CONTROL):
            return taken, False
        taken += [record.seqno] if verdict is Verdict.TAKE else []
        offset += 1
    return taken, True


def seqnos_of(frame: DataFrame) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in frame.select("group_name", "seqno").collect():
        found.setdefault(row["group_name"], []).append(row["seqno"])
    return found


@pytest.mark.slow
def test_only_what_the_reading_rule_takes(spark: SparkSession) -> None:
    """Many topics at once, each up to its first record that is not the next one."""
    logs = [random_log(number) for number in range(LOGS)]
    rows = source_frame_by_task(spark, *(log.rows() for log in logs))
    line = contiguous(ledger_rows(rows), {log.group: log.next for log in logs})
    wanted = {log.group: by_the_rule(log) for log in logs}
    assert seqnos_of(line.rows) == {group: taken for group, (taken, _) in wanted.items() if taken}
    whole = [group for group, (_, is_whole) in wanted.items() if is_whole]
    assert LOGS / 4 < len(whole) < LOGS * 3 / 4, "both kinds of logs are tried"
    counted = counted_in(line)
    assert counted is not None
    assert counted.read == sum(len(log.records) for log in logs)
    assert not counted.undisturbed


@pytest.mark.slow
def test_it_knows_whether_that_was_all(spark: SparkSession) -> None:
    for log in map(random_log, range(LOGS, LOGS + 12)):
        taken, is_whole = by_the_rule(log)
        line = contiguous(ledger_rows(source_frame_by_task(spark, log.rows())), {log.group: log.next})
        assert seqnos_of(line.rows).get(log.group, []) == taken
        counted = counted_in(line)
        assert counted is not None
        without = counted.without_seqno.get(log.group, 0)
        assert (counted.undisturbed and len(taken) + without == counted.read == len(log.records)) == is_whole
        if is_whole:
            assert without == sum(record.kind in WITHOUT_SEQNO for _, record in log.records)


def test_a_row_that_is_in_its_place_again(spark: SparkSession) -> None:
    """2 comes twice and 3 is lost: 4 is the fourth message, and 3 is missing before it."""
    rows = log_of(message(1), message(2), message(2), message(4), group="g")
    line = contiguous(ledger_rows(source_frame_by_task(spark, rows)), {"g": Next(0, 1, 1)})
    assert seqnos_of(line.rows) == {"g": [1, 2]}


def test_a_topic_that_two_tasks_read(spark: SparkSession) -> None:
    """The second task does not know the place of its records, so none counts as contiguous."""
    log = log_of(*map(message, range(1, 5)), group="g")
    line = contiguous(ledger_rows(source_frame_by_task(spark, log[:2], log[2:])), {"g": Next(0, 1, 1)})
    assert seqnos_of(line.rows) == {"g": [1, 2]}
    counted = counted_in(line)
    assert counted is not None
    assert not counted.undisturbed


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("one-pass")
    create_tables(spark, directory)
    return directory / "ledger"


@pytest.mark.long
@pytest.mark.slow
def test_contiguous_records_are_read_once(spark: SparkSession, table: Path) -> None:
    """The reading rule is asked for the first batch, which begins with a seal, and never again, also with snapshots."""
    groups = ("once", "other")
    batches: list[dict[str, Sequence[Data]]] = [
        {group: [seal(1), message(1)] for group in groups},
        {
            "once": [message(2), snapshot_at(2, 1, "once"), message(3), snapshot_at(3, 1, "once")],
            "other": [snapshot_at(1, 1, "other")],
        },
        {"once": [message(4)], "other": [message(2), message(3)]},
    ]
    writer, ends = writer_of(table, BEGINNING, *groups), dict.fromkeys(groups, 0)
    with patch.object(writer, "_append_effective", wraps=writer._append_effective) as by_rule:
        for number, batch in enumerate(batches):
            logs = [log_of(*records, group=group, first_offset=ends[group]) for group, records in batch.items()]
            writer.write(source_frame_by_task(spark, *logs), number)
            ends = {group: end + len(batch[group]) for group, end in ends.items()}
    writer.check()
    assert by_rule.call_count == 1
    assert rows_of(spark, table, "once") == expected(1, 2, 3, 4)
    assert rows_of(spark, table, "other") == expected(1, 2, 3)


@pytest.mark.slow
def test_more_groups_than_files_are_open_at_once(spark: SparkSession, table: Path) -> None:
    """Spark then sorts the remaining rows, and closes one file after the other."""
    many = int(spark.conf.get("spark.sql.maxConcurrentOutputFileWriters") or 0) + 5
    groups = [f"many{number}" for number in range(many)]
    writer = writer_of(table, Start(0, Reader(1, 0)), *groups)
    with patch.object(writer, "_append_effective", side_effect=AssertionError("all is in line")):
        writer.write(source_frame_by_task(spark, *(log_of(message(1), message(2), group=group) for group in groups)), 0)
    last_seqno = read_table_state(table).last_seqno
    assert [last_seqno.get(group) for group in groups] == [2] * many
    assert rows_of(spark, table, groups[0]) == rows_of(spark, table, groups[-1]) == expected(1, 2)


@pytest.mark.long
@pytest.mark.slow
def test_killed_after_a_part_of_a_batch(spark: SparkSession, table: Path) -> None:
    """The records before the seal are committed, and the writer dies: the next one adds the missing rows."""
    log = log_of(seal(1), message(1), message(2), seal(2), message(3, payload=b"stale"), message(3, epoch=2), group="k")
    writer = writer_of(table, BEGINNING, "k")
    writer.write(source_frame_by_task(spark, log[:1]), 0)
    rest = source_frame_by_task(spark, log[1:])
    with (
        patch.object(LedgerWriter, "_append_effective", side_effect=RuntimeError("killed")),
        pytest.raises(RuntimeError),
    ):
        writer.write(rest, 1)
    assert rows_of(spark, table, "k") == expected(1, 2)
    writer_of(table, BEGINNING, "k").write(source_frame_by_task(spark, log), 0)
    assert rows_of(spark, table, "k") == expected(1, 2, 3)
    writer.write(rest, 1)  # the first one still lives: it finds what the other has written
    assert rows_of(spark, table, "k") == expected(1, 2, 3)


@pytest.mark.slow
def test_spark_does_not_tell(spark: SparkSession, table: Path) -> None:
    """Without Spark's count the reading rule finds that no row is missing."""
    writer = writer_of(table, BEGINNING, "silent")
    log = log_of(seal(1), message(1), message(2), message(3), group="silent")
    writer.write(source_frame_by_task(spark, log[:2]), 0)
    with patch("connectors.ledger.table.counted_in", return_value=None):
        writer.write(source_frame_by_task(spark, log[2:3]), 1)
    writer.write(source_frame_by_task(spark, log[3:]), 2)
    assert rows_of(spark, table, "silent") == expected(1, 2, 3)
