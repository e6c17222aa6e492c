"""Operators that ask at the same time: each request is done, or its operator is told that it is not. In memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connectors.client.api.member import Member
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.sending import append
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.operators import _next_incarnation
from connectors.kafka.topics.senders import forget_senders, known_senders
from connectors.kafka.topics.settings import change_settings
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable, UsageError
from ordering.base.records import FORGET, SETTINGS
from ordering.membership.forgetting import SenderRow, to_payload
from tests.waiting import eventually

GROUP, SITE, ALICE = "g", "nyc", "nyc/alice"
ADMIN = f"{SITE}/abcast.admin"
FLUSH = b'{"flush":true}'


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create(GROUP, SITE)
    return connection


@pytest.fixture
def sequencer(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> Iterator[SequencerThread]:
    """Yield the sequencer of a group with a floor: a sender that may just have begun was forgotten."""
    monkeypatch.setattr("ordering.membership.forgetting.CLOCK_AHEAD_MS", -86_400_000)
    with SequencerThread(kafka, GROUP, SITE) as sequencer:
        with Member(GROUP, ALICE, connection=kafka) as alice:
            alice.broadcast(b"x").result(10)
        [row] = [sender.row for sender in known_senders(kafka, GROUP, SITE)]
        assert forget_senders(kafka, GROUP, SITE, [row]).forgotten == [ALICE]
        yield sequencer


class Other:
    """Another operator that takes the same incarnation, or a higher one, and is always first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, above: int, kind: str, payload: bytes) -> None:
        self.times, self.above, self.kind, self.payload = times, above, kind, payload
        monkeypatch.setattr("connectors.kafka.topics.operators.append", self.append)

    def append(self, connection: Any, topic: str, record: Any, **where: Any) -> None:
        if self.times:
            self.times -= 1
            incarnation = int(record[2][0][1].split()[2]) + self.above
            headers = forward_headers(incarnation, 1, kind=self.kind)
            append(connection, topic, (record[0], self.payload, headers), **where)
        append(connection, topic, record, **where)


@pytest.mark.parametrize("above", [0, 1])
@pytest.mark.parametrize(
    ("kind", "payload"), [(SETTINGS, FLUSH), (FORGET, to_payload([SenderRow(ALICE, 1, 1)]))], ids=["settings", "forget"]
)
def test_settings_hold_although_another_was_first(
    kafka: MemoryConnection,
    sequencer: SequencerThread,
    monkeypatch: pytest.MonkeyPatch,
    above: int,
    kind: str,
    payload: bytes,
) -> None:
    Other(monkeypatch, 2, above, kind, payload)
    assert change_settings(kafka, GROUP, SITE, closed=True)
    settings = sequencer.state.membership.settings
    assert (settings.closed, settings.flush) == (True, kind == SETTINGS)


def test_a_sender_is_forgotten_although_another_was_first(
    kafka: MemoryConnection, sequencer: SequencerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Member(GROUP, "nyc/bob", connection=kafka) as bob:
        bob.broadcast(b"x").result(10)
    [row] = [sender.row for sender in known_senders(kafka, GROUP, SITE)]
    Other(monkeypatch, 1, 0, SETTINGS, FLUSH)
    assert forget_senders(kafka, GROUP, SITE, [row]).forgotten == ["nyc/bob"]
    assert sequencer.state.membership.settings.flush


@pytest.mark.slow
@pytest.mark.usefixtures("sequencer")
def test_who_never_comes_first_is_told_in_a_sentence(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    Other(monkeypatch, 1_000, 0, SETTINGS, FLUSH)
    with pytest.raises(UsageError, match="others ask at the same time"):
        change_settings(kafka, GROUP, SITE, closed=True)


def test_two_who_read_the_same_take_different_lives(kafka: MemoryConnection, sequencer: SequencerThread) -> None:
    """Also after senders were forgotten, when the floor is a recent time."""
    with DataLog(kafka, GROUP, SITE) as data:
        taken = [_next_incarnation(data, ADMIN)[0] for _ in range(5)]
    assert len(set(taken)) > 1
    assert min(taken) > max(sequencer.state.received[ADMIN].incarnation, sequencer.state.membership.incarnation_floor)


def test_one_is_heard_where_data_is_emptied(
    kafka: MemoryConnection, sequencer: SequencerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a state, neither the operators' row nor the floor is known: the new time is above both."""

    assert change_settings(kafka, GROUP, SITE, suspect_after_ms=9_999), "a row of that time"

    def state(_: DataLog) -> None:
        raise HistoryUnavailable("retention has dropped it.")

    with monkeypatch.context() as patched:
        patched.setattr(DataLog, "state", state)
        assert not change_settings(kafka, GROUP, SITE, closed=True)
    eventually(lambda: sequencer.state.membership.settings.closed)
