"""Ctrl-C in the middle of a call, or a signal handler that raises. The application goes on with the member."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from connectors import Member
from connectors.client.casts import cast_keeper, caster
from connectors.client.incarnation import driver, pending_messages, send_queue
from connectors.client.letters import letter_sender
from connectors.client.memory import outbox
from connectors.client.tail import go_back_n
from connectors.client.tail.go_back_n import BUSY_RECORDS
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.upgrade import upgrade
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import FlushFailed
from ordering.casts import cast_count, clocks, outgoing, outgoing_queue
from ordering.casts.casts import CAUSAL, FIFO, ORDERS
from ordering.participant import forward_table
from tests.client.members import forwarder_of
from tests.waiting import WAIT, eventually

MODULES = (driver, pending_messages, send_queue, outbox, forward_table, letter_sender, caster, cast_keeper, go_back_n)
CORE = (outgoing, outgoing_queue, cast_count, clocks)
FILES = {module.__file__ for module in (*MODULES, *CORE)}
FORWARD = "abcast.g.forward.nyc"
CASTS = (FIFO, CAUSAL)
SOME_LINES = pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.long)])


@contextmanager
def interrupted(at: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at a line that this thread runs in the files, the `at`-th one.

    Not at `with` and `try:`. Where a `with` ends, or another statement has not begun, no signal comes; but an exception
    in a trace function does, and would leave a lock taken.
    """
    lines = iter(range(at))

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(("with ", "try:")) and next(lines, None) is None:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_broadcast_is_interrupted_anywhere(tmp_path: Path, busy: bool) -> None:
    """Each receipt has the seqno of its own message, with its own headers; none waits for a resend."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    upgrade(kafka, "g", "nyc")
    with SequencerThread(kafka, "g"):
        pass
    seqnos: dict[int, bytes] = {}
    at, is_over = 0, False
    with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka, outbox=tmp_path / "outbox") as a:
        while not is_over:
            texts = [b"%d %d" % (at, n) for n in range(BUSY_RECORDS + 3 if busy else 3)]
            if busy:
                kafka.topics.take_away(FORWARD)
            receipts = [a.broadcast(text, {"of": text}) for text in texts[:-2]]
            try:
                with interrupted(at):
                    a.broadcast_many([b"x"] * (1 + at % 2), {"of": b"x"})
                    is_over = at % 2 == 0
            except KeyboardInterrupt:
                time.sleep(0 if busy else 0.05)  # some of it may be ordered before the next call
            receipts += [a.broadcast(text, {"of": text}) for text in texts[-2:]]
            kafka.topics.bring_back(FORWARD)
            seqnos |= {receipt.result(WAIT): text for text, receipt in zip(texts, receipts, strict=True)}
            at += 1
        found = {each.seqno: (each.payload, each.headers) for each in a.deliveries(1, timeout=0.5)}
    assert at > 20
    assert len(seqnos) == at * len(texts)
    assert {seqno: found[seqno] for seqno in seqnos} == {n: (text, (("of", text),)) for n, text in seqnos.items()}
    assert {payload for seqno, (payload, _) in found.items() if seqno not in seqnos} == {b"x"}


@SOME_LINES
def test_a_connect_is_interrupted_anywhere(kafka: MemoryConnection, tmp_path: Path, stride: int) -> None:
    """The next call joins."""
    at, is_over = 0, False
    with SequencerThread(kafka, "g"):
        while not is_over:
            with a_member(kafka, tmp_path, at) as a:
                try:
                    with interrupted(at):
                        a.connect(timeout=WAIT)
                        is_over = True
                except KeyboardInterrupt:
                    a.connect(timeout=10)
            at += stride
    assert at > 20


@SOME_LINES
def test_a_flush_is_interrupted_anywhere(kafka: MemoryConnection, tmp_path: Path, stride: int) -> None:
    """A later call has a quiet point, as soon as the interrupted one is over."""
    at, is_over = 0, False
    with SequencerThread(kafka, "g"):
        change_settings(kafka, "g", "nyc", flush=True)
        while not is_over:
            with a_member(kafka, tmp_path, at) as a:
                a.connect(timeout=WAIT)
                quiet = a.flush(timeout=WAIT)
                try:
                    with interrupted(at):
                        quiet.__enter__()
                        is_over = True
                    quiet.__exit__(None, None, None)
                except KeyboardInterrupt:
                    eventually(lambda a=a: has_flushed(a), 5)  # type: ignore[misc]
            at += stride
    assert at > 20


@SOME_LINES
def test_a_letter_is_interrupted_anywhere(kafka: MemoryConnection, stride: int) -> None:
    """The receiver gets all others, each once and in their order."""
    at, is_over, sent = 0, False, list[bytes]()
    with Member("g", "nyc/a", connection=kafka) as a, Member("g", "nyc/b", connection=kafka) as b:
        while not is_over:
            texts = [b"%d %d" % (at, n) for n in range(4)]
            receipts = [a.send("nyc/b", text) for text in texts[:2]]
            try:
                with interrupted(at):
                    a.send("nyc/b", b"x")
                    is_over = True
            except KeyboardInterrupt:
                time.sleep(0.01 * (at % 3))  # some of it may be written before the next call
            receipts += [a.send("nyc/b", text) for text in texts[2:]]
            for receipt in receipts:
                receipt.result(WAIT)
            letters = a._sending.letters
            assert letters is not None
            letters.wait_written(WAIT)
            assert letters._bytes == 0
            sent += texts
            at += stride
        found = [letter.payload for letter in b.inbox(timeout=0.5)]
    assert at > 20
    assert [text for text in found if text != b"x"] == sent


@SOME_LINES
@pytest.mark.parametrize(("order", "joins"), [("fifo", False), ("fifo", True), ("causal", True), ("total", True)])
def test_a_cast_is_interrupted_anywhere(
    kafka: MemoryConnection, tmp_path: Path, order: Any, joins: bool, stride: int
) -> None:
    """The others come, each once and in their order. None waits for a resend."""
    cast: Any = order if order in CASTS else "fifo"
    at, is_over, rounds = 0, False, list[list[bytes]]()
    with SequencerThread(kafka, "g"):
        change_settings(kafka, "g", "nyc", flush=True)
        with Member("g", "nyc/a", connection=kafka, casts=True, outbox=tmp_path / "o", resend_after_s=600) as a:
            if joins:
                a.connect(timeout=WAIT)
            stream = a.deliveries(1, timeout=1)
            while not is_over:
                texts = [b"%d %d" % (at, n) for n in range(6)]
                receipts: list[Any] = [a.broadcast(text, order=cast) for text in texts[:2]]
                try:
                    with interrupted(at):
                        a.broadcast(b"x", order=order)
                        is_over = True
                except KeyboardInterrupt:
                    time.sleep(0.01 * (at % 3))  # some of it may be written before the next call
                receipts.append(a.broadcast(texts[2], order=cast))
                receipts += [a.broadcast(text) for text in texts[3:5]]
                receipts.append(a.broadcast(texts[5], order=cast))
                for receipt in receipts:
                    receipt.result(WAIT)
                rounds.append(texts)
                at += stride
            found = [each.payload for each in stream if each.payload != b"x"]
            the_caster = forwarder_of(a)._send_queue.caster
            assert the_caster is not None
            assert (the_caster.pending, the_caster._bytes, the_caster.waiting_totals) == (0, 0, 0)
    assert at > 20
    assert sorted(found) == sorted(text for texts in rounds for text in texts)
    for texts in rounds:
        casts = [text for text in found if text in texts and text not in texts[3:5]]
        assert casts == [*texts[:3], texts[5]]
        assert not joins or [text for text in found if text in texts[:5]] == texts[:5]


def test_no_call_takes_a_lock_that_ctrl_c_could_leave_taken(kafka: MemoryConnection) -> None:
    """`Condition.__enter__` of the library is in Python: Ctrl-C may end it when it has the lock."""
    takers = list[str]()
    enter = threading.Condition.__enter__.__code__

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        caller = frame.f_back
        if event == "call" and frame.f_code is enter and caller is not None:
            file = caller.f_code.co_filename
            if f"{os.sep}connectors{os.sep}client{os.sep}" in file:
                takers.append(f"{file}:{caller.f_lineno}")

    with SequencerThread(kafka, "g"):
        change_settings(kafka, "g", "nyc", flush=True)
        sys.setprofile(profile)
        try:
            with Member("g", "nyc/a", connection=kafka, casts=True, set_state=print) as a:
                joined = a.connect(timeout=WAIT)
                with a.flush(timeout=WAIT):
                    pass
                receipts: list[Any] = [a.send("nyc/a", b"letter"), *(a.broadcast(b"", order=each) for each in ORDERS)]  # type: ignore[call-overload]
                for receipt in receipts:
                    assert receipt.result(WAIT)
                receipts[0].add_done_callback(print)
                assert next(a.deliveries(joined.seqno, timeout=WAIT)).payload == b""
        finally:
            sys.setprofile(None)
    assert takers == []


def a_member(kafka: MemoryConnection, outboxes: Path, number: int) -> Member:
    outbox = outboxes / str(number)
    return Member("g", f"nyc/{number}", connection=kafka, outbox=outbox, resend_after_s=0.2)


def has_flushed(member: Member) -> bool:
    try:
        with member.flush(timeout=WAIT):
            return True
    except FlushFailed:
        return False
