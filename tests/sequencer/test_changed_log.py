"""DATA that has lost its end, or was made anew: a start finds out, by all that know how far it went."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis import status
from connectors.diagnosis.report import check_group
from connectors.diagnosis.status import read_status
from connectors.kafka.data_log import DataLog
from connectors.kafka.same_log import Fit, fit
from connectors.ledger.job import start_after
from connectors.ledger.last_row import LedgerEnd, other_history
from connectors.sequencer.keeper import Keeper
from connectors.sequencer.takeover import take_over, take_over_groups
from connectors.spark.job import JobOptions
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.tiny_sequencer import TinySequencer
from ordering.checker import DIVERGENT
from ordering.errors import HistoryChanged, HistoryUnavailable
from ordering.names import ROLES, Topic
from tests.ledger.test_ledger_reading import SCHEMA, ledger_rows

SITE = "nyc"
DATA, EPOCH, FORWARD = (str(Topic("g", "data", SITE)), str(Topic("g", "epoch", SITE)), str(Topic("g", "forward", SITE)))


@pytest.fixture
def kafka() -> MemoryConnection:
    kafka = MemoryConnection()
    kafka.create("g", SITE)
    return kafka


def order(kafka: MemoryConnection, count: int) -> None:
    with TinySequencer(kafka, "g", SITE), Member("g", f"{SITE}/a", connection=kafka) as member:
        for number in range(count):
            member.broadcast(b"%d" % number).result(20)


def write_ledger(kafka: MemoryConnection, path: Path) -> LedgerEnd:
    rows = ledger_rows(kafka)
    log = kafka.topics.partitions[TopicPartition(DATA, 0)]
    times = pa.array([log[row["data_offset"]].timestamp * 1000 for row in rows], pa.timestamp("us", "UTC"))
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("sequenced_at", times)
    write_deltalake(path, table, partition_by=["group"])
    return LedgerEnd(path)


def length(kafka: MemoryConnection) -> int:
    return len(kafka.topics.partitions[TopicPartition(DATA, 0)])


@pytest.mark.parametrize("seed", range(30))
def test_a_start_that_would_give_numbers_again_is_refused(seed: int, tmp_path: Path) -> None:
    """Whatever is lost, and whoever knows of it: the newest claim, its note, a sign of life, the ledger."""
    rng = random.Random(seed)
    kafka = MemoryConnection()
    kafka.create("g", SITE)
    known, ledger = 0, LedgerEnd(tmp_path / "none")
    for _ in range(rng.randint(1, 3)):
        order(kafka, rng.randint(0, 4))
        if rng.random() < 0.5:
            with closing(Keeper(kafka, SITE, {"g": 1}, "process")) as keeper:
                keeper.take({"g": [FORWARD]})
                keeper.sign({}, 0.0)
                known = length(kafka)
    if rng.random() < 0.5 and ledger_rows(kafka):
        ledger = write_ledger(kafka, tmp_path / "ledger")
        known = max(known, ledger_rows(kafka)[-1]["data_offset"] + 1)
    with DataLog(kafka, "g", SITE) as log:
        known = max([known, *(note.offset for note in log.notes())])
    end = rng.randrange(length(kafka) + 1)
    kafka.topics.truncate(DATA, end)
    claims = len(kafka.topics.partitions[TopicPartition(EPOCH, 0)])
    groups = {"g": [FORWARD]}
    if end >= known:
        take_over_groups(kafka, groups, SITE, last_row=ledger.last_row)
        return
    with pytest.raises(HistoryChanged, match=r"has a broker lost its end\?.*Go on in a new group"):
        take_over_groups(kafka, groups, SITE, last_row=ledger.last_row)
    assert len(kafka.topics.partitions[TopicPartition(EPOCH, 0)]) == claims, "it has claimed what it can't go on with"


def test_a_sequencer_that_runs_finds_out(kafka: MemoryConnection) -> None:
    order(kafka, 3)
    with closing(Keeper(kafka, SITE, {"g": 1}, "process")) as keeper:
        keeper.take({"g": [FORWARD]})
        keeper.sign({}, 0.0)
        kafka.topics.truncate(DATA, length(kafka) - 1)
        with pytest.raises(HistoryChanged, match="DATA of group g ends at offset 4, and ended at 5 before"):
            keeper.sign({}, 10.0)
    with pytest.raises(HistoryChanged, match="last sign of life says that it went up to 5"):
        take_over(kafka, "g", SITE)


def test_topics_that_were_made_anew_are_a_new_group(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequencer serves it. The ledger, which has another group's rows, leaves it out, and all say so."""
    order(kafka, 5)
    ledger = write_ledger(kafka, tmp_path / "ledger")
    monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", role, SITE) for role in ("forward", "data")])
    for count in (0, 8):  # before it has ordered anything, and when it is further than the old one was
        kafka.topics.make_anew(str(Topic("g", role, SITE)) for role in ROLES)
        with DataLog(kafka, "g", SITE) as log:
            assert f"{ledger.path} has another history of g, up to seqno 5: take another --data" in other_history(
                log, ledger
            )
        take_over_groups(kafka, {"g": [FORWARD]}, SITE, last_row=ledger.last_row)
        order(kafka, count)
        with pytest.raises(HistoryChanged, match="another history of g"):
            start_after(5, JobOptions(kafka, SITE, tmp_path), "g", ledger)
        found = read_status(kafka, "g", SITE, {"g": 5}, ledger)
        assert "another history of g" in found.other_history
        assert found.ledger_lag is None
        report = check_group("g", kafka, names=[SITE], ledger=tmp_path / "ledger")
        assert [anomaly.detail for anomaly in report.anomalies if "another history of g" in anomaly.detail]
        assert DIVERGENT in {anomaly.name for anomaly in report.anomalies}


def test_the_same_log_is_known_again(kafka: MemoryConnection, tmp_path: Path) -> None:
    """As long as DATA tells: by the offset, by the seqno where offsets are another topic's, or not at all."""
    order(kafka, 5)
    ledger = write_ledger(kafka, tmp_path / "ledger")
    row = ledger.last_row("g")
    assert row is not None
    order(kafka, 3)
    with DataLog(kafka, "g", SITE) as log:
        assert fit(log, row) is Fit.SAME
        assert fit(log, row._replace(offset=None)) is fit(log, row._replace(offset=2)) is Fit.SAME
        assert fit(log, row._replace(incarnation=7)) is Fit.OTHER
        assert fit(log, row._replace(seqno=99)) is Fit.LOST
        assert fit(log, row._replace(seqno=99, at_ms=1)) is Fit.OTHER, "older than the group"
        assert other_history(log, ledger) == ""
        kafka.topics.drop(DATA, (row.offset or 0) + 1)
        with pytest.raises(HistoryUnavailable):
            log.after(row.seqno - 1)
        assert fit(log, row) is Fit.SAME
