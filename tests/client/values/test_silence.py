"""Decide when a reader may stop waiting."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.client.deliveries import deliveries
from connectors.client.values.silence import Silence
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Address


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("connectors.client.values.silence.time.monotonic", lambda: clock.now)
    return clock


def is_over(silence: Silence, clock: Clock, at: float) -> bool:
    clock.now = at
    return silence.is_over


def test_it_counts_from_when_all_that_stood_there_was_read(clock: Clock) -> None:
    silence = Silence(1.0, patience=10.0)
    silence.expect(100)
    silence.expect(200)  # a later expectation does not count
    assert not is_over(silence, clock, 9.0)
    silence.read_up_to(99)
    assert not is_over(silence, clock, 18.0), "it moved"
    silence.read_up_to(100)
    assert not is_over(silence, clock, 18.9)
    silence.read_up_to(150)
    assert is_over(silence, clock, 19.0), "records that are nothing for the application do not break it"
    silence.broken(clock.now)
    assert not is_over(silence, clock, 19.9)


def test_it_counts_from_when_reading_begins(clock: Clock) -> None:
    """The silence counts from the first read: not from a generator's creation, nor from the question for the
    position.
    """
    silence = Silence(1.0, patience=10.0)
    clock.now = 60.0
    silence.expect(0)
    assert not is_over(silence, clock, 60.9)
    assert is_over(silence, clock, 61.0)


def test_a_log_that_gives_nothing_ends_it_too(clock: Clock) -> None:
    silence = Silence(1.0, patience=10.0)
    silence.expect(100)
    silence.read_up_to(50)
    assert is_over(silence, clock, 10.0)


def test_a_limit_of_0_gives_all_that_is_there(clock: Clock) -> None:
    silence = Silence(0, patience=10.0)
    silence.expect(1)
    assert not is_over(silence, clock, 0.0)
    silence.read_up_to(1)
    assert is_over(silence, clock, 0.0)


def test_no_limit(clock: Clock) -> None:
    assert not is_over(Silence(None, patience=10.0), clock, 1e9)


def test_what_kafka_took_to_say_no_is_no_silence_of_the_ledger(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is read to its end, although its first rows have nothing for the application."""
    rows = {1: [[(1, 1, None)], [(2, 2, None)]]}
    monkeypatch.setattr(deliveries, "read_ledger", lambda _ledger, _group, first, _events: iter(rows.get(first, [])))

    def after(_seqno: int, **_: bool) -> None:
        clock.now += 60.0
        raise HistoryUnavailable("retention has dropped it.")

    connection: Any = SimpleNamespace(timeout=10.0)
    shared = SimpleNamespace(tailer=lambda *_: SimpleNamespace(after=after))
    memory: Any = SimpleNamespace(shared=shared, taken=lambda: 0, remember_taken=lambda *_: None)
    run = deliveries.Deliveries(connection, "g", Address("nyc", "bob"), 1, 1.0, Path("ledger"))
    with pytest.raises(HistoryUnavailable, match="seqno 3 is neither in Kafka"):
        list(run._items(memory))
