"""Remember an application's position."""

from __future__ import annotations

import logging

import pytest

from connectors.client.memory.bookmark import Bookmark, PositionMark
from ordering.base.errors import BrokerUnreachable


def test_a_broker_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each outage is told of once. The next commit that succeeds covers the failed ones."""
    committed: list[int] = []

    def remember(number: int, _: int) -> None:
        if number != 3:
            raise BrokerUnreachable("no broker")
        committed.append(number)

    bookmark = Bookmark("nyc/bob")
    bookmark.begin(PositionMark(0, 0), 0, remember)
    with caplog.at_level(logging.WARNING):
        for number in (1, 2, 3, 4, 5):
            bookmark.hand_out(number, number)
            bookmark.take()
            bookmark.commit()
    assert committed == [3]
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [1, 4]
