"""A group is given a later format: by one record, which holds from the next takeover on."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from connectors import Member
from connectors.diagnosis.report import check_group
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.entry_codec import read_entry
from connectors.kafka.codec.epochs import encode_claim
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.upgrade import upgrade
from connectors.relay.home_copy import HomeCopy
from connectors.relay.promotion import copy_rest, promote
from connectors.takeover import takeover
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.survey import Survey, survey
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from jobs import topics
from ordering.agreement.log import Entry
from ordering.base.errors import BrokerUnreachable, LaterVersion, UsageError
from ordering.base.formats import ADDITIONS, FIRST, NEW_GROUPS, NEWEST, PACKS
from ordering.base.records import ENTRY, EPOCH, Data, Source
from ordering.sequencer.packing import pack_of
from ordering.sequencer.sequencer import snapshot
from ordering.sequencer.state import SequencerState
from tests.engine.test_agreeing import all_have, each_engine, running, send, written
from tests.formats.make import kafka_of
from tests.formats.test_earlier import VERSIONS
from tests.waiting import eventually

FORWARD = "abcast.g.forward.nyc"
HOME = TopicPartition("abcast.g.data.nyc", 0)
EPOCHS = TopicPartition("abcast.g.epoch.nyc", 0)


def of_first_version() -> MemoryConnection:
    return kafka_of(VERSIONS[0] / "group.jsonl")


def said(kafka: MemoryConnection) -> list[str]:
    """Return the kinds of the records in EPOCH."""
    return [record.headers[0][1].decode().split()[1] for record in kafka.topics.partitions[EPOCHS]]


@pytest.mark.slow
def test_it_holds_from_the_next_takeover_on() -> None:
    """Running members go on over the switch, and the messages before and behind it are one order."""
    kafka = of_first_version()
    with Member("g", "nyc/dave", connection=kafka) as dave:
        with SequencerThread(kafka, "g", "nyc") as sequencer:
            assert dave.broadcast(b"before").result(10) == 27
            assert upgrade(kafka, "g", "nyc")[:2] == (FIRST.number, NEWEST.number)
            assert upgrade(kafka, "g", "nyc")[:2] == (NEWEST.number, NEWEST.number)
            assert dave.broadcast(b"meanwhile").result(10) == 28
            assert sequencer.state.format == FIRST.number
        with SequencerThread(kafka, "g", "nyc") as sequencer:
            assert sequencer.state.format == NEWEST.number
            assert dave.broadcast(b"behind").result(10) == 29
        taken = [each.payload for each in dave.deliveries(from_seqno=27, timeout=1)]
    assert taken == [b"before", b"meanwhile", b"behind"]
    assert said(kafka)[4:] == ["claim", "note", "format", "claim-as", "note"]
    assert check_group("g", kafka, names=["nyc"]).anomalies == []
    with DataLog(kafka, "g", "nyc") as data:
        log = [stored.data for stored in data.records(0, data.end())]
        assert data.state().format == NEWEST.number
    assert [each.format for each in log if each.kind == EPOCH and not each.payload] == [FIRST, FIRST, FIRST, NEWEST]
    newest = json.loads(gzip.decompress([each.payload for each in log if each.kind == EPOCH][-1]))
    assert newest["group_format"] == NEWEST.number
    assert newest["readable_from"] <= newest["format"]


def test_a_switch_while_somebody_takes_over_is_taken_up_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim names the format that was found before."""
    kafka, encode = of_first_version(), encode_claim

    def between(*given: Any) -> tuple[bytes, list[tuple[str, bytes]]]:
        monkeypatch.undo()
        upgrade(kafka, "g", "nyc")
        return encode(*given)

    monkeypatch.setattr(takeover, "encode_claim", between)
    assert take_over(kafka, "g", "nyc").format == FIRST.number
    assert take_over(kafka, "g", "nyc").format == NEWEST.number
    assert said(kafka)[4:] == ["format", "claim", "note", "claim-as", "note"]


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", range(5))
def test_a_takeover_that_is_killed_at_the_switch(monkeypatch: pytest.MonkeyPatch, killed_after: int) -> None:
    """A kill after each of its records: the next one goes on, and readers find one order of one format behind it."""
    kafka, appended = of_first_version(), list[str]()
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/dave", connection=kafka) as dave:
        assert dave.broadcast(b"before").result(10) == 27
    upgrade(kafka, "g", "nyc")

    def killed(connection: Any, topic: str, *more: Any, **rest: Any) -> int:
        if len(appended) == killed_after:
            raise BrokerUnreachable("killed.")
        appended.append(topic)
        return append(connection, topic, *more, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(takeover, "append", killed)
        with suppress(BrokerUnreachable):
            take_over(kafka, "g", "nyc")
    with SequencerThread(kafka, "g", "nyc") as sequencer, Member("g", "nyc/dave", connection=kafka) as dave:
        assert sequencer.state.format == NEWEST.number
        assert dave.broadcast(b"behind").result(10) == 28
        found = [each.payload for each in dave.deliveries(from_seqno=27, timeout=1)]
    assert found == [b"before", b"behind"]
    assert check_group("g", kafka, names=["nyc"]).anomalies == []


@pytest.mark.parametrize("is_copied", [True, False], ids=["copied", "not-copied"])
@pytest.mark.slow
def test_a_failover_after_a_switch(*, is_copied: bool) -> None:
    """The new home has the format of the old one, and so have the readers of its log."""
    kafkas = {"nyc": of_first_version(), "sfo": MemoryConnection()}
    kafkas["sfo"].create("g", "sfo")
    sites = Sites("hub", "sfo", "micro-batch", dict(kafkas), frozenset({frozenset(("nyc", "sfo"))}))
    upgrade(kafkas["nyc"], "g", "nyc")
    if is_copied:  # up to a seal that says so
        with DataLog(kafkas["nyc"], "g", "nyc") as home, DataLog(kafkas["sfo"], "g", "sfo") as copy:
            take_over(kafkas["nyc"], "g", "nyc")
            copy_rest(home, copy)
    with SequencerThread(kafkas["nyc"], "g", "nyc"), Member("g", "nyc/dave", connection=kafkas["nyc"]) as dave:
        last = dave.broadcast(b"before").result(10)
    assert promote(sites, "g", "sfo").last_seqno == last
    assert take_over(kafkas["sfo"], "g", "sfo").format == NEWEST.number
    with SequencerThread(kafkas["sfo"], "g", "sfo"), Member("g", "sfo/a", connection=kafkas["sfo"]) as alice:
        assert alice.broadcast(b"behind").result(10) == last + 1
        found = [each.payload for each in alice.deliveries(from_seqno=last, timeout=1)]
    assert found == [b"before", b"behind"]


def test_a_new_group_that_is_upgraded_begins_with_that_format() -> None:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    assert upgrade(kafka, "g", "nyc").after == PACKS.number
    with SequencerThread(kafka, "g", "nyc") as sequencer:
        assert sequencer.state.format == PACKS.number


def test_a_format_is_never_lowered() -> None:
    """A claim by a version that wrote none, or a state from a ledger, changes nothing."""
    kafka = of_first_version()
    upgrade(kafka, "g", "nyc")
    kafka.topics.append(EPOCHS, None, b"30 host 7", [("abcast", b"2 claim")])
    assert take_over(kafka, "g", "nyc").format == NEWEST.number


def behind(state: SequencerState, count: int) -> Data:
    """Return a pack of empty messages that follows the state."""
    return pack_of(
        [
            Data(
                "message", state.epoch, state.seqno + n, state.view, "nyc/x", 9, n, source=Source(FORWARD, 0, 10**6 + n)
            )
            for n in range(1, count + 1)
        ]
    )


def test_a_takeover_keeps_the_format_of_a_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rival upgrades the group, and takes it over, between this survey and its claim. It writes a pack."""
    kafka = of_first_version()

    def before_a_rival(*given: Any) -> Survey:
        found = survey(*given)
        monkeypatch.undo()
        upgrade(kafka, "g", "nyc")
        rival = take_over(kafka, "g", "nyc")
        kafka.topics.append(HOME, *encode_data(behind(rival, 9)))
        return found

    monkeypatch.setattr("connectors.takeover.takeover.survey", before_a_rival)
    state = take_over(kafka, "g", "nyc")
    assert (state.format, state.counted) == (NEWEST.number, True)
    with DataLog(kafka, "g", "nyc") as log:
        assert (log.state().format, log.state().counted) == (NEWEST.number, True)


def test_a_group_with_packs_has_a_format_that_counts() -> None:
    """No seal in its DATA tells a format: below format 2, the next snapshot would drop that a record was counted."""
    kafka = of_first_version()
    last = take_over(kafka, "g", "nyc")
    kafka.topics.append(HOME, *encode_data(behind(last, 9)))
    state = take_over(kafka, "g", "nyc")
    assert (state.format, state.counted) == (ADDITIONS.number, True)


@pytest.mark.parametrize("lacks", [0, 1])
def test_the_rest_of_a_copy_tells_the_format(*, lacks: int) -> None:
    """The copy's seals do not tell it, as those from a ledger. `lacks`: messages that the copy lacks."""
    home_kafka, copy_kafka = of_first_version(), MemoryConnection()
    copy_kafka.create("g", "sfo")
    upgrade(home_kafka, "g", "nyc")
    last = take_over(home_kafka, "g", "nyc")
    home_kafka.topics.append(HOME, *encode_data(behind(last, 1)))
    home_kafka.topics.append(HOME, *encode_data(behind(replace(last, seqno=last.seqno + 1), 1)))
    with DataLog(home_kafka, "g", "nyc") as home, DataLog(copy_kafka, "g", "sfo") as copy:
        for stored in home.records(0, home.end() - lacks):
            if stored.data.kind != EPOCH or not stored.data.payload:
                copy_kafka.topics.append(copy.partition, *encode_data(replace(stored.data, format=FIRST)))
        assert copy.state().format == FIRST.number
        copy_rest(home, copy)
        assert copy.state().format == NEWEST.number
        assert copy.state().seqno == home.state().seqno


@pytest.mark.parametrize("sites", [["nyc"], ["nyc", "sfo"]])
def test_the_command(monkeypatch: pytest.MonkeyPatch, sites: list[str]) -> None:
    kafka = of_first_version()
    kafka.create("g", "sfo")
    monkeypatch.setattr(topics, "connection_to", lambda *_: kafka)
    options = ["--group", "g", *(word for site in sites for word in ("--site", site))]
    first, second = (CliRunner().invoke(topics.app, ["upgrade", *options, "--why", "all can"]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "g at nyc has format 3, which needs abcast 0.2.0 or later: in force once its" in first.output
    assert second.output.splitlines()[0] == "g at nyc has format 3 already"
    assert said(kafka).count("format") == 1
    with DataLog(kafka, "g", "nyc") as data:
        acts = data.epochs.read().acts
        assert [(act.act, act.what, act.why) for act in acts] == [("upgrade", "format 3 at nyc", "all can")]


def test_the_command_gives_the_format_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with that format, or a later one, keeps what it has."""
    kafka = of_first_version()
    monkeypatch.setattr(topics, "connection_to", lambda *_: kafka)

    def upgraded(number: int) -> Any:
        line = ["upgrade", "--group", "g", "--site", "nyc", "--to", str(number), "--json"]
        row = json.loads(CliRunner().invoke(topics.app, line).output)
        return row["before"], row["after"]

    assert [upgraded(number) for number in (2, 1, 2)] == [(1, 2), (2, 2), (2, 2)]
    assert take_over(kafka, "g", "nyc").format == ADDITIONS.number
    assert [upgraded(number) for number in (3, 2)] == [(2, 3), (3, 3)]
    refused = CliRunner().invoke(topics.app, ["upgrade", "--group", "g", "--to", str(NEWEST.number + 1)])
    assert (refused.exit_code, kafka.topics.partitions[EPOCHS][-1].value) == (2, b"3 0.2.0")


def test_a_copy_has_the_format_of_its_home() -> None:
    """Also where its readers begin with a ledger's state, which knows no format."""
    kafka = MemoryConnection()
    for site in ("nyc", "sfo"):
        kafka.create("g", site)
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/a", connection=kafka) as member:
        assert member.broadcast(b"1").result(10) == 1
    take_over(kafka, "g", "nyc")
    for each in written(kafka, "nyc"):
        record = replace(each, format=FIRST, payload=b"" if each.kind == EPOCH else each.payload)
        kafka.topics.append(TopicPartition("abcast.g.data.sfo", 0), *encode_data(record))
    with DataLog(kafka, "g", "sfo") as copy:
        assert copy.state().format == FIRST.number
    link = HomeCopy(kafka, kafka, "g", Direction("nyc", "sfo"))
    link.start()
    link.close()
    with DataLog(kafka, "g", "sfo") as copy:
        assert copy.state().format == NEW_GROUPS.number
    with pytest.raises(UsageError, match="is the copy of another site's: upgrade the group there"):
        upgrade(kafka, "g", "sfo")


def test_one_groups_format_is_that_groups_trouble() -> None:
    """A running sequencer goes on with the other groups."""
    kafka = MemoryConnection()
    forward = {group: [f"abcast.{group}.forward.nyc"] for group in ("g", "other")}
    for group in forward:
        kafka.create(group, "nyc")
    maintenance = GroupMaintenance(
        kafka, "nyc", {group: take_over(kafka, group, "nyc").epoch for group in forward}, "process"
    )
    maintenance.take(forward)
    maintenance.check_not_fenced()
    kafka.topics.append(EPOCHS, None, b"9 9.8.7", [("abcast", b"2 format")])
    with pytest.raises(UnservableGroups) as unservable:
        maintenance.check_not_fenced()
    assert {group: type(error) for group, error in unservable.value.errors.items()} == {"g": LaterVersion}
    maintenance.close()


def test_in_a_group_of_format_1_a_snapshot_has_no_additions() -> None:
    """Not even the unknown parts of a later version's decisions."""
    unknown = SequencerState("g", unknown={"packs": 1})
    body = json.loads(gzip.decompress(snapshot(unknown).payload))
    assert "packs" not in body
    assert body["format"] == 4
    later = json.loads(gzip.decompress(snapshot(SequencerState("g", unknown={"packs": 1}, format=2)).payload))
    assert later["packs"] == 1
    assert ADDITIONS.number == 2


@each_engine
def test_an_entry_that_only_later_versions_can_read_stops_a_site(kafka_of_sites: MemoryConnection, engine: str) -> None:
    """The site stops at once, with the sentence: the entry is not counted as nonsense while sites wait for ever."""
    kafka = kafka_of_sites
    with running(kafka, "nyc", "sfo", "lax", engine=engine) as loops:
        send(kafka, "lax", range(1, 3))
        all_have(kafka, 2)
        last = [each for each in written(kafka, "lax") if each.kind == ENTRY][-1]
        entry = read_entry(last)
        later = entry._replace(number=entry.number + 1, before=entry.digest, written=9, readable_from=9)
        payload = gzip.compress(later._replace(version="9.8.7").to_bytes())
        record = Data(ENTRY, entry.epoch, local_seqno=later.number, payload=payload)
        kafka.topics.append(TopicPartition("abcast.g.data.lax", 0), *encode_data(record))
        eventually(lambda: all(loop.failure for loop in loops[:2]), 20)
        for loop in loops[:2]:
            assert isinstance(loop.failure, LaterVersion)
            assert "install abcast 9.8.7 or later here" in str(loop.failure)


@pytest.fixture
def kafka_of_sites() -> MemoryConnection:
    connection = MemoryConnection()
    for site in ("nyc", "sfo", "lax"):
        connection.create("g", site)
    return connection


def test_an_entry_as_it_was() -> None:
    """Entries of format 1 have no field about versions."""
    assert len(json.loads(Entry(1, 1, 1).to_bytes())) == 10
