"""Each broken order in a delivery log has its name, and an order that holds has none."""

from __future__ import annotations

import json

import pytest

from connectors.diagnosis.check import check_deliveries
from ordering.cast_checker import CastChecker
from ordering.casts import CAUSAL, Cast, Depends
from ordering.checker import Checker
from ordering.errors import UsageError
from ordering.membership import Life

A, B = Life("s/a", 1), Life("s/b", 1)
TOTAL_7 = "total"
CASTS = {
    "a1": Cast(*A, 1, order=CAUSAL, view=3, after=6, clock="0"),
    "a2": Cast(*A, 2, view=3),
    "b1": Cast(*B, 1, order=CAUSAL, view=3, after=6, clock="1"),
    "b2": Cast(*B, 2, order=CAUSAL, view=3, after=7, clock="+0"),  # one more of a
    "x1": Cast(*A, 1),
    "x2": Cast(*A, 2),
}


def anomalies(*deliveries: str) -> list[str]:
    """What the checker says of a member that has delivered these."""
    checker = CastChecker()
    checker.view(3, (A, B))
    checker.total(7, Depends(3, "1,1"))
    for cast in reversed(CASTS.values()):  # partitions come in any order
        checker.cast(cast)
    for name in deliveries:
        if name.isdigit():
            checker.delivered_total("m", int(name))
        else:
            cast = CASTS[name]
            checker.delivered_cast("m", cast.life, cast.local_seqno, cast.view)
    return [anomaly.name for anomaly in checker.finish()]


@pytest.mark.parametrize(
    "deliveries",
    ["6 a1 b1 7 a2 b2", "6 a1 b1 a2 7 b2", "x1 6 a1 x2 b1 7 a2 b2", "7 b2", "a2 b2", "x2"],
)
def test_orders_that_hold(deliveries: str) -> None:
    """Whatever is missing: who joins late begins late."""
    assert anomalies(*deliveries.split()) == []


@pytest.mark.parametrize(
    ("deliveries", "name"),
    [
        ("6 b1 a1", "causal-violation"),
        ("a1 b1 6", "causal-violation"),
        ("6 7 a1", "causal-violation"),
        ("6 a1 b1 b2 7", "causal-violation"),
        ("6 a1 b1 7 b2 a2", "causal-violation"),
        ("x2 x1", "fifo-violation"),
        ("6 a2 a1", "fifo-violation"),
        ("6 a1 a1", "duplicate"),
    ],
)
def test_orders_that_are_broken(deliveries: str, name: str) -> None:
    assert name in anomalies(*deliveries.split())


def test_a_hole_in_a_view_is_a_gap() -> None:
    checker = CastChecker()
    checker.delivered_cast("m", A, 1, 3)
    checker.delivered_cast("m", A, 3, 3)
    checker.delivered_cast("m", A, 7, 4)
    [anomaly] = checker.finish()
    assert (anomaly.name, "s/a#1.3" in anomaly.detail) == ("gap", True)


@pytest.mark.parametrize(("between", "found"), [((), []), ((A,), ["duplicate", "fifo-violation"])])
def test_who_was_in_no_view_counts_anew(between: tuple[Life, ...], found: list[str]) -> None:
    """The group gave up flush for a while: its view had no vector."""
    checker = CastChecker()
    for view, lives in ((3, (A,)), (4, between), (5, (A,))):
        checker.view(view, lives)
    for view in (3, 5):
        for number in (1, 2):
            checker.cast(Cast(*A, number, order=CAUSAL, view=view, clock="0"))
            checker.delivered_cast("m", A, number, view)
    assert [anomaly.name for anomaly in checker.finish()] == found


def test_a_line_without_numbers_is_no_delivery() -> None:
    line = {"order": "fifo", "sender": "s/a", "incarnation": 1, "local_seqno": "1", "payload": ""}
    with pytest.raises(UsageError, match="line 1 of log is not what"):
        check_deliveries(Checker(), "log", [json.dumps(line)])
    assert check_deliveries(Checker(), "log", [json.dumps(line | {"local_seqno": 1})]) == 0
