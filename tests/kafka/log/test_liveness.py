"""Find out once, for all callers, why a message is not ordered."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log import liveness
from ordering.base.errors import BrokerUnreachable
from tests.waiting import WAIT, eventually


def test_an_outage_takes_one_look_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts of all members that end during the search share its result. Later ones search anew."""
    looked: list[str] = []
    may_end = threading.Event()

    class Log:
        def __init__(self, _connection: Connection, group: str, _site: str) -> None:
            looked.append(group)
            assert may_end.wait(WAIT)
            raise BrokerUnreachable("nobody answers.")

    monkeypatch.setattr(liveness, "DataLog", Log)
    members = [Connection("kafka:1").named(f"m{number}") for number in range(10)]
    with ThreadPoolExecutor(len(members)) as askers:
        for _ in range(3):
            asked = [askers.submit(liveness.say_why, each, "g", "local", 0.01) for each in members]
            assert [each.result(WAIT) for each in asked] == [""] * len(members)
        other = askers.submit(liveness.say_why, members[0], "h", "local", 0.01)
        assert other.result(WAIT) == ""
    eventually(lambda: len(looked) == 2)
    assert looked == ["g", "h"]
    may_end.set()
    eventually(lambda: not liveness._looks)
    assert liveness.say_why(members[0], "g", "local", WAIT) == ""
    assert looked == ["g", "h", "g"]
