"""Joiners that get the application's state from a member, in memory and on a real broker."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Delivery, Member
from connectors.client.state import state_joiner, state_transfer
from connectors.client.state.state_letters import (
    H_STATE,
    Chunk,
    Nothing,
    Request,
    RequestId,
    StateAssembly,
    decode_state_letter,
)
from connectors.client.state.state_supplier import CHUNK_BYTES, StateSupplier
from connectors.client.state.state_transfer import StateTransfer
from connectors.client.values.letter import LetterReceipt
from connectors.kafka.codec.letter_codec import WrittenLetter
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import producing
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import LIBRARIES
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable, NotOrderedInTime, NotWrittenInTime, StateUnavailable, UsageError
from ordering.base.names import Address
from ordering.base.records import Headers
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import ViewChange
from ordering.sequencer.sequencer import snapshot
from tests.client.conftest import ALSO_ON_A_BROKER, ON_A_BROKER
from tests.client.victim import victim
from tests.waiting import WAIT, eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def group(connection: Connection, group: str) -> Iterator[str]:
    with SequencerThread(connection, group):
        yield group


@pytest.fixture(autouse=True)
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the joiner's patience where no broker is slow."""
    if "connection" in request.fixturenames and isinstance(request.getfixturevalue("connection"), MemoryConnection):
        monkeypatch.setattr(state_joiner, "PATIENCE_S", 1.0)


class Replica:
    """A replicated list. `state`: whether it gets the state when it joins."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        name: str,
        *,
        state: bool = True,
        or_history: bool = False,
        from_seqno: int | None = None,
        taken: Sequence[str] = (),
        ballast: int = 0,
        in_lists: bool = False,
    ) -> None:
        self.in_lists = in_lists
        self.taken = list(taken)
        self.last_seqno = 0
        self.ballast = ballast
        self.loaded: list[int] = []
        self.dumped = 0
        self.member = Member(group, f"nyc/{name}", connection=connection, get_state=self.dump, set_state=self.load)
        how: dict[str, Any] = {"state": state and from_seqno is None, "or_history": or_history}
        self.connect = partial(self.member.connect, from_seqno=from_seqno, timeout=WAIT, **how)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> Replica:
        self.connect()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.member.close()
        if self.thread.ident is not None:
            self.thread.join(WAIT)

    def dump(self) -> bytes:
        assert threading.current_thread() is self.thread, "the application's thread is asked"
        self.dumped += 1
        return json.dumps(self.taken).encode() + b" " * self.ballast

    def load(self, state: bytes) -> None:
        self.loaded.append(len(state))
        self.taken = json.loads(state)

    def run(self) -> None:
        stream = self.member.deliveries()
        for delivery in itertools.chain.from_iterable(stream.batches(7)) if self.in_lists else stream:
            self.taken.append(delivery.payload.decode())
            self.last_seqno = delivery.seqno

    def say(self, text: str) -> None:
        self.member.broadcast(text.encode()).result(WAIT)


class TestLetters:
    """Without any Kafka."""

    REQUEST = RequestId(7, 3)

    @staticmethod
    def letter(chunk: Chunk, sender: str = "nyc/a", incarnation: int = 5) -> WrittenLetter:
        return WrittenLetter(sender, incarnation, 1, b"%d" % chunk.number, chunk.headers())

    def test_round_trip(self) -> None:
        for what in (Request(12), Chunk(self.REQUEST, 9, 0, 1)):
            assert decode_state_letter(WrittenLetter("nyc/a", 5, 1, b"", what.headers())) == what

    @pytest.mark.parametrize(
        "raw",
        [
            *(b"", b"{}", b"[]", b"\xff", b'["chunk",1]', b'["request",-1]', b'["request",true]', b'["x",1]', b"3"),
            b"[" * 60_000,
        ],
        ids=lambda raw: raw.decode("latin-1")[:20],
    )
    def test_what_says_nothing(self, raw: bytes) -> None:
        assert decode_state_letter(WrittenLetter("nyc/a", 5, 1, b"", ((H_STATE, raw),))) is None
        assert decode_state_letter(WrittenLetter("nyc/a", 5, 1, b"", ())) is None

    def test_chunks_are_taken_in_order_and_once(self) -> None:
        """Chunks that a producer repeats, and chunks of another answer, are dropped."""
        assembly = StateAssembly("nyc/a", self.REQUEST, 0.0)
        for number in (1, 0, 0, 2, 1, 0, 2, 3):
            assembly.accept(*self._pair(number))
        assert not assembly.accept(self.letter(Chunk(self.REQUEST, 9, 4, 5), sender="nyc/b"), self._pair(4)[1])
        for other in (
            Chunk(RequestId(7, 2), 9, 4, 5),
            Chunk(self.REQUEST, 10, 4, 5),
            Chunk(self.REQUEST, 9, 4, 6),
        ):
            assert not assembly.accept(self.letter(other), other)
        again = self._pair(4)
        assert not assembly.accept(again[0]._replace(incarnation=6), again[1])
        complete = [assembly.is_complete, assembly.accept(*again), assembly.is_complete]
        assert complete == [False, True, True]
        assert assembly.chunks == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_chunk_of_an_earlier_life_of_the_supplier(self) -> None:
        """Anybody can write a chunk in its name; the view's incarnation is the least that counts."""
        assembly = StateAssembly("nyc/a", self.REQUEST, 0.0, incarnation=6)
        chunk = Chunk(self.REQUEST, 9, 0, 1)
        assert not assembly.accept(self.letter(chunk, incarnation=5), chunk)
        assert not assembly.accept(self.letter(chunk, sender="nyc/eve", incarnation=6), chunk)
        assert assembly.accept(self.letter(chunk, incarnation=7), chunk)

    def _pair(self, number: int) -> tuple[WrittenLetter, Chunk]:
        chunk = Chunk(self.REQUEST, 9, number, 5)
        return self.letter(chunk), chunk

    def test_a_first_view_asks_nobody(self) -> None:
        def send(receiver: Address, payload: bytes, headers: Headers) -> LetterReceipt:
            raise AssertionError("nobody has a state")

        address = Address("nyc", "a")
        transfer = StateTransfer(MemoryConnection(), "g", address, send, None, lambda _: None, lambda: None)
        members = (MemberIncarnation("nyc/a", 1), MemberIncarnation("nyc/b", 1))
        view = ViewChange(3, 1, members, joined=("nyc/a", "nyc/b"))
        assert transfer.fetch(view, lambda: view, 1.0) is None


@pytest.mark.parametrize(
    "headers",
    [[("abcast", None)], [("abcast", b"2 state 1 1 nyc/eve -"), (H_STATE, b"[" * 60_000)], []],
    ids=["null", "brackets", "none"],
)
def test_a_letter_that_is_nonsense(connection: Connection, group: str, headers: list[tuple[str, Any]]) -> None:
    """The request behind it is answered all the same."""
    if ("abcast", None) in headers and not isinstance(connection, MemoryConnection):
        pytest.skip("kafka-python writes no null in a header, and confluent-kafka spoils its memory by one")
    with Replica(connection, group, "a") as a:
        a.say("x")
        with closing(connection.producer()) as producer:
            producer.send(f"abcast.{group}.inbox.nyc", key=b"nyc/a", value=b"", headers=headers).get(WAIT)
        with Replica(connection, group, "b") as b:
            assert b.taken == ["x"]
            assert a.dumped == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nyc/eve", "nyc/b"], ids=["stranger", "an earlier life"])
def test_a_state_is_for_members_only(connection: Connection, group: str, name: str) -> None:
    """A stranger's request for the state is ignored, although anybody may write into an inbox topic."""
    with Replica(connection, group, "a") as a, Replica(connection, group, "b") as b:
        a.say("x")
        assert a.dumped == 1
        said = [("abcast", f"2 state 1 1 {name} -".encode()), *Request(0).headers()]
        with closing(connection.producer()) as producer:
            producer.send(f"abcast.{group}.inbox.nyc", key=b"nyc/a", value=b"", headers=said).get(WAIT)
        with Replica(connection, group, "c") as c:  # its request follows the stranger's
            assert c.taken == ["x"]
            a.say("y")
            eventually(lambda: a.taken == b.taken == c.taken == ["x", "y"])
            assert a.dumped == 2
            assert a.member._transfer is not None
            assert a.member._transfer.supplier._requests == {}


def test_no_letter_ends_the_thread(connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread survives any error with a letter."""
    with Replica(connection, group, "a") as a:
        a.say("x")

        def fails_for_eve(letter: WrittenLetter) -> Request | Chunk | Nothing | None:
            if letter.sender == "nyc/eve":
                raise MemoryError
            return decode_state_letter(letter)

        monkeypatch.setattr(state_transfer, "decode_state_letter", fails_for_eve)
        said = [("abcast", b"2 state 1 1 nyc/eve -"), *Request(0).headers()]
        with closing(connection.producer()) as producer:
            producer.send(f"abcast.{group}.inbox.nyc", key=b"nyc/a", value=b"", headers=said).get(WAIT)
        with Replica(connection, group, "b") as b:
            assert b.taken == ["x"]


@pytest.mark.long
@ALSO_ON_A_BROKER
@pytest.mark.parametrize("flush", [False, True])
def test_a_joiner_under_load(connection: Connection, group: str, flush: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two senders go on all the time; every joiner has each message once, in the one order."""
    monkeypatch.setattr(state_joiner, "PATIENCE_S", 5.0)
    if flush:
        change_settings(connection, group, "nyc", flush=True)
    stop = threading.Event()
    with Member(group, "nyc/s", connection=connection) as s, Member(group, "nyc/t", connection=connection) as t:

        def load(sender: Member) -> None:
            for number in itertools.count():
                if stop.is_set():
                    sender.wait_ordered(WAIT)  # so that nothing of it comes after "last"
                    return
                receipt = sender.broadcast(b"%s %d" % (str(sender.address).encode(), number))
                if number % 50 == 49:  # no faster than a slow machine orders
                    receipt.result(WAIT)
                time.sleep(0.001)

        senders = [threading.Thread(target=load, args=(sender,)) for sender in (s, t)]
        with Replica(connection, group, "a", in_lists=not flush) as a:
            assert a.loaded == []
            if flush:  # so that the joins block the senders, too
                s.connect()
                t.connect()
            for thread in senders:
                thread.start()
            try:
                eventually(lambda: len(a.taken) > 20)
                with Replica(connection, group, "b") as b, Replica(connection, group, "c") as c:
                    known = len(b.taken)
                    eventually(lambda: len(c.taken) > known + 100)
                    stop.set()
                    for thread in senders:
                        thread.join()
                    a.say("last")
                    eventually(lambda: all(replica.taken[-1] == "last" for replica in (a, b, c)))
                    assert len(b.loaded) == len(c.loaded) == 1
                    assert a.taken == b.taken == c.taken
                    assert len(set(a.taken)) == len(a.taken)
            finally:
                stop.set()


@pytest.mark.slow
def test_a_supplier_that_never_answers(connection: Connection, group: str) -> None:
    """The oldest member does not iterate its deliveries: the next oldest is asked."""
    with Member(group, "nyc/mute", connection=connection, get_state=lambda: b"[]") as mute:
        mute.connect()
        with Replica(connection, group, "a", state=False) as a:
            a.say("x")
            with Replica(connection, group, "b") as b:
                assert b.taken == ["x"]
                assert a.dumped == 1
                a.say("y")
                eventually(lambda: a.taken == b.taken == ["x", "y"])


@pytest.mark.slow
def test_a_supplier_that_dies_midway(connection: Connection, group: str) -> None:
    """The supplier leaves after three of many chunks: the joiner drops them and asks the next one."""
    with Replica(connection, group, "a", ballast=5 * CHUNK_BYTES) as a, Replica(connection, group, "b") as b:
        a.say("x")
        assert a.member._transfer is not None
        sent: list[Headers] = []
        really = a.member._transfer.supplier._send
        closing = threading.Thread(target=a.member.close)

        def send(receiver: Address, payload: bytes, headers: Headers) -> LetterReceipt:
            if len(sent) == 3:
                closing.start()
                raise NotWrittenInTime("killed")
            sent.append(headers)
            return really(receiver, payload, headers)

        a.member._transfer.supplier._send = send
        with Replica(connection, group, "c") as c:
            closing.join(WAIT)
            assert (len(sent), a.dumped, b.dumped) == (3, 2, 1)
            assert c.taken == ["x"]
            b.say("y")
            eventually(lambda: b.taken == c.taken == ["x", "y"])


@pytest.mark.slow
def test_a_supplier_that_falls_silent_midway(connection: Connection, group: str) -> None:
    """The supplier stays in the view: the joiner's patience ends, and it asks the next one."""
    with Replica(connection, group, "b", ballast=5 * CHUNK_BYTES) as b, Replica(connection, group, "a") as a:
        b.say("x")
        assert b.member._transfer is not None
        sent: list[Headers] = []
        really = b.member._transfer.supplier._send

        def send(receiver: Address, payload: bytes, headers: Headers) -> LetterReceipt:
            if len(sent) == 3:
                raise NotWrittenInTime("hangs")
            sent.append(headers)
            return really(receiver, payload, headers)

        b.member._transfer.supplier._send = send
        with Replica(connection, group, "c") as c:
            assert (len(sent), b.dumped, a.dumped) == (3, 2, 1)  # the oldest first; it had supplied a before
            assert c.taken == ["x"]


SUPPLIER = """
import json, sys, threading, time
from connectors import Member

taken = []

def dump():
    return json.dumps(taken).encode() + bytes(100_000_000)

member = Member(sys.argv[1], "nyc/supplier", bootstrap_servers=sys.argv[2], get_state=dump)
member.connect()
print("in", flush=True)
send, sent = member._transfer.supplier._send, 0

def tell(*letter):
    global sent
    sent += 1
    if sent == 4:
        print("sending", flush=True)
        time.sleep(60)
    return send(*letter)

member._transfer.supplier._send = tell
for delivery in member.deliveries():
    taken.append(delivery.payload.decode())
"""


@ON_A_BROKER
def test_a_supplier_killed_with_9_midway(connection: Connection, group: str) -> None:
    """A process, in the midst of its chunks: the next oldest takes over, before anybody knows that it is dead."""
    with victim("-c", SUPPLIER, group, connection.bootstrap_servers) as supplier:
        supplier.await_line("in")
        with Replica(connection, group, "a", state=False) as a, ExitStack() as joined:
            a.say("x")
            b = Replica(connection, group, "b")
            joining = threading.Thread(target=lambda: joined.enter_context(b))
            joining.start()
            supplier.await_line("sending")
            supplier.kill()
            joining.join(WAIT)
            assert b.taken == ["x"]
            assert len(b.loaded) == a.dumped == 1
            a.say("y")
            eventually(lambda: a.taken == b.taken == ["x", "y"])


@pytest.mark.long
@ON_A_BROKER
def test_a_large_state(connection: Connection, group: str) -> None:
    size = 100_000_000
    with Replica(connection, group, "a", ballast=size) as a:
        a.say("x")
        with Replica(connection, group, "b") as b:
            assert b.loaded == [size + len('["x"]')]
            a.say("y")
            eventually(lambda: a.taken == b.taken == ["x", "y"])


@pytest.mark.slow
def test_an_empty_state_and_errors_of_get_state(connection: Connection, group: str) -> None:
    """A get_state that fails is logged, and the next member asked; its deliveries go on."""
    replies: list[object] = ["no bytes", b""]
    states: list[bytes] = []
    with Member(group, "nyc/a", connection=connection, get_state=lambda: replies.pop(0)) as a:  # type: ignore[arg-type,return-value]
        a.connect()
        loop = threading.Thread(target=lambda: list(a.deliveries()), daemon=True)
        loop.start()
        with Member(group, "nyc/b", connection=connection, set_state=states.append) as b:
            b.connect(state=True, timeout=WAIT)
            assert (states, replies) == ([b""], [])
            a.broadcast(b"x").result(WAIT)
            # A second run goes on at the end of the first one: no delivery comes twice.
            assert [delivery.payload for delivery in b.deliveries(timeout=1)] == [b"x"]
            assert list(b.deliveries(timeout=0.3)) == []
            a.broadcast(b"y").result(WAIT)
            assert [delivery.payload for delivery in b.deliveries(timeout=1)] == [b"y"]
    loop.join(WAIT)


@pytest.mark.slow
def test_inboxes_do_not_see_it(connection: Connection, group: str) -> None:
    """Letters of the application before, during and after, in both directions, and by a new start of the reader."""
    with Replica(connection, group, "a", ballast=3 * CHUNK_BYTES) as a:
        a.member.send("nyc/b", b"before").result(WAIT)
        with Replica(connection, group, "b") as b:
            a.member.send("nyc/b", b"after").result(WAIT)
            b.member.send("nyc/a", b"thanks").result(WAIT)
            assert [letter.payload for letter in b.member.inbox(timeout=0.5)] == [b"before", b"after"]
            assert [letter.payload for letter in a.member.inbox(timeout=0.5)] == [b"thanks"]
            a.member.send("nyc/b", b"more").result(WAIT)
        with Replica(connection, group, "b") as b:
            assert [letter.payload for letter in b.member.inbox(timeout=0.5)] == [b"more"]
            assert len(b.loaded) == 1


@pytest.mark.slow
def test_nobody_has_a_state(connection: Connection, group: str) -> None:
    """A clear error, after which the same call may succeed."""
    states: list[bytes] = []
    with Member(group, "nyc/a", connection=connection) as a:
        a.connect()
        with Member(group, "nyc/b", connection=connection, set_state=states.append) as b:
            b._sending.start()
            b._sending.join(WAIT)  # what takes its time below is the state
            with pytest.raises(NotOrderedInTime, match="asked was nyc/a") as caught:
                b.connect(state=True, timeout=3)
            assert caught.value.retriable
            with Replica(connection, group, "c", state=False) as c:
                b.connect(state=True, timeout=WAIT)
                assert (states, c.dumped) == ([b"[]"], 1)


@pytest.mark.slow
def test_who_had_it_has_left(connection: Connection, group: str) -> None:
    """The supplier leaves while the joiner waits."""
    with Member(group, "nyc/b", connection=connection, set_state=lambda _: None) as b:
        a = Member(group, "nyc/a", connection=connection, get_state=lambda: b"")
        a.connect()
        a.broadcast(b"x").result(WAIT)
        threading.Timer(0.5, a.close).start()
        with pytest.raises(StateUnavailable):
            b.connect(state=True, timeout=WAIT)
        b.connect(state=True, or_history=True, timeout=WAIT)
        assert [delivery.payload for delivery in b.deliveries(timeout=0.3)] == [b"x"]


@pytest.mark.slow
def test_events_begin_with_the_joiners_view(
    connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages begin after the state, which may count some of a later view; no view, block or unblock is left out."""
    supplying = threading.Event()
    really = StateSupplier.between
    monkeypatch.setattr(StateSupplier, "between", lambda *asked: really(*asked) if supplying.is_set() else None)
    change_settings(connection, group, "nyc", flush=True)
    with Replica(connection, group, "a") as a:
        a.say("x")
        b = Member(group, "nyc/b", connection=connection, set_state=lambda _: None)
        joined: list[ViewChange] = []
        joining = threading.Thread(target=lambda: joined.append(b.connect(state=True, timeout=WAIT)))
        joining.start()
        eventually(lambda: a.member.view and len(a.member.view.members) == 2)
        a.say("y")
        with Member(group, "nyc/c", connection=connection) as c:
            c.connect()
            a.say("z")
            eventually(lambda: a.taken == ["x", "y", "z"])
            supplying.set()
            joining.join(WAIT)
            a.say("w")
            stream = list(b.deliveries(timeout=0.5, events=True))
            assert stream[0] == joined[0]
            names = [what.payload.decode() if isinstance(what, Delivery) else type(what).__name__ for what in stream]
            assert names == ["ViewChange", "Unblock", "Block", "ViewChange", "Unblock", "w"]
            assert list(b.deliveries(timeout=0.3)) == []
        b.close()


def test_a_new_group_begins_empty(connection: Connection, group: str) -> None:
    """Settings, joins and views are no history."""
    change_settings(connection, group, "nyc", flush=True)
    with Member(group, "nyc/silent", connection=connection) as silent:
        silent.connect()
    with Replica(connection, group, "a") as a:
        a.say("x")
        eventually(lambda: a.taken == ["x"])
        assert a.loaded == []


@pytest.mark.slow
def test_a_total_restart(connection: Connection, group: str) -> None:
    """No member has the state: an error, unless the history may make it. Then there is a supplier again."""
    with Replica(connection, group, "a", state=False) as a, Replica(connection, group, "b"):
        a.say("x")
    restarted = Member(group, "nyc/a", connection=connection, set_state=lambda _: None)
    with restarted, pytest.raises(StateUnavailable, match=r"connect\(state=True, or_history=True\)"):
        restarted.connect(state=True, timeout=WAIT)
    with Replica(connection, group, "a", or_history=True) as a:
        a.say("y")
        eventually(lambda: a.taken == ["x", "y"])
        assert a.loaded == []
        with Replica(connection, group, "b", or_history=True) as b:
            assert (b.taken, len(b.loaded)) == (["x", "y"], 1)
            a.say("z")
            eventually(lambda: a.taken == b.taken == ["x", "y", "z"])


@pytest.mark.slow
def test_first_messages_may_be_a_strangers(connection: Connection, group: str) -> None:
    with Member(group, "nyc/old", connection=connection) as old:
        old.broadcast(b"before").result(WAIT)
    with Member(group, "nyc/a", connection=connection, set_state=lambda _: None) as a:
        with pytest.raises(StateUnavailable):
            a.connect(state=True)
        assert a.view is not None  # a member all the same
        a.connect()
        a.broadcast(b"x").result(WAIT)
        assert [delivery.payload for delivery in a.deliveries(timeout=0.3)] == [b"x"]


def test_retention_has_dropped_the_history() -> None:
    """A group that had messages does not begin empty."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    with SequencerThread(kafka, "g") as sequencer:
        with Member("g", "nyc/old", connection=kafka) as old:
            old.broadcast(b"before").result(WAIT)
        sequencer.write([snapshot(sequencer.state)])
        kafka.topics.drop("abcast.g.data.nyc", len(kafka.topics.partitions[TopicPartition("abcast.g.data.nyc", 0)]) - 1)
        with Member("g", "nyc/a", connection=kafka, set_state=lambda _: None) as a:
            with pytest.raises(StateUnavailable):
                a.connect(state=True)
            a.connect(state=True, or_history=True)
            with pytest.raises(HistoryUnavailable, match="ledger"):
                next(a.deliveries())


@pytest.mark.slow
def test_a_replica_that_keeps_its_own_state(connection: Connection, group: str) -> None:
    """The replica stores the seqno with the effect, goes on from there, and may supply the state."""
    with Replica(connection, group, "a", state=False) as a:
        for text in ("x", "y", "z"):
            a.say(text)
        eventually(lambda: a.taken == ["x", "y", "z"])
        stored = a.last_seqno
    with Member(group, "nyc/old", connection=connection) as old:
        old.broadcast(b"meanwhile").result(WAIT)
    with Replica(connection, group, "a", from_seqno=stored, taken=["x", "y"]) as a:
        eventually(lambda: a.taken == ["x", "y", "z", "meanwhile"])
        with Replica(connection, group, "b") as b:
            assert (b.taken, a.dumped) == (a.taken, 1)
            a.say("w")
            eventually(lambda: a.taken == b.taken == ["x", "y", "z", "meanwhile", "w"])
    with Member(group, "nyc/a", connection=connection) as again:  # its position has moved with it
        assert list(again.deliveries(timeout=0.3)) == []


def test_misuse(connection: Connection, group: str) -> None:
    with pytest.raises(UsageError, match="get_state is a function, not bytes"):
        Member(group, "nyc/a", connection=connection, get_state=b"")  # type: ignore[arg-type]
    with Member(group, "nyc/a", connection=connection) as a, pytest.raises(UsageError, match="set_state="):
        a.connect(state=True)
    with Member(group, "nyc/b", connection=connection, set_state=lambda _: None) as b:
        with pytest.raises(UsageError, match="take one of state=True, from_ledger=True"):
            b.connect(state=True, from_ledger=True)
        with pytest.raises(UsageError, match="take one of state=True, from_ledger=True"):
            b.connect(state=True, from_seqno=1)
        with pytest.raises(UsageError, match="seqnos start at 1"):
            b.connect(from_seqno=0)
        with pytest.raises(UsageError, match="or_history=True goes with state=True"):
            b.connect(or_history=True)
        assert b.view is None
        b.connect(state=True)
        for beginning in ({"state": True}, {"from_seqno": 1}, {"from_ledger": True}):
            with pytest.raises(UsageError, match="connected already"):
                b.connect(**beginning)


@pytest.mark.parametrize("or_history", [True, False])
def test_joiners_that_are_left_alone_do_not_wait_for_each_other(
    connection: Connection, group: str, or_history: bool
) -> None:
    """The only supplier ends before it answers: the joiners build the state from the history, or raise."""
    first = Member(group, "nyc/first", connection=connection, get_state=bytes)
    first.connect()  # it does not iterate its deliveries, so it answers nobody
    first.broadcast(b"one").result(WAIT)
    seen: list[list[str]] = []

    def join(name: str) -> None:
        replica = Replica(connection, group, name, or_history=or_history)
        with closing(replica.member):
            try:
                with replica:
                    eventually(lambda: replica.taken)
                    seen.append(replica.taken)
                    all_done.wait(WAIT)  # nobody leaves before
            except StateUnavailable:
                seen.append([])
                all_done.wait(WAIT)

    threads = [threading.Thread(target=join, args=(name,)) for name in ("second", "third", "fourth")]
    all_done = threading.Barrier(len(threads))
    for thread in threads:
        thread.start()
    eventually(lambda: first.view is not None and len(first.view.members) == 4)
    first.close()
    for thread in threads:
        thread.join(WAIT)
    assert seen == [["one"] if or_history else []] * 3


def test_nothing_is_the_answer_to_its_request_only() -> None:
    assembly = StateAssembly("nyc/a", RequestId(5, 1), 0.0)
    letter = WrittenLetter("nyc/a", 3, 1, b"", Nothing(RequestId(5, 1)).headers())
    assert decode_state_letter(letter) == Nothing(RequestId(5, 1))
    assert not assembly.accept(letter._replace(sender="nyc/b"), Nothing(RequestId(5, 1)))
    assert not assembly.accept(letter, Nothing(RequestId(5, 2)))
    assert not assembly.is_nothing
    assert assembly.accept(letter, Nothing(RequestId(5, 1)))
    assert assembly.is_nothing


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_member_reads_on_where_its_inbox_does(is_cut: bool) -> None:
    """A purge has passed its position while it was away, or the log has lost its end."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    topics, inbox = connection.topics, TopicPartition("abcast.g.inbox.nyc", 0)

    def write_letters() -> None:
        for _ in range(3):
            topics.append(inbox, b"nyc/ada", b"", [])

    with SequencerThread(connection, "g"):
        write_letters()
        with Replica(connection, "g", "ada", state=False) as ada:
            ada.say("early")
            with topics.changed:
                if is_cut:
                    topics.truncate(inbox.topic, 0)
                else:
                    write_letters()
                    topics.drop(inbox.topic, 5)
            with Replica(connection, "g", "bob") as bob:
                assert bob.taken == ["early"]


@pytest.mark.broker
@pytest.mark.parametrize("transport", LIBRARIES)
def test_a_member_reads_on_behind_a_purge_on_a_broker(broker: EmbeddedBroker, transport: str) -> None:
    connection, group = Connection(broker.bootstrap_servers, transport=transport), f"purged-{transport}"
    create_topics(connection, group, ["nyc"])
    inbox = TopicPartition(f"abcast.{group}.inbox.nyc", 0)
    with producing(connection) as producer:
        for letter in (b"1", b"2", b"3"):
            producer.send(inbox.topic, letter, key=b"nyc/ada", partition=0).get(timeout=WAIT)
    with closing(connection.consumer()) as consumer, connection.admin() as admin:
        admin.delete_records({inbox: 2})
        consumer.assign([inbox])
        consumer.seek(inbox, 0)
        read = list[bytes | None]()

        def poll() -> list[bytes | None]:
            read.extend(record.value for record in state_transfer._poll(consumer, inbox).get(inbox, ()))
            return read

        eventually(lambda: poll() == [b"3"])
