"""Headers that an instrumentor, a proxy or a gateway adds to a record end no member, and reach the others."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import Member
from connectors.client.state.state_supplier import CHUNK_BYTES
from connectors.kafka.connection.connection import Connection
from connectors.testing.sequencer_thread import SequencerThread
from tests.client.conftest import ALSO_ON_A_BROKER
from tests.client.members import kill, with_casts
from tests.waiting import WAIT

BEFORE, BEHIND = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("via", b"a gateway")
BY_THE_SEQUENCER = ("data", "epoch")
"""The sequencer's own header comes first in its records; instrumentors add theirs at the end."""
GIVEN = [("n", b"v"), ("n", b"w"), ("via", b"the application")]


@pytest.fixture(autouse=True)
def traced(connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every producer of the process add headers: the application's members, and helpers beside them."""
    producer = type(connection.producer())
    send = producer.send

    def send_more(
        self: Any, topic: str, value: Any = None, key: Any = None, headers: Any = None, partition: Any = None
    ) -> Any:
        before = [BEFORE] if topic.split(".")[2] not in BY_THE_SEQUENCER else []
        return send(self, topic, value, key, [*before, *(headers or ()), BEHIND], partition)

    monkeypatch.setattr(producer, "send", send_more)
    with SequencerThread(connection, group):
        yield


@ALSO_ON_A_BROKER
def test_messages(connection: Connection, flushing: str) -> None:
    """Broadcast with headers of the application and without."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(Member(flushing, f"nyc/{name}", connection=connection)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        for number in range(5):
            assert a.broadcast(b"plain").result(WAIT)
            assert a.broadcast(b"with", GIVEN).result(WAIT), number
        seen = list(itertools.islice(b.deliveries(timeout=WAIT), 10))
        assert [got.payload for got in seen] == [b"plain", b"with"] * 5
        for got in seen:
            assert [header for header in got.headers if header in GIVEN] == (GIVEN if got.payload == b"with" else [])
            assert BEFORE in got.headers


def test_an_outbox(connection: Connection, group: str, tmp_path: Path) -> None:
    """The next start finds its own messages in DATA."""
    a = Member(group, "nyc/a", connection=connection, outbox=tmp_path / "outbox")
    receipts = [a.broadcast(b"m", headers) for headers in ((), GIVEN, [("x", b"y")])]
    assert [receipt.result(WAIT) for receipt in receipts] == [1, 2, 3]
    a.broadcast(b"left", GIVEN)
    kill(a)
    with Member(group, "nyc/a", connection=connection, outbox=tmp_path / "outbox") as a:
        assert a.broadcast(b"next").result(WAIT) == 5


@pytest.mark.slow
@ALSO_ON_A_BROKER
def test_casts_and_letters(connection: Connection, flushing: str) -> None:
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(with_casts(connection, flushing, name)) for name in "ab")
        for each in (a, b):
            each.connect(timeout=WAIT)
        for order in ("fifo", "causal", "total", "causal", "fifo"):
            for headers in ((), GIVEN):
                a.broadcast(order.encode(), headers, order=order).result(WAIT)
        seen = list(itertools.islice(b.deliveries(timeout=WAIT), 10))
        assert sorted(got.order.encode() for got in seen) == sorted(got.payload for got in seen)
        assert len(seen) == 10
        a.send("nyc/b", b"letter", GIVEN).result(WAIT)
        letter = next(b.inbox(timeout=WAIT))
        assert (letter.payload, [header for header in letter.headers if header in GIVEN]) == (b"letter", GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 3 * CHUNK_BYTES])
def test_a_state_transfer(connection: Connection, group: str, size: int) -> None:
    """A joiner gets the state, in however many letters."""
    state, got = b"s" * size, list[bytes]()
    with Member(group, "nyc/a", connection=connection, get_state=lambda: state, set_state=got.append) as a:
        a.connect(state=True, or_history=True, timeout=WAIT)
        stops = threading.Event()
        reading = threading.Thread(target=read_until, args=(a, stops), daemon=True)
        reading.start()
        try:
            a.broadcast(b"m", GIVEN).result(WAIT)
            with Member(group, "nyc/b", connection=connection, get_state=bytes, set_state=got.append) as b:
                b.connect(state=True, timeout=WAIT)
                a.broadcast(b"behind", GIVEN).result(WAIT)
                assert next(iter(b.deliveries(timeout=WAIT))).payload == b"behind"
        finally:
            stops.set()
            reading.join(WAIT)
    assert got == [state]


def read_until(member: Member, stops: threading.Event) -> None:
    """Deliver until told to stop: a member that is asked for the state answers where it delivers."""
    while not stops.is_set():
        for _ in member.deliveries(timeout=0.2):
            pass
