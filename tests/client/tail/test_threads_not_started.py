"""A thread that can't be started, as the process has too many: the call fails, and the next one starts it.

So does a call that Ctrl-C ends while it starts a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from connectors import Member
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.rejoin import Rejoin
from connectors.client.tail.heartbeats import Heartbeat, Heartbeats
from connectors.client.tail.producers import Producers
from connectors.client.tail.sharing import share
from connectors.client.values.one_thread import OneThread
from connectors.client.values.sending_limits import SendingLimits
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.log.liveness import say_why
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.names import Address
from tests.client.members import with_casts
from tests.waiting import WAIT, eventually

Refuse = Callable[[str], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Return a function that lets the next start of a thread of this name fail, once."""
    start, refused = threading.Thread.start, set[str]()

    def started(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    return refused.add


def test_the_log_is_read_by_the_next_call(kafka: MemoryConnection, refuse: Refuse) -> None:
    with SequencerThread(kafka, "g"):
        refuse("abcast-g-nyc")
        with Member("g", "nyc/a", connection=kafka) as a:
            with pytest.raises(RuntimeError):
                a.broadcast(b"one")
            seqno = a.broadcast(b"two").result(WAIT)
            assert [each.payload for each in a.deliveries(seqno, timeout=0.5)] == [b"two"]


def test_a_call_runs_in_the_next_thread(refuse: Refuse) -> None:
    thread = OneThread("one")
    refuse("one")
    with pytest.raises(RuntimeError):
        thread.submit(lambda: 1)
    assert thread.submit(lambda: 2).result(WAIT) == 2


def test_heartbeats_begin_with_the_next_call(kafka: MemoryConnection, refuse: Refuse) -> None:
    asked = threading.Event()

    class Who:
        def heartbeat(self) -> Heartbeat | None:
            asked.set()
            return None

    heartbeats, who = Heartbeats(Producers(kafka.producer)), Who()
    refuse("abcast-heartbeats")
    with pytest.raises(RuntimeError):
        heartbeats.add(who)
    heartbeats.add(who)
    assert asked.wait(WAIT)
    heartbeats.close()


@contextmanager
def all_consumers_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that each consumer that is made is closed in the end."""
    made, init, close = set[Any](), MemoryConsumer.__init__, MemoryConsumer.close

    def opened(consumer: MemoryConsumer, *arguments: Any, **named: Any) -> None:
        init(consumer, *arguments, **named)
        made.add(consumer)

    def closed(consumer: MemoryConsumer) -> None:
        close(consumer)
        made.discard(consumer)

    with monkeypatch.context() as patches:
        patches.setattr(MemoryConsumer, "__init__", opened)
        patches.setattr(MemoryConsumer, "close", closed)
        yield
        eventually(lambda: not made)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("thread", ["abcast-g-orders", "abcast-casts"])
def test_casts_are_read_by_the_next_call(
    kafka: MemoryConnection, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    with all_consumers_are_closed(monkeypatch), SequencerThread(kafka, "g"), with_casts(kafka, "g", "a") as a:
        refuse(thread)
        with pytest.raises(RuntimeError):
            a.broadcast(b"one", order="fifo")
        eventually(lambda: "abcast-casts" not in names())
        assert a.broadcast(b"two", order="fifo").result(WAIT) == 1


def test_letters_leave_with_the_next_call(kafka: MemoryConnection, refuse: Refuse) -> None:
    with Member("g", "nyc/a", connection=kafka) as a, share(a._sending.connection) as shared:
        a._sending.start()
        users = shared.users
        refuse("abcast-letters-g-nyc/a")
        with pytest.raises(RuntimeError):
            a.send("nyc/a", b"one")
        assert shared.users == users
        assert a.send("nyc/a", b"two").result(WAIT) == 1


def test_a_state_is_asked_for_by_the_next_call(
    kafka: MemoryConnection, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member("g", "nyc/a", connection=kafka, set_state=print)
    with all_consumers_are_closed(monkeypatch), SequencerThread(kafka, "g"), a:
        refuse("abcast-nyc/a-state")
        with pytest.raises(RuntimeError):
            a.connect(timeout=WAIT)
        a.connect(timeout=WAIT)
        assert "abcast-nyc/a-state" in names()


def test_no_rejoin_is_in_progress(refuse: Refuse) -> None:
    address: Any = Address("nyc", "a")
    rejoin = Rejoin(Incarnations(address, SendingLimits()), lambda _: address, lambda: False)
    refuse("abcast-nyc/a-rejoin")
    with pytest.raises(RuntimeError):
        rejoin.start(address)
    assert rejoin.wait(0)


def test_the_next_call_asks_for_the_sequencer(kafka: MemoryConnection, refuse: Refuse) -> None:
    refuse("abcast-liveness")
    with pytest.raises(RuntimeError):
        say_why(kafka, "g", "nyc", 0)
    assert "never had a sequencer" in say_why(kafka, "g", "nyc", WAIT)


def test_ctrl_c_leaves_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the wait for a new thread, which runs already. A second one would make calls at the same time."""
    start, raised = threading.Thread.start, list[bool]()

    def started(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "calls" and not raised:
            eventually(lambda: begun.has_begun and thread.is_alive())
            raised.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", started)
    calls = OneThread("calls")
    begun = calls._thread
    with pytest.raises(KeyboardInterrupt):
        calls.submit(lambda: 1)
    assert calls.submit(lambda: 2).result(WAIT) == 2
    assert names().count("calls") == 1


def test_a_thread_whose_start_was_given_up_makes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes before the new thread has got anywhere."""
    start, run, let_go = threading.Thread.start, threading.Thread.run, threading.Event()

    def started(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def waits(thread: threading.Thread) -> None:
        let_go.wait(WAIT)
        run(thread)

    made = list[int]()
    thread = ThreadOnDemand("late", made.append)
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "run", waits)
        patches.setattr(threading.Thread, "start", started)
        with pytest.raises(KeyboardInterrupt):
            thread.begin(1)
    assert not thread.has_begun
    let_go.set()
    eventually(lambda: "late" not in names())
    thread.begin(2)
    thread.join(WAIT)
    assert made == [2]
