"""Starts of a sequencer and of a reader: faults are found before any write, and each knows its position."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.codec import decode_data, decode_forward, forward_headers
from connectors.kafka.codec.epochs import Claim, Note, encode_note, seconds_to_yield, this_host
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.groups.side_by_side import GROUPS_AT_ONCE
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.seqno_search import where
from connectors.kafka.log.sign_of_life import Sign, commit_sign
from connectors.kafka.topics.settings import change_settings
from connectors.takeover import takeover
from connectors.takeover.feud import seconds_for_rival
from connectors.takeover.takeover import UNSIGNED_S, Claimer, take_over, take_over_groups
from connectors.takeover.ticks import tick
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryFuture
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    BrokerUnreachable,
    Fenced,
    HistoryUnavailable,
    ProtocolViolation,
    TopicMissing,
    UsageError,
)
from ordering.base.names import Topic
from ordering.base.records import HEARTBEAT, JOIN, Data, Headers, Partition, Source
from ordering.sequencer.sequencer import end_batch, step
from ordering.sequencer.state import SequencerState
from tests.waiting import eventually

DATA, EPOCH, FORWARD = Topic("g", "data", "nyc"), Topic("g", "epoch", "nyc"), Topic("g", "forward", "nyc")


def log_of(kafka: MemoryConnection, topic: Topic) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    return [
        (record.key, record.value, record.headers) for record in kafka.topics.partitions[TopicPartition(str(topic), 0)]
    ]


def data_of(kafka: MemoryConnection) -> list[Data]:
    return [decode_data(*record) for record in log_of(kafka, DATA)]


def order(kafka: MemoryConnection, count: int) -> None:
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/alice", connection=kafka) as alice:
        for receipt in [alice.broadcast(b"old %d" % number) for number in range(count)]:
            receipt.result(10)


class TestNoNumberIsReused:
    def test_data_that_a_retention_has_emptied(self, kafka: MemoryConnection) -> None:
        """The sequencer claims nothing: the decisions are unknown."""
        order(kafka, 10)
        kafka.drop(DATA)
        claims = len(log_of(kafka, EPOCH))
        with pytest.raises(HistoryUnavailable, match=r"no snapshot is left.*go on in a new group"):
            take_over(kafka, "g", "nyc")
        assert len(log_of(kafka, EPOCH)) == claims, "it has claimed what it can't go on with"

    def test_data_that_was_made_anew_is_not_taken_for_an_empty_group(self, kafka: MemoryConnection) -> None:
        order(kafka, 3)
        take_over(kafka, "g", "nyc")
        kafka.topics.partitions[TopicPartition(str(DATA), 0)].clear()
        with pytest.raises(ProtocolViolation, match="was it deleted"):
            take_over(kafka, "g", "nyc")


class TestNothingIsClaimedInVain:
    """A fault of a group is found before the first claim."""

    def test_several_groups(self, kafka: MemoryConnection) -> None:
        """Every unservable group is named with its reason; if all are unservable, the start fails."""
        for group in "hi":
            kafka.create(group, "nyc")
        del kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 0)]
        kafka.topics.partitions[TopicPartition("abcast.i.data.nyc", 1)] = []
        with pytest.raises(UnservableGroups) as unservable:
            take_over_groups(Claimer(kafka, "nyc"), {"g": [str(FORWARD)], "h": [], "i": []})
        assert {group: type(error) for group, error in unservable.value.errors.items()} == {
            "h": TopicMissing,
            "i": UsageError,
        }
        with pytest.raises(TopicMissing, match=r"(?s)abcast\.h\.data.*\n.*abcast\.i\.data"):
            take_over_groups(Claimer(kafka, "nyc"), {"h": [], "i": []})
        assert log_of(kafka, EPOCH) == log_of(kafka, DATA) == []
        assert list(take_over_groups(Claimer(kafka, "nyc"), {"g": [str(FORWARD)]})) == ["g"]

    def test_a_group_of_a_newer_sequencer_is_left_to_it(self, kafka: MemoryConnection) -> None:
        kafka.create("h", "nyc")
        take_over(kafka, "h", "nyc")
        take_over(kafka, "h", "nyc")
        with pytest.raises(UnservableGroups) as unservable:
            take_over_groups(Claimer(kafka, "nyc", claimed={"h": 1}), {"g": [str(FORWARD)], "h": []})
        assert {group: type(error) for group, error in unservable.value.errors.items()} == {"h": Fenced}
        with pytest.raises(Fenced):
            take_over_groups(Claimer(kafka, "nyc", claimed={"h": 1}), {"h": []})
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
        """A stray record there once kept every sequencer of the group from starting."""
        kafka.producer().send(str(EPOCH), value=value, headers=header)
        assert take_over(kafka, "g", "nyc").epoch == 2
        assert take_over(kafka, "g", "nyc").epoch > 2

    @pytest.mark.parametrize("header", [[], [("abcast", b"")], [("abcast", None)], [("abcast", b"1 claim")]])
    def test_an_epoch_topic_with_another_header_in_it(self, kafka: MemoryConnection, header: Headers) -> None:
        order(kafka, 1)
        kafka.producer().send(str(EPOCH), value=b"0 host 7", headers=header)
        order(kafka, 1)
        with DataLog(kafka, "g", "nyc") as data:
            floors = [claim.floor for claim in data.epochs.read().claims]
            assert floors == sorted(set(floors))
            assert data.state().seqno == 2

    def test_an_epoch_topic_of_a_later_version(self, kafka: MemoryConnection) -> None:
        """The unknown record may matter."""
        kafka.producer().send(str(EPOCH), value=b"0 host 7", headers=[("abcast", b"2 lease")])
        for _ in range(2):
            with pytest.raises(ProtocolViolation, match=r"abcast\.g\.epoch\.nyc at offset 0 is of a kind that only"):
                take_over(kafka, "g", "nyc")


class TestSettings:
    def test_an_operator_whose_clock_is_behind(self, kafka: MemoryConnection) -> None:
        with SequencerThread(kafka, "g", "nyc") as sequencer:
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
    """Supervisors restart each sequencer that the other has fenced."""

    @pytest.mark.parametrize("hosts", ["", "a", "aaaa", "b", "ab", "aab", "bbbb", "bab", "abba", "babc", "cbab"])
    def test_no_feud(self, hosts: str) -> None:
        """No feud is a crash, a handover and its way back; or a last claim by this host."""
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
        monkeypatch.setattr("connectors.takeover.feud.find_groups", lambda _, site: ["g"] if site == "nyc" else [])
        assert not seconds_for_rival(kafka, "nyc")
        for host in [this_host(), "elsewhere"] * 3:
            kafka.producer().send(str(EPOCH), value=f"0 {host} 7".encode(), headers=[("abcast", b"2 claim")])
        with patch("connectors.takeover.feud._logger.warning") as warning:
            wait = seconds_for_rival(kafka, "nyc")
        assert "process 7 on host elsewhere" in warning.call_args.args
        assert 10 < wait <= 40  # the claims are a little older now
        for group in "hi":
            kafka.create(group, "nyc")
        monkeypatch.setattr("connectors.takeover.feud.find_groups", lambda *_: ["g", "h", "i"])
        assert not seconds_for_rival(kafka, "nyc"), "a start waits for the one of three groups"

    def test_many_groups_are_asked_by_few_connections(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"g{number}" for number in range(2 * GROUPS_AT_ONCE)]
        for name in names:
            kafka.create(name, "nyc")
        monkeypatch.setattr("connectors.takeover.feud.find_groups", lambda *_: names)
        consumer, opened = MemoryConnection.consumer, list[object]()

        def counted(connection: MemoryConnection, **settings: Any) -> Any:
            opened.append(None)
            return consumer(connection, **settings)

        monkeypatch.setattr(MemoryConnection, "consumer", counted)
        assert not seconds_for_rival(kafka, "nyc"), "there is no rival"
        assert 0 < len(opened) <= GROUPS_AT_ONCE

    @pytest.mark.parametrize("claimer", ["elsewhere 7", f"{this_host()} {os.getppid()}"])
    def test_who_is_replaced_is_told(self, kafka: MemoryConnection, claimer: str) -> None:
        """A job that starts for groups of a running job names it."""
        kafka.producer().send(str(EPOCH), value=f"0 {claimer}".encode(), headers=[("abcast", b"2 claim")])
        host, pid = claimer.split()
        with patch("connectors.takeover.takeover._logger.warning") as warning:
            take_over(kafka, "g", "nyc")
        assert warning.call_args.args[1:] == (f"process {pid} on host {host}", "g")

    @pytest.mark.parametrize("pid", [os.getpid, lambda: 2**22 + 1], ids=["own", "nobody's"])
    def test_who_is_gone_is_not_told(self, kafka: MemoryConnection, pid: Callable[[], int]) -> None:
        """A restarted container has the same process number, and a killed one left fresh signs: neither is named."""
        kafka.producer().send(str(EPOCH), value=f"0 {this_host()} {pid()}".encode(), headers=[("abcast", b"2 claim")])
        with patch("connectors.takeover.takeover._logger.warning") as warning:
            take_over(kafka, "g", "nyc")
        assert not warning.called

    def test_a_fenced_sequencer_hears_who_it_was(self, kafka: MemoryConnection) -> None:
        own: dict[str, int] = {}
        take_over(kafka, "g", "nyc", claimed=own)
        take_over(kafka, "g", "nyc")
        with pytest.raises(Fenced, match=f"on host {this_host()}"):
            take_over(kafka, "g", "nyc", claimed=own)


class TestClaimsWithoutASign:
    """A sequencer dies behind its claim, before its first sign of life. The one that it fenced takes the group back."""

    @pytest.fixture
    def own(self, kafka: MemoryConnection) -> dict[str, int]:
        """The epochs of a sequencer that gave a sign in epoch 1."""
        own: dict[str, int] = {}
        take_over(kafka, "g", "nyc", claimed=own)
        self.sign(kafka, 1, at_ms=0)
        return own

    def sign(self, kafka: MemoryConnection, epoch: int, at_ms: int) -> None:
        commit_sign(kafka.metadata_client(), "g", "nyc", Sign(epoch, "elsewhere", "process", at_ms))

    def is_taken_back(self, kafka: MemoryConnection, own: dict[str, int]) -> bool:
        try:
            take_over(kafka, "g", "nyc", claimed=own)
        except Fenced:
            return False
        return True

    @pytest.mark.parametrize(("age_s", "is_gone"), [(UNSIGNED_S - 20, False), (UNSIGNED_S + 1, True)])
    def test_it_has_a_minute_for_its_first_sign(
        self, kafka: MemoryConnection, own: dict[str, int], *, age_s: float, is_gone: bool
    ) -> None:
        kafka.topics.ahead_ms = -round(age_s * 1_000)
        take_over(kafka, "g", "nyc")
        assert self.is_taken_back(kafka, own) == is_gone

    def test_one_that_goes_on_without_the_group_is_there(self, kafka: MemoryConnection, own: dict[str, int]) -> None:
        kafka.topics.ahead_ms = -120_000
        take_over(kafka, "g", "nyc")
        self.sign(kafka, 0, at_ms=time.time_ns() // 1_000_000)
        assert not self.is_taken_back(kafka, own)

    def test_where_nobody_signs_nobody_counts_as_silent(self, kafka: MemoryConnection, own: dict[str, int]) -> None:
        kafka.topics.ahead_ms = -120_000
        take_over(kafka, "g", "nyc")
        kafka.topics.forget_commits()
        assert not self.is_taken_back(kafka, own)


class TestNotes:
    def test_a_note_is_no_claim(self, kafka: MemoryConnection) -> None:
        own: dict[str, int] = {}
        first = take_over(kafka, "g", "nyc", claimed=own)
        second = take_over(kafka, "g", "nyc", claimed=own)
        assert (first.epoch, second.epoch) == (1, 3)
        with DataLog(kafka, "g", "nyc") as data:
            assert [claim.epoch for claim in data.epochs.read().claims] == [1, 3]
            assert data.epochs.read().newest_epoch == 3
            assert data.epochs.read().notes == [Note(1, 1, 0), Note(3, 3, 0)]
            assert data.epochs.newest_base() is None

    def test_it_is_a_mark(self, kafka: MemoryConnection) -> None:
        order(kafka, 5)
        with DataLog(kafka, "g", "nyc") as data:
            state = data.state()
            at = {stored.data.seqno: stored.offset for stored in data.records(0, data.end()) if stored.data.seqno}
            assert [where(data, seqno, state) <= at[seqno] for seqno in range(1, 6)] == [True] * 5
            value, headers = encode_note(Note(at[4], state.epoch, 3))
            kafka.producer().send(str(EPOCH), value=value, headers=headers)
            assert [where(data, seqno, state) for seqno in (4, 5)] == [at[4], at[5]]


def test_a_takeover_tells_its_horizon(kafka: MemoryConnection) -> None:
    """The horizon is the end of FORWARD that must be read; the first batch that reaches it drops it."""
    order(kafka, 3)
    tick(kafka.producer(), str(FORWARD), [0], 1)
    end = len(log_of(kafka, FORWARD))
    assert take_over(kafka, "g", "nyc").membership.horizon == {Partition(str(FORWARD), 0): end}
    with SequencerThread(kafka, "g", "nyc") as sequencer:
        deadline = time.monotonic() + 60
        while sequencer.state.membership.horizon and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not sequencer.state.membership.horizon
    assert take_over(kafka, "g", "nyc").seqno == 3


class TestASlowTakeover:
    """The sequencer before goes on between the survey of the next one and its claim."""

    @pytest.fixture
    def slowly(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SequencerState]:
        """A takeover that begins when FORWARD has 5 s, and claims when it has 60 s: a member has joined after 40 s."""
        claim, log = takeover._claim, kafka.topics.partitions[TopicPartition(str(FORWARD), 0)]

        def pass_seconds(first: int, last: int) -> None:
            for second in range(first, last):
                kafka.topics.ahead_ms = (second - 60) * 1_000
                tick(kafka.producer(), str(FORWARD), [0], 1)
                if second >= 40:
                    headers = forward_headers(1, 1, kind=JOIN if second == 40 else HEARTBEAT)
                    kafka.producer().send(str(FORWARD), key=b"nyc/bob", value=b"", headers=headers, partition=0)

        def late(*given: Any) -> SequencerState:
            with monkeypatch.context() as first:
                first.setattr(takeover, "_claim", claim)
                pass_seconds(5, 60)
            eventually(lambda: before.state.positions.get(Partition(str(FORWARD), 0)) == len(log), what="a sequencer")
            return claim(*given)

        before = SequencerThread(kafka, "g", "nyc")

        def take() -> SequencerState:
            with before:
                pass_seconds(0, 5)
                monkeypatch.setattr(takeover, "_claim", late)
                return take_over(kafka, "g", "nyc")

        return take

    def test_what_came_since_the_survey_suspects_nobody(
        self, kafka: MemoryConnection, slowly: Callable[..., SequencerState]
    ) -> None:
        state = slowly()
        assert [member.address for member in state.membership.members] == ["nyc/bob"]
        log = kafka.topics.partitions[TopicPartition(str(FORWARD), 0)]
        read = [
            decode_forward(Source(str(FORWARD), 0, each.offset), each.key, each.value, each.headers, each.timestamp)
            for each in log
        ]
        for first in range(0, len(read), 10):
            stepped = step(state, read[first : first + 10])
            state, closing = end_batch(stepped.state)
            assert not closing
            assert not stepped.outputs

    def test_what_it_decided_then_is_known(self, slowly: Callable[..., SequencerState]) -> None:
        """A record that it considered is no dead letter of its successor."""
        place = Partition(str(FORWARD), 0)
        assert slowly().decided[place] > 40


@pytest.mark.parametrize("lost", ["epoch", "data"])
def test_a_record_without_an_offset_ends_a_takeover(
    kafka: MemoryConnection, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that gets a claim or a seal twice, and knows only that it has it, tells no offset."""
    own: dict[str, int] = {}

    def written(sent: MemoryFuture, record: PlainRecord) -> None:
        is_told = Topic.of(sent.topic_partition.topic).role != lost
        tells(sent, record if is_told else record._replace(offset=-1))

    tells = MemoryFuture.written
    with monkeypatch.context() as answers:
        answers.setattr(MemoryFuture, "written", written)
        with pytest.raises(BrokerUnreachable, match=rf"does not tell the offset of a record in abcast\.g\.{lost}\.nyc"):
            take_over(kafka, "g", "nyc", claimed=own)
    assert take_over(kafka, "g", "nyc", claimed=own).epoch == own["g"] > 1


def test_a_forward_topic_that_was_made_anew(kafka: MemoryConnection) -> None:
    """Its offsets begin again, below the position in the old topic. None of its records was decided."""
    order(kafka, 5)
    kafka.topics.make_anew([str(FORWARD)])
    state = take_over(kafka, "g", "nyc")
    assert not state.decided
    order(kafka, 3)
    assert [record.seqno for record in data_of(kafka) if record.seqno] == list(range(1, 9))
