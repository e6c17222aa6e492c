"""Keep the newest batches for their readers. In memory, without threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from connectors.client.tail import tail_cache as limits
from connectors.client.tail.tail_cache import TailBatch, TailCache
from connectors.kafka.log.effective import Effective

NEVER = threading.Event()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> TailCache:
    """Return a cache that keeps 20 records for readers still to come, and 100 at most."""
    monkeypatch.setattr(limits, "KEPT_RECORDS", 20)
    monkeypatch.setattr(limits, "MAX_RECORDS", 100)
    monkeypatch.setattr(limits, "MAX_BYTES", 1_000)
    made = TailCache()
    made.open(0, 0)
    return made


def holds(cache: TailCache, offset: int) -> bool:
    found = cache.batch_at(cache, offset, 0)
    cache.leave(cache)
    return found is not None


def batch(start: int, size: int = 1) -> TailBatch:
    records = [SimpleNamespace(seqno=number) for number in range(start, start + 10)]
    return TailBatch(start, start + 10, start - 1, 1, cast(list[Effective], records), size)


def fill(cache: TailCache, first: int, end: int, size: int = 1) -> None:
    for start in range(first, end, 10):
        cache.add(batch(start, size), unless=NEVER)


def test_what_nobody_needs_goes(cache: TailCache) -> None:
    fill(cache, 0, 200)
    assert holds(cache, 180)
    assert not holds(cache, 179)


def test_what_the_slowest_has_not_read_stays(cache: TailCache) -> None:
    slow, quick = object(), object()
    assert cache.join(slow, 0, 0)
    assert cache.join(quick, 0, 0)
    fill(cache, 0, 70)
    assert cache.batch_at(quick, 69, 0) == batch(60)
    assert cache.batch_at(slow, 10, 0) == batch(10)
    fill(cache, 70, 80)
    assert holds(cache, 10)
    assert not holds(cache, 9)
    cache.leave(slow)
    fill(cache, 80, 90)
    assert holds(cache, 69)
    assert not holds(cache, 59)


def test_who_is_too_slow_falls_out(cache: TailCache) -> None:
    slow = object()
    cache.join(slow, 0, 0)
    fill(cache, 0, 100)
    assert cache.batch_at(slow, 0, 0) is not None
    fill(cache, 100, 110)
    assert cache.batch_at(slow, 0, 0) is None
    assert cache.batch_at(slow, 10, 0) is not None


def test_what_comes_stays_for_who_is_near(cache: TailCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NEAR_RECORDS", 60)
    fill(cache, 0, 100)
    far, near = object(), object()
    assert not cache.approach(far, 39, 39)
    assert not cache.approach(near, 40, 40)
    fill(cache, 100, 150)
    assert cache.approach(near, 80, 80)
    assert cache.join(near, 80, 80)
    assert not holds(cache, 79)


def test_its_bytes_are_bounded(cache: TailCache) -> None:
    slow = object()
    cache.join(slow, 0, 0)
    fill(cache, 0, 40, size=300)
    assert not holds(cache, 9)
    assert holds(cache, 10)


def test_who_joins_hears_whether_it_can_follow(cache: TailCache) -> None:
    fill(cache, 0, 200)
    assert not cache.join(object(), 100, 100)
    assert cache.join(object(), 200, 200)
    cache.close()
    assert not cache.join(object(), 200, 200)


def test_within_a_pack_it_begins_behind_a_seqno(cache: TailCache) -> None:
    """A reader at the same offset that lacks earlier messages of that pack reads it from Kafka first."""
    cache.close()
    cache.open(100, behind=9)
    early, late = object(), object()
    assert not cache.approach(early, 100, 4)
    assert not cache.join(early, 100, 4)
    assert cache.join(late, 100, 9)
    cache.add(batch(100)._replace(behind=9), unless=NEVER)
    assert cache.join(early, 101, 14)


def test_a_reader_of_repeats_that_the_cache_leaves_out_does_not_join(cache: TailCache) -> None:
    """A relay began its copy again. The reader's place is among the repeats, and it lacks some of what they repeat."""
    fill(cache, 0, 20)
    cache.add(TailBatch(20, 40, 19, 1, (), 0), unless=NEVER)
    for offset in (20, 30, 39, 40, 41):
        assert not cache.approach(object(), offset, 18)
        assert not cache.join(object(), offset, 18)
        assert cache.join(object(), offset, 19)
