"""An outbox without room for a record: a refused call can be repeated, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connectors.client.memory.outbox import Outbox
from connectors.testing import MemoryGroup
from ordering.base.errors import EnvironmentProblem
from ordering.base.records import JOIN, START_FLUSH, Headers
from ordering.participant.forward_table import Pending, is_control, kind_of
from tests.waiting import eventually


class Disk:
    """Refuses control records of one kind, or the writes at the end of an incarnation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = ""
        self.refuses_the_end = False
        append, acknowledge = Outbox.append, Outbox.acknowledge

        def append_if_there_is_room(outbox: Outbox, first: int, payloads: Sequence[bytes], headers: Headers) -> None:
            entry = Pending(first, payloads[0], headers)
            if is_control(entry) and kind_of(entry) == self.refused:
                raise EnvironmentProblem("the disk is full.")
            append(outbox, first, payloads, headers)

        def acknowledge_if_there_is_room(
            outbox: Outbox, local_seqno: int, seqno: int | None, at_once: bool = False
        ) -> None:
            if at_once and self.refuses_the_end:
                raise EnvironmentProblem("the disk is full.")
            acknowledge(outbox, local_seqno, seqno, at_once)

        monkeypatch.setattr(Outbox, "append", append_if_there_is_room)
        monkeypatch.setattr(Outbox, "acknowledge", acknowledge_if_there_is_room)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with MemoryGroup(site="nyc") as running:
        yield running


def test_a_join_is_asked_for_again(group: MemoryGroup, disk: Disk, tmp_path: Path) -> None:
    member = group.member("a", outbox=tmp_path / "a")
    disk.refused = JOIN
    with pytest.raises(EnvironmentProblem):
        member.connect(timeout=60)
    disk.refused = ""
    assert member.connect(timeout=60).members == ("nyc/a",)


def test_a_flush_is_asked_for_again(group: MemoryGroup, disk: Disk, tmp_path: Path) -> None:
    member = group.member("a", outbox=tmp_path / "a")
    member.connect(timeout=60)
    disk.refused = START_FLUSH
    with pytest.raises(EnvironmentProblem), member.flush(timeout=60):
        pass
    disk.refused = ""
    with member.flush(timeout=60):
        pass
    assert member.broadcast(b"x").result(10)


@pytest.mark.slow
def test_a_close_leaves_nothing_behind(group: MemoryGroup, disk: Disk, tmp_path: Path) -> None:
    """Ordered messages that could not be deleted stay in the file; the next start knows that they are ordered."""
    before = set(threading.enumerate())
    member = group.member("a", outbox=tmp_path / "a")
    member.broadcast(b"x").result(10)
    disk.refuses_the_end = True
    member.close(timeout=60)
    assert set(threading.enumerate()) <= before
    disk.refuses_the_end = False
    again = group.member("a", outbox=tmp_path / "a")
    again.broadcast(b"y").result(10)
    reader = group.member("reader")
    payloads = [delivery.payload for delivery in reader.deliveries(from_seqno=1, timeout=0.5)]
    assert payloads == [b"x", b"y"]


@pytest.mark.slow
def test_a_member_that_has_failed_falls_silent(
    group: MemoryGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other members suspect it, instead of waiting for it in each flush."""
    member = group.member("a", outbox=tmp_path / "a")
    member.connect(timeout=60)

    def fail(*_: object, **__: object) -> None:
        raise EnvironmentProblem("the disk is gone.")

    monkeypatch.setattr(Outbox, "acknowledge", fail)
    member.broadcast(b"x")
    forwarder = member._sending.forwarder
    assert forwarder is not None
    eventually(lambda: forwarder not in member._shared.heartbeats(member.group, "nyc")._beating)
    monkeypatch.undo()
    with pytest.raises(EnvironmentProblem):
        member.close(timeout=1)
