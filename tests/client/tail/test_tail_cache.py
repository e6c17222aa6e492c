"""Keep the newest batches for their readers. In memory, without threads."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from connectors.client.tail import tail_cache as limits
from connectors.client.tail.tail_cache import TailBatch, TailCache
from connectors.kafka.log.effective import Effective

NEVER = threading.Event()


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> TailCache:
    """Return a cache that keeps 20 records for readers still to come, and 100 at most."""
    monkeypatch.setattr(limits, "KEPT_RECORDS", 20)
    monkeypatch.setattr(limits, "MAX_RECORDS", 100)
    monkeypatch.setattr(limits, "MAX_BYTES", 1_000)
    made = TailCache()
    made.open(0)
    return made


def holds(window: TailCache, offset: int) -> bool:
    found = window.batch_at(window, offset, 0)
    window.leave(window)
    return found is not None


def batch(start: int, size: int = 1) -> TailBatch:
    return TailBatch(start, start + 10, 1, cast(list[Effective], range(start, start + 10)), size)


def fill(window: TailCache, first: int, end: int, size: int = 1) -> None:
    for start in range(first, end, 10):
        window.add(batch(start, size), unless=NEVER)


def test_what_nobody_needs_goes(window: TailCache) -> None:
    fill(window, 0, 200)
    assert holds(window, 180)
    assert not holds(window, 179)


def test_what_the_slowest_has_not_read_stays(window: TailCache) -> None:
    slow, quick = object(), object()
    assert window.join(slow, 0)
    assert window.join(quick, 0)
    fill(window, 0, 70)
    assert window.batch_at(quick, 69, 0) == batch(60)
    assert window.batch_at(slow, 10, 0) == batch(10)
    fill(window, 70, 80)
    assert holds(window, 10)
    assert not holds(window, 9)
    window.leave(slow)
    fill(window, 80, 90)
    assert holds(window, 69)
    assert not holds(window, 59)


def test_who_is_too_slow_falls_out(window: TailCache) -> None:
    slow = object()
    window.join(slow, 0)
    fill(window, 0, 100)
    assert window.batch_at(slow, 0, 0) is not None
    fill(window, 100, 110)
    assert window.batch_at(slow, 0, 0) is None
    assert window.batch_at(slow, 10, 0) is not None


def test_what_comes_stays_for_who_is_near(window: TailCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NEAR_RECORDS", 60)
    fill(window, 0, 100)
    far, near = object(), object()
    assert not window.approach(far, 39)
    assert not window.approach(near, 40)
    fill(window, 100, 150)
    assert window.approach(near, 80)
    assert window.join(near, 80)
    assert not holds(window, 79)


def test_its_bytes_are_bounded(window: TailCache) -> None:
    slow = object()
    window.join(slow, 0)
    fill(window, 0, 40, size=300)
    assert not holds(window, 9)
    assert holds(window, 10)


def test_who_joins_hears_whether_it_can_follow(window: TailCache) -> None:
    fill(window, 0, 200)
    assert not window.join(object(), 100)
    assert window.join(object(), 200)
    window.close()
    assert not window.join(object(), 200)
