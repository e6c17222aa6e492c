"""Unicast against a real broker, without any sequencer."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Letter, Member
from connectors.client.letters.inbox import inbox_partition
from connectors.client.memory.bookmark import COMMIT_EVERY_S
from connectors.client.memory.member_memory import MemberMemory
from connectors.kafka.codec import seldom
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.letter_purge import purge_letters
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    HistoryUnavailable,
    LetterTableFull,
    NotWrittenInTime,
    TopicMissing,
    UsageError,
)
from ordering.base.names import Address
from ordering.base.records import MAX_PAYLOAD_BYTES
from tests.client.victim import victim
from tests.waiting import WAIT

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[3]
_numbers = itertools.count(1)


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Connection:
    return Connection(broker.bootstrap_servers)


@pytest.fixture
def group(connection: Connection) -> str:
    """Two sites in one Kafka, five partitions each."""
    name = f"letters-{next(_numbers)}"
    create_topics(connection, name, ["a", "b"], partitions=5)
    return name


@pytest.fixture
def alice(connection: Connection, group: str) -> Iterator[Member]:
    with Member(group, "a/alice", connection=connection) as member:
        yield member


def received(connection: Connection, group: str, name: str, timeout: float = 0.0) -> list[Letter]:
    """Start the member anew and return its letters."""
    with Member(group, name, connection=connection) as member:
        return list(member.inbox(timeout=timeout))


def payloads(letters: list[Letter]) -> list[int]:
    return [int(letter.payload) for letter in letters]


def write(connection: Connection, group: str, receiver: str, letters: list[tuple[str, int, int, bytes]]) -> None:
    """Append records to the inbox as a relay would: they may repeat records of the log."""
    producer = connection.producer()
    site = receiver.split("/")[0]
    for sender, incarnation, local_seqno, payload in letters:
        headers = [("abcast", f"2 letter {incarnation} {local_seqno} {sender} a/inbox-0:7".encode())]
        producer.send(f"abcast.{group}.inbox.{site}", key=receiver.encode(), value=payload, headers=headers)
    producer.flush(timeout=60)
    producer.close()


def warnings_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """Return one logger's warnings: on a slow machine the Kafka client warns, too."""
    return [record.getMessage() for record in caplog.records if record.name == logger]


class TestSending:
    def test_fifo_to_each_receiver(self, connection: Connection, group: str, alice: Member) -> None:
        """Many receivers at two sites, in all partitions: each has its own letters, numbered from 1."""
        names = [f"{site}/m{number}" for site in "ab" for number in range(6)]
        receipts = [alice.send(name, b"%d" % number) for number in range(50) for name in names]
        assert [receipt.result(WAIT) for receipt in receipts] == [n for n in range(1, 51) for _ in names]
        assert all(receipt.done() for receipt in receipts)
        for name in names:
            letters = received(connection, group, name)
            assert payloads(letters) == list(range(50))
            assert [letter.local_seqno for letter in letters] == list(range(1, 51))
            assert {(letter.sender, letter.incarnation) for letter in letters} == {("a/alice", alice.incarnation)}

    def test_everything_travels(self, connection: Connection, group: str, alice: Member) -> None:
        headers = (("k", b"\x00\xff"), ("k", b""), ("", b"x"))
        alice.send("b/bob", b"", headers=headers)
        alice.send(Address("b", "bob"), b"\xff" * MAX_PAYLOAD_BYTES).result(WAIT)
        assert alice.incarnation is not None
        assert received(connection, group, "b/bob") == [
            Letter("a/alice", alice.incarnation, 1, b"", headers),
            Letter("a/alice", alice.incarnation, 2, b"\xff" * MAX_PAYLOAD_BYTES, ()),
        ]

    def test_threads_share_a_member(self, connection: Connection, group: str, alice: Member) -> None:
        def send(thread: int) -> None:
            for number in range(50):
                alice.send("b/bob", b"%d %d" % (thread, number))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        alice.send("b/bob", b"0 50").result(WAIT)
        letters = received(connection, group, "b/bob")
        assert [letter.local_seqno for letter in letters] == list(range(1, 202))
        for sender in range(4):
            own = [int(letter.payload.split()[1]) for letter in letters if letter.payload.startswith(b"%d " % sender)]
            assert own == sorted(own)

    def test_an_unknown_site_is_an_error_at_once(self, group: str, alice: Member) -> None:
        """No letter is numbered; the site can be created while the member runs."""
        started = time.monotonic()
        with pytest.raises(TopicMissing, match=f"abcast topics create --group {group} --site nowhere"):
            alice.send("nowhere/bob", b"x")
        assert time.monotonic() - started < 9  # connect_timeout is 10 s
        create_topics(alice.connection, group, ["nowhere"])
        assert alice.send("nowhere/bob", b"x").result(WAIT) == 1

    def test_bad_input(self, connection: Connection, group: str, alice: Member) -> None:
        with pytest.raises(UsageError, match="SITE/NAME"):
            alice.send("b/bob/x", b"x")
        with pytest.raises(UsageError, match="a payload is a bytes object"):
            alice.send("b/bob", "text")
        with pytest.raises(UsageError, match="over the limit"):
            alice.send("b/bob", b"x" * (MAX_PAYLOAD_BYTES + 1))
        with pytest.raises(UsageError, match="abcast's own"):
            alice.send("b/bob", b"x", headers=[("abcast-mine", b"a")])
        with pytest.raises(UsageError, match="timeout"):
            alice.inbox(timeout=-1)
        assert alice.incarnation is None
        alice.close()
        with pytest.raises(UsageError, match="closed"):
            alice.send("b/bob", b"x")
        with pytest.raises(UsageError, match="closed"):
            alice.inbox()

    def test_a_failed_produce_request_is_repaired(self, connection: Connection, group: str, alice: Member) -> None:
        """The producer dies twice; unacknowledged letters are sent again, and no letter overtakes another."""
        receipts = [alice.send("b/bob", b"0")]
        receipts[0].result(WAIT)
        letters = alice._sending.letters
        assert letters is not None
        for first in (1, 20):
            broken = letters._sending._producer
            broken.close()  # now every send raises IllegalStateError
            receipts += [alice.send("b/bob", b"%d" % number) for number in range(first, first + 19)]
            assert [receipt.result(WAIT) for receipt in receipts] == list(range(1, first + 20))
            assert letters._sending._producer is not broken
        assert payloads(received(connection, group, "b/bob")) == list(range(39))

    def test_the_table_is_bounded(self, connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """While nothing is acknowledged, the next letter waits, then is refused; with room it goes on."""
        with Member(group, "a/alice", connection=connection, max_pending_records=3) as alice:
            alice.send("b/bob", b"0").result(WAIT)
            letters = alice._sending.letters
            assert letters is not None
            with monkeypatch.context() as held:
                held.setattr(letters, "_is_written", lambda _: False)
                receipts = [alice.send("b/bob", b"%d" % number) for number in (1, 2, 3)]
                with pytest.raises(LetterTableFull, match="3 letters of a/alice"):
                    alice.send("b/bob", b"refused", timeout=0.3)
                with pytest.raises(NotWrittenInTime, match=r"letter 2 to b/bob was not written within 0\.1 s"):
                    receipts[0].result(0.1)
            receipts.append(alice.send("b/bob", b"4", timeout=WAIT))
            assert [receipt.result(WAIT) for receipt in receipts] == [2, 3, 4, 5]
        assert payloads(received(connection, group, "b/bob")) == [0, 1, 2, 3, 4]

    def test_close_waits_for_letters(
        self, connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """An outbox does not keep them, so closing without their acknowledgement is an error with one too."""
        with Member(group, "a/alice", connection=connection) as alice:
            alice.send("b/bob", b"0")
        assert payloads(received(connection, group, "b/bob")) == [0]
        alice = Member(group, "a/carol", connection=connection, outbox=tmp_path / "o")
        assert alice.send("b/bob", b"1").result(WAIT) == 1
        monkeypatch.setattr(alice._sending.letters, "_is_written", lambda _: False)
        receipt = alice.send("b/bob", b"2")
        with pytest.raises(NotWrittenInTime, match="1 letters of a/carol"):
            alice.close(timeout=0.2)
        with pytest.raises(NotWrittenInTime, match="closed before"):
            receipt.result(WAIT)

    def test_close_leaves_no_threads(self, connection: Connection, group: str) -> None:
        before = set(threading.enumerate())
        with Member(group, "a/alice", connection=connection) as alice:
            alice.send("a/alice", b"to myself")
            generator = alice.inbox()
            assert next(generator).payload == b"to myself"
        deadline = time.monotonic() + WAIT
        while not set(threading.enumerate()) <= before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert list(generator) == []


class TestIncarnations:
    def test_a_sender_that_starts_again(self, connection: Connection, group: str) -> None:
        """The second start has a higher incarnation, numbered from 1; the receiver takes both, also in one run."""
        with Member(group, "b/bob", connection=connection) as bob:
            inbox = bob.inbox(timeout=WAIT)
            for start in range(3):
                with Member(group, "a/alice", connection=connection) as alice:
                    for number in range(5):
                        alice.send("b/bob", b"%d" % (start * 5 + number))
                got = [next(inbox) for _ in range(5)]
                assert [letter.local_seqno for letter in got] == [1, 2, 3, 4, 5]
                assert payloads(got) == list(range(start * 5, start * 5 + 5))

    def test_a_continued_outbox(self, connection: Connection, group: str, tmp_path: Path) -> None:
        """The outbox continues the incarnation of the broadcasts; letters take a new one, or they would be repeats."""
        incarnations = []
        for start in range(3):
            with (
                SequencerThread(connection, group, "a"),
                Member(group, "a/alice", connection=connection, outbox=tmp_path / "o") as alice,
            ):
                alice.broadcast(b"x").result(WAIT)
                assert alice.send("b/bob", b"%d" % start).result(WAIT) == 1
                incarnations.append(alice.incarnation)
        letters = received(connection, group, "b/bob")
        assert len(set(incarnations)) == 1
        assert payloads(letters) == [0, 1, 2]
        assert [letter.incarnation for letter in letters] == sorted({letter.incarnation for letter in letters})


class TestReceiving:
    def test_repeats_and_gaps_in_the_log(self, connection: Connection, group: str) -> None:
        """A relay that starts again writes a part once more, also behind a restart of the sender."""
        log = [("a/x", 1, n, b"%d" % n) for n in range(1, 6)]
        log += log[2:] + log[4:]
        log += [("a/x", 1, 7, b"99"), ("a/x", 1, 6, b"6"), ("a/x", 1, 7, b"7")]
        log += [("a/x", 2, 1, b"8"), ("a/x", 2, 2, b"9"), *log, ("a/x", 2, 1, b"8"), ("a/x", 2, 3, b"10")]
        write(connection, group, "b/bob", log)
        assert payloads(received(connection, group, "b/bob")) == list(range(1, 11))
        assert received(connection, group, "b/bob") == []

    def test_repeats_behind_the_committed_offset(self, connection: Connection, group: str) -> None:
        """The next start knows the letters that were taken before it, and drops a relay's repeats of them."""
        log = [("a/x", 1, n, b"%d" % n) for n in range(1, 6)]
        write(connection, group, "b/bob", log)
        assert payloads(received(connection, group, "b/bob")) == [1, 2, 3, 4, 5]
        write(connection, group, "b/bob", [*log[1:], ("a/x", 1, 6, b"6")])
        assert payloads(received(connection, group, "b/bob")) == [6]
        write(connection, group, "b/bob", [*log, ("a/x", 1, 6, b"6")])
        assert received(connection, group, "b/bob") == []

    def test_a_new_member_object_goes_on(self, connection: Connection, group: str, alice: Member) -> None:
        """A letter counts as taken when the next one is asked for, or when the application says so."""
        for number in range(10):
            alice.send("b/bob", b"%d" % number)
        alice.send("b/eve", b"not for bob").result(WAIT)
        with Member(group, "b/bob", connection=connection) as bob:
            for letter in bob.inbox():
                if letter.local_seqno == 4:
                    break
        with Member(group, "b/bob", connection=connection) as bob:
            inbox = bob.inbox()
            assert payloads([next(inbox) for _ in range(3)]) == [3, 4, 5]
            inbox.taken()
        assert payloads(received(connection, group, "b/bob")) == [6, 7, 8, 9]
        assert received(connection, group, "b/bob") == []

    def test_a_reply_finds_its_way(self, connection: Connection, group: str, alice: Member) -> None:
        """To the sender of a delivery, at the same site here, and to the sender of a letter at the other site."""
        with SequencerThread(connection, group, "a"), Member(group, "a/bob", connection=connection) as bob:
            alice.broadcast(b"question").result(WAIT)
            delivery = next(bob.deliveries(from_seqno=1))
            bob.send(delivery.sender, b"answer").result(WAIT)
            inbox = alice.inbox()
            answer = next(inbox)
            inbox.taken()
            inbox.close()
            assert (answer.sender, answer.payload) == ("a/bob", b"answer")
        with Member(group, "b/carol", connection=connection) as carol:
            alice.send("b/carol", b"hello")
            carol.send(next(carol.inbox()).sender, b"hello yourself").result(WAIT)
            assert next(alice.inbox(timeout=WAIT)).payload == b"hello yourself"

    def test_malformed_letters_are_skipped(
        self,
        connection: Connection,
        group: str,
        alice: Member,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """With one warning, in the run that passes them; what follows is taken."""
        monkeypatch.setattr(seldom, "_warned", {})
        alice.send("b/bob", b"1").result(WAIT)
        good = letter_headers("a/x", 1, 1)
        bad: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]] = [
            (b"b/bob", b"x", []),
            (b"b/bob", None, good),
            (b"b/bob", b"x", [("abcast", b"2 letter 1 1")]),
            (b"b/bob", b"x", [*good, ("abcast-seqno", b"1")]),
            (b"b/bob", b"x", letter_headers("nobody", 1, 1)),
            (b"b/bob", b"x", letter_headers("a/x", 0, 1)),
            (b"b/bob", b"x", [*good, *good]),
        ]
        producer = connection.producer()
        for key, value, headers in bad:
            producer.send(f"abcast.{group}.inbox.b", key=key, value=value, headers=headers)
        producer.flush(timeout=60)
        producer.close()
        alice.send("b/bob", b"2").result(WAIT)
        with caplog.at_level(logging.WARNING, "connectors.client.letters.inbox"):
            assert payloads(received(connection, group, "b/bob")) == [1, 2]
            assert len(warnings_of(caplog, "connectors.client.letters.inbox")) == 1
            caplog.clear()
            assert received(connection, group, "b/bob") == []
            assert not warnings_of(caplog, "connectors.client.letters.inbox")

    def test_the_position_is_committed_on_the_way(self, connection: Connection, group: str, alice: Member) -> None:
        """At least twice a second of consuming, so that kill -9 costs little."""
        alice.send("b/bob", b"1")
        receipt = alice.send("b/bob", b"2")
        receipt.result(WAIT)
        bob = Member(group, "b/bob", connection=connection)
        generator = bob.inbox()
        next(generator)
        time.sleep(0.6)
        next(generator)
        memory = MemberMemory(connection, group, Address("b", "bob"))
        with contextlib.closing(connection.consumer()) as consumer:
            place = inbox_partition(connection, consumer, group, memory.address)
        assert memory.letters_taken(place)[0] == 1
        memory.close()
        bob.close()

    def test_a_log_without_its_beginning_is_refused(self, connection: Connection, group: str, alice: Member) -> None:
        """The rest of the log does not tell which letters were taken: an error, not a wrong guess."""
        create_topics(connection, group, ["c"])
        for number in range(3):
            alice.send("c/bob", b"%d" % number).result(WAIT)
        with connection.admin() as admin:
            admin.delete_records({TopicPartition(f"abcast.{group}.inbox.c", 0): 1})
        with (
            Member(group, "c/bob", connection=connection) as bob,
            pytest.raises(HistoryUnavailable, match="no retention"),
        ):
            next(bob.inbox())

    def test_letters_that_were_purged(self, connection: Connection, group: str, alice: Member) -> None:
        """Taken letters are deleted, and their numbers stay known; twice."""
        create_topics(connection, group, ["d"])
        got, numbers = list[int](), itertools.count()
        alice.send("d/bob", b"%d" % next(numbers)).result(WAIT)
        for count in (1, 2, 1):
            for _ in range(count):
                alice.send("d/bob", b"%d" % next(numbers)).result(WAIT)
            with Member(group, "d/bob", connection=connection) as bob:
                inbox = bob.inbox(timeout=WAIT)
                got += [int(next(inbox).payload) for _ in range(count)]
                next(inbox)  # so those before it count as taken
                inbox.close()
            time.sleep(0.01)
            [purged] = purge_letters(connection, group, "d", letters_s=0.001)
            assert purged.records == count
        assert got == [0, 1, 2, 3]


REMEMBERED_S = 3 * COMMIT_EVERY_S
"""By then a run has remembered what it has taken so far."""

_RECEIVER = """
import sys
from connectors import Member
group, servers = sys.argv[1:]
for letter in Member(group, "b/bob", bootstrap_servers=servers).inbox():
    print(letter.sender, letter.incarnation, letter.local_seqno, flush=True)
"""


@pytest.mark.long
@pytest.mark.crash
def test_kill_9_of_the_receiver(connection: Connection, group: str) -> None:
    """Killed twice amid the stream, while a relay repeats a part of the log: nothing is lost or out of order. Only
    the last letters before a kill may be given again, at the start of the next run and without a hole."""
    stop = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        with Member(group, "a/alice", connection=connection) as alice:
            while not stop.is_set():
                sent += 1
                alice.send("b/bob", b"%d" % sent)
                time.sleep(0.002)

    def run_until_killed(lines: int) -> list[tuple[str, int, int]]:
        with victim("-c", _RECEIVER, group, connection.bootstrap_servers) as process:
            said = [process.lines.readline()]
            remembers_by = time.monotonic() + REMEMBERED_S
            # Of a backlog, so many come in no time, and more of them in the last moments: it is killed behind that.
            while len(said) < lines or time.monotonic() < remembers_by or int(said[-1].split()[2]) < sent - 100:
                said.append(process.lines.readline())
            process.kill()
            said += process.lines
        whole = [line.split() for line in said if line.endswith("\n")]
        return [(sender, int(incarnation), int(number)) for sender, incarnation, number in whole]

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        runs = [run_until_killed(900)]
        incarnation = runs[0][0][1]
        write(connection, group, "b/bob", [("a/alice", incarnation, n, b"repeated") for n in range(100, 300)])
        runs.append(run_until_killed(900))
    finally:
        stop.set()
        thread.join(WAIT)
    with Member(group, "b/bob", connection=connection) as bob:
        runs.append([letter[:3] for letter in bob.inbox(timeout=0)])
    numbers = [[number for _, _, number in run] for run in runs]
    for run in numbers:
        assert run == list(range(run[0], run[-1] + 1))
    assert numbers[0][0] == 1
    for before, after in itertools.pairwise(numbers):
        assert after[0] <= before[-1] + 2, "lost"  # the last line of a killed process may be cut off
        assert before[0] < after[0], "what was taken long before the kill is not given again"
        assert len(before) - 600 <= after[0] - before[0], "more than the last moments were given again"
    assert numbers[-1][-1] == sent
