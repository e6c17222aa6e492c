"""Readings that all askers share."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.diagnosis.shared_reading import SharedReading
from ordering.base.errors import BrokerUnreachable
from tests.waiting import WAIT


@pytest.mark.slow
def test_askers_share_a_reading() -> None:
    """Sixteen askers at a time cause one reading; a later one causes the next, once that is too old for it."""
    numbers = itertools.count(1)

    def read() -> int:
        time.sleep(0.2)
        return next(numbers)

    shared = SharedReading(read)
    with ThreadPoolExecutor(16) as askers:
        asked = [askers.submit(shared.ask, 60.0, WAIT) for _ in range(16)]
    assert {reading.value for each in asked if (reading := each.result())} == {1}
    assert (again := shared.ask(60.0, WAIT)) is not None
    assert again.value == 1
    assert again.age_s >= 0.2  # by the beginning of the reading
    assert (newer := shared.ask(0.0, WAIT)) is not None
    assert newer.value == 2


def test_a_reading_under_way_may_be_too_old() -> None:
    """An asker who comes late to a reading gets the next one."""
    numbers, may_end = itertools.count(1), threading.Event()

    def read() -> int:
        number = next(numbers)
        if number == 1:
            assert may_end.wait(WAIT)
        return number

    shared = SharedReading(read)
    assert shared.ask(0.0, 0.05) is None
    with ThreadPoolExecutor(1) as asker:
        late = asker.submit(shared.ask, 0.0, WAIT)
        time.sleep(0.1)
        may_end.set()
        assert (reading := late.result()) is not None
    assert reading.value == 2


def test_a_reading_that_takes_long() -> None:
    """Askers wait no longer than they said, and get the last one; the end waits for it, and reads no more."""
    may_end, is_first = threading.Event(), True

    def read() -> str:
        nonlocal is_first
        if is_first:
            is_first = False
            return "old"
        assert may_end.wait(WAIT)
        raise BrokerUnreachable("no broker answers.")

    shared = SharedReading(read)
    assert (first := shared.ask(0.0, WAIT)) is not None
    assert shared.ask(0.0, 0.05) == first
    may_end.set()
    shared.close(WAIT)
    last = shared.ask(0.0, WAIT)
    assert last is not None
    assert (last.value, last.error) == (None, "no broker answers.")


@pytest.mark.slow
def test_a_costly_reading_serves_those_who_waited_for_it() -> None:
    """Its own cost counts for them, not that of the cheap one before."""
    numbers, may_end = itertools.count(1), threading.Event()

    def read() -> int:
        number = next(numbers)
        if number == 2:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            assert may_end.wait(WAIT)
        return number

    shared = SharedReading(read)
    shared.ask(0.0, WAIT)
    with ThreadPoolExecutor(2) as askers:
        first = askers.submit(shared.ask, 0.0, WAIT)
        time.sleep(0.3)
        late = askers.submit(shared.ask, 0.0, WAIT, 0.001)
        time.sleep(0.1)
        may_end.set()
        assert [reading.value for each in (first, late) if (reading := each.result())] == [2, 2]
