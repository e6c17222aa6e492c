"""Messages by columns equal the records that they were made from, in every way of asking."""

from __future__ import annotations

import pytest

from connectors.kafka.log.effective import Effective, MessageColumns, Messages
from ordering.base.records import MESSAGE

RECORDS = [
    Effective(n, n + 10, MESSAGE, b"nyc/%d" % n, n + 20, n + 30, n + 40, n + 50, n + 60, (("h", b"%d" % n),), b"v", n)
    for n in range(5)
]
MESSAGES = Messages(MessageColumns(*map(list, zip(*((*each[:2], *each[3:]) for each in RECORDS), strict=True))))


def test_all_one_and_some() -> None:
    assert list(MESSAGES) == RECORDS
    assert [MESSAGES[index] for index in range(-5, 5)] == [*RECORDS, *RECORDS]
    assert list(MESSAGES.at([0, 3])) == [RECORDS[0], RECORDS[3]]
    assert list(MESSAGES.at([])) == []
    assert list(MESSAGES[1:3]) == RECORDS[1:3]
    with pytest.raises(IndexError):
        MESSAGES[5]
