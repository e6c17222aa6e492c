"""When a reader may stop waiting."""

from __future__ import annotations

import pytest

from connectors import silence as module
from connectors.silence import Silence


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_it_counts_from_when_all_that_stood_there_was_read(clock: list[float]) -> None:
    silence = Silence(1.0, patience=10.0)
    silence.expect(100)
    silence.expect(200)  # what comes later does not count
    clock[0] = 9.0
    assert not silence.is_over
    silence.read_up_to(99)
    clock[0] = 18.0
    assert not silence.is_over, "it moved"
    silence.read_up_to(100)
    assert not silence.is_over
    clock[0] = 18.9
    silence.read_up_to(150)
    clock[0] = 19.0
    assert silence.is_over, "records that are nothing for the application do not break it"
    silence.broken()
    clock[0] = 19.9
    assert not silence.is_over


def test_a_log_that_gives_nothing_ends_it_too(clock: list[float]) -> None:
    silence = Silence(1.0, patience=10.0)
    silence.expect(100)
    silence.read_up_to(50)
    clock[0] = 10.0
    assert silence.is_over


def test_a_limit_of_0_gives_all_that_is_there(clock: list[float]) -> None:
    silence = Silence(0, patience=10.0)
    silence.expect(1)
    assert not silence.is_over
    silence.read_up_to(1)
    assert silence.is_over


def test_no_limit(clock: list[float]) -> None:
    silence = Silence(None, patience=10.0)
    clock[0] = 1e9
    assert not silence.is_over
