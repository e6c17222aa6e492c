"""Records of later versions: an unknown addition is skipped and kept; a reader that can't follow stops with a
sentence.
"""

from __future__ import annotations

import gzip
import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis import status
from connectors.diagnosis.report import check_group
from connectors.diagnosis.status import read_status
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import decode, encode_claim
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.seqno_search import where
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.takeover import Claimer, take_over, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.agreement.log import Entry, SiteMessage
from ordering.base.errors import AbcastError, LaterVersion, NotOrderedInTime, ProtocolViolation
from ordering.base.formats import ADDITIONS, FORMATS, NEW_GROUPS, NEWEST, Format
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import EPOCH, MESSAGE, SETTINGS, SKIP, VIEW, Data, Source
from ordering.checker.checker import Checker
from ordering.membership.membership import Membership
from ordering.membership.settings import Settings
from ordering.participant.events import ViewChange
from ordering.sequencer.links import carry_each
from ordering.sequencer.sequencer import absorb, seal, snapshot
from ordering.sequencer.state import SNAPSHOTS, SequencerState

SITE = "nyc"
DATA, EPOCHS = (TopicPartition(f"abcast.g.{role}.{SITE}", 0) for role in ("data", "epoch"))
LATER = Format(NEWEST.number + 7, "9.8.7")


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create("g", SITE)
    return connection


def write(kafka: MemoryConnection, *records: Data) -> None:
    for record in records:
        kafka.topics.append(DATA, *encode_data(record))


def message(epoch: int, seqno: int) -> Data:
    """Return a message of a sender of its own."""
    source = Source("abcast.g.forward.nyc", 0, 1000 + seqno)
    return Data(MESSAGE, epoch, seqno, 0, f"nyc/{seqno}", 5, 1, b"%d" % seqno, source, (), 1)


def body_of(raw: bytes) -> dict[str, Any]:
    body = json.loads(gzip.decompress(raw))
    assert isinstance(body, dict)
    return body


def of_body(body: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(body).encode())


def later_snapshot(state: SequencerState, **said: object) -> bytes:
    """Return the snapshot as a later version writes it, readable by this one: with further fields everywhere, and
    longer rows.
    """
    body = body_of(state.to_bytes())
    membership = Membership(members=state.membership.members).to_json() | body.get("membership", {})
    membership = json.loads(json.dumps(membership))
    membership |= {"quorum": [1, {"a": 2}]}
    membership["settings"] |= {"max_members": 5}
    membership["flush"] |= {"why": "so"}
    body["received"] = {sender: [*row, "more"] for sender, row in body["received"].items()}
    body["seals"] = [[*row, 1] for row in body["seals"]]
    return of_body(body | {"format": max(SNAPSHOTS) + 1, "packs": {"x": [1]}, "membership": membership} | said)


class TestSnapshots:
    def test_what_is_not_known_is_kept(self) -> None:
        """A sequencer that has decided more since writes the unknown parts back."""
        state = SequencerState("g", epoch=1, format=ADDITIONS.number)
        read = SequencerState.from_bytes(later_snapshot(state))
        assert read.unknown == {"packs": {"x": [1]}}
        went_on = absorb(read, [seal(2), message(2, 1)])
        assert went_on.seqno == 1
        written = body_of(snapshot(absorb(SequencerState("g"), [snapshot(went_on)])).payload)
        assert written["packs"] == {"x": [1]}
        assert written["membership"]["quorum"] == [1, {"a": 2}]
        assert written["membership"]["settings"]["max_members"] == 5
        assert written["format"] == max(SNAPSHOTS)
        assert written["readable_from"] <= written["format"]
        assert (
            SequencerState.from_bytes(of_body(written)).to_bytes()
            == SequencerState.from_bytes(of_body(written)).to_bytes()
        )

    def test_one_for_later_versions_only(self) -> None:
        said = later_snapshot(SequencerState("g", format=2), readable_from=max(SNAPSHOTS) + 1, version="9.8.7")
        with pytest.raises(LaterVersion, match=r"install abcast 9\.8\.7 or later here \(`pip install"):
            SequencerState.from_bytes(said)

    @pytest.mark.parametrize("said", [{"format": max(SNAPSHOTS) + 1}, {"format": 99, "readable_from": 98}])
    def test_that_does_not_say_which_version(self, said: dict[str, int]) -> None:
        body = body_of(SequencerState("g").to_bytes()) | said
        with pytest.raises(LaterVersion, match="install the version of abcast that the others run"):
            SequencerState.from_bytes(of_body(body))

    def test_a_member_starts_on_a_later_one(self, kafka: MemoryConnection) -> None:
        with SequencerThread(kafka, "g", SITE) as sequencer:
            first = Member("g", "nyc/alice", connection=kafka)
            assert first.broadcast(b"1").result(5) == 1
            state = sequencer.state
            write(kafka, Data(EPOCH, state.epoch, payload=later_snapshot(state)))
            with Member("g", "nyc/bob", connection=kafka) as bob:
                assert bob.broadcast(b"2").result(5) == 2
            first.close()
        assert take_over(kafka, "g", SITE).unknown == {"packs": {"x": [1]}}


class TestSettings:
    def test_are_kept_once_they_are_decided(self) -> None:
        settings = Settings().decided(b'{"max_members":5,"flush":true}')
        assert (settings.flush, settings.unknown) == (True, {"max_members": 5})
        assert settings.decided(b'{"max_members":6}').unknown == {"max_members": 6}

    @pytest.mark.slow
    def test_a_live_member_goes_on(self, kafka: MemoryConnection) -> None:
        with SequencerThread(kafka, "g", SITE) as sequencer, Member("g", "nyc/alice", connection=kafka) as alice:
            assert alice.broadcast(b"1").result(5) == 1
            epoch, admin = sequencer.state.epoch, "nyc/abcast.admin"
            source = Source("abcast.g.forward.nyc", 0, 1)
            said = Data(SETTINGS, epoch, 2, 0, admin, 5, 1, b'{"max_members":5,"closed":true}', source, (), 1)
            write(kafka, said, message(epoch, 3))
            with Member("g", "nyc/bob", connection=kafka) as bob:
                assert [each.seqno for each in bob.deliveries(from_seqno=1, timeout=0.5)] == [1, 3]
        state = take_over(kafka, "g", SITE)
        assert state.membership.settings == Settings(closed=True, unknown={"max_members": 5})


@pytest.mark.slow
def test_a_view_that_says_more(kafka: MemoryConnection) -> None:
    """A view and its members have more fields: a reader takes the ones that it knows."""
    members = [["nyc/alice", 5, "more"], ["nyc/bob", 6, "more"]]
    view = {"members": members, "joined": ["nyc/alice", "nyc/bob"], "left": [], "suspected": [], "flush": 0, "more": 1}
    epoch = take_over(kafka, "g", SITE).epoch
    write(kafka, message(epoch, 1), Data(VIEW, epoch, 2, 1, payload=json.dumps(view).encode()))
    state = take_over(kafka, "g", SITE)
    assert state.membership.members == (("nyc/alice", 5), ("nyc/bob", 6))
    [_, event] = Member("g", "nyc/carol", connection=kafka).deliveries(from_seqno=1, timeout=0.5, events=True)
    assert isinstance(event, ViewChange)
    assert event.members == ("nyc/alice", "nyc/bob")
    assert check_group("g", kafka, names=[SITE]).anomalies == []


class TestKinds:
    LOG = (
        message(1, 1),
        Data("pause", 1, 2),
        Data("pack", 1, 3, count=100),
        message(1, 103),
        Data("pack", 1, 104, count=2),
    )

    def opened(self, kafka: MemoryConnection) -> int:
        """Return the epoch of a sequencer whose log goes on with these records."""
        state = take_over(kafka, "g", SITE)
        assert state.epoch == 1
        write(kafka, *self.LOG)
        return 105

    @pytest.mark.slow
    def test_take_their_numbers(
        self, kafka: MemoryConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sequencer, members, the checker and status count them; members warn once a kind."""
        last = self.opened(kafka)
        with caplog.at_level(logging.WARNING), SequencerThread(kafka, "g", SITE) as sequencer:
            assert sequencer.state.seqno == last
            with Member("g", "nyc/alice", connection=kafka) as alice, Member("g", "nyc/bob", connection=kafka) as bob:
                assert alice.broadcast(b"new").result(5) == last + 1
                assert bob.broadcast(b"newer").result(5) == last + 2
                for member in (alice, bob):
                    assert [each.seqno for each in member.deliveries(from_seqno=1, timeout=0.5)] == [1, 103, 106, 107]
                for begin, wanted in ((2, [103, 106, 107]), (50, [103, 106, 107]), (104, [106, 107])):
                    taken = list(alice.deliveries(from_seqno=begin, timeout=0.5))
                    assert [each.seqno for each in taken] == wanted
        monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", "data", SITE)])
        found = read_status(kafka, "g", SITE)
        assert (found.last_seqno, found.strays, found.format) == (last + 2, 0, NEW_GROUPS.number)
        said = [record.message for record in caplog.records if "a later version of abcast wrote" in record.message]
        assert sorted(line.split(" of the kind ")[1].split(",")[0] for line in said) == ["pack", "pause"]
        report = check_group("g", kafka, names=[SITE])
        assert report.anomalies == []
        assert report.read == {f"DATA of {SITE}": last + 2}

    @pytest.mark.slow
    def test_where_a_number_stands(self, kafka: MemoryConnection) -> None:
        """Many numbers share an offset, in a log of any length."""
        epoch = take_over(kafka, "g", SITE).epoch
        seqno, at = 0, dict[int, int]()
        for length in (1, 1, 500, 1, 3000, 1, 1, 1, 20_000, 1):
            for _ in range(40):
                record = Data("pack", epoch, seqno + 1, count=length) if length > 1 else message(epoch, seqno + 1)
                at |= dict.fromkeys((seqno + 1, seqno + length), len(kafka.topics.partitions[DATA]))
                write(kafka, record)
                seqno += length
        with DataLog(kafka, "g", SITE) as data:
            state = data.state()
            assert (state.seqno, state.counted) == (seqno, True)
            assert SequencerState.from_bytes(snapshot(state).payload).counted
            for number, offset in list(at.items())[::7]:
                assert where(data, number, state) <= offset
                start = data.after(number - 1)
                taken = [
                    each
                    for each in data.records(start.offset, data.end())
                    if start.reader.judge(each.data) is Verdict.TAKE
                ]
                assert start.reader.last_seqno == seqno
                assert taken[0].offset == offset

    def test_what_the_ledger_job_writes_is_what_data_has(self) -> None:
        """Each number has a row, and the first row has the payload; a missing row is a gap."""
        pack = Data("pack", 1, 2, payload=b"of three", count=3)
        for rows, gaps in (((2, 3, 4), []), ((2, 4), [3])):
            checker = Checker()
            for record in (message(1, 1), pack):
                checker.data(SITE, record)
            checker.ledger(1, message(1, 1).id, b"1")
            for row in rows:
                checker.ledger(row, pack.id, pack.payload if row == 2 else None, kind="pack")
            assert [seqno for anomaly in checker.finish() for seqno in anomaly.seqnos] == gaps

    def test_a_relay_skips_each_number(self) -> None:
        """A neighbour of any version counts them."""
        said = carry_each(Data("pack", 3, 7, count=3), "nyc", 11, lambda _: True)
        assert [(each.kind, each.link.epoch, each.link.seqno) for each in said] == [(SKIP, 3, n) for n in (7, 8, 9)]

    def test_a_count_travels(self) -> None:
        for record in (*self.LOG, message(1, 5)):
            key, _, headers = encode_data(record)
            fields = headers[0][1].decode().split(" ")
            assert (fields[10:] == [str(record.count)]) == (record.count > 1)
            assert bool(key) == bool(record.sender)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30), st.integers(1, 6)), max_size=60), st.integers(0, 9))
def test_columns_judge_counts_as_rows(log: list[tuple[int, int, int]], last: int) -> None:
    import numpy as np

    rows, columns = Reader(1, last), Reader(1, last)
    taken = [rows.accept("later", *row) is Verdict.TAKE for row in log]
    epoch, seqno, count = (np.array([row[at] for row in log], dtype=np.int64) for at in range(3))
    is_control = np.zeros(len(log), np.bool_)
    assert columns.accept_columns(is_control, epoch, seqno, count).tolist() == taken
    assert (rows.epoch, rows.last_seqno) == (columns.epoch, columns.last_seqno)


class TestFormats:
    def test_a_group_begins_with_the_format_of_new_groups(self, kafka: MemoryConnection) -> None:
        state = take_over(kafka, "g", SITE)
        assert state.format == NEW_GROUPS.number
        with DataLog(kafka, "g", SITE) as data:
            assert data.epochs.read().format == NEW_GROUPS.number
            assert data.state().format == NEW_GROUPS.number
        assert take_over(kafka, "g", SITE).format == NEW_GROUPS.number

    def test_a_stray_that_came_first_changes_nothing(self, kafka: MemoryConnection) -> None:
        kafka.topics.append(DATA, None, b"hello", [])
        assert take_over(kafka, "g", SITE).format == NEW_GROUPS.number

    def test_versions_ascend(self) -> None:
        assert [each.number for each in FORMATS] == list(range(1, len(FORMATS) + 1))

    @pytest.mark.parametrize("of_format", [each.number for each in FORMATS])
    @pytest.mark.parametrize("agreement", ["", "isis"])
    def test_claims(self, of_format: int, agreement: str) -> None:
        value, headers = encode_claim(7, agreement, of_format)
        claim = decode("t", 4, value, headers, 9)
        assert (claim.epoch, claim.floor, claim.agreement, claim.format) == (5, 7, agreement, of_format)  # type: ignore[union-attr]

    @pytest.mark.parametrize("kind", ["format", "claim-as", "lease"])
    def test_a_switch_that_is_not_known_stops_all_that_start(
        self, kafka: MemoryConnection, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both stop before they write, with one sentence; a job that serves other groups goes on with these."""
        monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", "data", SITE)])
        kafka.create("other", SITE)
        take_over(kafka, "g", SITE)
        text = "9 9.8.7" if kind == "format" else "0 host 7 - 9 9.8.7"
        kafka.topics.append(EPOCHS, None, text.encode(), [("abcast", f"2 {kind}".encode())])
        before = {place: len(log) for place, log in kafka.topics.partitions.items()}
        starts: list[Callable[[], object]] = [
            lambda: take_over(kafka, "g", SITE),
            lambda: Member("g", "nyc/alice", connection=kafka).broadcast(b"x"),
            lambda: read_status(kafka, "g", SITE),
            lambda: next(iter(Member("g", "nyc/b", connection=kafka).deliveries(from_seqno=1, timeout=1))),
        ]
        wanted = "install abcast 9.8.7 or later here" if kind != "lease" else "install the version of abcast that"
        for start in starts:
            with pytest.raises(LaterVersion, match=wanted):
                start()
        assert {place: len(log) for place, log in kafka.topics.partitions.items() if place != EPOCHS} == {
            place: count for place, count in before.items() if place != EPOCHS
        }
        with pytest.raises(UnservableGroups) as unservable:
            take_over_groups(
                Claimer(kafka, SITE), {group: [f"abcast.{group}.forward.{SITE}"] for group in ("g", "other")}
            )
        assert list(unservable.value.errors) == ["g"]

    def test_a_sequencer_that_runs_stops_at_a_switch(self, kafka: MemoryConnection) -> None:
        epochs = {"g": take_over(kafka, "g", SITE).epoch}
        maintenance = GroupMaintenance(kafka, SITE, epochs, "process")
        maintenance.take({"g": [f"abcast.g.forward.{SITE}"]})
        maintenance.check_not_fenced()
        kafka.topics.append(EPOCHS, None, b"9 9.8.7", [("abcast", b"2 format")])
        with pytest.raises(LaterVersion, match=r"install abcast 9\.8\.7 or later here"):
            maintenance.check_not_fenced()
        maintenance.close()

    def test_who_reads_on_stops_at_the_seal(self, kafka: MemoryConnection) -> None:
        """The messages before the seal are delivered, and none behind it; the checker stops, too."""
        alice = Member("g", "nyc/alice", connection=kafka)
        with SequencerThread(kafka, "g", SITE):
            assert alice.broadcast(b"1").result(5) == 1
            deliveries = alice.deliveries(from_seqno=1, timeout=5)
            assert next(deliveries).seqno == 1
            later = Data(EPOCH, 40, format=LATER)
            write(kafka, later, message(40, 2))
            with pytest.raises(LaterVersion, match=r"abcast\.g\.data\.nyc has format 10, .* install abcast 9\.8\.7 or"):
                next(deliveries)
            with pytest.raises(AbcastError, match=r"install abcast 9\.8\.7 or later"):
                alice.broadcast(b"2").result(5)
            with pytest.raises(LaterVersion):
                check_group("g", kafka, names=[SITE])
            with pytest.raises(LaterVersion):
                absorb(SequencerState("g"), [later])
            with pytest.raises(LaterVersion):
                alice.close(timeout=0)

    def test_what_a_seal_says_of_known_formats_changes_nothing(self) -> None:
        for each in FORMATS:
            state = absorb(SequencerState("g"), [seal(3, each.number), message(3, 1)])
            assert (state.epoch, state.seqno, state.format) == (3, 1, each.number)
            assert SequencerState.from_bytes(snapshot(state).payload).format == each.number


@pytest.mark.slow
def test_an_outbox_of_a_later_version(kafka: MemoryConnection, tmp_path: Path) -> None:
    """The file has more columns and tables; they are left as they are."""
    path = tmp_path / "outbox.db"
    with pytest.raises(NotOrderedInTime), Member("g", "nyc/a", connection=kafka, outbox=path) as member:
        member.broadcast(b"1").result(0.1)
    with closing(sqlite3.connect(path)) as database:
        for table in ("owner", "pending", "casts"):
            database.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT DEFAULT 'kept'")
        database.execute("CREATE TABLE later (said TEXT)")
        database.commit()
    with SequencerThread(kafka, "g", SITE), Member("g", "nyc/a", connection=kafka, outbox=path) as member:
        assert member.broadcast(b"2").result(5) == 2
        assert [each.payload for each in member.deliveries(from_seqno=1, timeout=0.5)] == [b"1", b"2"]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT later FROM owner").fetchall() == [("kept",)]
        assert database.execute("SELECT said FROM later").fetchall() == []


class TestEntries:
    ENTRY = Entry(1, 2, 3, (SiteMessage(("sfo",), "beat", "{}"),), before=b"x")

    def test_fields_behind_those_that_are_known(self) -> None:
        plain = json.loads(self.ENTRY.to_bytes())
        longer = [*plain, 7, 1, "9.8.7", 0, [], [], {"more": 1}, None]
        read = Entry.from_bytes(json.dumps(longer).encode())
        assert read == self.ENTRY._replace(written=7, readable_from=1, version="9.8.7")
        assert Entry.from_bytes(read.to_bytes()) == read

    def test_for_later_versions_only(self) -> None:
        """Other fields of the row do not matter."""
        plain = json.loads(self.ENTRY.to_bytes())
        plain[3] = {"a later": "form"}
        with pytest.raises(LaterVersion, match=r"install abcast 9\.8\.7 or later"):
            Entry.from_bytes(json.dumps([*plain, 7, 7, "9.8.7"]).encode())

    def test_anything_else_is_none(self) -> None:
        with pytest.raises(ProtocolViolation, match="not a Entry"):
            Entry.from_bytes(json.dumps(json.loads(self.ENTRY.to_bytes())[:2]).encode())
