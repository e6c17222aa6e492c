"""Members of a process share connections, while one of them, or its application, fails. In memory."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.tail import sharing
from connectors.client.tail.log_tailer import _size
from connectors.client.values import promise
from connectors.kafka.codec import seldom
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log import liveness
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from connectors.testing.memory_clients import MemoryConsumer, MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryFuture
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import BrokerUnreachable, KafkaRefused, Superseded, UsageError
from tests.client.members import forwarder_of
from tests.waiting import WAIT, eventually


@pytest.fixture
def kafka() -> Iterator[MemoryConnection]:
    """Yield a Kafka with a group and its sequencer."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g"):
        yield connection


def test_a_member_that_has_failed_keeps_nothing_of_what_comes(kafka: MemoryConnection) -> None:
    with Member("g", "nyc/a", connection=kafka) as second:
        first = Member("g", "nyc/a", connection=kafka)
        first.broadcast(b"x").result(WAIT)
        forwarder = forwarder_of(first)
        second.broadcast(b"x").result(WAIT)
        eventually(lambda: forwarder.has_ended)
        for _ in range(10):
            second.broadcast(b"x")
        second.wait_ordered(WAIT)
        assert not forwarder._subscription._kept
        with pytest.raises(Superseded):
            first.close()


def test_who_delivers_begins_with_what_is_known_to_who_sends(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail back to the last snapshot may be many thousand records."""
    with Member("g", "nyc/a", connection=kafka) as member:
        seqno = member.broadcast(b"x").result(WAIT)
        monkeypatch.setattr(DataLog, "state", lambda *_: pytest.fail("the state was read again"))
        assert next(member.deliveries(from_seqno=seqno, timeout=WAIT)).payload == b"x"


def test_who_delivers_alone_leaves_nothing_open_of_where_it_began(kafka: MemoryConnection) -> None:
    """In a process without a sender the tailer does not run, and closes nothing."""
    with Member("g", "nyc/a", connection=kafka) as member:
        tailer = member._shared.tailer("g", "nyc")
        assert tailer.after(0, or_end=True)[0].reader.last_seqno == 0
        assert tailer._end._log is None


@pytest.mark.parametrize("is_cached", [False, True], ids=["by itself", "from the cache"])
def test_who_delivers_and_loses_the_right_to_read_hears_which(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, *, is_cached: bool
) -> None:
    """Its error is one of abcast's, whether the tailer or the reader met the refusal."""
    data, poll, is_refused = "abcast.g.data.nyc", MemoryConsumer.poll, threading.Event()

    def poll_while_allowed(consumer: MemoryConsumer, **options: Any) -> Any:
        if is_refused.is_set() and any(place.topic == data for place in consumer.next):
            raise TopicAuthorizationFailedError({data})
        return poll(consumer, **options)

    monkeypatch.setattr(MemoryConsumer, "poll", poll_while_allowed)
    with contextlib.suppress(KafkaRefused), Member("g", "nyc/a", connection=kafka) as a:
        a.broadcast(b"0").result(WAIT)
        stream = a.deliveries(timeout=WAIT)
        next(stream)
        if is_cached:
            a.broadcast(b"1").result(WAIT)
            next(stream)
        is_refused.set()
        with pytest.raises(KafkaRefused, match=f"may not READ {data}"):
            next(stream)


@pytest.mark.slow
def test_who_falls_behind_while_no_broker_answers_waits_for_one(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.client.tail.tail_cache.MAX_RECORDS", 2)
    open_consumer, refusals = MemoryConnection.consumer, [2]

    def refusing(connection: MemoryConnection, **settings: Any) -> MemoryConsumer:
        if refusals[0]:
            refusals[0] -= 1
            raise connection.unreachable()
        return open_consumer(connection, **settings)

    with Member("g", "nyc/a", connection=kafka) as a:
        a.broadcast(b"0").result(WAIT)
        stream = a.deliveries(timeout=WAIT)
        next(stream)
        coming = threading.Timer(0.3, a.broadcast, [b"1"])
        coming.start()
        assert next(stream).payload == b"1"  # it follows now
        for number in range(2, 30):
            a.broadcast(b"%d" % number).result(WAIT)
        monkeypatch.setattr(MemoryConnection, "consumer", refusing)
        assert [next(stream).payload for _ in range(2, 30)] == [b"%d" % number for number in range(2, 30)]
        assert not refusals[0]


def test_a_group_whose_topics_are_gone_silences_no_member_of_another_one(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python waits 10 s for a topic that it does not know, with each record."""
    kafka.create("gone", "nyc")
    send, deleted, let_go = MemoryProducer.send, threading.Event(), threading.Event()

    def waiting(producer: MemoryProducer, topic: str, *values: Any, **named: Any) -> MemoryFuture:
        if deleted.is_set() and topic == "abcast.gone.forward.nyc":
            let_go.wait(15)
        return send(producer, topic, *values, **named)

    monkeypatch.setattr(MemoryProducer, "send", waiting)
    monkeypatch.setattr("connectors.client.tail.heartbeats.HEARTBEAT_S", 0.02)
    forward = kafka.topics.partitions[TopicPartition("abcast.g.forward.nyc", 0)]

    def heard() -> int:
        return sum(record.key == b"nyc/a" for record in forward)

    with SequencerThread(kafka, "gone"), Member("gone", "nyc/b", connection=kafka) as b:
        b.connect()
        with Member("g", "nyc/a", connection=kafka) as a:
            a.connect()
            deleted.set()
            time.sleep(0.1)
            before = heard()
            eventually(lambda: heard() >= before + 3, timeout=10, what="heartbeats")
        let_go.set()


class Application:
    """An application in a reference cycle, as one is that keeps an exception."""

    def __init__(self, member: Member) -> None:
        self.itself = self
        self.stream = member.deliveries(timeout=WAIT)
        next(self.stream)
        next(self.stream)


@pytest.mark.parametrize("lock", ["cache", "shared"])
def test_an_iterator_that_the_garbage_collector_finds_under_a_lock_of_ours(kafka: MemoryConnection, lock: str) -> None:
    with Member("g", "nyc/a", connection=kafka) as a:
        for _ in range(3):
            a.broadcast(b"x").result(WAIT)
        held = a._shared.tailer("g", "nyc").cache._changed if lock == "cache" else sharing._lock

        def collect() -> None:
            with held:
                gc.collect()

        gc.disable()
        try:
            stream = weakref.ref(Application(a).stream)
            thread = threading.Thread(target=collect, daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive(), "it waits for itself"
        finally:
            gc.enable()
        assert stream() is None
        eventually(lambda: next(a.deliveries(timeout=WAIT)).seqno == 2, what="the position is remembered")


def test_one_thread_closes_the_iterator_for_whose_next_item_another_one_waits(kafka: MemoryConnection) -> None:
    with Member("g", "nyc/a", connection=kafka) as a:
        stream = a.deliveries(timeout=WAIT)
        waiting = threading.Thread(target=lambda: list(stream))
        waiting.start()
        eventually(lambda: stream._items.gi_running)  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match=r"stop\(\)"):
            stream.close()
        stream.stop()
        waiting.join(WAIT)
        assert not waiting.is_alive()
        stream.close()


@pytest.mark.parametrize("kind", ["deliveries", "inbox"])
def test_a_stopped_stream_hands_out_nothing_more(kafka: MemoryConnection, kind: str) -> None:
    """The next run has the item."""
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/a", connection=kafka) as a:
        a.broadcast(b"x").result(WAIT)
        a.send("nyc/a", b"x").result(WAIT)
        stream = getattr(a, kind)(timeout=WAIT)
        stream.stop()
        assert list(stream) == []
        [item] = getattr(a, kind)(timeout=0.2)
        assert item.payload == b"x"


def test_a_fork_uses_nothing_that_it_has_from_its_parent(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The parent's threads do not exist in the fork, and its locks may be held for ever: the fork says so, and
    closes nothing.
    """
    a = Member("g", "nyc/a", connection=kafka)
    assert a.broadcast(b"x").result(WAIT) == 1
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: -1)
        for use in (lambda: a.broadcast(b"y"), a.connect, a.deliveries, a.inbox, a.wait_ordered, a.flush):
            with pytest.raises(UsageError, match="this process is a fork of it"):
                use()
        a.close()
    assert "nyc/a stays open" in caplog.text
    a.broadcast(b"y").result(WAIT)
    a.close()
    assert not a._shared.users


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("kind", ["deliveries", "inbox", "deliveries_arrow"])
@pytest.mark.parametrize("use", ["asks", "asks for a list", "closes", "drops"])
def test_a_fork_moves_no_position_of_its_parent(
    kafka: MemoryConnection, caplog: pytest.LogCaptureFixture, kind: str, use: str
) -> None:
    """`for d in a.deliveries(): if not os.fork(): …; sys.exit()`, say, drops the iterator in each child."""
    with Member("g", "nyc/a", connection=kafka) as a:
        for _ in range(3):
            a.broadcast(b"x").result(WAIT)
            a.send("nyc/a", b"x").result(WAIT)
        options = {"most": 1} if kind == "deliveries_arrow" else {}
        streams = [getattr(a, kind)(timeout=WAIT, **options)]
        next(streams[0])
        next(streams[0])  # the first one is taken, and that is not committed yet
        before = dict(kafka.topics.committed)

        def act() -> None:
            match use:
                case "closes":
                    streams[0].close()
                    assert "stays open" in caplog.text
                case "drops":
                    streams.clear()
                    gc.collect()
                case _:
                    ask = streams[0] if use == "asks" or kind == "deliveries_arrow" else streams[0].batches()
                    for _ in range(2):
                        with pytest.raises(UsageError, match="this process is a fork of it"):
                            next(ask)
            assert kafka.topics.committed == before

        assert in_a_fork(act) == 0
        assert kafka.topics.committed == before
        assert next(streams[0])
        streams[0].close()
        assert kafka.topics.committed != before


LOOPS = {
    "drops": "for _ in alice.deliveries(timeout=0.1):\n    step()",
    "closes": "with closing(alice.deliveries(timeout=0.1)) as stream:\n    for _ in stream:\n        step()",
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("loop", LOOPS.values(), ids=list(LOOPS))
def test_a_fork_that_exits_commits_nothing(loop: str) -> None:
    """The end of the interpreter, too, drops all that the fork still has."""
    script = f"""
import os, sys
from contextlib import closing
from connectors.testing import MemoryGroup
from connectors.testing.memory_kafka import MemoryMetadataClient

parent, commit = os.getpid(), MemoryMetadataClient.commit

def told(*arguments):
    print("parent" if os.getpid() == parent else "child", flush=True)
    commit(*arguments)

def step():
    if not os.fork():
        sys.exit()
    os.wait()

group = MemoryGroup("g").__enter__()
alice = group.member("a")
for _ in range(3):
    alice.broadcast(b"x").result(60)
MemoryMetadataClient.commit = told
{loop}
group.__exit__(None, None, None)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, set(done.stdout.split())) == (0, {"parent"}), done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_ends_although_its_parent_holds_a_lock(kafka: MemoryConnection) -> None:
    with Member("g", "nyc/a", connection=kafka) as a:
        a.broadcast(b"x").result(WAIT)
        with a._sending.lock:
            assert in_a_fork(a.close) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_may_begin_anew_whatever_its_parent_does_just_then(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the parent holds each lock of the process, and has a callback and a look in hand."""
    called: list[int] = []
    looked: list[str] = []

    def nobody_answers(_connection: Connection, group: str, _site: str) -> DataLog:
        looked.append(group)
        raise BrokerUnreachable("nobody answers.")

    look = Future[str]()
    monkeypatch.setattr(promise, "_settling", promise._Settling())
    monkeypatch.setattr(promise._settling, "_run", lambda: None)  # settled promises stay in its queue
    monkeypatch.setattr(liveness, "DataLog", nobody_answers)
    receipt = promise.Promise(threading.Condition())
    receipt.add_done_callback(lambda _: called.append(1))
    receipt.resolve(1)
    monkeypatch.setitem(liveness._looks, (kafka, "g", "nyc"), look)

    def begin_anew() -> None:
        assert liveness.say_why(kafka, "g", "nyc", WAIT) == ""
        assert looked == ["g"]
        warn_seldom(logging.getLogger("test"), "of a fork")
        with sharing.share(kafka) as shared:
            assert shared.users == 1
        of_the_fork, is_called = promise.Promise(threading.Condition()), threading.Event()
        of_the_fork.add_done_callback(lambda _: is_called.set())
        of_the_fork.resolve(1)
        assert is_called.wait(WAIT)
        assert called == []

    with ExitStack() as held:
        for lock in (sharing._lock, liveness._lock, seldom._lock, promise._settling._lock):
            held.enter_context(lock)
        assert in_a_fork(begin_anew) == 0


def test_a_start_on_an_outbox_reads_no_further_than_its_own_rows(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The start compares the outbox's rows and reads no further, however long the log is."""
    read: list[int] = []
    records = DataLog.records

    def counted(self: DataLog, start: int, end: int) -> Iterator[Any]:
        read.append(0)
        for stored in records(self, start, end):
            read[-1] += 1
            yield stored

    with Member("g", "nyc/a", connection=kafka, outbox=tmp_path / "o") as a:
        a.broadcast(b"one").result(WAIT)
        for each in tmp_path.glob("o*"):  # as kill -9 leaves it
            shutil.copy(each, tmp_path / each.name.replace("o", "killed", 1))
    with Member("g", "nyc/z", connection=kafka) as z:
        for _ in range(200):
            last = z.broadcast(b"x")
        last.result(WAIT)
        monkeypatch.setattr(DataLog, "records", counted)
        with Member("g", "nyc/a", connection=kafka, outbox=tmp_path / "killed") as again:
            again.connect()
            assert read[-1] < 5, f"{read}: the rows of the outbox are compared last"
            assert again.broadcast(b"two").result(WAIT) > 202


def in_a_fork(act: Callable[[], object]) -> int:
    """Return the exit code of a forked process that calls `act`. Fail if it does not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads forks
        child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child has nobody else to tell
            traceback.print_exc()
        finally:
            os._exit(1)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.append(status)
        return pid == child

    try:
        eventually(has_ended)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return ended[-1]


def test_headers_count_in_the_window() -> None:
    headers = (("own", b"x" * 1000),)
    record = Effective(1, 0, "message", b"nyc/a", 1, 1, 1, 0, 0, headers, b"y" * 10, 0)
    assert _size([record, record._replace(headers=())]) == len("own") + 1000 + 10 + 10


def test_close_that_is_interrupted_closes_all_the_same(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member("g", "nyc/a", connection=kafka, get_state=lambda: b"")
    a.connect()
    shared = a._shared

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert a._transfer is not None
    close = a._transfer.close
    monkeypatch.setattr(a._transfer, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a.close()
    close()
    assert forwarder_of(a)._lifecycle.is_stopping, "it says no more that it is alive"
    assert not shared.users
