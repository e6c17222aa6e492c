"""Ctrl-C in the middle of a broadcast, or a signal handler that raises. The application goes on with the member."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from connectors import Member
from connectors.client.incarnation import pending_messages, send_queue
from connectors.client.memory import outbox
from connectors.client.tail.go_back_n import BUSY_RECORDS
from connectors.kafka.topics.upgrade import upgrade
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.participant import forward_table
from tests.waiting import WAIT

FILES = {module.__file__ for module in (pending_messages, send_queue, outbox, forward_table)}
FORWARD = "abcast.g.forward.nyc"


@contextmanager
def interrupted(at: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at a line that this thread runs in the files, the `at`-th one."""
    lines = iter(range(at))

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and next(lines, None) is None:
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
                pass
            receipts += [a.broadcast(text, {"of": text}) for text in texts[-2:]]
            kafka.topics.bring_back(FORWARD)
            seqnos |= {receipt.result(WAIT): text for text, receipt in zip(texts, receipts, strict=True)}
            at += 1
        found = {each.seqno: (each.payload, each.headers) for each in a.deliveries(1, timeout=0.5)}
    assert at > 20
    assert len(seqnos) == at * len(texts)
    assert {seqno: found[seqno] for seqno in seqnos} == {n: (text, (("of", text),)) for n, text in seqnos.items()}
    assert {payload for seqno, (payload, _) in found.items() if seqno not in seqnos} == {b"x"}
