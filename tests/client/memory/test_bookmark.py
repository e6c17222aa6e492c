"""Remember an application's position."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from connectors.client.memory import bookmark as tested
from connectors.client.memory.bookmark import COMMIT_EVERY_S, Bookmark, PositionMark
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


@pytest.mark.parametrize("fails", [False, True], ids=["slow", "failing"])
@pytest.mark.parametrize("takes_s", [0.0, 2.0, 30.0])
def test_the_application_goes_on_between_commits(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, *, fails: bool
) -> None:
    """A commit that takes longer than COMMIT_EVERY_S is no reason to commit after each item."""
    now, begun, ended = 0.0, list[float](), list[float]()

    def remember(*_: int) -> None:
        nonlocal now
        begun.append(now)
        now += takes_s
        ended.append(now)
        if fails:
            raise BrokerUnreachable("no broker")

    monkeypatch.setattr(tested, "time", SimpleNamespace(monotonic=lambda: now))
    bookmark = Bookmark("nyc/bob")
    bookmark.begin(PositionMark(0, 0), 0, remember)
    for number in range(1, 10_000):
        bookmark.hand_out(number, number)
        bookmark.take()
        now += 0.01
        bookmark.commit_if_due()
    pauses = [later - earlier for earlier, later in zip(ended, begun[1:], strict=False)]
    assert pauses == pytest.approx([max(COMMIT_EVERY_S, takes_s) if fails else COMMIT_EVERY_S] * len(pauses), abs=0.02)
    assert len(pauses) > 1
