"""Purging DATA leaves enough to start from, the ledger has the deleted messages, and the order goes on."""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis.status import Deleted, read_status
from connectors.kafka.codec.epochs import encode_note
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.data_purge import deletable, lacking_unknown_sites, missing_note, purge_data
from connectors.kafka.topics.purge import Purged
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.relay.lacking import lacking_beside
from connectors.takeover.group_maintenance import LOOK_AT_SETTINGS_S, GroupMaintenance
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable, NoSnapshot
from ordering.base.names import Topic
from ordering.base.records import Data
from ordering.sequencer import sequencer
from tests.kafka.topics.test_topics import alter
from tests.ledger.ledger_of import write_ledger
from tests.waiting import eventually

SITE = "nyc"


@pytest.fixture
def _snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each batch with a snapshot."""
    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 1)
    monkeypatch.setattr(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 0)


def order(connection: Connection, group: str, count: int) -> None:
    """Order messages, each in its own batch and so with its own snapshot."""
    with SequencerThread(connection, group, SITE), Member(group, f"{SITE}/a", connection=connection) as member:
        for number in range(count):
            member.broadcast(b"%d" % number).result(20)


def data_of(connection: Connection, group: str) -> list[Data]:
    with DataLog(connection, group, SITE) as log:
        return [stored.data for stored in log.records(log.beginning(), log.end())]


def purge(connection: Connection, group: str, in_ledger: int, *, dry_run: bool = False) -> list[Purged]:
    return purge_data(
        *(connection, group, SITE),
        kept_s=0.0,
        in_ledger=in_ledger,
        lacking=lacking_unknown_sites(connection),
        dry_run=dry_run,
    )


@pytest.mark.broker
@pytest.mark.usefixtures("_snapshots")
@pytest.mark.parametrize("transport", ["kafka-python", pytest.param("confluent", marks=pytest.mark.soak)])
def test_what_the_ledger_has_goes(broker: EmbeddedBroker, transport: str, tmp_path: Path) -> None:
    connection, group = Connection(broker.bootstrap_servers, transport=transport), f"data-purge-{transport}"
    create_topics(connection, group, [SITE])
    order(connection, group, 6)
    whole = data_of(connection, group)
    write_ledger(tmp_path / "ledger", [record for record in whole if record.seqno], group)
    assert purge(connection, group, 0) == []
    assert [each.records for each in purge(connection, group, 4, dry_run=True)] > [0]
    assert data_of(connection, group) == whole
    assert read_status(connection, group, SITE).deleted == Deleted()
    began_ms = time.time() * 1000
    assert [each.records for each in purge(connection, group, 4)] > [0]
    left = data_of(connection, group)
    assert left == whole[-len(left) :]
    assert left[0].payload, "a snapshot"
    assert left[1].seqno in (4, 5)
    assert purge(connection, group, 4) == []
    deleted = read_status(connection, group, SITE).deleted
    assert (deleted.forward, deleted.data) == (0, len(whole) - len(left))
    assert abs(deleted.data_at_ms - began_ms) < 60_000

    order(connection, group, 2)
    with Member(group, f"{SITE}/b", connection=connection) as member, pytest.raises(HistoryUnavailable):
        next(member.deliveries(from_seqno=1, timeout=10))
    with Member(group, f"{SITE}/b", connection=connection, ledger=tmp_path / "ledger") as member:
        seqnos = [delivery.seqno for delivery in member.deliveries(from_seqno=1, timeout=10)]
    assert seqnos == list(range(1, 9))


@pytest.mark.usefixtures("_snapshots")
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_claim_whose_floor_is_below_what_is_deleted(is_noted: bool) -> None:
    """The claim was on its way when the records were deleted, and its sequencer is gone. Only the note tells that the
    snapshot which stays is in force.
    """
    kafka = MemoryConnection()
    kafka.create("g", SITE)
    order(kafka, "g", 4)
    with DataLog(kafka, "g", SITE) as log:
        snapshot = deletable(log, log.end(), 4)
        assert snapshot is not None
        note = missing_note(log, snapshot)
        assert note is not None
        if is_noted:
            append(kafka, log.epochs.topic, (None, *encode_note(note)))
        kafka.topics.drop(str(log.topic), snapshot.offset)
        append(kafka, log.epochs.topic, (None, b"1 host 7", [("abcast", b"2 claim")]))
        if not is_noted:
            with pytest.raises(NoSnapshot):
                log.state()
            return
        assert log.state().seqno == 4
    assert take_over(kafka, "g", SITE).seqno == 4


class TestWhatIsLeftAlone:
    @pytest.fixture
    def kafka(self, _snapshots: None) -> MemoryConnection:
        kafka = MemoryConnection()
        kafka.create("g", SITE)
        order(kafka, "g", 3)
        return kafka

    def test_what_no_ledger_has(self, kafka: MemoryConnection) -> None:
        assert purge(kafka, "g", 0) == []

    def test_what_the_log_of_a_site_that_agrees_does_not_allow(self, kafka: MemoryConnection) -> None:
        append(kafka, str(Topic("g", "epoch", SITE)), (None, b"0 host 7 isis", [("abcast", b"2 claim")]))
        assert purge(kafka, "g", 3) == []

    def test_other_sites_that_nobody_has_named(
        self, kafka: MemoryConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "connectors.kafka.topics.data_purge.find_topics", lambda _: [Topic("g", "relayed", SITE, "sfo")]
        )
        assert purge(kafka, "g", 3) == []
        assert "give --sites" in caplog.text

    @pytest.mark.parametrize("mode", ["hub", "mesh"])
    def test_what_a_neighbour_lacks(self, kafka: MemoryConnection, mode: str) -> None:
        """A neighbour may have a copy that is as far, rows that are, or nothing yet."""
        there = MemoryConnection()
        there.create("g", "sfo")
        home = SITE if mode == "hub" else None
        links = frozenset({frozenset({SITE, "sfo"})})
        sites = Sites(mode, home, "micro-batch", {SITE: kafka, "sfo": there}, links)  # type: ignore[arg-type]
        with DataLog(kafka, "g", SITE) as log:
            state = log.state()
            records = list(log.records(0, log.end()))
        lacking = lacking_beside(sites, SITE)
        assert "sfo does not have all of it" in lacking("g", state)
        assert lacking("another", state) == "", "it is not there"
        if mode == "hub":
            for stored in records:
                record = kafka.topics.partitions[log.partition][stored.offset]
                append(there, "abcast.g.data.sfo", (record.key, record.value or b"", record.headers))
            assert lacking("g", state) == ""


@pytest.mark.broker
def test_a_retention_is_told_each_hour(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """A tick writes a snapshot into DATA."""

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.levelno == logging.ERROR]

    connection, group = Connection(broker.bootstrap_servers), "retention-told"
    create_topics(connection, group, [SITE])
    forward = Topic(group, "forward", SITE)
    with closing(GroupMaintenance(connection, SITE, {}, "process")) as maintenance:
        maintenance.take({group: [str(forward)]})
        maintenance.tick({}, time.monotonic() + LOOK_AT_SETTINGS_S)
        assert told() == []
        alter(connection, Topic(group, "data", SITE), retention_ms="604800000")
        maintenance.tick({}, time.monotonic() + LOOK_AT_SETTINGS_S)
        assert told() == [], "an hour is not over"
        maintenance.tick({}, time.monotonic() + 3 * LOOK_AT_SETTINGS_S)
        [sentence] = told()
        assert "retention.ms=604800000" in sentence
        place = TopicPartition(str(forward), 0)
        with closing(connection.consumer()) as consumer:
            eventually(lambda: consumer.end_offsets([place])[place] == 1, what="a tick")


@pytest.mark.slow
@pytest.mark.usefixtures("_snapshots")
def test_casts_go_on_behind_a_purge() -> None:
    """Readers of casts begin with a state of DATA. One that begins before the remaining records is told what to do."""
    kafka, group = MemoryConnection(), "g"
    kafka.create(group, SITE)

    def member(name: str, **more: Any) -> Member:
        return Member(group, f"{SITE}/{name}", connection=kafka, casts=True, **more)

    with SequencerThread(kafka, group, SITE), member("a") as alice, member("b") as bob:
        for number in range(4):
            alice.broadcast(b"t%d" % number).result(20)
            alice.broadcast(b"c%d" % number, order="fifo").result(20)
        expected = [b"%b%d" % (kind, number) for number in range(4) for kind in (b"t", b"c")]
        stream = bob.deliveries(timeout=10)  # one: another would return the last message again, which is not taken
        seen = [got.payload for got in itertools.islice(stream, 8)]
        assert sorted(seen) == sorted(expected)
        assert purge(kafka, group, 3)
        alice.broadcast(b"c4", order="fifo").result(20)
        alice.broadcast(b"t4").result(20)
        assert sorted(got.payload for got in itertools.islice(stream, 2)) == [b"c4", b"t4"]
        with member("new") as new:
            behind = sorted(got.payload for got in new.deliveries(from_seqno=4, timeout=1))
            assert {b"t3", b"t4", b"c4"} <= set(behind)
        with (
            member("late") as late,
            pytest.raises(HistoryUnavailable, match=r"no longer holds seqno 1.*begin later"),
        ):
            list(late.deliveries(from_seqno=1, timeout=1))
