"""DATA has lost its end, or was made anew: a start finds out, by all witnesses of its length."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis import status
from connectors.diagnosis.report import check_group
from connectors.diagnosis.status import read_status
from connectors.engine.group_supervisor import Taken
from connectors.engine.job import Sequencers
from connectors.engine.loop import Loop
from connectors.engine.options import EngineOptions
from connectors.engine.sequencing import Sequencing
from connectors.engine.takeovers import Takeovers
from connectors.engine.writing import WriteFailed
from connectors.kafka.codec.codec import decode_data, encode_data, forward_headers
from connectors.kafka.codec.epochs import Note, encode_claim, encode_note
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.same_log import Fit, LedgerRow, fit
from connectors.ledger.last_row import LedgerEnd, other_history, start_after
from connectors.ledger.table_state import Commit, TableState
from connectors.storage.location import RemotePath
from connectors.takeover import takeover
from connectors.takeover.fencing import ClaimLost
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.same_forward import InputLost, changed_inputs, newest_records
from connectors.takeover.takeover import Claimer, take_over, take_over_groups
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    BrokerUnreachable,
    EnvironmentProblem,
    Fenced,
    HistoryChanged,
    HistoryUnavailable,
    ProtocolViolation,
    StoreUnreachable,
    UsageError,
)
from ordering.base.names import ROLES, Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import Data, Partition
from ordering.checker.anomalies import DIVERGENT
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.changed_logs import CHANGES, Change, change
from tests.ledger.test_ledger_reading import SCHEMA, ledger_rows
from tests.waiting import eventually

SITE = "nyc"
DATA, EPOCH, FORWARD = (str(Topic("g", "data", SITE)), str(Topic("g", "epoch", SITE)), str(Topic("g", "forward", SITE)))


def order(kafka: MemoryConnection, count: int) -> None:
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/a", connection=kafka) as member:
        for number in range(count):
            member.broadcast(b"%d" % number).result(20)


def write_ledger(kafka: MemoryConnection, path: Path) -> LedgerEnd:
    rows = ledger_rows(kafka)
    log = kafka.topics.partitions[TopicPartition(DATA, 0)]
    times = pa.array([log[row["data_offset"]].timestamp * 1000 for row in rows], pa.timestamp("us", "UTC"))
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("sequenced_at", times)
    write_deltalake(path, table, mode="overwrite", partition_by=["group_name"])
    return LedgerEnd(path)


def length(kafka: MemoryConnection) -> int:
    return len(kafka.topics.partitions[TopicPartition(DATA, 0)])


@pytest.mark.parametrize("seed", range(30))
def test_a_start_that_would_give_numbers_again_is_refused(seed: int, tmp_path: Path) -> None:
    """Any part may be lost, and any witness may be left: the newest claim, its note, a sign of life, the ledger."""
    rng = random.Random(seed)
    kafka = MemoryConnection()
    kafka.create("g", SITE)
    known, ledger = 0, LedgerEnd(tmp_path / "none")
    for _ in range(rng.randint(1, 3)):
        order(kafka, rng.randint(0, 4))
        if rng.random() < 0.5:
            with closing(GroupMaintenance(kafka, SITE, {"g": 1}, "process")) as maintenance:
                maintenance.take({"g": [FORWARD]})
                maintenance.sign({}, 0.0)
                known = length(kafka)
    if rng.random() < 0.5 and ledger_rows(kafka):
        ledger = write_ledger(kafka, tmp_path / "ledger")
        known = max(known, ledger_rows(kafka)[-1]["data_offset"] + 1)
    with DataLog(kafka, "g", SITE) as log:
        known = max([known, *(note.offset for note in log.epochs.read().notes)])
    end = rng.randrange(length(kafka) + 1)
    kafka.topics.truncate(DATA, end)
    claims = len(kafka.topics.partitions[TopicPartition(EPOCH, 0)])
    groups = {"g": [FORWARD]}
    if end >= known:
        take_over_groups(Claimer(kafka, SITE, ledger=ledger), groups)
        return
    with pytest.raises(HistoryChanged, match=r"has a broker lost its end\?.*Go on in a new group"):
        take_over_groups(Claimer(kafka, SITE, ledger=ledger), groups)
    assert len(kafka.topics.partitions[TopicPartition(EPOCH, 0)]) == claims, "it has claimed what it can't go on with"


@pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
def test_forward_that_is_another_one_is_read_from_its_beginning(
    kafka: MemoryConnection, how: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """Each record of the new topic is read, and none is ordered twice."""
    place = TopicPartition(FORWARD, 0)

    def send(name: str) -> None:
        kafka.topics.append(place, f"{SITE}/{name}".encode(), b"x", forward_headers(1, 1))

    for name in "abcde":
        send(name)
    with SequencerThread(kafka, "g", SITE) as sequencer:
        eventually(lambda: sequencer.state.seqno == 5, what="all is ordered")
    change(kafka, FORWARD, how)
    log = kafka.topics.partitions[place]
    if has_new := how is not list and bool(log):
        log[0] = log[0]._replace(key=f"{SITE}/new".encode())
    state = take_over_groups(Claimer(kafka, SITE), {"g": [FORWARD]})["g"]
    assert (Partition(FORWARD, 0) in state.decided) is (how is list)
    assert ("reads it from its beginning" in caplog.text) is (how is not list)
    with SequencerThread(kafka, "g", SITE) as sequencer:
        send("last")
        eventually(lambda: "nyc/last" in sequencer.state.received, what="it is ordered")
        assert ("nyc/new" in sequencer.state.received) is has_new
        assert sequencer.state.seqno == len(sequencer.state.received), "nothing is ordered twice"


def test_the_next_start_reads_another_forward_from_its_beginning_too(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequencer that found it dies behind its first records: then the newest in DATA are in this FORWARD."""
    for often in ("SNAPSHOT_EVERY_RECORDS", "SNAPSHOT_RECORDS_PER_SENDER"):
        monkeypatch.setattr(f"ordering.sequencer.sequencer.{often}", 1)
    place, groups = TopicPartition(FORWARD, 0), {"g": [FORWARD]}

    def order_one(sequencer: SequencerThread, seqno: int) -> None:
        kafka.topics.append(place, f"{SITE}/{seqno}".encode(), b"x", forward_headers(1, 1))
        eventually(lambda: sequencer.state.seqno == seqno, what="it is ordered")

    with SequencerThread(kafka, "g", SITE) as sequencer:
        for seqno in (1, 2, 3):
            order_one(sequencer, seqno)
    kafka.topics.make_anew([FORWARD])
    with DataLog(kafka, "g", SITE) as log:
        assert Partition(FORWARD, 0) in log.state().positions, "a snapshot has counted the first FORWARD"
        state = take_over_groups(Claimer(kafka, SITE), groups)["g"]
        assert Partition(FORWARD, 0) not in state.positions
        assert Partition(FORWARD, 0) not in log.state().positions


def test_a_purge_during_a_start_is_no_error(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """FORWARD is purged after a start has asked for its beginning, and before it reads the newest record there."""
    order(kafka, 3)
    ask = MemoryConsumer.end_offsets

    def ask_then_purge(consumer: MemoryConsumer, places: Any, *more: Any, **others: Any) -> Any:
        ends = ask(consumer, places, *more, **others)
        if "reached" in others and any(".forward." in place.topic for place in ends):
            kafka.topics.drop(FORWARD, max(ends.values()))
        return ends

    monkeypatch.setattr(MemoryConsumer, "end_offsets", ask_then_purge)
    with DataLog(kafka, "g", SITE) as log:
        assert changed_inputs(log, kafka.consumer(), [FORWARD], newest_records(log, log.end())) == set()
        assert kafka.topics.beginnings


@pytest.mark.parametrize("step", ["check_reach", "encode_claim", "seal", "snapshot"])
@pytest.mark.parametrize("strays", [0, 3])
def test_a_cut_between_two_steps_of_a_takeover_ends_it(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, step: str, strays: int
) -> None:
    """DATA loses its end before a step, and may have grown again when the step comes."""
    order(kafka, 3)
    true_step, cuts = getattr(takeover, step), iter([-2])

    def cut_before(*given: Any) -> Any:
        for records in cuts:
            kafka.topics.truncate(DATA, length(kafka) + records)
            for _ in range(strays if step != "snapshot" else 0):
                kafka.topics.append(TopicPartition(DATA, 0), b"stray", b"", [])
        return true_step(*given)

    monkeypatch.setattr(takeover, step, cut_before)
    with pytest.raises(HistoryChanged, match="lost its end"):
        take_over(kafka, "g", SITE)
    with DataLog(kafka, "g", SITE) as log:
        assert log.state().seqno < 3, "an opening snapshot counts what DATA has lost"
    with pytest.raises(HistoryChanged, match="lost its end"):  # and so does each later start
        take_over(kafka, "g", SITE)


def test_a_cut_behind_the_second_survey_is_noted(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another takeover orders before the claim. DATA loses that, once it was surveyed, before the seal."""
    order(kafka, 3)
    others, cuts = iter([2]), iter([-2])

    def claim_later(*given: Any) -> Any:
        for messages in others:
            order(kafka, messages)
            monkeypatch.setattr(takeover, "seal", cut_before)
        return encode_claim(*given)

    def cut_before(*given: Any) -> Any:
        for records in cuts:
            kafka.topics.truncate(DATA, length(kafka) + records)
        return seal(*given)

    monkeypatch.setattr(takeover, "encode_claim", claim_later)
    for _ in range(2):
        with pytest.raises(HistoryChanged, match="lost its end"):
            take_over(kafka, "g", SITE)


@pytest.mark.parametrize("witness", ["the ledger has", "last sign of life says", "a note says"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_sequencer_that_runs_orders_before_the_seal(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, witness: str, is_cut: bool
) -> None:
    """Its records are behind the claim, and others see them. DATA may lose just these before the seal."""
    order(kafka, 3)
    by, place = Claimer(kafka, SITE, ledger=write_ledger(kafka, tmp_path / "ledger")), TopicPartition(DATA, 0)
    messages = iter([1, 2])

    def order_before(*given: Any) -> Any:
        last = kafka.topics.partitions[place][-1]
        before = decode_data(last.key, last.value, last.headers)
        for more in messages:
            one = replace(before, seqno=before.seqno + more, local_seqno=before.local_seqno + more)
            kafka.topics.append(place, *encode_data(one))
        if "ledger" in witness:
            write_ledger(kafka, tmp_path / "ledger")
        elif "sign" in witness:
            with closing(GroupMaintenance(kafka, SITE, {"g": 1}, "process")) as maintenance:
                maintenance.take({"g": [FORWARD]})
                maintenance.sign({}, 0.0)
        else:
            kafka.topics.append(TopicPartition(EPOCH, 0), None, *encode_note(Note(length(kafka), 1, 5)))
        if is_cut:
            kafka.topics.truncate(DATA, length(kafka) - 2)
        return seal(*given)

    monkeypatch.setattr(takeover, "seal", order_before)
    if is_cut:
        with pytest.raises(HistoryChanged, match=witness):
            take_over_groups(by, {"g": [FORWARD]})
        monkeypatch.undo()
        with pytest.raises(HistoryChanged, match=witness):  # a later start, before its claim
            take_over_groups(Claimer(kafka, SITE, ledger=LedgerEnd(tmp_path / "ledger")), {"g": [FORWARD]})
    else:
        assert take_over_groups(by, {"g": [FORWARD]})["g"].seqno == 5


class Fails(LedgerEnd):
    """A ledger whose store fails in a way that would end a job, once it is to look again."""

    def look_again(self) -> None:
        raise EnvironmentProblem("the store says something strange")


def test_a_store_that_fails_behind_a_seal_ends_no_job(kafka: MemoryConnection, tmp_path: Path) -> None:
    """Other groups may be sealed, and not opened. This one is taken over again a moment later."""
    order(kafka, 3)
    path = write_ledger(kafka, tmp_path / "ledger").path
    with pytest.raises(StoreUnreachable, match="something strange"):
        take_over_groups(Claimer(kafka, SITE, ledger=Fails(path)), {"g": [FORWARD]})
    assert take_over_groups(Claimer(kafka, SITE, ledger=LedgerEnd(path)), {"g": [FORWARD]})["g"].seqno == 3


def test_a_store_that_fails_before_a_takeover_is_told_by_group(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: RemotePath) -> bool:
        raise StoreUnreachable("the store has too much to do")

    monkeypatch.setattr(RemotePath, "exists", fail)
    takeovers = Takeovers(EngineOptions(kafka, SITE, ledger=RemotePath("s3a://tables/ledger")), {}, "")
    assert list(map(str, takeovers.begin({"g": [FORWARD]}).values())) == ["the store has too much to do"]
    assert not takeovers.is_running


def test_signs_that_kafka_does_not_tell_are_asked_for_once(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its seal each group would wait for them."""
    asked = itertools.count()

    def fail(*_: object, **__: object) -> object:
        next(asked)
        raise BrokerUnreachable("no broker answers.")

    order(kafka, 3)
    monkeypatch.setattr(takeover, "read_signs", fail)
    assert take_over(kafka, "g", SITE).seqno == 3
    assert next(asked) == 1


def test_a_look_at_the_ledger_that_fails_serves_nobody(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Threads that waited for it look themselves."""
    order(kafka, 3)
    ledger, times, looks = write_ledger(kafka, tmp_path / "ledger"), iter([1.0, 3.0, 2.0, 4.0, 3.5]), itertools.count()
    monkeypatch.setattr("connectors.ledger.last_row.time", SimpleNamespace(monotonic=lambda: next(times)))

    def is_newest(_commit: Commit, _table: object) -> bool:
        if next(looks) == 0:
            raise StoreUnreachable("the store has too much to do")
        return True

    monkeypatch.setattr(Commit, "is_newest", is_newest)
    assert ledger.last_seqno("g") == 3
    with pytest.raises(StoreUnreachable):
        ledger.look_again()
    ledger.look_again()
    assert next(looks) == 2
    ledger.look_again()
    assert next(looks) == 3, "the look that began after it asked serves it"


def test_a_ledger_that_cannot_be_read_is_not_an_empty_one(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order(kafka, 3)
    ledger = write_ledger(kafka, tmp_path / "ledger")

    def fail(_table: object) -> TableState:
        raise StoreUnreachable("the store has too much to do")

    with monkeypatch.context() as patch:
        patch.setattr("connectors.ledger.last_row.read_table_state", fail)
        for _ in range(2):
            with pytest.raises(StoreUnreachable):
                ledger.last_seqno("g")
    assert ledger.last_seqno("g") == 3


def test_a_sequencer_that_runs_finds_out(kafka: MemoryConnection) -> None:
    order(kafka, 3)
    with closing(GroupMaintenance(kafka, SITE, {"g": 1}, "process")) as maintenance:
        maintenance.take({"g": [FORWARD]})
        maintenance.sign({}, 0.0)
        kafka.topics.truncate(DATA, length(kafka) - 1)
        with pytest.raises(HistoryChanged, match="DATA of group g ends at offset 4, and ended at 5 before"):
            maintenance.sign({}, 10.0)
    with pytest.raises(HistoryChanged, match="last sign of life says that it went up to 5"):
        take_over(kafka, "g", SITE)


class TestJustTakenOver:
    """Lose the records that the takeover has seen, or written, before the sequencer does anything."""

    @pytest.fixture
    def by(self, kafka: MemoryConnection) -> Claimer:
        return Claimer(kafka, SITE)

    @pytest.fixture
    def state(self, kafka: MemoryConnection, by: Claimer) -> SequencerState:
        order(kafka, 3)
        return take_over_groups(by, {"g": [FORWARD]})["g"]

    @pytest.fixture
    def maintenance(self, kafka: MemoryConnection, by: Claimer, state: SequencerState) -> Iterator[GroupMaintenance]:
        with closing(GroupMaintenance(kafka, SITE, by.claimed, "process")) as maintenance:
            maintenance.take({"g": [FORWARD]}, {"g": state}, by.opened)
            yield maintenance

    @pytest.mark.parametrize("lost", [1, 2, 3])
    def test_data_at_the_first_sign(self, kafka: MemoryConnection, maintenance: GroupMaintenance, lost: int) -> None:
        kafka.topics.truncate(DATA, length(kafka) - lost)
        with pytest.raises(HistoryChanged, match=f"ended at {length(kafka) + lost} before"):
            maintenance.sign({}, 0.0)

    def work(self, loop: Loop[Sequencing]) -> None:
        supervisor: Any = SimpleNamespace(raise_failure=lambda: None, changes=list, pipelines={})
        for _ in range(5):
            loop.turn(supervisor)

    @pytest.mark.parametrize("lost", [1, 2, 3])
    def test_data_at_the_first_write(
        self, kafka: MemoryConnection, by: Claimer, state: SequencerState, lost: int
    ) -> None:
        """Without the seal, records of the sequencer that it has fenced count."""
        with closing(Loop(kafka, SITE, Sequencers(SITE), threading.Event())) as loop:
            loop.take(Taken({"g": state}, {TopicPartition(FORWARD, 0): ("g", 0)}, ends=by.opened))
            kafka.topics.truncate(DATA, length(kafka) - lost)
            kafka.topics.append(TopicPartition(FORWARD, 0), f"{SITE}/b".encode(), b"x", forward_headers(1, 1))
            with pytest.raises(WriteFailed, match=f"{DATA} was recreated, or has lost its end"):
                self.work(loop)

    @pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
    def test_forward(self, kafka: MemoryConnection, maintenance: GroupMaintenance, how: Change) -> None:
        """The job takes what lies below DATA's sources for read before."""
        place = TopicPartition(FORWARD, 0)
        change(kafka, FORWARD, how)
        is_short = len(kafka.topics.partitions[place]) < maintenance._groups["g"].unread[place]
        with pytest.raises(InputLost) if is_short else nullcontext():
            maintenance.sign({place: 1}, 0.0)

    def test_forward_that_the_job_has_read(self, kafka: MemoryConnection, maintenance: GroupMaintenance) -> None:
        """From then on the job compares the log with its last record."""
        place = TopicPartition(FORWARD, 0)
        maintenance.sign({place: len(kafka.topics.partitions[place])}, 0.0)
        kafka.topics.make_anew([FORWARD])
        maintenance.sign({place: 0}, 10.0)


@pytest.mark.parametrize("kept", range(4))
def test_epoch_has_lost_its_end(kafka: MemoryConnection, kept: int) -> None:
    """No epoch is given twice; a claim whose note alone is lost is enough."""
    order(kafka, 1)
    order(kafka, 1)
    kafka.topics.truncate(EPOCH, kept)
    if kept == 3:
        assert take_over(kafka, "g", SITE).epoch == 4
        return
    with pytest.raises((HistoryChanged, UsageError), match=rf"{EPOCH}.*(?i:go on in a new group)"):
        take_over(kafka, "g", SITE)
    assert len(kafka.topics.partitions[TopicPartition(EPOCH, 0)]) == kept


@pytest.mark.parametrize("has_signed", [False, True])
def test_a_fenced_sequencer_hides_the_epoch_that_epoch_has_lost(kafka: MemoryConnection, has_signed: bool) -> None:
    """Its snapshot behind the successor's seal would count, if the successor had never claimed."""
    order(kafka, 1)
    fenced = take_over(kafka, "g", SITE)
    claimed: dict[str, int] = {}
    take_over(kafka, "g", SITE, claimed)
    with closing(GroupMaintenance(kafka, SITE, claimed, "process")) as maintenance:
        maintenance.take({"g": [FORWARD]})
        if has_signed:
            maintenance.sign({}, 0.0)
    kafka.topics.append(TopicPartition(DATA, 0), *encode_data(snapshot(fenced)))
    kafka.topics.truncate(EPOCH, 4)
    who = "the last sign of life" if has_signed else DATA
    with pytest.raises(HistoryChanged, match=f"{who} knows epoch 5, but {EPOCH} is only at 3"):
        take_over(kafka, "g", SITE)
    assert len(kafka.topics.partitions[TopicPartition(EPOCH, 0)]) == 4


class TestARunningSequencerWhoseClaimIsLost:
    """The sequencer does not go on: its epoch may be given to another sequencer."""

    @pytest.fixture
    def claimed(self) -> dict[str, int]:
        return {}

    @pytest.fixture
    def maintenance(self, kafka: MemoryConnection, claimed: dict[str, int]) -> Iterator[GroupMaintenance]:
        order(kafka, 3)
        assert take_over(kafka, "g", SITE, claimed).epoch == 3
        with closing(GroupMaintenance(kafka, SITE, claimed, "process")) as maintenance:
            maintenance.take({"g": [FORWARD]})
            maintenance.check_not_fenced()
            yield maintenance

    @pytest.mark.parametrize("kept", [1, 2])
    def test_it_is_alone(
        self, kafka: MemoryConnection, maintenance: GroupMaintenance, claimed: dict[str, int], kept: int
    ) -> None:
        kafka.topics.truncate(EPOCH, kept)
        with pytest.raises(ClaimLost, match=r"claim \(epoch 3\): has a broker lost its end"):
            maintenance.check_not_fenced()
        with pytest.raises(HistoryChanged):
            take_over(kafka, "g", SITE, claimed)

    def test_its_note_alone_is_lost(self, kafka: MemoryConnection, maintenance: GroupMaintenance) -> None:
        kafka.topics.truncate(EPOCH, 3)
        maintenance.check_not_fenced()

    @pytest.mark.parametrize("kept", [3, 4])
    def test_epoch_has_grown_past_the_last_record_that_was_read(
        self, kafka: MemoryConnection, maintenance: GroupMaintenance, kept: int
    ) -> None:
        kafka.topics.truncate(EPOCH, kept)
        assert take_over(kafka, "g", SITE).epoch == kept + 1
        with pytest.raises(Fenced):
            maintenance.check_not_fenced()

    def test_another_has_the_same_epoch(
        self, kafka: MemoryConnection, maintenance: GroupMaintenance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DATA has lost the seal, too, so nothing tells of the epoch. EPOCH ends where it ended before."""
        kafka.topics.take_away(EPOCH, OFFSETS)
        with pytest.raises(BrokerUnreachable):
            maintenance.check_not_fenced()
        kafka.topics.bring_back(EPOCH)
        kafka.topics.truncate(EPOCH, 2)
        kafka.topics.truncate(DATA, 5)
        with monkeypatch.context() as context:
            context.setattr("connectors.kafka.codec.epochs.this_host", lambda: "elsewhere")
            assert take_over(kafka, "g", SITE).epoch == 3
        assert len(kafka.topics.partitions[TopicPartition(EPOCH, 0)]) == 4
        eventually(lambda: maintenance.away.is_due("g"))
        with pytest.raises(ClaimLost):
            maintenance.check_not_fenced()


@pytest.mark.slow
def test_topics_that_were_made_anew_are_a_new_group(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequencer serves the new group. The ledger, with another group's rows, leaves it out, and each command
    says so. Until a message is ordered, the new group looks like one that has lost all: no sequencer starts again.
    """
    order(kafka, 5)
    ledger = write_ledger(kafka, tmp_path / "ledger")
    monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", role, SITE) for role in ("forward", "data")])
    for count in (0, 8):  # before it has ordered anything, and when it is further than the old one was
        kafka.topics.make_anew(str(Topic("g", role, SITE)) for role in ROLES)
        with DataLog(kafka, "g", SITE) as log:
            assert f"{ledger.path} has another history of g, up to seqno 5: take another --data" in other_history(
                log, ledger
            )
        take_over_groups(Claimer(kafka, SITE, ledger=ledger), {"g": [FORWARD]})
        order(kafka, count)
        why = "has another history of g" if count else "has lost its end, or is a new one"
        with pytest.raises(HistoryChanged, match=why):
            start_after(5, kafka, SITE, "g", tmp_path / "ledger", ledger)
        found = read_status(kafka, "g", SITE, {"g": 5}, ledger)
        assert why in found.other_history
        assert "take another --data" in found.other_history
        assert found.ledger_lag is None
        report = check_group("g", kafka, names=[SITE], ledger=tmp_path / "ledger")
        assert [anomaly.detail for anomaly in report.anomalies if why in anomaly.detail]
        assert DIVERGENT in {anomaly.name for anomaly in report.anomalies}
        with nullcontext() if count else pytest.raises(HistoryChanged, match="with another --data"):
            take_over_groups(Claimer(kafka, SITE, ledger=ledger), {"g": [FORWARD]})


class Rows:
    """A ledger in memory, with a row for each number of each record."""

    def __init__(self, log: DataLog) -> None:
        reader, self.rows = Reader(), dict[int, LedgerRow]()
        for offset, at_ms, data in log.records(0, log.end()):
            if reader.judge(data) is Verdict.TAKE:
                row = LedgerRow(0, data.epoch, data.sender, data.incarnation, data.local_seqno, offset, at_ms)
                self.rows |= {n: row._replace(seqno=n) for n in range(data.seqno, data.seqno + data.count)}

    def look_again(self) -> None:
        """Read nothing: each answer is new."""

    def last_seqno(self, _group: str) -> int:
        return max(self.rows, default=0)

    def row(self, _group: str, seqno: int) -> LedgerRow | None:
        return max((row for row in self.rows.values() if row.seqno <= seqno), key=telling, default=None)

    def copied(self) -> Rows:
        """Give the rows the offsets and times of another site's copy."""
        for number, row in self.rows.items():
            self.rows[number] = row._replace(offset=(row.offset or 0) + 3, at_ms=row.at_ms + 900)
        return self


def telling(row: LedgerRow) -> tuple[bool, int]:
    return bool(row.sender), row.seqno


NOBODY = json.dumps({"members": [], "joined": [], "left": [], "suspected": [], "flush": 0}).encode()


class History:
    """A group whose sequencers are killed and restarted, by its log alone; each broker has its own clock."""

    def __init__(self, rng: random.Random, kafka: MemoryConnection) -> None:
        self.rng, self.kafka, self.at_ms = rng, kafka, 10**12
        self.skew_ms = {DATA: rng.randint(-30_000, 0), EPOCH: rng.randint(0, 29_000)}

    def grow(self, most: int) -> None:
        topics = self.kafka.topics
        begun = {name: len(topics.partitions[TopicPartition(name, 0)]) for name in (DATA, EPOCH)}
        with closing(self.kafka.producer()) as producer:
            for _ in range(self.rng.randint(1, 2)):
                state = take_over(self.kafka, "g", SITE)
                seqno = state.seqno + 1
                for _ in range(self.rng.randint(0, most)):
                    kind, count = self.rng.choice((("message", 1), ("view", 1), ("of-later", 3)))
                    sender = "" if kind == "view" else f"{SITE}/a"
                    incarnation = self.rng.randint(1, 10**9) if sender else 0
                    numbers = (seqno, 1, sender, incarnation, 1 if sender else 0)
                    data = Data(kind, state.epoch, *numbers, b"" if sender else NOBODY, count=count)
                    key, value, headers = encode_data(data)
                    for _ in range(self.rng.choice((1, 1, 2))):  # a repeat does no harm
                        producer.send(DATA, value=value, key=key, headers=headers, partition=0)
                    seqno += count
        for name, length in begun.items():
            log = topics.partitions[TopicPartition(name, 0)]
            for offset in range(length, len(log)):
                self.at_ms += self.rng.randint(0, 3_000)
                log[offset] = log[offset]._replace(timestamp=self.at_ms + self.skew_ms[name])


@pytest.mark.parametrize("seed", range(300))
def test_a_ledger_and_data_by_what_both_have(seed: int) -> None:
    """DATA grows, is cut, grows again, is purged or made anew: only the log counts, whatever clocks say."""
    rng, kafka = random.Random(seed), MemoryConnection()
    kafka.create("g", SITE)
    history = History(rng, kafka)
    history.grow(6)
    with DataLog(kafka, "g", SITE) as log:
        ledger = Rows(log)
    if rng.random() < 0.3:
        ledger.copied()
    last, what = ledger.last_seqno("g"), rng.choice(("same", "cut", "regrown", "anew"))
    if what == "anew":
        kafka.topics.make_anew(str(Topic("g", role, SITE)) for role in ROLES)
        history.at_ms += 5 * 60_000
    elif what != "same":
        kafka.topics.truncate(DATA, rng.randrange(length(kafka)))
        if rng.random() < 0.2:
            kafka.topics.truncate(EPOCH, rng.randrange(1, len(kafka.topics.partitions[TopicPartition(EPOCH, 0)]) + 1))
    with DataLog(kafka, "g", SITE) as log:
        state = None if what == "anew" else log.state()
        kept = state.seqno if state else 0
        if what != "cut":
            with suppress(ProtocolViolation):  # a start finds by EPOCH that it can't go on
                history.grow(4 if rng.random() < 0.7 else 0)
        if what == "same" and rng.random() < 0.5:
            snapshots = [s.offset for s in log.records(0, log.end()) if s.data.kind == "epoch" and s.data.payload]
            kafka.topics.drop(DATA, snapshots[-1])
        found = fit(log, ledger)
        if not last or what == "same" or kept >= last:
            assert found is Fit.SAME
        elif what == "anew":  # own decisions look alike in any group
            shown = any(row.sender and row.seqno <= log.state().seqno for row in ledger.rows.values())
            assert found is Fit.OTHER or not shown
        else:
            assert found is (Fit.LOST if log.state().seqno == kept else found)
            assert found is not Fit.SAME or log.state().seqno > kept, "what it has stands no longer there"
            if found is Fit.SAME:  # records that were decided anew have no sender to compare
                assert not [row for row in ledger.rows.values() if row.sender and row.seqno > kept]


def test_the_same_log_is_known_again(kafka: MemoryConnection, tmp_path: Path) -> None:
    """DATA tells by the offset, by the seqno if the offsets are another topic's, or not at all."""
    order(kafka, 5)
    ledger = write_ledger(kafka, tmp_path / "ledger")
    with DataLog(kafka, "g", SITE) as log:
        rows = Rows(log)
        offset = rows.rows[5].offset or 0
        assert ledger.row("g", 5) == rows.row("g", 5)
        order(kafka, 3)
        assert fit(log, ledger) is fit(log, rows) is fit(log, rows.copied()) is Fit.SAME
        assert other_history(log, ledger) == ""
        kafka.topics.drop(DATA, offset + 1)
        with pytest.raises(HistoryUnavailable):
            log.after(4)
        assert fit(log, ledger) is Fit.SAME
        rows.rows[5] = rows.rows[5]._replace(incarnation=7)
        kafka.topics.beginnings.clear()
        assert fit(log, rows) is Fit.OTHER


@pytest.mark.parametrize("hours", [-24, 0, 24])
def test_no_clock_makes_another_log(kafka: MemoryConnection, hours: int) -> None:
    """A broker's clock was set behind the claim. DATA has lost all but the seal, so only the claim tells."""
    order(kafka, 5)
    with DataLog(kafka, "g", SITE) as data:
        rows = Rows(data)
        rows.rows = {5: rows.rows[5]._replace(at_ms=rows.rows[5].at_ms + hours * 3_600_000)}
        kafka.topics.truncate(DATA, 1)
        assert fit(data, rows) is Fit.LOST
