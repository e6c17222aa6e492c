"""`abcast status` of a group on a Kafka in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import typer
from kafka.structs import OffsetAndMetadata, TopicPartition
from typer.testing import CliRunner

from connectors.diagnosis import forward_end, metrics, replicas, status, statuses
from connectors.diagnosis.forward_end import Gap
from connectors.diagnosis.sentences import notes_on, wrong_with
from connectors.diagnosis.status import AgreementStatus, read_status
from connectors.kafka.codec.codec import encode_data, forward_headers
from connectors.kafka.codec.epochs import encode_claim, this_host
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.log import sign_of_life
from connectors.kafka.log.acts import Act, record_act
from connectors.kafka.log.liveness import SecondLook, say_why
from connectors.kafka.log.sign_of_life import Sign, SignsOfLife, read_signs
from connectors.kafka.log.standby_sign import sign_as_standby
from connectors.ledger.last_row import LedgerEnd
from connectors.takeover.ticks import tick
from connectors.testing.memory_kafka import MemoryConnection, MemoryMetadataClient
from jobs.inspection.status import status as status_command
from ordering.base.errors import KafkaRefused, TopicMissing
from ordering.base.names import Role, Topic, relay_of
from ordering.base.reader import Seal
from ordering.base.records import HEARTBEAT, MESSAGE, Data, Forward, Source
from ordering.membership.membership import MemberIncarnation, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer.sequencer import missing_before, seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.forward_corpus import CORPUS, Case
from tests.ledger.ledger_of import write_ledger

FORWARD = TopicPartition("abcast.g.forward.nyc", 0)
EPOCH = TopicPartition("abcast.g.epoch.nyc", 0)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a group with three senders, one of them a member, whose sequencer claimed epoch 1 a minute ago."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", role, "nyc") for role in ("forward", "data")])
    monkeypatch.setattr(status, "wrong_in_logs", lambda *_: {"g": "abcast.g.data.nyc has retention.ms=1."})
    state = SequencerState(
        "g",
        epoch=1,
        seqno=7,
        view=2,
        received={f"nyc/{name}": ReceivedRow(1, 2) for name in ("alice", "bob", "abcast.admin")},
        seals=(Seal(1, 1),),
        membership=Membership(members=(MemberIncarnation("nyc/alice", 1),)),
    )
    producer = connection.producer()
    claim(connection, 0)
    for record in (seal(1), snapshot(state)):
        key, value, headers = encode_data(record)
        producer.send(str(Topic("g", "data", "nyc")), key=key, value=value, headers=headers)
    make_older(connection, 60)
    return connection


def claim(connection: MemoryConnection, floor: int) -> None:
    value, headers = encode_claim(floor)
    connection.producer().send(EPOCH.topic, value=value, headers=headers)


def make_older(connection: MemoryConnection, seconds: int) -> None:
    """Move the times of all records back."""
    for records in connection.topics.partitions.values():
        records[:] = [record._replace(timestamp=record.timestamp - seconds * 1000) for record in records]


def forward(connection: MemoryConnection, name: str, local_seqno: int, kind: str = "message") -> None:
    sender = f"nyc/{name}"
    headers = forward_headers(1, local_seqno, kind=kind)
    connection.producer().send(FORWARD.topic, key=sender.encode(), value=b"", headers=headers)


def sign(connection: MemoryConnection, epoch: int = 1) -> None:
    SignsOfLife(connection, "nyc", "spark").give({"g": epoch}, {FORWARD: 0}, now=0)


def test_what_a_process_does_not_do_for_a_group(connection: MemoryConnection) -> None:
    """The trouble is shown as long as the process reports it."""
    troubles = Troubles()
    troubles.end("ledger", "the ledger ends at seqno 3 of group g: it can't go on.")
    SignsOfLife(connection, "nyc", "spark").give({"g": 1}, {FORWARD: 0}, 0.0, trouble_of=troubles.of)
    shown = read_status(connection, "g", "nyc")
    assert shown.trouble == "ledger has ended: the ledger ends at seqno 3 of group g: it can't go on."
    assert not shown.is_left_out
    forward(connection, "alice", 3)
    troubles.put("sequence-2", {"g": "DATA has 2 partitions." * 100, "h": "it has no EPOCH."})
    suspended = troubles.suspended([Topic("g", "epoch", "nyc")], "nyc")
    assert list(suspended) == ["g"]
    troubles.serve("sequence-3", ["g"])
    assert not troubles.suspended([Topic("g", "epoch", "nyc")], "nyc"), "another shard serves it by now"
    troubles.end("sequence-2", "it is left alone.")
    assert "sequence" not in troubles.of("g")
    SignsOfLife(connection, "nyc", "spark").give({}, {}, 0.0, suspended=suspended)
    shown = read_status(connection, "g", "nyc")
    assert shown.trouble.startswith("not served: DATA has 2 partitions.")
    assert shown.is_left_out
    assert shown.is_stuck
    assert not shown.is_failure
    assert shown.sequencer.state == "silent"
    place, later = ("abcast.sequencer.nyc", TopicPartition("abcast.g.epoch.nyc", 0)), time.time() + 60
    assert len(connection.topics.committed[place].metadata) < 4096
    with patch("connectors.kafka.log.sign_of_life.time", SimpleNamespace(time=lambda: later)):
        shown = read_status(connection, "g", "nyc")
    assert not shown.trouble
    assert shown.is_failure


def test_an_older_reader_takes_a_sign_with_a_trouble() -> None:
    """The older reader takes three words, and skips the others."""
    told = Sign(3, "host", "spark", 7, "ledger has ended: no").encode()
    assert told.metadata.split()[:3] == ["host", "spark", "7"]
    assert len(told.metadata.split()) == 4
    assert Sign.decode(told) == Sign(3, "host", "spark", 7, "ledger has ended: no")
    assert Sign.decode(OffsetAndMetadata(3, "host spark 7", -1)) == Sign(3, "host", "spark", 7)


def test_members_are_those_of_the_view_and_senders_all_who_have_sent(connection: MemoryConnection) -> None:
    shown = read_status(connection, "g", "nyc")
    assert (shown.last_seqno, shown.view, shown.members, shown.senders) == (7, 2, 1, 3)
    assert json.loads(json.dumps(shown.to_json()))["sequencer"]["state"] == "silent"


def test_members_and_their_silence(connection: MemoryConnection) -> None:
    """By the newest record of each, ordered or not; a sender outside the view is none of them."""
    assert read_status(connection, "g", "nyc").silences == {"nyc/alice": None}
    forward(connection, "alice", 3)
    make_older(connection, 20)
    forward(connection, "bob", 3)
    assert read_status(connection, "g", "nyc").to_json()["silences"] == {"nyc/alice": pytest.approx(20, abs=2)}
    forward(connection, "alice", 9, HEARTBEAT)
    assert read_status(connection, "g", "nyc").silences == {"nyc/alice": pytest.approx(0, abs=2)}


def test_what_waits_is_what_would_be_ordered_or_refused(connection: MemoryConnection) -> None:
    """Heartbeats, messages that were ordered, and messages behind a gap do not wait for a number."""
    forward(connection, "alice", 9, HEARTBEAT)
    forward(connection, "alice", 2)
    assert read_status(connection, "g", "nyc").lag == 0
    forward(connection, "alice", 3)
    forward(connection, "alice", 5)
    connection.producer().send(FORWARD.topic, value=b"malformed")
    assert read_status(connection, "g", "nyc").lag == 2


def test_what_the_sequencer_has_considered_does_not_wait(connection: MemoryConnection) -> None:
    """Also where it wrote no record into DATA; and every record of a long tail counts."""
    for local_seqno in (3, 4, 5):
        forward(connection, "alice", local_seqno)
    SignsOfLife(connection, "nyc", "spark").give({"g": 1}, {FORWARD: 2}, now=0)
    assert read_status(connection, "g", "nyc").lag == 0  # 5 is behind a gap, as DATA tells it
    with patch.object(forward_end, "_MAX_TAIL", 0):
        assert read_status(connection, "g", "nyc").lag == 1


def test_a_sender_with_a_gap_is_told_of(connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap is shown while it is open. Duplicates, heartbeats, and undecided records are no gap."""
    forward(connection, "alice", 2)
    forward(connection, "alice", 9, HEARTBEAT)
    forward(connection, "new", 2)
    forward(connection, "new", 3)
    forward(connection, "bob", 4)
    forward(connection, "bob", 5)
    SignsOfLife(connection, "nyc", "spark").give({"g": 1}, {FORWARD: 5}, now=0)
    shown = read_status(connection, "g", "nyc")
    assert shown.gaps == (("nyc/bob", 1, 3, 1), ("nyc/new", 1, 1, 2))
    assert shown.to_json()["gaps"][1] == {"sender": "nyc/new", "incarnation": 1, "missing": 1, "dropped": 2}
    # Where the records are large, fewer are looked at.
    SignsOfLife(connection, "nyc", "spark").give({"g": 1}, {FORWARD: 6}, now=0)
    monkeypatch.setattr(forward_end, "_MAX_LOOK_BACK_BYTES", 0)
    monkeypatch.setattr(forward_end, "_FIRST_LOOK_BACK", 1)
    assert [gap.sender for gap in read_status(connection, "g", "nyc").gaps] == ["nyc/bob"]


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_a_fast_look_finds_accepted_messages_only(case: Case) -> None:
    """Any producer may have written the record."""
    state = SequencerState("g", received={"nyc/alice": ReceivedRow(2, 1)})
    raw = PlainRecord(case.topic, 0, 0, case.timestamp_ms, case.key, case.value, list(case.headers))
    sender, record = (
        forward_end._sender_of_accepted(state, raw),
        forward_end._decoded(TopicPartition(case.topic, 0), raw),
    )
    assert sender in (None, "nyc/alice")
    assert sender is None or not isinstance(record, Forward) or missing_before(state, record) is None
    assert (case.name, sender) != ("good", None)


@pytest.mark.parametrize(
    ("incarnation", "local_seqno", "missing"), [(1, 2, None), (1, 3, None), (1, 4, 3), (0, 4, None), (2, 1, None)]
)
def test_what_is_missing(incarnation: int, local_seqno: int, missing: int | None) -> None:
    state = SequencerState("g", received={"nyc/alice": ReceivedRow(1, 2)})
    record = Forward("nyc/alice", incarnation, local_seqno, b"", Source("t", 0, 0))
    assert missing_before(state, record) == missing
    assert missing_before(state, replace(record, incarnation=2, local_seqno=7)) == 1
    closed = Membership(settings=Settings(closed=True))
    assert missing_before(replace(state, membership=closed), replace(record, incarnation=2, local_seqno=7)) is None


def test_a_sequencer_that_signs_is_alive(connection: MemoryConnection) -> None:
    forward(connection, "alice", 3)
    sign(connection)
    shown = read_status(connection, "g", "nyc")
    assert (shown.sequencer.state, shown.sequencer.engine, shown.sequencer.epoch) == ("alive", "spark", 1)
    assert (shown.lag, shown.is_stuck) == (1, False)


def test_a_sequencer_that_does_not_sign_any_more_is_silent(connection: MemoryConnection) -> None:
    """The sequencer counts as dead once its last sign is old: waiting messages then have no sequencer."""
    connection.topics.committed["abcast.sequencer.nyc", EPOCH] = old_sign(40)
    shown = read_status(connection, "g", "nyc")
    assert shown.sequencer.state == "silent"
    assert shown.sequencer.silent_s == pytest.approx(40, abs=2)
    assert not shown.is_stuck
    forward(connection, "alice", 3)
    assert read_status(connection, "g", "nyc").is_stuck
    assert say_why(connection, "g", "nyc").startswith("The group's sequencer has been silent for 4")


def old_sign(seconds: float, host: str = "") -> OffsetAndMetadata:
    return Sign(1, host or this_host(), "spark", int((time.time() - seconds) * 1000)).encode()


def test_a_claim_is_a_sign_too(connection: MemoryConnection) -> None:
    """A sequencer has begun to take over; the sign of the one before it no longer counts."""
    claim(connection, 2)
    connection.topics.committed["abcast.sequencer.nyc", EPOCH] = old_sign(40)
    shown = read_status(connection, "g", "nyc").sequencer
    assert (shown.state, shown.epoch, shown.engine) == ("alive", 2, "")


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_another_host_may_be_wrong(connection: MemoryConnection, hours: int) -> None:
    """A sign that changes during the look was given just now, whatever its time; one that stays was not."""
    place = ("abcast.sequencer.nyc", EPOCH)
    connection.topics.committed[place] = old_sign(hours * 3600, "elsewhere")

    def give_another(_seconds: float) -> None:
        connection.topics.committed[place] = old_sign(hours * 3600 - 3, "elsewhere")

    with patch("time.sleep", give_another):
        assert read_status(connection, "g", "nyc").sequencer.state == "alive"
    with patch("time.sleep", lambda _: None):
        assert read_status(connection, "g", "nyc").sequencer.state == "silent"


def test_groups_share_a_second_look(connection: MemoryConnection) -> None:
    """There is one wait for all of them."""
    was = Sign(1, "elsewhere", "spark", 7)
    for group in ("g", "h"):
        sign_of(connection, group, was)
    later, waits = was._replace(at_ms=9), list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        sign_of(connection, "h", later)

    look = SecondLook(connection, ["g", "h"], "nyc")
    with patch("time.sleep", sleep):
        assert [look.gives_another(group, was) for group in ("g", "h")] == [False, True]
        assert look.gives_another("h", later)  # it was read after the wait
    assert len(waits) == 1


def sign_of(connection: MemoryConnection, group: str, told: Sign) -> None:
    connection.topics.committed["abcast.sequencer.nyc", TopicPartition(f"abcast.{group}.epoch.nyc", 0)] = told.encode()


def test_a_group_that_never_had_a_sequencer() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    assert (
        say_why(connection, "g", "nyc")
        == "The group never had a sequencer: start `abcast run`; a running one finds the group within 10 s."
    )


def test_the_rate_falls_to_zero(connection: MemoryConnection) -> None:
    """The rate is the last minute's, so older records of DATA do not count."""
    for _ in range(120):
        connection.producer().send("abcast.g.data.nyc", value=b"", headers=encode_data(seal(1))[2])
    assert read_status(connection, "g", "nyc").rate == 2.0
    make_older(connection, 61)
    assert read_status(connection, "g", "nyc").rate == 0.0


def test_signs(connection: MemoryConnection) -> None:
    """A sign is given every few seconds; a text that is no sign, or has more fields, does no harm."""
    signs = SignsOfLife(connection, "nyc", "spark")
    signs.give({"g": 3}, {}, now=100)
    signs.give({"g": 4}, {}, now=100 + sign_of_life.SIGN_EVERY_S / 2)
    assert read_signs(connection, ["g", "h"], "nyc").of_groups["g"].epoch == 3
    signs.give({"g": 4}, {FORWARD: 12}, now=100 + sign_of_life.SIGN_EVERY_S)
    assert read_signs(connection, ["g"], "nyc", [FORWARD]).considered == {FORWARD: 12}
    assert read_signs(connection, ["g"], "nyc").of_groups["g"].epoch == 4
    place = ("abcast.sequencer.nyc", EPOCH)
    connection.topics.committed[place] = connection.topics.committed[place]._replace(metadata="host spark 7 more")
    assert read_signs(connection, ["g"], "nyc").of_groups["g"].at_ms == 7
    connection.topics.committed[place] = connection.topics.committed[place]._replace(metadata="")
    assert read_signs(connection, ["g"], "nyc").of_groups == {}


def test_signs_of_groups_beside_one_that_is_hidden(
    connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses the question as a whole if this user may not see one of its topics."""
    committed = MemoryMetadataClient.committed

    def refusing(self: MemoryMetadataClient, group_id: str, places: Sequence[TopicPartition]) -> Any:
        if any(place.topic == "abcast.hidden.data.nyc" for place in places):
            raise KafkaRefused("no right to see abcast.hidden.data.nyc.")
        return committed(self, group_id, places)

    SignsOfLife(connection, "nyc", "spark").give({"g": 3}, {}, now=100)
    monkeypatch.setattr(MemoryMetadataClient, "committed", refusing)
    found = read_signs(connection, ["hidden", "g"], "nyc").of_groups
    assert {group: sign.epoch for group, sign in found.items()} == {"g": 3}
    with pytest.raises(KafkaRefused):
        read_signs(connection, ["hidden"], "nyc")


@pytest.mark.parametrize("is_in_a_mesh", [False, True])
def test_a_group_without_forward(
    connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch, *, is_in_a_mesh: bool
) -> None:
    """Its sequencer is silent, and the reason is another one than a missing job. A hidden topic may be there."""
    monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", "data", "nyc")])
    assert read_status(connection, "g", "nyc").lag == 0, "hidden"
    del connection.topics.partitions[FORWARD]
    if is_in_a_mesh:
        monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", "data", "nyc"), RELAYED])
        connection.topics.partitions[TopicPartition(str(RELAYED), 0)] = []
    with pytest.raises(TopicMissing, match=r"topic abcast\.g\.forward\.nyc does not exist: .*`abcast topics create"):
        read_status(connection, "g", "nyc")


def test_the_last_acts_of_operators_are_shown(connection: MemoryConnection) -> None:
    for number in range(5):
        record_act(connection, "g", "nyc", Act("forget", f"nyc/m{number}", "bob@ops", "left" if number == 4 else ""))
    found = read_status(connection, "g", "nyc")
    assert [act.what for act in found.acts] == [f"nyc/m{number}" for number in range(5)]
    assert [act["who"] for act in json.loads(json.dumps(found.to_json()))["acts"]] == ["bob@ops"] * 5
    shown = [sentence for sentence in notes_on(found, "nyc") if sentence.startswith("forget")]
    assert [sentence.rpartition("UTC: ")[2] for sentence in shown] == ["nyc/m2", "nyc/m3", "nyc/m4 (left)"]
    assert all(sentence.startswith("forget by bob@ops, 20") for sentence in shown)


RELAYED = Topic("g", "relayed", "nyc", "sfo")


def carry(connection: MemoryConnection, sender: str) -> None:
    connection.producer().send(str(RELAYED), key=sender.encode(), value=b"", headers=forward_headers(1, 1))


@pytest.fixture
def filled(connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return the group with a topic that a relay from sfo fills."""
    connection.topics.partitions[TopicPartition(str(RELAYED), 0)] = []
    topics = [Topic("g", "forward", "nyc"), Topic("g", "data", "nyc"), RELAYED]
    monkeypatch.setattr(status, "find_topics", lambda _: topics)
    return connection


def test_the_silence_of_a_relay(filled: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks of this site's own sequencer do not end it, however many they are."""
    relay = relay_of("sfo")
    carry(filled, relay)
    make_older(filled, 300)
    ticks(filled, 15)
    assert read_status(filled, "g", "nyc").relays == {"sfo": pytest.approx(300, abs=5)}
    monkeypatch.setattr(status, "_MAX_LOOK_BACK", 3)
    assert relays_of(filled, linked=["sfo"]) == {"sfo": pytest.approx(0, abs=5)}  # of the oldest tick seen
    carry(filled, relay)
    assert read_status(filled, "g", "nyc").relays == {"sfo": pytest.approx(0, abs=5)}


def test_a_relay_that_wrote_nothing(filled: MemoryConnection) -> None:
    """Relays that give heartbeats are expected to. The metric counts from the takeover."""
    ticks(filled, 2)
    assert relays_of(filled) == {}
    assert relays_of(filled, linked=["sfo"]) == relays_of(filled, is_agreed=True) == {"sfo": None}
    row = read_status(filled, "g", "nyc")._replace(relays={"sfo": None})
    [figure] = [each for each in metrics.FIGURES if each.name == "abcast_relay_silent_seconds"]
    [(labels, silent_s)] = figure.of(row)
    assert list(labels) == ["sfo"]
    assert silent_s == pytest.approx(60, abs=5)


def test_an_idle_neighbour_that_is_away_for_long(filled: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order has no row of it, and only ticks of this site are near the end."""
    carry(filled, relay_of("sfo"))
    ticks(filled, 30)
    monkeypatch.setattr(status, "_MAX_LOOK_BACK", 5)
    assert relays_of(filled) == {"sfo": pytest.approx(0, abs=5)}  # of the oldest tick seen


def test_a_neighbour_that_never_began(filled: MemoryConnection) -> None:
    """The caller knows it, from the sites' file: with a topic or without. Or a remote view in the order tells it."""
    row = read_status(filled, "g", "nyc", neighbours=["lon", "sfo"])
    assert row.relays == {"lon": None, "sfo": None}
    assert "the relay from lon has sent no heartbeat" in list(wrong_with(row, "nyc"))
    received = {name: ReceivedRow(1, 2) for name in (relay_of("ber"), "sfo/carol")}
    assert status._linked(SequencerState("g", received=received), "nyc") == {"ber"}


def ticks(connection: MemoryConnection, count: int) -> None:
    for _ in range(count):
        tick(connection.producer(), str(RELAYED), [0], 7)


def relays_of(
    connection: MemoryConnection, linked: Sequence[str] = (), *, is_agreed: bool = False
) -> dict[str, float | None]:
    places = [TopicPartition(str(RELAYED), 0)]
    return status._relays(connection, connection.consumer(), places, linked, is_agreed=is_agreed)


def test_a_relay_without_heartbeats_is_not_told(filled: MemoryConnection) -> None:
    """A hub's relay carries nothing from an idle site."""
    assert read_status(filled, "g", "nyc").relays == {}
    carry(filled, "sfo/carol")
    make_older(filled, 300)
    assert read_status(filled, "g", "nyc").relays == {}
    assert relays_of(filled, linked=["sfo"]) == {"sfo": pytest.approx(300, abs=5)}


def test_each_sentence_is_said_once(connection: MemoryConnection) -> None:
    """A thing is wrong, or a note; the wrong ones of a group without a sequencer begin with that."""
    agreement = AgreementStatus(3, ("nyc", "sfo"), waits=True)
    gaps = [Gap(f"nyc/{number}", 1, 2, 1) for number in range(7)]
    row = read_status(connection, "g", "nyc")._replace(
        relays={"sfo": 3.0, "lon": None, "ber": 99.0}, agreement=agreement, gaps=gaps, strays=2, trouble="no."
    )
    wrong, notes = list(wrong_with(row, "nyc")), list(notes_on(row, "nyc"))
    assert [text.partition(" (")[0] for text in wrong[:3]] == [
        "the group's sequencer has been silent for 60 s",
        "its job reports: no.",
        "nyc waits: too few of the sites nyc, sfo",
    ]
    assert [text for text in wrong if "relay" in text] == [
        "the relay from lon has sent no heartbeat",
        "the relay from ber sent a heartbeat 99 s ago",
    ]
    assert (len([text for text in wrong if "behind a gap" in text]), wrong[-2][:20]) == (5, "2 more senders have ")
    assert [text for text in notes if "relay" in text] == ["the relay from sfo sent a heartbeat 3 s ago"]
    well = row._replace(
        agreement=agreement._replace(waits=False),
        sequencer=row.sequencer._replace(state="alive"),
        relays={"sfo": 3.0},
        gaps=[],
        strays=0,
        trouble="",
        wrong_settings="",
    )
    assert list(wrong_with(well, "nyc")) == []
    assert "nyc agrees in view 3 of the sites nyc, sfo" in list(notes_on(well, "nyc"))


class TestWhichGroupsAreJudged:
    """`--groups` judges the job with the same groups."""

    @pytest.fixture
    def groups(self, connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
        """`g` is fine; messages wait in `foreign`; the job goes on without `out`, which has no leader."""
        for group in ("foreign", "out"):
            connection.create(group, "nyc")
            connection.producer().send(f"abcast.{group}.forward.nyc", b"x", b"nyc/a", forward_headers(1, 1))
        connection.topics.take_away("abcast.out.data.nyc")
        roles: tuple[Role, ...] = ("forward", "data", "epoch")
        found = [Topic(group, role, "nyc") for group in ("foreign", "g", "out") for role in roles]
        monkeypatch.setattr(status, "find_topics", lambda _: found)
        monkeypatch.setattr("connectors.kafka.topics.topics.find_groups", lambda *_: ["foreign", "g", "out"])
        monkeypatch.setattr("jobs.inspection.status.connection_to", lambda *_: connection)
        SignsOfLife(connection, "nyc", "spark").give({"g": 1}, {FORWARD: 0}, 0.0, suspended={"out": "it has no leader"})
        return connection

    @pytest.mark.parametrize(
        ("options", "exit_code"),
        [
            ([], 1),
            (["--groups", "*"], 1),
            (["--groups", "g,out"], 0),
            (["--groups", "g"], 0),
            (["--groups", "foreign"], 1),
            (["--group", "g"], 0),
            (["--group", "out"], 1),
        ],
    )
    def test_the_exit_code(self, groups: MemoryConnection, options: list[str], exit_code: int, tmp_path: Path) -> None:
        del groups
        app = typer.Typer()
        app.command()(status_command)
        done = CliRunner().invoke(app, [*options, "--site", "nyc", "--json", "--data", str(tmp_path)])
        told = done.exit_code if isinstance(done.exception, SystemExit | None) else 1
        assert told == exit_code, repr(done.exception)

    def test_a_job_whose_signs_have_ended(self, groups: MemoryConnection, tmp_path: Path) -> None:
        """Groups that it has left out then fail, too."""
        groups.topics.committed.clear()
        app = typer.Typer()
        app.command()(status_command)
        done = CliRunner().invoke(app, ["--groups", "g,out", "--site", "nyc", "--json", "--data", str(tmp_path)])
        assert done.exit_code == 1


def test_replicas_that_are_not_in_sync(connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that refuses writes is told first; a leaderless one has no replica in sync."""
    found = dict.fromkeys(["abcast.g.data.nyc", "abcast.g.forward.nyc", "abcast.g.memory.nyc"], 2)
    monkeypatch.setattr(replicas, "least_in_sync", lambda _, topics: {each: found[each] for each in topics})
    monkeypatch.setattr(statuses, "find_groups", lambda *_: ["g"])
    [row] = statuses.read_statuses(connection, "nyc").rows
    assert row.under_replicated == ()
    connection.topics.copies |= {"abcast.g.forward.nyc": (3, 2), "abcast.g.data.nyc": (3, 1)}
    connection.topics.take_away("abcast.g.memory.nyc")
    [row] = statuses.read_statuses(connection, "nyc").rows
    assert [each["topic"] for each in row.to_json()["under_replicated"]] == [
        *("abcast.g.memory.nyc", "abcast.g.data.nyc", "abcast.g.forward.nyc")
    ]
    assert [each.is_refused for each in row.under_replicated] == [True, True, False]
    figures = {each.name: list(each.of(row)) for each in metrics.FIGURES}
    assert figures["abcast_under_replicated_partitions"] == [((), 3)]
    assert figures["abcast_under_min_isr_partitions"] == [((), 2)]
    said = list(wrong_with(row._replace(under_replicated=row.under_replicated[1:]), "nyc"))
    assert (
        "abcast.g.data.nyc-0 has 1 of 3 replicas in sync and needs 2: Kafka refuses all writes there until a broker "
        "is back (1 more like it: see --json)"
    ) in said
    said = list(wrong_with(row._replace(under_replicated=row.under_replicated[2:]), "nyc"))
    assert (
        "abcast.g.forward.nyc-0 has 2 of 3 replicas in sync: bring the brokers back, before another one fails" in said
    )


def test_a_standby_is_shown_while_it_signs(connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has become the sequencer is none any more."""
    sign_as_standby(connection.metadata_client(), ["g"], "nyc", 5)
    with monkeypatch.context() as patch:
        patch.setattr("connectors.kafka.codec.epochs.os.getpid", lambda: 77)
        sign_as_standby(connection.metadata_client(), ["g"], "nyc", 5)
    found = read_status(connection, "g", "nyc")
    assert found.standby is not None
    assert (found.standby.pid, found.to_json()["standby"]["since_ms"]) == (77, 5)
    assert f"standby: process 77 on host {this_host()}" in list(notes_on(found, "nyc"))
    assert not found.standby.is_beside(this_host(), 77)
    monkeypatch.setattr("time.time_ns", lambda: (found.standby.signed_ms + 11_000) * 1_000_000)
    assert read_status(connection, "g", "nyc").standby is None


def test_a_damaged_ledger_is_told_beside_the_rest(connection: MemoryConnection, tmp_path: Path) -> None:
    """Its files of rows are cut, or gone; its log, which tells the last seqno, is whole."""
    rows = [Data(MESSAGE, 1, seqno, 1, "nyc/alice", 1, seqno) for seqno in (1, 2)]
    path = write_ledger(tmp_path / "ledger", rows)
    [file] = path.rglob("*.parquet")
    for damage in (lambda: file.write_bytes(b"PAR1"), file.unlink):
        damage()
        found = read_status(connection, "g", "nyc", {"g": 2}, LedgerEnd(path))
        assert "is damaged" in found.other_history
        assert found.last_seqno == 7


def test_a_member_is_heard_in_many_partitions(connection: MemoryConnection) -> None:
    """With 20 partitions, 150 records back is not long ago."""
    forward(connection, "alice", 3)
    for seqno in range(3, 153):
        forward(connection, "bob", seqno)
    for number in range(1, 20):
        connection.topics.partitions[TopicPartition(FORWARD.topic, number)] = []
    silence = read_status(connection, "g", "nyc").silences["nyc/alice"]
    assert silence is not None
    assert silence < 60
