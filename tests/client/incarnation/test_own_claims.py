"""A member with an outbox tells its own earlier claims from another process's. In memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors import Member
from connectors.client.memory.committed_offsets import CommittedOffsets
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import Superseded
from tests.client.incarnation.test_forgotten import ALICE, forget
from tests.waiting import WAIT, eventually

CLAIMS = pytest.mark.parametrize("casts", [False, True], ids=["letter", "casts"])
"""Reasons for a run that continues the outbox's incarnation to claim another number."""


class Killed(Exception):
    """The process is over."""


@pytest.fixture
def kafka(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a Kafka with group g, which forgets an incarnation as soon as it has begun."""
    monkeypatch.setattr("ordering.membership.forgetting.CLOCK_AHEAD_MS", -86_400_000)
    return kafka


def run(kafka: MemoryConnection, outbox: Path, *, casts: bool) -> Member:
    """Return a member that has claimed a number for its casts, or for a letter."""
    member = Member("g", ALICE, connection=kafka, outbox=outbox, casts=casts)
    if not casts:
        member.send("nyc/bob", b"letter").result(WAIT)
    return member


@pytest.mark.slow
@CLAIMS
def test_a_later_run_takes_a_new_incarnation(kafka: MemoryConnection, tmp_path: Path, casts: bool) -> None:
    """The third run continues the incarnation, and has claimed nothing, when the group forgets it."""
    with SequencerThread(kafka, "g"):
        for _ in range(2):
            with run(kafka, tmp_path / "o", casts=casts) as alice:
                alice.broadcast(b"1").result(WAIT)
        with Member("g", ALICE, connection=kafka, outbox=tmp_path / "o") as alice:
            alice.broadcast(b"2").result(WAIT)
            before = alice.incarnation
            assert forget(kafka, "g").forgotten == [ALICE]
            eventually(lambda: alice.incarnation != before, WAIT)
            alice.broadcast(b"3").result(WAIT)


@pytest.mark.slow
@CLAIMS
def test_a_later_run_sends_the_messages_left(kafka: MemoryConnection, tmp_path: Path, casts: bool) -> None:
    """The group has forgotten the incarnation in the meantime."""
    leave(kafka, tmp_path / "o", casts=casts)
    assert found(kafka, tmp_path / "o") == [b"1", b"2"]


@pytest.mark.parametrize("is_backup", [False, True])
def test_a_run_is_killed_right_after_its_claim(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_backup: bool
) -> None:
    """The next run takes the number for its own; with a backup of the file, for another process's."""
    outbox = tmp_path / "o"
    leave(kafka, outbox, casts=False)
    backup = outbox.read_bytes()
    really = CommittedOffsets.commit

    def commit(self: CommittedOffsets, *args: object) -> None:
        really(self, *args)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CommittedOffsets, "commit", commit)
        with pytest.raises(Killed):
            Member("g", ALICE, connection=kafka, outbox=outbox)
    if is_backup:
        outbox.write_bytes(backup)
        with pytest.raises(Superseded, match="1 message, which a later start may have sent"):
            Member("g", ALICE, connection=kafka, outbox=outbox)
    else:
        assert found(kafka, outbox) == [b"1", b"2"]


def leave(kafka: MemoryConnection, outbox: Path, *, casts: bool) -> None:
    """Leave a message in the outbox of a member that has claimed a number and is forgotten."""
    with SequencerThread(kafka, "g", drop=lambda record: record.payload == b"2"):
        with Member("g", ALICE, connection=kafka, outbox=outbox) as alice:
            alice.broadcast(b"1").result(WAIT)
        alice = run(kafka, outbox, casts=casts)
        alice.broadcast(b"2")
        alice.close(timeout=0)
        assert forget(kafka, "g").forgotten == [ALICE]


def found(kafka: MemoryConnection, outbox: Path) -> list[bytes]:
    """Return all messages in the order when the outbox has none left."""
    with SequencerThread(kafka, "g"), Member("g", ALICE, connection=kafka, outbox=outbox) as alice:
        alice.wait_ordered(WAIT)
        return [each.payload for each in alice.deliveries(1, timeout=0.1)]
