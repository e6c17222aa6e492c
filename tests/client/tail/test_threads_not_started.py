"""A thread that can't be started, as the process has too many: the call fails, and the next one starts it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from connectors import Member
from connectors.client.tail.heartbeats import Heartbeat, Heartbeats
from connectors.client.tail.producers import Producers
from connectors.client.values.one_thread import OneThread
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from tests.waiting import WAIT

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
