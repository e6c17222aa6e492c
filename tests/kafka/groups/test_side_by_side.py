"""Ask about many groups side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial

import pytest
from kafka.errors import LeaderNotAvailableError, MessageSizeTooLargeError

from connectors.kafka.groups.side_by_side import GROUPS_AT_ONCE, SideBySide
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    EnvironmentProblem,
    HistoryUnavailable,
    KafkaRefused,
    ProtocolViolation,
)


def ask_all(groups: Iterable[str], ask: Callable[[str], int]) -> dict[str, int | AbcastError]:
    found: dict[str, int | AbcastError] = {}
    with closing(SideBySide[int](MemoryConnection())) as asking:
        for group in groups:
            asking.ask(group, partial(_without_consumer, ask, group))
        while asking.is_waiting:
            found |= asking.answers(10)
    return found


def _without_consumer(ask: Callable[[str], int], group: str, _: object) -> int:
    return ask(group)


def test_an_error_has_the_groups_name() -> None:
    together = threading.Barrier(5, timeout=60)
    errors = {
        "g-1": HistoryUnavailable("retention has dropped it."),
        "g-2": LeaderNotAvailableError(),
        "g-3": MessageSizeTooLargeError(),
        "g-4": ValueError("no JSON"),
    }

    def ask(group: str) -> int:
        together.wait()
        if group in errors:
            raise errors[group]
        return len(group)

    found = ask_all([*errors, "fine"], ask)
    assert found.pop("fine") == 4
    assert {group: type(error) for group, error in found.items()} == {
        "g-1": HistoryUnavailable,
        "g-2": BrokerUnreachable,
        "g-3": KafkaRefused,
        "g-4": ProtocolViolation,
    }
    assert all(f"group {group}: " in str(error) for group, error in found.items())


def test_what_is_wrong_with_the_job_ends_the_asking() -> None:
    """A claim takes a group from another sequencer: no further group is claimed once this start must fail."""
    asked: list[str] = []

    def ask(group: str) -> int:
        asked.append(group)
        if group == "1":
            raise EnvironmentProblem("the disk is full.")
        time.sleep(0.05)
        return 0

    with pytest.raises(EnvironmentProblem, match="full"):
        ask_all([str(number) for number in range(100 * GROUPS_AT_ONCE)], ask)
    assert len(asked) < 50 * GROUPS_AT_ONCE
