"""How a sequencer and a reader start: what they find before they change anything, and what they go on from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec import decode_data, encode_data
from connectors.kafka.data_log import DataLog, StateAt
from connectors.kafka.epochs import Claim, Note, encode_note, seconds_to_yield, this_host
from connectors.kafka.settings import change_settings
from connectors.kafka.unfit import UnfitGroups
from connectors.ledger.state import read_ledger_state
from connectors.sequencer.takeover import GROUPS_AT_ONCE, note_end, take_over, take_over_groups, yield_to_rival
from connectors.sequencer.ticks import tick
from connectors.sequencer.upkeep import Upkeep
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.tiny_sequencer import TinySequencer
from ordering.errors import Fenced, HistoryUnavailable, ProtocolViolation, TopicMissing, UsageError
from ordering.names import Topic
from ordering.records import Data, Headers, Partition
from ordering.sequencer import SequencerState, absorb, seal

DATA, EPOCH, FORWARD = Topic("g", "data", "nyc"), Topic("g", "epoch", "nyc"), Topic("g", "forward", "nyc")


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    return connection


def log_of(kafka: MemoryConnection, topic: Topic) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    return [
        (record.key, record.value, record.headers) for record in kafka.topics.partitions[TopicPartition(str(topic), 0)]
    ]


def data_of(kafka: MemoryConnection) -> list[Data]:
    return [decode_data(*record) for record in log_of(kafka, DATA)]


def order(kafka: MemoryConnection, count: int) -> None:
    with TinySequencer(kafka, "g", "nyc"), Member("g", "nyc/alice", connection=kafka) as alice:
        for receipt in [alice.broadcast(b"old %d" % number) for number in range(count)]:
            receipt.result(10)


def ledger(kafka: MemoryConnection, seqno: int, *, tells_offset: bool = True) -> StateAt:
    """What `read_ledger_state` returns of a ledger that ends at `seqno`."""
    rows = [(offset, record) for offset, record in enumerate(data_of(kafka)) if 0 < record.seqno <= seqno]
    state = replace(absorb(SequencerState("g"), [record for _, record in rows]), positions={})
    return StateAt(state, rows[-1][0] + 1 if tells_offset else None)


class TestNoNumberIsReused:
    """Retention has emptied DATA, and a ledger tells the state."""

    def test_a_ledger_that_ends_early_is_refused(self, kafka: MemoryConnection) -> None:
        order(kafka, 10)
        told = ledger(kafka, 7)
        kafka.drop(DATA)
        claims = len(log_of(kafka, EPOCH))
        with pytest.raises(HistoryUnavailable, match="the ledger ends at seqno 7"):
            take_over(kafka, "g", "nyc", lambda: told)
        with pytest.raises(HistoryUnavailable, match="the ledger ends at seqno 7"):
            take_over(kafka, "g", "nyc", lambda: replaced(told, below=None))
        assert len(log_of(kafka, EPOCH)) == claims, "it has claimed what it can't go on with"

    def test_a_whole_ledger_is_gone_on_from(self, kafka: MemoryConnection) -> None:
        order(kafka, 10)
        told = ledger(kafka, 10)
        kafka.drop(DATA)
        assert take_over(kafka, "g", "nyc", lambda: told).seqno == 10
        with DataLog(kafka, "g", "nyc") as data:
            assert data.state().seqno == 10

    @pytest.mark.parametrize("tells_offset", [True, False])
    def test_idle_restarts_cost_nothing(self, kafka: MemoryConnection, tells_offset: bool) -> None:
        """DATA goes on behind the ledger's last row with seals and snapshots, and all of it is dropped."""
        order(kafka, 10)
        told = ledger(kafka, 10, tells_offset=tells_offset)
        for _ in range(3):
            take_over(kafka, "g", "nyc")
        kafka.drop(DATA)
        state = take_over(kafka, "g", "nyc", lambda: told)
        assert (state.seqno, state.received) == (10, told.state.received)
        seals = {seal.epoch: seal.first_seqno for seal in state.seals}
        assert seals[state.epoch] == 11
        short = ledger(kafka, 9)
        kafka.drop(DATA)
        with pytest.raises(HistoryUnavailable, match="the ledger ends at seqno 9"):
            take_over(kafka, "g", "nyc", lambda: short)

    def test_what_is_left_of_data_proves_as_much(self, kafka: MemoryConnection) -> None:
        """A ledger of an earlier version knows no offsets; but what follows its last row still stands in DATA."""
        order(kafka, 10)
        told = ledger(kafka, 7, tells_offset=False)
        place = TopicPartition(str(DATA), 0)
        offset_of = {record.seqno: offset for offset, record in enumerate(data_of(kafka)) if record.seqno}
        kafka.topics.beginnings[place] = offset_of[9]
        with pytest.raises(HistoryUnavailable, match="the ledger ends at seqno 7"):
            take_over(kafka, "g", "nyc", lambda: told)
        kafka.topics.beginnings[place] = offset_of[8]
        assert take_over(kafka, "g", "nyc", lambda: told).seqno == 10

    def test_the_operator_may_know_better(self, kafka: MemoryConnection) -> None:
        order(kafka, 10)
        told = ledger(kafka, 10, tells_offset=False)
        short = ledger(kafka, 9)
        kafka.drop(DATA)
        with pytest.raises(HistoryUnavailable):
            take_over(kafka, "g", "nyc", lambda: told)
        assert take_over(kafka, "g", "nyc", lambda: told, trust_ledger=True).seqno == 10
        kafka.drop(DATA)
        with pytest.raises(HistoryUnavailable):  # a note says that he does not
            take_over(kafka, "g", "nyc", lambda: short, trust_ledger=True)

    def test_the_driver_notes_snapshots_behind_the_last_message(self, kafka: MemoryConnection) -> None:
        order(kafka, 3)
        with DataLog(kafka, "g", "nyc") as data:
            producer = kafka.producer()
            before = len(log_of(kafka, EPOCH))
            note_end(data, producer)
            assert len(log_of(kafka, EPOCH)) == before, "the ledger tells of a message"
            state = take_over(kafka, "g", "nyc")
            del kafka.topics.partitions[TopicPartition(str(EPOCH), 0)][-1:]  # as if it had died before its note
            note_end(data, producer)
            note_end(data, producer)
            assert data.notes()[-1] == Note(data.end(), state.epoch, 3)
            assert len(log_of(kafka, EPOCH)) == before + 2

    def test_data_that_was_made_anew_is_not_taken_for_an_empty_group(self, kafka: MemoryConnection) -> None:
        order(kafka, 3)
        take_over(kafka, "g", "nyc")
        kafka.topics.partitions[TopicPartition(str(DATA), 0)].clear()
        with pytest.raises(ProtocolViolation, match="was it deleted"):
            take_over(kafka, "g", "nyc")


def replaced(told: StateAt, below: int | None) -> StateAt:
    return told._replace(below=below)


class TestNothingIsClaimedInVain:
    """What is wrong with a group is found before the first claim."""

    def test_several_groups(self, kafka: MemoryConnection) -> None:
        """All that are unfit are named, each with its reason; if all are, that is what is wrong."""
        for group in "hi":
            kafka.create(group, "nyc")
        del kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 0)]
        kafka.topics.partitions[TopicPartition("abcast.i.data.nyc", 1)] = []
        with pytest.raises(UnfitGroups) as unfit:
            take_over_groups(kafka, {"g": [str(FORWARD)], "h": [], "i": []}, "nyc")
        assert {group: type(error) for group, error in unfit.value.errors.items()} == {
            "h": TopicMissing,
            "i": UsageError,
        }
        with pytest.raises(TopicMissing, match=r"(?s)abcast\.h\.data.*\n.*abcast\.i\.data"):
            take_over_groups(kafka, {"h": [], "i": []}, "nyc")
        assert log_of(kafka, EPOCH) == log_of(kafka, DATA) == []
        assert list(take_over_groups(kafka, {"g": [str(FORWARD)]}, "nyc")) == ["g"]

    def test_a_sequencer_with_a_newer_epoch_is_not_one_groups_affair(self, kafka: MemoryConnection) -> None:
        kafka.create("h", "nyc")
        take_over(kafka, "h", "nyc")
        take_over(kafka, "h", "nyc")
        with pytest.raises(Fenced):
            take_over_groups(kafka, {"g": [str(FORWARD)], "h": []}, "nyc", claimed={"h": 1})
        assert log_of(kafka, EPOCH) == []

    def test_two_partitions_of_data(self, kafka: MemoryConnection) -> None:
        kafka.topics.partitions[TopicPartition(str(DATA), 1)] = []
        with pytest.raises(UsageError, match=r"abcast\.g\.data\.nyc has 2 partitions, but an order has one"):
            take_over(kafka, "g", "nyc")
        with pytest.raises(UsageError, match="2 partitions"), Member("g", "nyc/a", connection=kafka) as member:
            member.broadcast(b"x")
        assert log_of(kafka, EPOCH) == []

    def test_an_epoch_topic_with_a_retention(self, kafka: MemoryConnection) -> None:
        order(kafka, 1)
        kafka.drop(EPOCH)
        with pytest.raises(HistoryUnavailable, match=r"the first 2 records of abcast\.g\.epoch\.nyc"):
            take_over(kafka, "g", "nyc")

    @pytest.mark.parametrize("value", [b"garbage", b"", None, b"1 host x", b"1 host", "1 \u00e9 7".encode()])
    @pytest.mark.parametrize("header", [[("abcast", b"2 claim")], [("abcast", b"2 note")]])
    def test_an_epoch_topic_with_something_else_in_it(
        self, kafka: MemoryConnection, value: bytes | None, header: Headers
    ) -> None:
        """Before, no sequencer of the group could start any more."""
        kafka.producer().send(str(EPOCH), value=value, headers=header)
        assert take_over(kafka, "g", "nyc").epoch == 2
        assert take_over(kafka, "g", "nyc").epoch > 2

    @pytest.mark.parametrize("header", [[], [("abcast", b"")], [("abcast", None)], [("abcast", b"1 claim")]])
    def test_an_epoch_topic_with_another_header_in_it(self, kafka: MemoryConnection, header: Headers) -> None:
        order(kafka, 1)
        kafka.producer().send(str(EPOCH), value=b"0 host 7", headers=header)
        order(kafka, 1)
        with DataLog(kafka, "g", "nyc") as data:
            assert [claim.floor for claim in data.claims()] == sorted({claim.floor for claim in data.claims()})
            assert data.state().seqno == 2

    def test_an_epoch_topic_of_a_later_version(self, kafka: MemoryConnection) -> None:
        """What it says may matter."""
        kafka.producer().send(str(EPOCH), value=b"0 host 7", headers=[("abcast", b"2 lease")])
        for _ in range(2):
            with pytest.raises(ProtocolViolation, match=r"abcast\.g\.epoch\.nyc at offset 0 is of a kind that this"):
                take_over(kafka, "g", "nyc")


class TestAnIdleGroup:
    """DATA has a retention, and nobody sends."""

    @pytest.fixture
    def retention(self) -> Iterator[None]:
        with (
            patch("connectors.sequencer.upkeep.data_retention", return_value={"g": 800.0}),
            patch("ordering.sequencer.SNAPSHOT_EVERY_MS", 1),
        ):
            yield

    def test_a_member_can_start(self, kafka: MemoryConnection, retention: None) -> None:
        """Retention has dropped everything up to the last message, and the takeover's snapshot with it."""
        upkeep, now = Upkeep(kafka, "nyc"), 0.0
        with TinySequencer(kafka, "g", "nyc"), DataLog(kafka, "g", "nyc") as data:
            with Member("g", "nyc/alice", connection=kafka) as alice:
                alice.broadcast(b"x").result(10)
            kafka.drop(DATA)
            with pytest.raises(HistoryUnavailable):
                data.state()
            assert upkeep.due(["g"], lambda _: data, now) == {}
            before, deadline = data.end(), time.monotonic() + 60
            while data.end() == before and time.monotonic() < deadline:
                now += 100.0
                for group, seqno in upkeep.due(["g"], lambda _: data, now).items():
                    assert (group, seqno) == ("g", 0)
                    tick(kafka.producer(), str(FORWARD), [0], seqno)
                assert upkeep.due(["g"], lambda _: data, now + 99.0) == {}
                time.sleep(0.1)
            with Member("g", "nyc/bob", connection=kafka) as bob:
                assert bob.broadcast(b"y").result(10) == 2

    def test_what_can_not_be_noted_is_ticked_all_the_same(self, kafka: MemoryConnection, retention: None) -> None:
        order(kafka, 1)
        take_over(kafka, "g", "nyc")
        kafka.drop(DATA)
        with DataLog(kafka, "g", "nyc") as data:
            kafka.producer().send(str(DATA), value=b"", headers=encode_data(seal(1))[2])
            upkeep = Upkeep(kafka, "nyc")
            assert (upkeep.due(["g"], lambda _: data, 0.0), upkeep.due(["g"], lambda _: data, 100.0)) == ({}, {"g": 0})

    def test_one_that_is_kept_for_ever_is_left_alone(self, kafka: MemoryConnection) -> None:
        with patch("connectors.sequencer.upkeep.data_retention", return_value={}), DataLog(kafka, "g", "nyc") as data:
            upkeep = Upkeep(kafka, "nyc")
            assert upkeep.due(["g"], lambda _: data, 0.0) == upkeep.due(["g"], lambda _: data, 10.0**9) == {}


class TestSettings:
    def test_an_operator_whose_clock_is_behind(self, kafka: MemoryConnection) -> None:
        with TinySequencer(kafka, "g", "nyc") as sequencer:
            assert change_settings(kafka, "g", "nyc", flush=True)
            with patch("time.time_ns", return_value=1_000_000_000):
                assert change_settings(kafka, "g", "nyc", closed=True)
            settings = sequencer.state.membership.settings
            assert (settings.flush, settings.closed) == (True, True)

    def test_nobody_is_waited_for_where_nobody_works(self, kafka: MemoryConnection) -> None:
        started = time.monotonic()
        assert not change_settings(kafka, "g", "nyc", timeout_s=60, closed=True)
        assert time.monotonic() - started < 30
        take_over(kafka, "g", "nyc")
        assert not change_settings(kafka, "g", "nyc", closed=True, timeout_s=0.2)


def claims_of(hosts: str, seconds_apart: float = 12.0) -> list[Claim]:
    return [
        Claim(epoch, 0, host, 100 + epoch, round(epoch * seconds_apart * 1000)) for epoch, host in enumerate(hosts, 1)
    ]


class TestTwoUnderSupervisors:
    """Each is started again when the other has fenced it."""

    @pytest.mark.parametrize("hosts", ["", "a", "aaaa", "b", "ab", "aab", "bbbb", "bab", "abba", "babc", "cbab"])
    def test_no_feud(self, hosts: str) -> None:
        """A crash, a handover, and its way back; or the last to claim was this host."""
        claims = claims_of(hosts)
        assert seconds_to_yield(claims, "a", claims[-1].at_ms if claims else 0) is None

    def test_a_feud_gets_slower(self) -> None:
        waits = []
        for rounds in range(2, 9):
            claims = claims_of("ab" * rounds)
            found = seconds_to_yield(claims, "a", claims[-1].at_ms)
            assert found is not None
            assert found[1] == claims[-1]
            waits.append(found[0])
        assert waits == [10.0, 40.0, 160.0, 300.0, 300.0, 300.0, 300.0]

    def test_it_goes_on_at_the_slow_pace(self) -> None:
        claims = claims_of("ab" * 9, seconds_apart=316.0)
        assert seconds_to_yield(claims, "a", claims[-1].at_ms + 16_000) == (284.0, claims[-1])

    def test_it_is_over_some_day(self) -> None:
        claims = claims_of("ab" * 9)
        assert seconds_to_yield(claims, "a", claims[-1].at_ms + 300_000) is None
        assert seconds_to_yield(claims_of("ab" * 9, seconds_apart=3600.0), "a", claims[-1].at_ms) is None

    def test_claims_of_an_earlier_version_name_nobody(self) -> None:
        assert seconds_to_yield([Claim(epoch, 0) for epoch in range(1, 9)], "a", 0) is None

    def test_the_start_waits(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("connectors.sequencer.takeover.find_groups", lambda _, site: ["g"] if site == "nyc" else [])
        waits: list[float] = []
        assert not yield_to_rival(kafka, "nyc", waits.append)
        for host in [this_host(), "elsewhere"] * 3:
            kafka.producer().send(str(EPOCH), value=f"0 {host} 7".encode(), headers=[("abcast", b"2 claim")])
        with patch("connectors.sequencer.takeover._logger.warning") as warning:
            assert not yield_to_rival(kafka, "nyc", waits.append)
        assert "process 7 on host elsewhere" in warning.call_args.args
        [wait] = waits
        assert 10 < wait <= 40  # the claims are a little older now
        assert yield_to_rival(kafka, "nyc", lambda _: True)

    def test_many_groups_are_asked_by_few_connections(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"g{number}" for number in range(2 * GROUPS_AT_ONCE)]
        for name in names:
            kafka.create(name, "nyc")
        monkeypatch.setattr("connectors.sequencer.takeover.find_groups", lambda *_: names)
        consumer, opened = MemoryConnection.consumer, list[object]()

        def counted(connection: MemoryConnection, **settings: Any) -> Any:
            opened.append(None)
            return consumer(connection, **settings)

        monkeypatch.setattr(MemoryConnection, "consumer", counted)
        assert not yield_to_rival(kafka, "nyc", lambda _: pytest.fail("there is no rival"))
        assert len(opened) == GROUPS_AT_ONCE

    @pytest.mark.parametrize("claimer", ["elsewhere 7", f"{this_host()} {os.getppid()}"])
    def test_who_is_replaced_is_told(self, kafka: MemoryConnection, claimer: str) -> None:
        """By a job that is started for groups that another one serves."""
        kafka.producer().send(str(EPOCH), value=f"0 {claimer}".encode(), headers=[("abcast", b"2 claim")])
        host, pid = claimer.split()
        with patch("connectors.sequencer.takeover._logger.warning") as warning:
            take_over(kafka, "g", "nyc")
        assert warning.call_args.args[1:] == (f"process {pid} on host {host}", "g")

    @pytest.mark.parametrize("pid", [os.getpid, lambda: 2**22 + 1], ids=["own", "nobody's"])
    def test_who_is_gone_is_not_told(self, kafka: MemoryConnection, pid: Callable[[], int]) -> None:
        """A container that starts again has its number, and one that was killed left fresh signs."""
        kafka.producer().send(str(EPOCH), value=f"0 {this_host()} {pid()}".encode(), headers=[("abcast", b"2 claim")])
        with patch("connectors.sequencer.takeover._logger.warning") as warning:
            take_over(kafka, "g", "nyc")
        assert not warning.called

    def test_a_fenced_sequencer_hears_who_it_was(self, kafka: MemoryConnection) -> None:
        own: dict[str, int] = {}
        take_over(kafka, "g", "nyc", claimed=own)
        take_over(kafka, "g", "nyc")
        with pytest.raises(Fenced, match=f"on host {this_host()}"):
            take_over(kafka, "g", "nyc", claimed=own)


class TestNotes:
    def test_a_note_is_no_claim(self, kafka: MemoryConnection) -> None:
        own: dict[str, int] = {}
        first = take_over(kafka, "g", "nyc", claimed=own)
        second = take_over(kafka, "g", "nyc", claimed=own)
        assert (first.epoch, second.epoch) == (1, 3)
        with DataLog(kafka, "g", "nyc") as data:
            assert [claim.epoch for claim in data.claims()] == [1, 3]
            assert data.newest_epoch() == 3
            assert data.notes() == [Note(2, 1, 0), Note(4, 3, 0)]
            assert data.base() is None

    def test_it_is_a_mark(self, kafka: MemoryConnection) -> None:
        order(kafka, 5)
        with DataLog(kafka, "g", "nyc") as data:
            state = data.state()
            at = {stored.data.seqno: stored.offset for stored in data.records(0, data.end()) if stored.data.seqno}
            assert [data.where(seqno, state.seals) <= at[seqno] for seqno in range(1, 6)] == [True] * 5
            value, headers = encode_note(Note(at[4], state.epoch, 3))
            kafka.producer().send(str(EPOCH), value=value, headers=headers)
            assert [data.where(seqno, state.seals) for seqno in (4, 5)] == [at[4], at[5]]


def test_a_takeover_tells_its_horizon(kafka: MemoryConnection) -> None:
    """The end of FORWARD, as far as something is to be read there; the first batch that reaches it drops it."""
    order(kafka, 3)
    tick(kafka.producer(), str(FORWARD), [0], 1)
    end = len(log_of(kafka, FORWARD))
    assert take_over(kafka, "g", "nyc").membership.horizon == {Partition(str(FORWARD), 0): end}
    with TinySequencer(kafka, "g", "nyc") as sequencer:
        deadline = time.monotonic() + 60
        while sequencer.state.membership.horizon and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not sequencer.state.membership.horizon
    assert take_over(kafka, "g", "nyc", lambda: None).seqno == 3


class TestWhatTheLedgerTells:
    """A Delta table; rows and tables of earlier versions know no offsets in DATA."""

    @pytest.mark.parametrize(
        ("offsets", "below"),
        [([3, 4, 7], 8), ([None, None, 7], 8), ([3, 4, None], 5), ([None] * 3, None), (None, None)],
    )
    def test_how_far_it_reaches(self, tmp_path: Path, offsets: list[int | None] | None, below: int | None) -> None:
        numbers = {"seqno": [1, 2, 3], "epoch": [1, 1, 4], "view_id": [0] * 3, "incarnation": [7] * 3}
        columns: dict[str, pa.Array] = {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
        columns |= {
            "group": pa.array(["g"] * 3),
            "sender": pa.array(["nyc/alice"] * 3),
            "local_seqno": pa.array([1, 2, 3], pa.int64()),
            "kind": pa.array(["message"] * 3),
            "payload": pa.array([b"x"] * 3),
            "forwarded_at": pa.array([0] * 3, pa.timestamp("us", "UTC")),
        }
        if offsets is not None:
            columns["data_offset"] = pa.array(offsets, pa.int64())
        write_deltalake(str(tmp_path / "ledger"), pa.table(columns), partition_by=["group"])
        told = read_ledger_state(tmp_path / "ledger", "g")
        assert told is not None
        assert told.below == below
        assert (told.state.seqno, told.state.epoch, told.state.received) == (3, 4, {"nyc/alice": (7, 3)})
        assert told.state.seals == ((1, 1), (4, 3))
        assert read_ledger_state(tmp_path / "ledger", "h") is None
        assert read_ledger_state(tmp_path / "nowhere", "g") is None
