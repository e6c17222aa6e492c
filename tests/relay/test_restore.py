"""The restore of a group from its ledger, in memory, with real tables of Delta."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis.report import check_group
from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.codec.epochs import Move
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.acts import act_of_this_user
from connectors.kafka.log.data_log import DataLog
from connectors.ledger.last_row import LedgerEnd, start_after
from connectors.ledger.process.rows import LEDGER_ARROW
from connectors.ledger.table_state import read_table_state
from connectors.relay import restore as restoring
from connectors.relay.bootstrap import bootstrap, write_in_order
from connectors.relay.home_copy import HomeCopy
from connectors.relay.promotion import move_home
from connectors.relay.restore import RestorePlan, check_sites, plan, restore
from connectors.takeover.takeover import take_over
from connectors.testing.memory_clients import MemoryAdmin, MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    HistoryChanged,
    HistoryRestored,
    PositionLost,
    UsageError,
)
from ordering.base.names import Topic
from ordering.base.reader import Lost, Reader, Verdict
from ordering.base.records import MESSAGE, RESTORED, Data, Source
from tests.ledger.ledger_of import decided, effective, write_ledger
from tests.ledger.test_process_ledger import has_all, rows_of, writing

pytestmark = pytest.mark.slow
SITE = "nyc"
DATA = TopicPartition(str(Topic("g", "data", SITE)), 0)
EPOCH = TopicPartition(str(Topic("g", "epoch", SITE)), 0)
LEAP = 50


class Lived(NamedTuple):
    """A group whose Kafka is gone: `data` has the ledger up to seqno `last`, DATA went up to seqno `seen`."""

    data: Path
    last: int
    seen: int
    outbox: Path

    @property
    def ledger(self) -> Path:
        return self.data / "ledger"


@pytest.fixture
def lived(tmp_path: Path) -> Lived:
    """Alice joins and sends; the ledger is behind, then Kafka is gone while she still has two unordered messages."""
    kafka, outbox = MemoryConnection(), tmp_path / "alice.outbox"
    kafka.create("g", SITE)
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/alice", connection=kafka, outbox=outbox) as alice:
        last = say(alice, 10)
        with writing(kafka, tmp_path):
            has_all(tmp_path, last)
        seen = say(alice, 5)
    kafka.topics.take_away(str(Topic("g", "forward", SITE)))
    alice = Member("g", f"{SITE}/alice", connection=kafka, outbox=outbox)
    alice.broadcast(b"waits 1")
    alice.broadcast(b"waits 2")
    alice.close(timeout=0)
    return Lived(tmp_path, last, seen, outbox)


def say(member: Member, times: int) -> int:
    return max(receipt.result(20) for receipt in [member.broadcast(b"m%d" % number) for number in range(times)])


def restored(kafka: MemoryConnection, lived: Lived) -> RestorePlan:
    return restore(kafka, "g", SITE, lived.ledger, LEAP)


def taken(kafka: MemoryConnection) -> list[Data]:
    """Return the effective records of DATA."""
    reader = Reader()
    records = [decode_data(each.key, each.value, each.headers) for each in kafka.topics.partitions[DATA]]
    return [record for record in records if reader.judge(record) is Verdict.TAKE]


def test_the_order_goes_on(lived: Lived) -> None:
    """Up to the ledger's end each number names the same message; behind the mark new messages follow."""
    kafka = MemoryConnection()
    told: list[int] = []
    done = restore(kafka, "g", SITE, lived.ledger, LEAP, to_write=told.append)
    assert done[:3] == ("g", lived.last, Lost(lived.last + 1, lived.last + LEAP))
    assert told == [lived.last]
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/bob", connection=kafka) as bob:
        assert bob.broadcast(b"new").result(20) == lived.last + LEAP + 1
        got = [(each.seqno, each.payload) for each in bob.deliveries(from_seqno=1, timeout=1)]
        with writing(kafka, lived.data):
            has_all(lived.data, lived.last + LEAP + 1)
    assert [payload for _, payload in got] == [*(b"m%d" % number for number in range(10)), b"new"]
    assert got[-1][0] == lived.last + LEAP + 1
    report = check_group("g", kafka, names=[SITE], ledger=lived.ledger)
    assert not report.anomalies
    assert restored(kafka, lived) == done._replace(senders=2, is_done=True), "a second run changes nothing"


@pytest.mark.parametrize("is_written", [False, True])
def test_cut_off_at_each_write(lived: Lived, monkeypatch: pytest.MonkeyPatch, is_written: bool) -> None:
    """A run is cut off before or behind each of its writes. Until the last one no sequencer starts."""
    kafka, left, whole = MemoryConnection(), [0], MemoryConnection()
    shutil.copytree(lived.ledger, lived.data / "copy")
    restore(whole, "g", SITE, lived.data / "copy", LEAP)
    send, create = MemoryProducer.send, MemoryAdmin.create_topics

    def cut_off(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 and not is_written:
                raise KafkaTimeoutError
            result = do(*args, **options)
            if left[0] < 0:
                raise KafkaTimeoutError
            return result

        return call

    for tries in count():
        left[0] = tries
        with monkeypatch.context() as broken:
            broken.setattr(MemoryProducer, "send", cut_off(send))
            broken.setattr(MemoryAdmin, "create_topics", cut_off(create))
            try:
                done = restored(kafka, lived)
                break
            except (KafkaTimeoutError, BrokerUnreachable):
                pass
        is_over = any(b"move" in each.headers[0][1] and SITE.encode() in each.value for each in of_epoch(kafka))
        if not is_over:
            with pytest.raises(AbcastError):
                take_over(kafka, "g", SITE)
    assert tries > 5
    assert done.lost == Lost(lived.last + 1, lived.last + LEAP)
    assert [replace(each, epoch=0) for each in taken(kafka)] == [replace(each, epoch=0) for each in taken(whole)]
    with DataLog(kafka, "g", SITE) as log, DataLog(whole, "g", SITE) as other:
        assert log.state().received == other.state().received
    state = take_over(kafka, "g", SITE)
    assert (state.seqno, state.lost) == (lived.last + LEAP, (done.lost,))


def of_epoch(kafka: MemoryConnection) -> list[Any]:
    return kafka.topics.partitions.get(EPOCH, [])


class TestWhoIsTold:
    """A number from the lost history tells its owner which seqnos are lost."""

    @pytest.fixture
    def kafka(self, lived: Lived) -> Iterator[MemoryConnection]:
        kafka = MemoryConnection()
        restored(kafka, lived)
        with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/carol", connection=kafka) as carol:
            say(carol, 3)
            yield kafka

    def test_a_number_of_the_application(self, kafka: MemoryConnection, lived: Lived) -> None:
        with Member("g", f"{SITE}/bob", connection=kafka) as bob:
            with pytest.raises(HistoryRestored, match=f"seqnos {lived.last + 1} to {lived.seen}") as told:
                next(bob.deliveries(from_seqno=lived.seen + 1))
            assert (told.value.first, told.value.last) == (lived.last + 1, lived.seen)
            got = [each.payload for each in bob.deliveries(from_seqno=told.value.first, remember=True, timeout=1)]
            assert got == [b"m0", b"m1", b"m2"]
        with Member("g", f"{SITE}/bob", connection=kafka) as bob:
            assert not list(bob.deliveries(timeout=1)), "its position is behind the mark now"

    def test_a_position_that_is_gone(self, kafka: MemoryConnection, lived: Lived) -> None:
        """Kafka had all positions. No name begins at the first message by itself."""
        with Member("g", f"{SITE}/bob", connection=kafka) as bob:
            with pytest.raises(PositionLost, match=f"up to seqno {lived.last}.*at most {lived.last + 1}"):
                next(bob.deliveries())
            assert len(list(bob.deliveries(from_seqno=1, remember=True, timeout=1))) == 13
            assert not list(bob.deliveries(timeout=1))

    def test_an_outbox(self, kafka: MemoryConnection, lived: Lived, caplog: pytest.LogCaptureFixture) -> None:
        """Its unordered messages are ordered, once. It has the others no more, and names them."""
        for _ in range(2):
            with Member("g", f"{SITE}/alice", connection=kafka, outbox=lived.outbox) as alice:
                alice.flush(20)
            got = [each.payload for each in read(kafka) if each.payload.startswith(b"waits")]
            assert got == [b"waits 1", b"waits 2"]
        assert "its records 11 to 15 of incarnation" in caplog.text

    def test_a_ledger_that_has_more(self, kafka: MemoryConnection, lived: Lived, tmp_path: Path) -> None:
        rows = [each for each in taken(kafka) if each.seqno <= lived.last and each.kind != RESTORED]
        source = Source("restored", 0, 0)
        rows += [
            Data(MESSAGE, rows[-1].epoch, seqno, 1, f"{SITE}/alice", 9, seqno, b"lost", source)
            for seqno in range(lived.last + 1, lived.seen + 1)
        ]
        other = write_ledger(tmp_path / "other", rows)
        with pytest.raises(HistoryChanged, match=f"seqnos {lived.last + 1} to {lived.seen} of g, which it lost"):
            start_after(lived.seen, kafka, SITE, "g", other, LedgerEnd(other))

    def test_a_ledger_that_has_less(self, kafka: MemoryConnection, lived: Lived, tmp_path: Path) -> None:
        """Its job goes on behind its last row."""
        for last in (3, lived.last):
            rows = [each for each in taken(kafka) if each.seqno <= last and each.kind != RESTORED]
            less = tmp_path / f"{last}" / "ledger"
            write_ledger(less, rows)
            assert start_after(last, kafka, SITE, "g", less, LedgerEnd(less)).reader.last_seqno == last


def read(kafka: MemoryConnection) -> list[Any]:
    with Member("g", f"{SITE}/reader", connection=kafka) as reader:
        return list(reader.deliveries(from_seqno=1, timeout=1))


def test_a_sequencer_that_has_survived(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records before the seal are noticed, and those behind it count for nobody."""
    zombie = Data(MESSAGE, 1, lived.last + 1, 1, f"{SITE}/alice", 1, 11, b"zombie", Source("f", 0, 0))

    def disturbed(kafka: MemoryConnection, topic: str, records: Iterator[Any], written: Any) -> None:
        rest = list(records)
        write_in_order(kafka, topic, iter(rest[:-2]), written)
        kafka.topics.append(DATA, *encode_data(zombie))
        write_in_order(kafka, topic, iter(rest[-2:]), written)

    kafka = MemoryConnection()
    with monkeypatch.context() as patched:
        patched.setattr(restoring, "write_in_order", disturbed)
        with pytest.raises(UsageError, match="sequencer of the old Kafka still runs"):
            restored(kafka, lived)
    with pytest.raises(UsageError, match="still runs"):
        restored(kafka, lived)
    with pytest.raises(UsageError, match="is being restored"):
        take_over(kafka, "g", SITE)
    kafka = MemoryConnection()
    restored(kafka, lived)
    kafka.topics.append(DATA, *encode_data(replace(zombie, seqno=lived.last + LEAP + 1)))
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/bob", connection=kafka) as bob:
        assert bob.broadcast(b"new").result(20) == lived.last + LEAP + 1
        assert b"zombie" not in [each.payload for each in read(kafka)]


def test_a_survivor_whose_epoch_is_in_the_ledger(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record takes the number of a row: it differs from the row, though all numbers are there."""
    kafka, writes = MemoryConnection(), write_in_order

    def disturbed(kafka: MemoryConnection, topic: str, records: Iterator[Any], written: Any) -> None:
        rest = list(records)
        epoch = decode_data(*rest[5]).epoch
        zombie = Data(MESSAGE, epoch, decode_data(*rest[5]).seqno, 1, f"{SITE}/zombie", 1, 11, b"x", Source("f", 0, 0))
        writes(kafka, topic, iter([*rest[:5], encode_data(zombie), *rest[5:]]), written)

    with monkeypatch.context() as patched:
        patched.setattr(restoring, "write_in_order", disturbed)
        with pytest.raises(UsageError, match="sequencer of the old Kafka still runs"):
            restored(kafka, lived)
    with pytest.raises(UsageError, match="is being restored"):
        take_over(kafka, "g", SITE)


def test_restored_twice(lived: Lived) -> None:
    """The ledger has the mark of the first restore, too: each mark stays where it was."""
    kafka = MemoryConnection()
    first = restored(kafka, lived)
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/bob", connection=kafka) as bob:
        last = say(bob, 3)
        with writing(kafka, lived.data):
            has_all(lived.data, last)
    kafka = MemoryConnection()
    second = restored(kafka, lived)
    assert second.last == last
    state = take_over(kafka, "g", SITE)
    assert state.lost == (first.lost, second.lost)
    assert state.seqno == second.lost.last
    payloads = [each.payload for each in taken(kafka) if each.kind == MESSAGE]
    assert payloads == [*(b"m%d" % number for number in range(10)), b"m0", b"m1", b"m2"]


def test_restored_twice_from_a_ledger_that_was_down(lived: Lived) -> None:
    """Its job never ran between the restores. Numbers behind the first mark are not given again, and are told."""
    kafka = MemoryConnection()
    first = restored(kafka, lived)
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/bob", connection=kafka) as bob:
        seen = say(bob, 3)
    rows = rows_of(lived.data)
    kafka = MemoryConnection()
    second = restored(kafka, lived)
    assert second.lost == Lost(first.lost.last + 1, first.lost.last + LEAP)
    assert rows_of(lived.data)[: len(rows)] == rows
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/eve", connection=kafka) as eve:
        assert eve.broadcast(b"new").result(20) == second.lost.last + 1
        with pytest.raises(HistoryRestored, match=f"seqnos {second.lost.first} to {seen}"):
            next(eve.deliveries(from_seqno=seen + 1))
        with writing(kafka, lived.data):
            has_all(lived.data, second.lost.last + 1)
    assert not check_group("g", kafka, names=[SITE], ledger=lived.ledger).anomalies


def test_the_marks_rows_are_those_of_a_job(lived: Lived) -> None:
    kafka, other = MemoryConnection(), lived.data / "other"
    done = restored(kafka, lived)
    rows = rows_of(lived.data)
    other.mkdir()
    with writing(kafka, other):
        has_all(other, done.lost.last)
    assert rows[done.last :] == rows_of(other)[done.last :]
    assert len(rows) == done.lost.last


def test_another_leap_comes_too_late(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a later run has the mark that is there."""
    kafka = MemoryConnection()
    with monkeypatch.context() as broken:
        broken.setattr(restoring, "append_mark", lambda *_: broken_off())
        with pytest.raises(KafkaTimeoutError):
            restored(kafka, lived)
    planned = plan(kafka, "g", SITE, lived.ledger, 2 * LEAP)
    assert planned.resumes
    assert planned.lost == Lost(lived.last + 1, lived.last + LEAP)
    assert restore(kafka, "g", SITE, lived.ledger, 2 * LEAP).lost == planned.lost


def broken_off() -> None:
    raise KafkaTimeoutError


def test_the_other_restore_has_ended(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes too late must not delete a group that goes on."""
    kafka, shorter = MemoryConnection(), lived.data / "shorter"
    rows = [row for row in rows_of(lived.data) if row["seqno"] < lived.last]
    write_deltalake(str(shorter), pa.Table.from_pylist(rows, LEDGER_ARROW), partition_by=["group_name"])

    def overtaken(*arguments: Any) -> None:
        monkeypatch.undo()
        restored(kafka, lived)
        write_in_order(*arguments)

    monkeypatch.setattr(restoring, "write_in_order", overtaken)
    with pytest.raises(UsageError, match=r"another restore of g has ended.*change nothing"):
        restore(kafka, "g", SITE, shorter, LEAP)


def test_the_ledgers_job_has_seen_the_mark_of_an_interrupted_run(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = MemoryConnection()

    def stop(*_: object) -> None:
        raise KafkaTimeoutError

    with monkeypatch.context() as broken:
        broken.setattr(restoring, "post_base", stop)
        with pytest.raises(KafkaTimeoutError):
            restored(kafka, lived)
    with writing(kafka, lived.data):
        has_all(lived.data, lived.last + LEAP)
    done = restored(kafka, lived)
    assert (done.last, done.lost) == (lived.last, Lost(lived.last + 1, lived.last + LEAP))
    assert take_over(kafka, "g", SITE).lost == (done.lost,)


def test_the_ledger_grows_in_between(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of another cluster writes to the same table: its row and the mark would have one seqno."""
    kafka = MemoryConnection()

    def grown(*arguments: Any) -> None:
        write_in_order(*arguments)
        table = pa.Table.from_pylist([{"group_name": "g", "seqno": lived.last + 1, "epoch": 1, "kind": MESSAGE}])
        write_deltalake(str(lived.ledger), table, mode="append", schema_mode="merge")

    with monkeypatch.context() as patched:
        patched.setattr(restoring, "write_in_order", grown)
        with pytest.raises(UsageError, match="or the ledger has grown"):
            restored(kafka, lived)
    with pytest.raises(UsageError, match="is being restored"):
        take_over(kafka, "g", SITE)


def test_a_new_copy_of_a_restored_home(lived: Lived) -> None:
    """A site that joins from the ledger gets the mark as one record."""
    home, there = MemoryConnection(), MemoryConnection()
    restored(home, lived)
    with SequencerThread(home, "g", SITE), Member("g", f"{SITE}/bob", connection=home) as bob:
        last = say(bob, 1)
        with writing(home, lived.data):
            has_all(lived.data, last)
    there.create("g", "sfo")
    sites = Sites("hub", SITE, "micro-batch", {SITE: home, "sfo": there}, frozenset([frozenset([SITE, "sfo"])]))
    bootstrap(sites, "g", lived.ledger, sites.directions()[0])
    with DataLog(there, "g", "sfo") as copy:
        state = copy.state()
        assert (state.seqno, state.lost) == (last, (Lost(lived.last + 1, lived.last + LEAP),))
        assert copy.end() < last, "the mark takes one offset"


@pytest.mark.parametrize("further", [0, 3])
def test_a_copy_of_the_lost_home(lived: Lived, further: int) -> None:
    """The relay goes on with a copy that ends where the ledger did. It refuses one that has more."""
    home, there = MemoryConnection(), MemoryConnection()
    there.create("g", "sfo")
    sites = Sites("hub", SITE, "micro-batch", {SITE: home, "sfo": there}, frozenset([frozenset([SITE, "sfo"])]))
    bootstrap(sites, "g", lived.ledger, sites.directions()[0])
    for number in range(1, further + 1):
        source = Source(str(Topic("g", "forward", SITE)), 0, 100 + number)
        lost = Data(MESSAGE, 1, lived.last + number, 0, f"{SITE}/alice", 1, 90 + number, b"lost", source)
        there.topics.append(TopicPartition(str(Topic("g", "data", "sfo")), 0), *encode_data(lost))
    restored(home, lived)
    take_over(home, "g", SITE)
    with closing(HomeCopy(home, there, "g", sites.directions()[0])) as copy:
        if further:
            with pytest.raises(UsageError, match=f"another seqno {lived.last + 1} than"):
                copy.start()
        else:
            for stored in copy.home.records(copy.start(), copy.home.end()):
                there.topics.append(copy.copy.partition, *encode_data(stored.data))
            state, known = copy.copy.state(), copy.home.state()
            assert (state.seqno, state.lost, state.received) == (known.seqno, known.lost, known.received)


class TestRefusals:
    def test_topics_that_are_there(self, lived: Lived) -> None:
        kafka = MemoryConnection()
        kafka.create("g", SITE)
        with pytest.raises(UsageError, match="has topics of g already"):
            plan(kafka, "g", SITE, lived.ledger, LEAP)
        with SequencerThread(kafka, "g", SITE), pytest.raises(UsageError, match="has topics of g already"):
            restored(kafka, lived)

    def test_no_rows(self, lived: Lived) -> None:
        with pytest.raises(UsageError, match="there is no ledger of group other"):
            plan(MemoryConnection(), "other", SITE, lived.ledger, LEAP)

    def test_a_ledger_with_a_hole(self, tmp_path: Path) -> None:
        log = effective(decided(linked=False))
        ledger = write_ledger(tmp_path / "ledger", [*log[:3], *log[4:]])
        with pytest.raises(UsageError, match="rows are missing"):
            plan(MemoryConnection(), "g", SITE, ledger, LEAP)

    def test_a_mesh(self, tmp_path: Path) -> None:
        ledger = write_ledger(tmp_path / "ledger", effective(decided(linked=True)))
        with pytest.raises(UsageError, match="another name"):
            plan(MemoryConnection(), "g", SITE, ledger, LEAP)

    def test_other_sites(self, lived: Lived) -> None:
        """A copy that has as much is the better source; sites that agree, and a mesh, have other ways."""
        there = MemoryConnection()
        ends = {SITE: MemoryConnection(), "sfo": there}
        hub = Sites("hub", SITE, "micro-batch", ends, frozenset([frozenset(ends)]))
        check_sites(hub, "g", SITE, lived.last)
        there.create("g", "sfo")
        check_sites(hub, "g", SITE, lived.last)
        bootstrap(hub, "g", lived.ledger, hub.directions()[0])
        check_sites(hub, "g", SITE, lived.last + 1)
        with pytest.raises(UsageError, match=f"sfo has a copy of g up to seqno {lived.last}.*site promote sfo"):
            check_sites(hub, "g", SITE, lived.last)
        check_sites(hub, "g", SITE, lived.last, forced=True)
        move_home(there, str(Topic("g", "epoch", "sfo")), Move("sfo", 10**9), act_of_this_user("promote", "sfo"))
        with pytest.raises(UsageError, match=r'sfo is the home of g.*home = "sfo"'):
            check_sites(hub, "g", SITE, lived.last + 1, forced=True)
        for mode, home, sentence in (
            ("hub", "sfo", "decided at sfo"),
            ("isis", None, "sites that agree"),
            ("mesh", None, "join under another name"),
        ):
            with pytest.raises(UsageError, match=sentence):
                check_sites(replace(hub, mode=mode, home=home), "g", SITE, lived.last, forced=True)  # type: ignore[arg-type]

    def test_sites_that_agree_do_not_go_on(self, lived: Lived) -> None:
        from connectors.takeover.takeover import Claimer, take_over_groups

        kafka = MemoryConnection()
        restored(kafka, lived)
        with pytest.raises(UsageError, match="sites that agree can't go on with it"):
            take_over_groups(Claimer(kafka, SITE, agreement="isis"), {"g": []})
        assert read_table_state(lived.ledger).last_seqno["g"] == lived.last + LEAP
