"""`abcast dead-letters resend`: a refused message gets an order of its own, once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import NoReturn

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis.dead_letters import messages_of, read_dead_letters
from connectors.diagnosis.status import read_status
from connectors.kafka.codec.codec import WRONG_LOCAL_SEQNOS, forward_headers, pack_headers
from connectors.kafka.codec.dead_letter_codec import dead_letter_headers
from connectors.kafka.topics.senders import forget_senders, known_senders
from connectors.kafka.topics.settings import change_settings
from connectors.testing import MemoryGroup, SequencerThread
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import ForwardTableFull
from ordering.base.packs import WRONG_LENGTHS, encode_pack
from ordering.base.records import MAX_PAYLOAD_BYTES, DeadLetter, Source
from ordering.membership.membership import NOT_A_MEMBER
from ordering.sequencer.sequencer import FORGOTTEN
from tests.cli.here import abcast_here
from tests.waiting import WAIT, eventually

FORWARD, DATA, DEAD = (TopicPartition(f"abcast.g.{role}.local", 0) for role in ("forward", "data", "dead-letter"))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGroup]:
    """Yield a group that the commands find."""
    with MemoryGroup("g") as made:
        monkeypatch.setattr("jobs.inspection.dead_letters.connection_to", lambda *_: made.connection)
        yield made


def refused(
    kafka: MemoryConnection,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]] = (),
    key: bytes | None = b"local/x",
) -> int:
    """Write a record that breaks a rule into FORWARD; return the offset of its dead letter."""
    letters = kafka.topics.partitions[DEAD]
    before = len(letters)
    kafka.topics.append(FORWARD, key, value, list(headers))
    eventually(lambda: len(letters) > before)
    return before


def resend(cwd: Path, offset: int, *options: str) -> CompletedProcess[str]:
    return abcast_here("dead-letters", "resend", str(offset), "-g", "g", *options, cwd=cwd)


def test_the_message_gets_an_order_of_its_own(group: MemoryGroup, tmp_path: Path) -> None:
    """The record of a producer that knows nothing of abcast, say. The header tells who sent it, and which it was."""
    kafka = group.connection
    offset = refused(kafka, b"\xff1", [("k", b"v"), ("k", b"w")])
    done = resend(tmp_path, offset, "--why", "the client is mended", "--json")
    row = json.loads(done.stdout)
    assert (row["seqno"], row["sender"], row["dead_letter"]) == (1, "local/resender", offset)
    [delivery] = group.member("reader").deliveries(1, timeout=0)
    assert (delivery.seqno, delivery.sender, delivery.payload) == (1, "local/resender", b"\xff1")
    assert delivery.headers == (
        *(("k", b"v"), ("k", b"w")),
        ("dead-letter", f"abcast.g.dead-letter.local-0:{offset} local/x".encode()),
        ("resent-by", row["resent_by"].encode()),
    )
    [act] = read_status(kafka, "g", "local").acts
    assert (act.act, act.what, act.why) == ("resend", f"dead letter {offset}", "the client is mended")


def test_the_act_is_recorded_before_it_is_done(
    group: MemoryGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is cut off as it sends leaves its trace."""
    recorded: list[str] = []

    def cut_off(*_: object) -> NoReturn:
        recorded.extend(act.act for act in read_status(group.connection, "g", "local").acts)
        raise ForwardTableFull("cut off")

    monkeypatch.setattr(Member, "broadcast_many", cut_off)
    assert resend(tmp_path, refused(group.connection, b"1")).returncode == 1
    assert recorded == ["resend"]


def test_a_second_run_is_told_and_sends_nothing(group: MemoryGroup, tmp_path: Path) -> None:
    """Also another letter's resend does not count."""
    first, second = refused(group.connection, b"1"), refused(group.connection, b"2")
    assert resend(tmp_path, first).stdout == f"dead letter {first} is seqno 1, from local/resender\n"
    again = resend(tmp_path, first)
    assert (again.returncode, again.stdout) == (1, "")
    assert (
        again.stderr == f"abcast: dead letter {first} was sent again before, as seqno 1. --anyway sends it once more.\n"
    )
    assert resend(tmp_path, second, "--member", "mender").stdout.endswith("is seqno 2, from local/mender\n")
    assert resend(tmp_path, first, "--anyway").stdout.startswith(f"dead letter {first} is seqno 3")
    assert [each.payload for each in group.member("reader").deliveries(1, timeout=0)] == [b"1", b"2", b"1"]


def test_a_run_that_found_no_sequencer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message waits in FORWARD: a second one would be ordered, too."""
    with MemoryGroup("g") as group:
        kafka = group.connection
        offset = refused(kafka, b"1")
    monkeypatch.setattr("jobs.inspection.dead_letters.connection_to", lambda *_: kafka)
    late = resend(tmp_path, offset, "--timeout", "0.1")
    assert (late.returncode, "not ordered within 0.1 s" in late.stderr) == (1, True), late.stderr
    again = resend(tmp_path, offset)
    assert (again.returncode, "before, and waits for a sequencer" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("value", "headers", "said"),
    [
        (b"1", [("abcast", b"2 join 5 1"), ("abcast-x", b"")], "it is a record 'join', not a message."),
        (b"1", [("abcast", b"2 unheard-of 5 1")], "it is a record 'unheard-of', not a message."),
        (None, [("abcast", b"2 message 5 1")], "it has no payload (the payload is null)."),
        (b"1" * (MAX_PAYLOAD_BYTES + 1), [("abcast", b"2 message 5 1")], "its payload has 1,000,001 bytes, over"),
        (b"1", [("abcast", b"2 message 5 1"), ("abcast-x", b"")], "are reserved, and it has 'abcast-x'."),
        (b"1", [("x", b"y" * 65_536)], "over the limit of 65536"),
    ],
)
def test_a_letter_that_would_be_refused_again(
    group: MemoryGroup, tmp_path: Path, value: bytes | None, headers: list[tuple[str, bytes]], said: str
) -> None:
    offset = refused(group.connection, value, headers)
    done = resend(tmp_path, offset)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"dead letter {offset} can't be sent again: " in done.stderr
    assert said in done.stderr
    assert list(group.member("reader").deliveries(1, timeout=0)) == []


def test_a_message_that_may_have_been_ordered(group: MemoryGroup, tmp_path: Path) -> None:
    """Its sender was forgotten since. So the operator must look first."""
    why = dead_letter_headers(
        DeadLetter(Source("abcast.g.forward.local", 0, 0), FORGOTTEN), [("abcast", b"2 message 5 1")]
    )
    group.connection.topics.append(DEAD, b"local/x", b"1", why)
    done = resend(tmp_path, 0)
    assert (done.returncode, "dead letter 0 may be in the order: " in done.stderr) == (2, True)
    assert resend(tmp_path, 0, "--anyway").returncode == 0
    assert resend(tmp_path, 7).stderr.startswith("abcast: there is no dead letter at offset 7")


def test_a_resend_that_was_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first resend leaves no trace. A sequencer that starts writes a snapshot, so DATA before it may go."""
    kafka = MemoryConnection()
    kafka.create("g", "local")
    monkeypatch.setattr("jobs.inspection.dead_letters.connection_to", lambda *_: kafka)
    with SequencerThread(kafka, "g", "local"):
        offset = refused(kafka, b"1")
        assert resend(tmp_path, offset).returncode == 0
    ended = len(kafka.topics.partitions[DATA])
    with SequencerThread(kafka, "g", "local"), Member("g", "local/reader", connection=kafka) as reader:
        reader.broadcast(b"later").result(WAIT)
        kafka.topics.drop(DATA.topic, ended)
        kafka.topics.drop(FORWARD.topic, len(kafka.topics.partitions[FORWARD]))
        done = resend(tmp_path, offset)
        assert (done.returncode, done.stdout, "DATA records of its time are purged" in done.stderr) == (2, "", True)
        assert resend(tmp_path, offset, "--anyway").returncode == 0


def of_a_stranger(group: MemoryGroup, local_seqno: int) -> tuple[int, list[tuple[str, bytes]]]:
    """Return the dead letter of a message of `local/x`, which is no member of the closed group; and its headers."""
    headers = list(forward_headers(5, local_seqno))
    change_settings(group.connection, "g", "local", closed=True)
    offset = refused(group.connection, b"pay", headers)
    assert group.connection.topics.partitions[DEAD][offset].headers[-1][1].decode().endswith(NOT_A_MEMBER)
    change_settings(group.connection, "g", "local", closed=False)
    return offset, headers


def test_a_message_that_its_sender_has_repeated(group: MemoryGroup, tmp_path: Path) -> None:
    """The repeat is ordered, under the sender's own name; the resend is not. The two settings have seqnos, too."""
    offset, headers = of_a_stranger(group, 1)
    reader = group.member("reader")
    group.connection.topics.append(FORWARD, b"local/x", b"pay", headers)
    reader.broadcast(b"later").result(WAIT)
    done = resend(tmp_path, offset)
    assert (done.returncode, "is in the order as seqno 3, since its sender has repeated it" in done.stderr) == (1, True)
    assert [each.payload for each in reader.deliveries(1, timeout=0)] == [b"pay", b"later"]


def test_a_repeat_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryGroup("g") as group:
        kafka = group.connection
        offset, headers = of_a_stranger(group, 1)
    monkeypatch.setattr("jobs.inspection.dead_letters.connection_to", lambda *_: kafka)
    kafka.topics.append(FORWARD, b"local/x", b"pay", headers)
    done = resend(tmp_path, offset)
    assert (done.returncode, "waits for a sequencer, since its sender has repeated it" in done.stderr) == (1, True)


def test_a_stranger_that_was_forgotten_before(group: MemoryGroup, tmp_path: Path) -> None:
    """The group was closed then. That is the reason of the dead letter, but its message may be an ordered one."""
    kafka = group.connection
    kafka.topics.append(FORWARD, b"local/x", b"1", list(forward_headers(5, 1)))
    group.member("reader").broadcast(b"later").result(WAIT)
    rows = [each.row for each in known_senders(kafka, "g", "local") if each.row.sender == "local/x"]
    assert forget_senders(kafka, "g", "local", rows).forgotten == ["local/x"]
    offset, _ = of_a_stranger(group, 2)
    done = resend(tmp_path, offset)
    assert (done.returncode, "from before its sender was forgotten" in done.stderr) == (2, True)


def test_a_message_of_a_stranger_has_not_been_ordered(group: MemoryGroup, tmp_path: Path) -> None:
    offset, _ = of_a_stranger(group, 1)
    assert resend(tmp_path, offset).stdout == f"dead letter {offset} is seqno 3, from local/resender\n"


@pytest.mark.parametrize("then", ["nothing", "a message"])
def test_a_record_that_only_claims_to_be_a_resend(group: MemoryGroup, tmp_path: Path, then: str) -> None:
    """The claim was refused, or dropped as out of turn. So it can't hinder an operator."""
    kafka = group.connection
    offset = refused(kafka, b"1")
    claim = ("dead-letter", f"abcast.g.dead-letter.local-0:{offset} local/x".encode())
    refused(kafka, b"1", [("abcast", b"2 message 0 1"), claim])
    seqno = 1
    if then == "a message":
        kafka.topics.append(FORWARD, b"local/x", b"1", [*forward_headers(5, 7), claim])
        group.member("reader").broadcast(b"later").result(WAIT)
        seqno = 2
    assert resend(tmp_path, offset).stdout == f"dead letter {offset} is seqno {seqno}, from local/resender\n"


def pack_refused(kafka: MemoryConnection, incarnation: int, first: int, payloads: list[bytes]) -> int:
    return refused(kafka, encode_pack(payloads), pack_headers(incarnation, first, len(payloads)))


@pytest.mark.parametrize("begins_again", [False, True])
@pytest.mark.parametrize("earlier_by_ms", [0, 3_600_000])
def test_a_pack_whose_first_messages_are_ordered(
    group: MemoryGroup, tmp_path: Path, earlier_by_ms: int, begins_again: bool
) -> None:
    """Long before its refusal, too, and also if its sender has begun a new incarnation since."""
    kafka = group.connection
    for n in (1, 2):
        kafka.topics.append(FORWARD, b"local/x", b"%d" % n, list(forward_headers(5, n)))
    reader = group.member("reader")
    reader.broadcast(b"between").result(WAIT)
    log = kafka.topics.partitions[DATA]
    log[:] = [record._replace(timestamp=record.timestamp - earlier_by_ms) for record in log]
    offset = pack_refused(kafka, 5, 1, [b"1", b"2", b"3", b"4"])
    if begins_again:
        kafka.topics.append(FORWARD, b"local/x", b"new", list(forward_headers(6, 1)))
        reader.broadcast(b"between").result(WAIT)
    done = resend(tmp_path, offset)
    assert f"dead letter {offset} has 4 messages, 2 of them sent now, the last one is seqno" in done.stdout, done.stderr
    payloads = [each.payload for each in reader.deliveries(1, timeout=0)]
    assert [each for each in payloads if each.isdigit()] == [b"1", b"2", b"3", b"4"]
    again = resend(tmp_path, offset)
    assert (again.returncode, "was sent again before, as seqno" in again.stderr) == (1, True)


@pytest.mark.parametrize("waits", [False, True])
def test_a_resend_of_a_pack_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """Below format 3 it sends message by message. The second run sends the rest. Equal ones count one by one."""
    payloads = [b"a", b"b", b"a", b"a", b"c"]
    with MemoryGroup("g") as group:
        kafka = group.connection
        offset = pack_refused(kafka, 5, 1, payloads)
        [letter] = read_dead_letters(kafka, "g", "local")
        _, headers = messages_of(letter, "g", "local", "operator")
        begun = [(b"local/resender", each, list(forward_headers(5, n, headers))) for n, each in enumerate(payloads, 1)]
        for record in [] if waits else begun[:3]:
            kafka.topics.append(FORWARD, *record)
        group.member("reader").broadcast(b"later").result(WAIT)
    for record in begun[:3] if waits else []:
        kafka.topics.append(FORWARD, *record)
    monkeypatch.setattr("jobs.inspection.dead_letters.connection_to", lambda *_: kafka)
    assert "not ordered within" in resend(tmp_path, offset, "--timeout", "0.1").stderr
    with SequencerThread(kafka, "g", "local"), Member("g", "local/reader", connection=kafka) as reader:
        reader.broadcast(b"later").result(WAIT)
        found = [each.payload for each in reader.deliveries(1, timeout=0) if each.sender == "local/resender"]
        assert found == payloads
        again = resend(tmp_path, offset)
        assert (again.returncode, "was sent again before, as seqno" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("header", "key", "said"),
    [
        (b"2 messages 5 01-2", b"local/x", WRONG_LOCAL_SEQNOS),
        (b"2 messages 5 1-3", b"local/x", WRONG_LENGTHS),
        (b"2 messages 05 1-2", b"local/x", ""),
        (b"2 messages 5 1-2", None, ""),
    ],
)
def test_a_pack_of_wrong_form(group: MemoryGroup, tmp_path: Path, header: bytes, key: bytes | None, said: str) -> None:
    """A pack is sent again whose sender or incarnation is wrong, but not one that can't be read."""
    offset = refused(group.connection, encode_pack([b"1", b"2"]), [("abcast", header)], key)
    done = resend(tmp_path, offset)
    assert (said in done.stderr, "has 2 messages, the last one is seqno 2" in done.stdout) == (True, not said)
