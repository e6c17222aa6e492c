"""The member against a real broker and the real core, sequenced by `SequencerThread`."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Delivery, Member, Receipt
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.memory.member_memory import MemberMemory
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import TRANSPORTS, VARIABLE
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    ForwardTableFull,
    HistoryUnavailable,
    NotOrderedInTime,
    Superseded,
    TopicMissing,
    UsageError,
)
from ordering.base.names import RELAY_NAME, Address
from ordering.base.records import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, Data, Forward, Source
from ordering.sequencer.sequencer import snapshot
from tests.cli.here import abcast_here
from tests.waiting import WAIT, eventually

ROOT = Path(__file__).parents[3]


WITH_EITHER = pytest.mark.parametrize("connection", TRANSPORTS, indirect=True)
"""Tests that depend on a library's threads, errors or acknowledgements: with each library in `make test`."""


@pytest.fixture(params=["kafka-python", pytest.param("confluent", marks=pytest.mark.soak)])
def connection(request: pytest.FixtureRequest, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """With each transport, also in the processes that a test starts; with librdkafka in the soak, unless `WITH_EITHER`.

    All other tests of members on a broker have librdkafka, as it is installed;
    `tests/kafka/transport/test_transport.py` shows that both libraries keep what a transport promises.
    """
    monkeypatch.setenv(VARIABLE, request.param)
    return Connection(broker.bootstrap_servers)


def delivered(connection: Connection, group: str, name: str = "nyc/reader", timeout: float = 1.0) -> list[Delivery]:
    with Member(group, name, connection=connection) as reader:
        return list(reader.deliveries(from_seqno=1, timeout=timeout))


class TestBadInput:
    """Refused at once, before anything is sent, and without a broker."""

    @pytest.mark.parametrize("group", ["", "a b", ".a", "x" * 129])
    def test_group(self, group: str) -> None:
        with pytest.raises(UsageError, match="group name"):
            Member(group, "nyc/alice", bootstrap_servers="127.0.0.1:1")

    @pytest.mark.parametrize("member", ["", "nyc/", "/alice", "a/b/c", "nyc/a b"])
    def test_member(self, member: str) -> None:
        with pytest.raises(UsageError, match="SITE/NAME"):
            Member("g", member, bootstrap_servers="127.0.0.1:1")

    @pytest.mark.parametrize("name", ["abcast.tick", "abcast.admin", RELAY_NAME])
    def test_reserved(self, name: str) -> None:
        with pytest.raises(UsageError, match="reserved"):
            Member("g", f"nyc/{name}", bootstrap_servers="127.0.0.1:1")

    @pytest.mark.parametrize(
        "option", ["max_pending_records", "max_pending_bytes", "resend_after_s", "connect_timeout"]
    )
    def test_limits(self, option: str) -> None:
        with pytest.raises(UsageError, match=option):
            Member("g", "a", bootstrap_servers="127.0.0.1:1", **{option: 0})  # type: ignore[arg-type]

    @pytest.mark.parametrize(("group", "member"), [(None, "x"), ("g", None), (b"g", "x"), ("g", Address("nyc", "x"))])
    def test_no_texts(self, group: str, member: str) -> None:
        with pytest.raises(UsageError, match=r"(group|member) is a text, not "):
            Member(group, member, bootstrap_servers="127.0.0.1:1")

    def test_headers_may_be_a_dict(self) -> None:
        connection = MemoryConnection()
        connection.create("g", "nyc")
        with SequencerThread(connection, "g"), Member("g", "nyc/alice", connection=connection) as alice:
            alice.broadcast(b"x", headers={"a": b"1", "b": b""}).result(WAIT)
            alice.send("nyc/alice", b"y", headers={"a": b"1"}).result(WAIT)
            assert next(alice.deliveries()).headers == (("a", b"1"), ("b", b""))
            assert next(alice.inbox()).headers == (("a", b"1"),)
            for headers in (["ab"], [1], 7, {"a": "text"}, [("a", b"1", b"2")]):
                with pytest.raises(UsageError, match="header"):
                    alice.broadcast(b"x", headers=headers)  # type: ignore[arg-type]
            for address in (None, 7, b"nyc/alice"):
                with pytest.raises(UsageError, match="address is a text"):
                    alice.send(address, b"x")  # type: ignore[arg-type]

    @pytest.mark.broker
    def test_messages(self, connection: Connection, group: str) -> None:
        with Member(group, "nyc/alice", connection=connection) as alice:
            for payload in ("text", None):
                with pytest.raises(UsageError, match="a payload is a bytes object"):
                    alice.broadcast(payload)
            with pytest.raises(UsageError, match="over the limit"):
                alice.broadcast(b"x" * (MAX_PAYLOAD_BYTES + 1))
            with pytest.raises(UsageError, match="over the limit"):
                alice.broadcast(b"", headers=[("k", b"x" * MAX_HEADERS_BYTES)])
            with pytest.raises(UsageError, match="abcast's own"):
                alice.broadcast(b"x", headers=[("abcast-seqno", b"1")])
            with pytest.raises(UsageError, match="seqnos start at 1"):
                alice.deliveries(from_seqno=0)
            assert alice.incarnation is None
        with pytest.raises(UsageError, match="closed"):
            alice.broadcast(b"x")
        with pytest.raises(UsageError, match="closed"):
            alice.deliveries()
        alice.close()


class TestConnecting:
    @pytest.mark.slow
    def test_a_broker_that_refuses(self) -> None:
        started = time.monotonic()
        with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1 "):
            Member("g", "nyc/alice", bootstrap_servers="127.0.0.1:1", connect_timeout=1)
        assert time.monotonic() - started < 9  # it is 10 s unless it is said

    @pytest.mark.slow
    def test_a_broker_that_is_silent(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            started = time.monotonic()
            with pytest.raises(BrokerUnreachable):
                Member("g", "a", bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}", connect_timeout=1)
            assert time.monotonic() - started < 9  # it is 10 s unless it is said

    @pytest.mark.broker
    def test_a_group_without_topics(self, connection: Connection) -> None:
        with pytest.raises(TopicMissing, match="abcast topics create --group nobody --site nyc"):
            Member("nobody", "nyc/alice", connection=connection)

    @pytest.mark.slow
    def test_importing_loads_no_spark(self) -> None:
        """No other large module either: a member starts quickly."""
        script = (
            "import sys; from connectors import Member, Delivery, Receipt; "
            "print([m for m in ('pyspark', 'pandas', 'pyarrow', 'deltalake', 'delta') if m in sys.modules])"
        )
        answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert answer.stdout == "[]\n", answer.stderr


@pytest.mark.broker
class TestBroadcast:
    def test_receipts_are_in_the_order_of_the_broadcasts(self, connection: Connection, group: str) -> None:
        with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:
            receipts = [alice.broadcast(b"%d" % number) for number in range(500)]
            assert [receipt.result(WAIT) for receipt in receipts] == list(range(1, 501))
            assert alice.wait_ordered(WAIT) == 500
            assert all(receipt.done() for receipt in receipts)
        assert [delivery.payload for delivery in delivered(connection, group)] == [b"%d" % n for n in range(500)]

    @WITH_EITHER
    def test_threads_share_a_member(self, connection: Connection, group: str) -> None:
        """Each thread's own messages keep their order, and local seqnos have no gap."""
        with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:

            def send(thread: int) -> None:
                for number in range(100):
                    alice.broadcast(b"%d %d" % (thread, number))

            threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT)
            assert alice.wait_ordered(WAIT) == 400
        got = delivered(connection, group)
        assert [delivery.local_seqno for delivery in got] == list(range(1, 401))
        for sender in range(4):
            own = [int(d.payload.split()[1]) for d in got if d.payload.startswith(b"%d " % sender)]
            assert own == list(range(100))

    @WITH_EITHER
    def test_everything_travels(self, connection: Connection, group: str) -> None:
        headers = (("k", b"\x00\xff"), ("k", b""), ("", b"x"))
        with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:
            alice.broadcast(b"", headers=headers)
            alice.broadcast(b"\xff" * MAX_PAYLOAD_BYTES).result(WAIT)
            incarnation = alice.incarnation
        got = delivered(connection, group)
        assert incarnation is not None
        assert all(delivery.forwarded_at_ms <= delivery.sequenced_at_ms for delivery in got)
        assert [delivery._replace(forwarded_at_ms=0, sequenced_at_ms=0) for delivery in got] == [
            Delivery(1, "nyc/alice", incarnation, 1, b"", headers, 0, 1),
            Delivery(2, "nyc/alice", incarnation, 2, b"\xff" * MAX_PAYLOAD_BYTES, (), 0, 1),
        ]

    def test_a_full_table_holds_the_sender_back(self, connection: Connection, group: str) -> None:
        """A broadcast blocks, then raises ForwardTableFull and leaves nothing behind. With room the sender goes on."""
        alice = Member(group, "nyc/alice", connection=connection, max_pending_records=3)
        for _ in range(3):
            alice.broadcast(b"x")
        started = time.monotonic()
        with pytest.raises(ForwardTableFull, match="3 messages"):
            alice.broadcast(b"refused", timeout=0.3)
        assert 0.3 <= time.monotonic() - started < 9
        with SequencerThread(connection, group):
            assert alice.broadcast(b"y", timeout=WAIT).result(WAIT) == 4
            alice.close()

    def test_the_bytes_are_bounded_too(self, connection: Connection, group: str) -> None:
        alice = Member(group, "nyc/alice", connection=connection, max_pending_bytes=10)
        alice.broadcast(b"12345", headers=[("k", b"123")])
        with pytest.raises(ForwardTableFull):
            alice.broadcast(b"12", timeout=0)
        with pytest.raises(NotOrderedInTime):
            alice.close(timeout=0)

    def test_lost_messages_are_sent_again(self, connection: Connection, group: str) -> None:
        """Go-back-N: two of ten are lost, all that follow them are dropped as a gap; a resend repairs it."""
        lost: set[int] = set()

        def drop(forward: Forward) -> bool:
            if forward.local_seqno in (3, 7) and forward.local_seqno not in lost:
                lost.add(forward.local_seqno)
                return True
            return False

        with (
            SequencerThread(connection, group, drop=drop),
            Member(group, "nyc/alice", connection=connection, resend_after_s=0.3) as alice,
        ):
            receipts = [alice.broadcast(b"%d" % number) for number in range(10)]
            assert [receipt.result(WAIT) for receipt in receipts] == list(range(1, 11))
        assert lost == {3, 7}
        assert [delivery.payload for delivery in delivered(connection, group)] == [b"%d" % n for n in range(10)]

    def test_resends_get_rarer_while_nothing_moves(self, connection: Connection, group: str) -> None:
        """Without a sequencer: 0.1, 0.2, 0.4, 0.8 … s apart."""
        partitions = [TopicPartition(f"abcast.{group}.forward.nyc", number) for number in (0, 1)]
        with contextlib.closing(connection.consumer()) as consumer:

            def sent() -> int:
                return sum(consumer.end_offsets(partitions).values())

            alice = Member(group, "nyc/alice", connection=connection, resend_after_s=0.1)
            started = time.monotonic()
            alice.broadcast(b"x")
            time.sleep(2.0)
            eventually(lambda: sent() >= 3)
            with pytest.raises(NotOrderedInTime, match="1 message of nyc/alice"):
                alice.close(timeout=0)
            assert sent() <= 3 + math.log2((time.monotonic() - started) / 0.1)

    @WITH_EITHER
    def test_a_failed_produce_request_is_repaired(self, connection: Connection, group: str) -> None:
        """The producer dies; a new one sends the table from its beginning, and no message overtakes another."""
        with (
            SequencerThread(connection, group),
            Member(group, "nyc/alice", connection=connection) as alice,
        ):
            alice.broadcast(b"0").result(WAIT)
            forwarder = alice._sending.forwarder
            assert forwarder is not None
            broken = forwarder._send_queue.sending._producer
            broken.close()  # now every send raises IllegalStateError
            receipts = [alice.broadcast(b"%d" % number) for number in range(1, 20)]
            assert [receipt.result(WAIT) for receipt in receipts] == list(range(2, 21))
            assert forwarder._send_queue.sending._producer is not broken

    def test_waiting_has_an_end(self, connection: Connection, group: str) -> None:
        alice = Member(group, "nyc/alice", connection=connection)
        assert alice.wait_ordered(0) is None
        receipt = alice.broadcast(b"x")
        with pytest.raises(NotOrderedInTime, match=r"nyc/alice#\d+\.1 was not ordered within 0\.1 s"):
            receipt.result(0.1)
        with pytest.raises(NotOrderedInTime, match=r"not ordered within 0\.1 s: 1 message of nyc/alice"):
            alice.wait_ordered(0.1)
        with pytest.raises(NotOrderedInTime):
            alice.close(timeout=0.1)
        with pytest.raises(NotOrderedInTime, match="closed before"):
            receipt.result(WAIT)

    def test_after_an_exception_the_context_does_not_wait(self, connection: Connection, group: str) -> None:
        started = time.monotonic()

        def fail() -> None:
            with Member(group, "nyc/alice", connection=connection) as alice:
                alice.broadcast(b"x")
                raise ZeroDivisionError

        with pytest.warns(ResourceWarning, match="1 message"), pytest.raises(ZeroDivisionError):
            fail()
        assert time.monotonic() - started < 9  # it is 10 s unless it is said

    @WITH_EITHER
    def test_close_leaves_no_threads(self, connection: Connection, group: str) -> None:
        before = set(threading.enumerate())
        with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:
            alice.broadcast(b"x").result(WAIT)
            generator = alice.deliveries()
            next(generator)
        eventually(lambda: set(threading.enumerate()) <= before)
        assert list(generator) == []

    def test_close_ends_deliveries_in_another_thread(self, connection: Connection, group: str) -> None:
        alice = Member(group, "nyc/alice", connection=connection)
        ended = threading.Event()

        def read() -> None:
            assert list(alice.deliveries()) == []
            ended.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        time.sleep(0.5)
        alice.close()
        assert ended.wait(WAIT)

    @WITH_EITHER
    def test_a_member_that_is_not_closed_does_not_keep_the_process(self, connection: Connection, group: str) -> None:
        script = (
            "import sys; from connectors import Member\n"
            "m = Member(sys.argv[1], 'nyc/alice', bootstrap_servers=sys.argv[2]); m.broadcast(b'x')\n"
            "g = Member(sys.argv[1], 'nyc/bob', bootstrap_servers=sys.argv[2]).deliveries(); d = next(g)\n"
        )
        with SequencerThread(connection, group):
            subprocess.run(
                [sys.executable, "-c", script, group, connection.bootstrap_servers], cwd=ROOT, timeout=30, check=True
            )


@pytest.mark.broker
class TestIncarnations:
    def test_grow_although_the_clock_does_not(
        self, connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same millisecond twice, then an hour back: each start is higher than all before."""
        taken: list[int] = []
        now = time.time_ns()
        for clock in (now, now, now - 3600 * 10**9):
            with monkeypatch.context() as patched, SequencerThread(connection, group):
                patched.setattr(time, "time_ns", lambda clock=clock: clock)
                with Member(group, "nyc/alice", connection=connection) as alice:
                    alice.broadcast(b"x").result(WAIT)
                    taken.append(alice.incarnation or 0)
        assert taken == sorted(set(taken))

    def test_grow_although_kafka_forgot(
        self, connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A member whose committed number has expired numbers itself by DATA, which keeps the ordered messages for
        good.
        """
        with SequencerThread(connection, group):
            with Member(group, "nyc/alice", connection=connection) as alice:
                alice.broadcast(b"x").result(WAIT)
                first = alice.incarnation
            monkeypatch.setattr(IncarnationNumbers, "latest", lambda _: 0)
            monkeypatch.setattr(time, "time_ns", lambda: 10**9)
            with Member(group, "nyc/alice", connection=connection) as alice:
                alice.broadcast(b"y").result(WAIT)
                assert first is not None
                assert alice.incarnation is not None
                assert alice.incarnation > first

    def test_a_later_start_supersedes(self, connection: Connection, group: str) -> None:
        """In the earlier process, waiting receipts and the next broadcasts raise Superseded."""
        with SequencerThread(connection, group, drop=lambda forward: forward.payload == b"lost"):
            first = Member(group, "nyc/alice", connection=connection)
            first.broadcast(b"1").result(WAIT)
            waiting = first.broadcast(b"lost")
            with Member(group, "nyc/alice", connection=connection) as second:
                assert second.broadcast(b"2").result(WAIT) == 2
            with pytest.raises(Superseded, match="another process has started as nyc/alice"):
                waiting.result(WAIT)
            with pytest.raises(Superseded):
                first.broadcast(b"3")
            first.close()

    def test_reading_takes_none(self, connection: Connection, group: str) -> None:
        """Reading under a sender's name does not supersede the sender."""
        with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:
            alice.broadcast(b"1").result(WAIT)
            assert len(delivered(connection, group, "nyc/alice")) == 1
            assert alice.broadcast(b"2").result(WAIT) == 2


@pytest.mark.broker
class TestDeliveries:
    @pytest.fixture
    def filled(self, connection: Connection, group: str) -> str:
        """Ten messages, every DATA record written twice, and what a fenced sequencer left behind the seal."""
        with (
            SequencerThread(connection, group, repeat=True),
            Member(group, "nyc/alice", connection=connection) as alice,
        ):
            for number in range(1, 6):
                alice.broadcast(b"%d" % number)
            alice.wait_ordered(WAIT)
        with SequencerThread(connection, group, repeat=True) as second:
            source = Source(f"abcast.{group}.forward.nyc", 0, 999)
            for seqno in (6, 7):
                second.write([Data("message", 1, seqno, 0, "nyc/mallory", 1, 1, b"stale", source)])
            with Member(group, "nyc/alice", connection=connection) as alice:
                for number in range(6, 11):
                    alice.broadcast(b"%d" % number)
        return group

    def test_start_anywhere(self, connection: Connection, filled: str) -> None:
        """A run begins exactly there; repeats and leftovers of a fenced epoch are never delivered."""
        for start in (1, 2, 5, 6, 7, 10, 11):
            with Member(filled, "nyc/bob", connection=connection) as bob:
                got = list(bob.deliveries(from_seqno=start, timeout=0.5))
            assert [(d.seqno, d.payload) for d in got] == [(n, b"%d" % n) for n in range(start, 11)]
            assert [d.epoch for d in got] == [1 if n < 6 else 3 for n in range(start, 11)]

    def test_a_seqno_still_to_come(self, connection: Connection, filled: str) -> None:
        with SequencerThread(connection, filled), Member(filled, "nyc/bob", connection=connection) as bob:
            future = bob.deliveries(from_seqno=12, timeout=WAIT)
            sender = threading.Timer(0.5, lambda: [bob.broadcast(b"%d" % number) for number in (11, 12)])
            sender.start()
            assert next(future).seqno == 12
            future.close()

    def test_go_on_where_the_name_stopped(self, connection: Connection, filled: str) -> None:
        """A delivery counts as taken when the next one is asked for, or when the application says so."""
        with Member(filled, "nyc/bob", connection=connection) as bob:
            for delivery in bob.deliveries():
                if delivery.seqno == 4:
                    break
        with Member(filled, "nyc/bob", connection=connection) as bob:
            stream = bob.deliveries()
            assert [next(stream).seqno for _ in range(3)] == [4, 5, 6]
            stream.taken()
        with Member(filled, "nyc/bob", connection=connection) as bob:
            assert [d.seqno for d in bob.deliveries(from_seqno=2, timeout=0.3)] == list(range(2, 11))
            assert [d.seqno for d in bob.deliveries(timeout=0.3)] == [7, 8, 9, 10]
            assert [d.seqno for d in bob.deliveries(timeout=0.3)] == []

    def test_the_command_takes_what_it_has_printed(self, connection: Connection, filled: str) -> None:
        """`--count` ends with a message that was printed; `--from-seqno` moves nothing unless it is told to."""
        runs: list[tuple[str, ...]] = [("2",), ("2",), ("1", "--from-seqno", "9"), ("1",)]
        runs += [("1", "--from-seqno", "8", "--remember"), ("1",)]
        seqnos = []
        for count, *options in runs:
            done = abcast_here(
                *("deliver", "--group", filled, "--member", "nyc/bob", "--timeout", "5", "--count", count, *options),
                *("--bootstrap-servers", connection.bootstrap_servers),
                cwd=ROOT,
            )
            assert done.returncode == 0, done.stderr
            seqnos.append([int(line.split()[0]) for line in done.stdout.splitlines()])
        assert seqnos == [[1, 2], [3, 4], [9], [5], [8], [9]]

    @WITH_EITHER
    def test_the_position_is_committed_on_the_way(self, connection: Connection, filled: str) -> None:
        """At least twice a second of consuming, so that kill -9 costs little."""
        bob = Member(filled, "nyc/bob", connection=connection)
        generator = bob.deliveries()
        memory = MemberMemory(connection, filled, Address("nyc", "bob"))
        next(generator)
        time.sleep(0.6)
        next(generator)
        assert memory.taken() == 1
        memory.close()
        bob.close()

    def test_timeout_counts_from_the_last_delivery(self, connection: Connection, filled: str) -> None:
        with Member(filled, "nyc/bob", connection=connection) as bob:
            started = time.monotonic()
            assert len(list(bob.deliveries(timeout=0.7))) == 10
            assert 0.7 <= time.monotonic() - started < 9

    def test_what_retention_dropped_comes_from_the_ledger(
        self, connection: Connection, filled: str, tmp_path: Path
    ) -> None:
        """Deliveries go on without a seam; without the ledger an error names it."""
        everything = delivered(connection, filled)
        with SequencerThread(connection, filled) as sequencer:
            with connection.admin() as admin:
                end = _offset_of(connection, filled, 8)
                admin.delete_records({TopicPartition(f"abcast.{filled}.data.nyc", 0): end})
            sequencer.write([snapshot(sequencer.state)])
            with Member(filled, "nyc/bob", connection=connection) as bob:
                with pytest.raises(HistoryUnavailable, match=re.escape("Member(ledger=DIR)")):
                    next(bob.deliveries(from_seqno=3))
                assert [d.seqno for d in bob.deliveries(from_seqno=8, timeout=0.5)] == [8, 9, 10]
            with (
                Member(filled, "nyc/bob", connection=connection, ledger=tmp_path / "none") as bob,
                pytest.raises(UsageError, match="there is no ledger in"),
            ):
                next(bob.deliveries(from_seqno=1))
            _write_ledger(tmp_path / "ledger", filled, everything[:9])
            with Member(filled, "nyc/bob", connection=connection, ledger=tmp_path / "ledger") as bob:
                bob.broadcast(b"11").result(WAIT)
                assert list(bob.deliveries(from_seqno=3, timeout=0.5))[:8] == everything[2:]
                assert [d.seqno for d in bob.deliveries(from_seqno=1, timeout=0.5)] == list(range(1, 12))
            with Member(filled, "nyc/bob", connection=connection, ledger=tmp_path / "ledger") as bob:
                bob.connect(from_ledger=True)
                assert [d.seqno for d in bob.deliveries(timeout=0.5)] == list(range(1, 12))

    def test_a_ledger_that_ends_too_early(self, connection: Connection, filled: str, tmp_path: Path) -> None:
        everything = delivered(connection, filled)
        with SequencerThread(connection, filled) as sequencer, connection.admin() as admin:
            admin.delete_records({TopicPartition(f"abcast.{filled}.data.nyc", 0): _offset_of(connection, filled, 8)})
            sequencer.write([snapshot(sequencer.state)])
        _write_ledger(tmp_path / "ledger", filled, everything[:5])
        with Member(filled, "nyc/bob", connection=connection, ledger=tmp_path / "ledger") as bob:
            generator = bob.deliveries()
            assert [next(generator).seqno for _ in range(5)] == [1, 2, 3, 4, 5]
            with pytest.raises(HistoryUnavailable, match="seqno 6 is neither in Kafka"):
                next(generator)


def _offset_of(connection: Connection, group: str, seqno: int) -> int:
    """The offset at which `seqno` was written first by an epoch in force."""
    from connectors.kafka.log.data_log import DataLog

    with DataLog(connection, group, "nyc") as log:
        stored = [s for s in log.records(0, log.end()) if s.data.seqno == seqno and s.data.payload != b"stale"]
    return stored[0].offset


def _write_ledger(directory: Path, group: str, deliveries: list[Delivery]) -> None:
    """A table with the columns of docs/records.md that a member reads, in two files and not in order."""
    import pyarrow as pa
    from deltalake import write_deltalake

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("group_name", "kind", "sender")),
            *((name, pa.int64()) for name in ("seqno", "epoch", "view_id", "incarnation", "local_seqno")),
            ("payload", pa.binary()),
            ("headers", pa.list_(header)),
            *((name, pa.timestamp("us", "UTC")) for name in ("forwarded_at", "sequenced_at")),
        ]
    )
    rows = [
        {
            **{
                name: getattr(d, name) for name in ("seqno", "epoch", "view_id", "sender", "incarnation", "local_seqno")
            },
            "group_name": owner,
            "kind": "message",
            "payload": d.payload,
            "headers": [{"key": key, "value": value} for key, value in d.headers] or None,
            "forwarded_at": d.forwarded_at,
            "sequenced_at": d.sequenced_at,
        }
        for d in deliveries
        for owner in (group, "another")
    ]
    for part in (rows[1::2], rows[0::2]):
        write_deltalake(directory, pa.Table.from_pylist(part[::-1], schema=schema), mode="append")


_SENDER = """
import sys
from connectors import Member
group, servers, outbox, first, count = sys.argv[1:]
with Member(group, "nyc/alice", bootstrap_servers=servers, outbox=outbox, resend_after_s=0.5) as alice:
    print("started", flush=True)
    for number in range(int(first), int(first) + int(count)):
        alice.broadcast(b"%d" % number, headers=[("n", b"%d" % number)])
        print(number, flush=True)
    alice.wait_ordered(100)
"""


@pytest.mark.broker
@pytest.mark.crash
class TestOutbox:
    def _start(self, connection: Connection, group: str, outbox: Path, first: int, count: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _SENDER, group, connection.bootstrap_servers, str(outbox), str(first), str(count)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _kill_after(self, sender: subprocess.Popen[str], lines: int) -> int:
        """Kill -9 after so many accepted messages; the number of the last message it said was accepted."""
        assert sender.stdout is not None
        for _ in range(1 + lines):
            sender.stdout.readline()
        sender.kill()
        with sender:
            rest = sender.stdout.read().split()  # `communicate` would skip the lines that were already buffered
        return int(rest[-1]) if rest and rest[-1].isdigit() else -1

    @pytest.mark.long
    @WITH_EITHER
    @pytest.mark.parametrize("ordered_meanwhile", [pytest.param(False, marks=pytest.mark.soak), True])
    def test_kill_9_loses_nothing_and_repeats_nothing(
        self, connection: Connection, group: str, tmp_path: Path, ordered_meanwhile: bool
    ) -> None:
        """Killed twice at any moment, with and without a sequencer: each accepted message is ordered once, in order."""
        outbox = tmp_path / "outbox"
        first = 0

        def crash_twice() -> None:
            nonlocal first
            for lines in (40, 75):
                sender = self._start(connection, group, outbox, first, 100_000)
                self._kill_after(sender, lines)
                file = _accepted(outbox, group)
                first = max(first + lines, file)

        if ordered_meanwhile:
            with SequencerThread(connection, group):
                crash_twice()
        else:
            crash_twice()
        with SequencerThread(connection, group):
            sender = self._start(connection, group, outbox, first, 10)
            assert sender.wait(120) == 0
            assert sender.stdout is not None
            sender.stdout.close()
        got = delivered(connection, group, timeout=2)
        payloads = [int(delivery.payload) for delivery in got]
        assert payloads == sorted(set(payloads)), "repeated or out of order"
        assert len({delivery.incarnation for delivery in got}) == 1
        assert [delivery.local_seqno for delivery in got] == list(range(1, len(got) + 1))
        assert payloads == list(range(first + 10))

    def test_a_second_process_is_refused(self, connection: Connection, group: str, tmp_path: Path) -> None:
        with SequencerThread(connection, group):
            alice = Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o")
            with pytest.raises(UsageError, match="in use by another process"):
                Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o")
            alice.broadcast(b"x").result(WAIT)
            alice.close()

    def test_close_keeps_what_is_pending(self, connection: Connection, group: str, tmp_path: Path) -> None:
        """No error at close: the next start sends it, under the same message ids."""
        with Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o") as alice:
            receipts = [alice.broadcast(b"%d" % number) for number in range(3)]
            alice.close(timeout=0)
        with (
            SequencerThread(connection, group),
            Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o") as alice,
        ):
            assert alice.wait_ordered(WAIT) in (3, None)  # None: ordered before this start looked
            assert alice.incarnation == receipts[0].message_id.incarnation
            assert alice.broadcast(b"3").result(WAIT) == 4
        assert [d.payload for d in delivered(connection, group)] == [b"0", b"1", b"2", b"3"]

    def test_a_start_without_it_supersedes_it(self, connection: Connection, group: str, tmp_path: Path) -> None:
        with SequencerThread(connection, group):
            with Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o") as alice:
                alice.broadcast(b"1")
            with Member(group, "nyc/alice", connection=connection) as other:
                other.broadcast(b"2").result(WAIT)
            with pytest.raises(Superseded, match="Delete the outbox"):
                Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o")

    def test_an_old_copy_starts_a_new_incarnation(self, connection: Connection, group: str, tmp_path: Path) -> None:
        """A restored file does not know which local seqnos are taken; using them again would lose messages."""
        with SequencerThread(connection, group):
            with Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o") as alice:
                alice.broadcast(b"1").result(WAIT)
                first = alice.incarnation
            copy = (tmp_path / "o").read_bytes()
            with Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "o") as alice:
                alice.broadcast(b"2").result(WAIT)
            (tmp_path / "copy").write_bytes(copy)
            with Member(group, "nyc/alice", connection=connection, outbox=tmp_path / "copy") as alice:
                assert alice.broadcast(b"3").result(WAIT) == 3
                assert first is not None
                assert alice.incarnation is not None
                assert alice.incarnation > first


def _accepted(path: Path, group: str) -> int:
    """Return the number after the last one in the outbox: the killed process had accepted all below it."""
    from connectors.client.memory.outbox import Outbox

    outbox = Outbox(path, group, "nyc/alice")
    last = outbox.last()
    outbox.close()
    return last


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["kafka-python", pytest.param("confluent", marks=pytest.mark.soak)])
def test_a_broker_restart_is_only_a_pause(tmp_path: Path, transport: str) -> None:
    """Kill -9 of the broker in the middle: the same member, generator and sequencer go on when it is back."""
    with EmbeddedBroker(tmp_path, port=0) as broker:
        connection = Connection(broker.bootstrap_servers, transport=transport)
        create_topics(connection, "g", ["nyc"])
        with (
            SequencerThread(connection, "g"),
            Member("g", "nyc/alice", connection=connection, resend_after_s=1) as alice,
        ):
            generator = alice.deliveries(timeout=60)
            receipts: list[Receipt] = [alice.broadcast(b"%d" % number) for number in range(100)]
            assert [next(generator).seqno for _ in range(50)] == list(range(1, 51))
            broker.kill()
            receipts += [alice.broadcast(b"%d" % number) for number in range(100, 200)]
            time.sleep(2)
            broker.start()
            assert [receipt.result(90) for receipt in receipts] == list(range(1, 201))
            assert [next(generator).payload for _ in range(150)] == [b"%d" % number for number in range(50, 200)]


def test_errors_say_whether_to_try_again() -> None:
    retriable = {error.__name__ for error in AbcastError.__subclasses__() if error.retriable}
    assert {"BrokerUnreachable", "TopicMissing", "ForwardTableFull", "NotOrderedInTime"} <= retriable
