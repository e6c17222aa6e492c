"""A receipt is for a message, not for its id: a second message under the same id is noticed. In memory."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Member, Receipt
from connectors.client.incarnation import forwarder, resources
from connectors.client.incarnation.incarnations import Incarnations, is_same
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.outbox import Outbox
from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError, NotOrderedInTime, Superseded, UsageError
from ordering.base.names import Address
from ordering.base.records import CLOCK_AHEAD_MS, INCARNATIONS_A_MS, JOIN, LEAVE, MAX_NUMBER, MESSAGE, REFUSED
from ordering.membership.membership import MAX_LEFT
from ordering.participant.forward_table import Pending, control_headers
from tests.waiting import WAIT, eventually


@pytest.fixture
def left_open() -> Iterator[list[Member]]:
    """Members that were killed: close their threads after the test."""
    members: list[Member] = []
    yield members
    for member in members:
        with contextlib.suppress(AbcastError):
            member.close(timeout=0)


def ordered(kafka: MemoryConnection) -> list[str]:
    """Return the payloads of all messages in DATA."""
    log = kafka.topics.partitions[TopicPartition("abcast.g.data.nyc", 0)]
    data = [decode_data(record.key, record.value, record.headers) for record in log]
    return [each.payload.decode() for each in data if each.kind == MESSAGE]


def outcome(receipt: Receipt) -> int | str:
    try:
        return receipt.result(WAIT)
    except AbcastError as error:
        return type(error).__name__


def copied(outbox: Path, name: str) -> Path:
    for file in outbox.parent.glob(f"{outbox.name}*"):
        shutil.copy(file, outbox.parent / f"{name}{file.name.removeprefix(outbox.name)}")
    return outbox.parent / name


def killed(member: Member, left_open: list[Member]) -> None:
    """Stop the member: it sends, reads and remembers nothing more."""
    sending = member._sending.forwarder
    assert sending is not None
    sending._lifecycle.stop()
    sending._subscription.close()
    assert member._incarnations.outbox is not None
    member._incarnations.outbox.close()
    member._incarnations.outbox = sending._pending_messages._outbox = None
    left_open.append(member)


class TestOutboxes:
    def test_that_lost_their_end(self, kafka: MemoryConnection, tmp_path: Path, left_open: list[Member]) -> None:
        """A power failure while the sequencer is down: FORWARD has the ids of 4 and 5, which the file forgot."""
        alice = Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "a")
        for number in (1, 2, 3):
            alice.broadcast(b"buy %d" % number)
        disk = copied(tmp_path / "a", "b")
        for number in (4, 5):
            alice.broadcast(b"buy %d" % number)
        killed(alice, left_open)
        again = Member("g", "nyc/alice", connection=kafka, outbox=disk)
        receipts = [again.broadcast(b"sell %d" % number) for number in (1, 2, 3)]
        with SequencerThread(kafka, "g", "nyc"):
            results = [outcome(receipt) for receipt in receipts]
            again.close()
        for receipt, result in zip(receipts, results, strict=True):
            if isinstance(result, int):
                assert f"sell {receipt.message_id.local_seqno - 3}" in ordered(kafka)
        assert results == ["Superseded"] * 3
        assert ordered(kafka)[:5] == [f"buy {number}" for number in range(1, 6)]

    def test_that_were_copied_and_went_on_elsewhere(
        self, kafka: MemoryConnection, tmp_path: Path, left_open: list[Member]
    ) -> None:
        """The copy starts when the collision is over: its messages were ordered as other messages of the same ids."""
        alice = Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "a")
        alice.broadcast(b"1")
        copy = copied(tmp_path / "a", "b")
        rival = Member("g", "nyc/alice", connection=kafka, outbox=copy)
        alice.broadcast(b"alice's 2")
        killed(alice, left_open)
        rival.broadcast(b"rival's 2")
        killed(rival, left_open)
        with SequencerThread(kafka, "g", "nyc"):
            eventually(lambda: len(ordered(kafka)) == 2)
            with pytest.raises(Superseded, match=r"another message under local seqno 2 than .* So up to 1 messages"):
                Member("g", "nyc/alice", connection=kafka, outbox=copy)
            with Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "a") as alice:
                assert alice.broadcast(b"3").result(WAIT) == 3
        assert ordered(kafka) == ["1", "alice's 2", "3"]

    def test_rows_that_are_ordered_and_not_deleted(
        self, kafka: MemoryConnection, tmp_path: Path, left_open: list[Member]
    ) -> None:
        """The usual end of a killed process: its messages and controls are as before, and only the end of the log
        is read.
        """
        with SequencerThread(kafka, "g", "nyc"):
            alice = Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "a")
            alice.connect()
            alice.broadcast(b"1", headers=[("k", b"v")]).result(WAIT)
            killed(alice, left_open)
            read: list[int] = []
            really = resources._ordered_since

            def looked(connection: Connection, group: str, address: Address, seqno: int, end: int) -> object:
                read.append(seqno)
                return really(connection, group, address, seqno, end)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(resources, "_ordered_since", looked)
                with Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "a") as alice:
                    alice.broadcast(b"2").result(WAIT)
                with Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "a") as alice:
                    alice.broadcast(b"3").result(WAIT)
            assert read == [0]
        assert ordered(kafka) == ["1", "2", "3"]

    def test_of_an_earlier_version(self, kafka: MemoryConnection, tmp_path: Path) -> None:
        """Rows without a position in the log are trusted."""
        database = sqlite3.connect(tmp_path / "old")
        database.executescript(
            "CREATE TABLE owner (group_name TEXT NOT NULL, member TEXT NOT NULL, incarnation INTEGER NOT NULL,"
            " acknowledged INTEGER NOT NULL);"
            "CREATE TABLE pending (local_seqno INTEGER PRIMARY KEY, payload BLOB NOT NULL, headers TEXT);"
            "PRAGMA application_id = 0x61626361;"
            "INSERT INTO owner VALUES ('g', 'nyc/alice', 7, 0); INSERT INTO pending VALUES (1, x'31', NULL);"
        )
        database.close()
        with (
            SequencerThread(kafka, "g", "nyc"),
            Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "old") as alice,
        ):
            assert alice.incarnation == 7
            alice.broadcast(b"2").result(WAIT)
        assert ordered(kafka) == ["1", "2"]
        outbox = Outbox(tmp_path / "old", "g", "nyc/alice")
        assert (outbox.acknowledged, outbox.seqno) == (2, 2)
        outbox.close()


class TestClones:
    def test_two_processes_of_one_incarnation(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cloned machine: the ids are the same, the messages not. Neither has a receipt for the other's message."""
        monkeypatch.setattr(IncarnationNumbers, "claim", lambda numbers, above, note: note(7) or 7)
        one = Member("g", "nyc/alice", connection=kafka)
        two = Member("g", "nyc/alice", connection=kafka)
        receipts = [one.broadcast(b"one's 1"), two.broadcast(b"two's 1"), two.broadcast(b"two's 2")]
        with SequencerThread(kafka, "g", "nyc"):
            assert [outcome(receipt) for receipt in receipts] == [1, "Superseded", "Superseded"]
            assert ordered(kafka) == ["one's 1", "two's 2"]
            with pytest.raises(Superseded, match="another process has sent as nyc/alice under incarnation 7"):
                two.broadcast(b"3")
            with pytest.raises(Superseded, match="the message ordered as local seqno 2 is not from here"):
                one.broadcast(b"one's 2").result(WAIT)
            two.close()
            one.close()

    def test_starts_at_one_instant(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither start has seen the other's claim, also where the clock is behind the number that Kafka remembers."""
        monkeypatch.setattr(time, "time_ns", lambda: 10**18)
        monkeypatch.setattr(IncarnationNumbers, "broker_ms", 10**12)
        for remembered in (0, 10**17 + 5):
            monkeypatch.setattr(IncarnationNumbers, "latest", lambda _, remembered=remembered: remembered)
            claims = set[int]()
            for _ in range(20):
                memory = MemberMemory(kafka, "g", Address("nyc", "alice"))
                memory.numbers.claim(3, claims.add)
            assert len(claims) > 15
            assert min(claims) > remembered
            assert max(claims) < 10**17 + 200_006
            assert max(claims) <= MAX_NUMBER

    def test_a_clock_a_day_ahead(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        """No claim is beyond the highest number that the group takes; an outbox would give it up at the next start."""
        monkeypatch.setattr(IncarnationNumbers, "broker_ms", 10**12)
        monkeypatch.setattr(time, "time_ns", lambda: (10**12 + CLOCK_AHEAD_MS) * 10**6)
        numbers = MemberMemory(kafka, "g", Address("nyc", "alice")).numbers
        assert not any(numbers.is_of_a_wrong_clock(numbers.claim(0, print)) for _ in range(20))

    @pytest.mark.parametrize("days", [-20_000, -30, 30])
    def test_a_wrong_clock(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
        """Messages are ordered under a wrong clock, and later, when the clock is right."""
        real = time.time_ns
        with SequencerThread(kafka, "g", "nyc"):
            monkeypatch.setattr(time, "time_ns", lambda: real() + days * 86_400 * 10**9)
            with Member("g", "nyc/alice", connection=kafka) as alice:
                assert alice.broadcast(b"1").result(WAIT) == 1
            monkeypatch.setattr(time, "time_ns", real)
            for number in (2, 3):
                with Member("g", "nyc/alice", connection=kafka) as alice:
                    assert alice.broadcast(b"%d" % number).result(WAIT) == number

    def test_a_broker_that_was_ahead(self, kafka: MemoryConnection) -> None:
        """A sender goes on when the broker's clock is right again."""
        with SequencerThread(kafka, "g", "nyc"):
            for number, days in enumerate((0, 30, 0, 400, 0), start=1):
                kafka.topics.ahead_ms = days * 86_400_000
                with Member("g", "nyc/alice", connection=kafka) as alice:
                    assert alice.broadcast(b"%d" % number).result(WAIT) == number

    def test_both_clocks_were_ahead(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        """A clock ahead at the broker and at the member can't be undone; the next start says so at once."""
        real = time.time_ns
        with SequencerThread(kafka, "g", "nyc"):
            with monkeypatch.context() as wrong:
                kafka.topics.ahead_ms = 30 * 86_400_000
                wrong.setattr(time, "time_ns", lambda: real() + 30 * 86_400 * 10**9)
                with Member("g", "nyc/alice", connection=kafka) as alice:
                    alice.broadcast(b"1").result(WAIT)
            kafka.topics.ahead_ms = 0
            with Member("g", "nyc/alice", connection=kafka) as alice, pytest.raises(UsageError, match="another name"):
                alice.broadcast(b"2").result(WAIT)

    @pytest.mark.slow
    @pytest.mark.parametrize("with_outbox", [False, True])
    def test_what_is_left_of_a_wrong_clock(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, with_outbox: bool
    ) -> None:
        """The clock was a month ahead in an earlier start, which could not ask for the broker's time."""
        real, outbox = time.time_ns, tmp_path / "outbox" if with_outbox else None
        with SequencerThread(kafka, "g", "nyc"):
            with monkeypatch.context() as wrong:
                wrong.setattr(time, "time_ns", lambda: real() + 30 * 86_400 * 10**9)
                wrong.setattr(IncarnationNumbers, "broker_ms", 0)
                alice = Member("g", "nyc/alice", connection=kafka, outbox=outbox)
                with pytest.raises(NotOrderedInTime):
                    alice.broadcast(b"lost").result(0.5)
                with contextlib.suppress(NotOrderedInTime):
                    alice.close(timeout=0)
            for number in (1, 2):
                with Member("g", "nyc/alice", connection=kafka, outbox=outbox) as alice:
                    alice.broadcast(b"%d" % number).result(WAIT)
        assert ordered(kafka) == [*(["lost"] if with_outbox else []), "1", "2"]

    def test_the_last_incarnations(self, kafka: MemoryConnection) -> None:
        memory = MemberMemory(kafka, "g", Address("nyc", "alice"))
        memory.numbers.broker_ms = MAX_NUMBER  # in that far time they are of no wrong clock
        assert memory.numbers.claim(MAX_NUMBER - 1, print) == MAX_NUMBER
        with pytest.raises(UsageError, match="take another name"):
            memory.numbers.claim(MAX_NUMBER, print)

    def test_two_members_of_one_name_in_one_process(
        self, kafka: MemoryConnection, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The first one raises once, and no traceback is logged."""
        with SequencerThread(kafka, "g", "nyc", drop=lambda forward: forward.payload == b"lost"):
            first = Member("g", "nyc/twin", connection=kafka)
            first.broadcast(b"1").result(WAIT)
            waiting = first.broadcast(b"lost")
            with Member("g", "nyc/twin", connection=kafka) as second:
                second.broadcast(b"2").result(WAIT)
            with pytest.raises(Superseded):
                waiting.result(WAIT)
            first.close()
        assert not [record for record in caplog.records if record.exc_info]

    def test_who_has_heard_nothing_hears_it_at_the_end(self, kafka: MemoryConnection) -> None:
        with SequencerThread(kafka, "g", "nyc", drop=lambda forward: forward.payload == b"lost"):
            first = Member("g", "nyc/twin", connection=kafka)
            first.broadcast(b"lost")
            with Member("g", "nyc/twin", connection=kafka) as second:
                second.broadcast(b"2").result(WAIT)
            with pytest.raises(Superseded):
                first.close()


@pytest.mark.parametrize(
    ("kind", "payload", "headers", "same"),
    [
        (MESSAGE, b"x", (("k", b"v"),), True),
        (MESSAGE, b"y", (("k", b"v"),), False),
        (MESSAGE, b"x", (("k", b"w"),), False),
        (MESSAGE, b"x", (("trace", b"1"), ("k", b"v"), ("via", b"2")), True),
        (MESSAGE, b"y", (("k", b"v"), ("via", b"2")), False),
        (MESSAGE, b"x", (("via", b"2"),), False),
        (MESSAGE, b"x", (), False),
        (JOIN, b"x", (("k", b"v"),), False),
        (REFUSED, b'{"kind":"join"}', (), False),
    ],
)
def test_what_is_the_same_message(
    kind: str, payload: bytes, headers: tuple[tuple[str, bytes], ...], same: bool
) -> None:
    assert is_same(Pending(1, b"x", (("k", b"v"),)), kind, payload, headers) is same


def test_headers_are_there_in_their_order() -> None:
    """Repeated headers count as often as they were given."""
    a, b, added = ("k", b"a"), ("k", b"b"), ("via", b"2")
    ours = Pending(1, b"x", (a, b, a))
    assert is_same(ours, MESSAGE, b"x", (a, added, b, a))
    assert not is_same(ours, MESSAGE, b"x", (a, a, b))
    assert not is_same(ours, MESSAGE, b"x", (a, b, added))
    assert is_same(Pending(1, b"x", ()), MESSAGE, b"x", (added,))


def test_what_is_the_same_control_record() -> None:
    """DATA keeps the kind and the reason of a refused record."""
    join = Pending(1, b"", control_headers(JOIN))
    assert is_same(join, JOIN, b"", ())
    assert is_same(join, REFUSED, b'{"kind":"join","reason":"the sender is a member already"}', ())
    assert not is_same(join, REFUSED, b'{"kind":"leave","reason":"the sender is not a member"}', ())
    assert not is_same(join, MESSAGE, b"", ())


class TestOldLives:
    """Their incarnation was claimed at the start, and a thousand later ones have come and left since."""

    @pytest.fixture(autouse=True)
    def aged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forwarder, "FRESH_S", 0.0)

    def come_and_go(self, kafka: MemoryConnection) -> None:
        """1,001 members of other names, by way of the records."""
        producer = kafka.producer()
        incarnation = time.time_ns() // 1_000_000 * INCARNATIONS_A_MS + INCARNATIONS_A_MS
        for kind, local_seqno in ((JOIN, 1), (LEAVE, 2)):
            for number in range(MAX_LEFT + 1):
                sender = f"nyc/m{number}"
                headers = forward_headers(incarnation, local_seqno, kind=kind)
                producer.send("abcast.g.forward.nyc", key=sender.encode(), value=b"", headers=headers)
        with DataLog(kafka, "g", "nyc") as log:
            eventually(lambda: log.state().membership.incarnation_floor == incarnation)

    def test_in_a_view_are_not_renewed(
        self, kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_open: list[Member]
    ) -> None:
        """DATA tells them whether they still are in it. The group may have forgotten them since."""
        with SequencerThread(kafka, "g", "nyc"):
            alice = Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "o")
            alice.connect(timeout=WAIT)
            killed(alice, left_open)
            monkeypatch.setattr(Incarnations, "renewed", pytest.fail)
            with Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "o") as again:
                again.broadcast(b"x").result(WAIT)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "begins", ["with an outbox", pytest.param("with a letter", marks=pytest.mark.long), "with a letter, and casts"]
    )
    def test_are_heard_when_they_broadcast_at_last(self, kafka: MemoryConnection, tmp_path: Path, begins: str) -> None:
        outbox, casts = tmp_path / "o" if begins == "with an outbox" else None, "casts" in begins
        with (
            SequencerThread(kafka, "g", "nyc"),
            Member("g", "nyc/alice", connection=kafka, outbox=outbox, casts=casts) as alice,
        ):
            if outbox is None:
                alice.send("nyc/bob", b"1").result(WAIT)
            before = alice.incarnation
            assert before is not None
            self.come_and_go(kafka)
            receipt = alice.broadcast(b"x")
            receipt.result(WAIT)
            assert receipt.message_id.incarnation == alice.incarnation
            assert receipt.message_id.incarnation > before
            alice.send("nyc/bob", b"2").result(WAIT)
            alice.connect(timeout=WAIT)
            with Member("g", "nyc/bob", connection=kafka) as bob:
                assert [letter.payload for letter in bob.inbox(timeout=0.1)] == [b"1", b"2"][outbox is not None :]
        if outbox is not None:
            with Member("g", "nyc/alice", connection=kafka, outbox=outbox) as alice:
                assert alice.incarnation == receipt.message_id.incarnation

    @pytest.mark.slow
    def test_are_changed_only_if_they_must_be(self, kafka: MemoryConnection, tmp_path: Path) -> None:
        with (
            SequencerThread(kafka, "g", "nyc"),
            Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "o") as alice,
        ):
            before = alice.incarnation
            alice.broadcast(b"x").result(WAIT)
            self.come_and_go(kafka)
            alice.broadcast(b"y").result(WAIT)
            assert alice.incarnation == before

    @pytest.mark.slow
    def test_do_not_take_back_their_name(self, kafka: MemoryConnection, tmp_path: Path) -> None:
        """Another process has claimed it in the meantime, and sent nothing yet."""
        with SequencerThread(kafka, "g", "nyc"):
            alice = Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "o")
            self.come_and_go(kafka)
            with Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "p"), pytest.raises(Superseded):
                alice.broadcast(b"x")
            alice.close()
