"""Each broken order in a delivery log has its name, and an order that holds has none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.diagnosis.check import check_deliveries
from ordering.base.errors import UsageError
from ordering.casts.casts import CAUSAL, Cast, Depends
from ordering.checker.cast_checker import CastChecker
from ordering.checker.checker import Checker
from ordering.membership.membership import MemberIncarnation

A, B = MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)
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
    """Return the checker's findings for a member with these deliveries."""
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
            checker.delivered_cast("m", cast.member, cast.local_seqno, cast.view)
    return [anomaly.name for anomaly in checker.finish()]


@pytest.mark.parametrize(
    "deliveries",
    ["6 a1 b1 7 a2 b2", "6 a1 b1 a2 7 b2", "x1 6 a1 x2 b1 7 a2 b2", "7 b2", "a2 b2", "x2"],
)
def test_orders_that_hold(deliveries: str) -> None:
    """Missing casts are no anomaly at a member that joins late."""
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
def test_who_was_in_no_view_counts_anew(between: tuple[MemberIncarnation, ...], found: list[str]) -> None:
    """The group gave up flush for a while: its view had no vector."""
    checker = CastChecker()
    for view, members in ((3, (A,)), (4, between), (5, (A,))):
        checker.view(view, members)
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


C, Z = MemberIncarnation("s/c", 1), MemberIncarnation("s/z", 1)
Line = tuple[MemberIncarnation, int, int] | int
"""A cast (its sender's incarnation, number and view), or the id of a view."""


def of_logs(
    views: Mapping[int, tuple[MemberIncarnation, ...]], logs: Mapping[str, Sequence[Line]], casts: Sequence[Cast] = ()
) -> list[str]:
    """Return the checker's findings for logs with views, of one run each: of a member, or of an observer."""
    checker = CastChecker()
    for view_id, members in views.items():
        checker.view(view_id, members)
    for cast in casts:
        checker.cast(cast)
    for member, lines in logs.items():
        checker.begins(member, {"a": A, "b": B, "c": C, "n": Z, "z": Z}.get(member))
        for line in lines:
            if isinstance(line, int):
                checker.delivered_view(member, line)
            else:
                checker.delivered_cast(member, *line)
    return [anomaly.name for anomaly in checker.finish()]


def test_members_that_go_on_have_had_the_same_casts_of_a_dead_one() -> None:
    views = {1: (A, B, C), 2: (A, B)}
    one: list[Line] = [1, *((C, number, 1) for number in range(1, 5)), 2]
    assert of_logs(views, {"a": one, "b": [1, (C, 1, 1), 2]}) == ["divergent"]
    assert of_logs(views, {"a": one, "b": one}) == []
    assert of_logs(views, {"a": one, "b": [2]}) == []  # it joins
    assert of_logs(views, {"a": one, "b": [1, (C, 1, 1)]}) == []  # it has not come to the end of the view
    assert of_logs({1: (A, B, C), 2: ()}, {"a": one, "b": [1, (C, 1, 1), 2]}) == []  # the group gave up flush


def test_numbers_of_a_life_go_on_behind_a_view() -> None:
    views = {3: (A, B), 4: (A, B)}
    assert of_logs(views, {"b": [3, (A, 4, 3), 4, (A, 6, 4)]}) == ["gap"]
    assert of_logs(views, {"b": [3, (A, 4, 3), 4, (A, 5, 4)]}) == []
    assert of_logs({3: (A, B), 4: (B,), 5: (A, B)}, {"b": [3, (A, 4, 3), 4, 5, (A, 1, 5)]}) == []  # it counts anew


def test_a_run_may_begin_behind_the_last_one() -> None:
    checker = CastChecker()
    for view_id in (1, 2):
        checker.view(view_id, (A, B))
    for number, view_id in ((4, 1), (6, 2)):
        checker.begins("b")
        checker.delivered_cast("b", A, number, view_id)
    assert checker.finish() == []


def test_what_a_cast_depends_on_has_come() -> None:
    """b's first cast depends on a's first one, which is of the same view."""
    casts = [Cast(*A, 1, order=CAUSAL, view=3, clock="0"), Cast(*B, 1, order=CAUSAL, view=3, clock="1")]
    assert of_logs({2: (B,), 3: (A, B)}, {"b": [2, 3, (B, 1, 3)]}, casts) == ["causal-violation"]
    assert of_logs({2: (B,), 3: (A, B)}, {"b": [2, 3, (A, 1, 3), (B, 1, 3)]}, casts) == []
    assert of_logs({3: (A, B)}, {"m": [3, (B, 1, 3)]}, casts) == []  # it may have begun with a state


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[int, tuple[MemberIncarnation, ...]], list[Line]]:
    """Draw views in which members come and go, each once, and the deliveries in them."""
    views: dict[int, tuple[MemberIncarnation, ...]] = {}
    lines: list[Line] = []
    sent: dict[MemberIncarnation, int] = {}
    gone: set[MemberIncarnation] = set()
    for view_id in range(1, draw(st.integers(2, 5)) + 1):
        members = tuple(member for member in (A, B, C) if member not in gone and draw(st.booleans()))
        gone |= {member for member in sent if member not in members}
        views[view_id] = (*members, Z)
        lines.append(view_id)
        for member in members:
            sent.setdefault(member, 0)
        for member in draw(st.lists(st.sampled_from(members), max_size=5)) if members else ():
            sent[member] += 1
            lines.append((member, sent[member], view_id))
    return views, lines


@given(histories(), st.data())
def test_each_cast_that_one_reader_lacks_is_found(
    history: tuple[dict[int, tuple[MemberIncarnation, ...]], list[Line]], data: st.DataObject
) -> None:
    views, lines = history
    assert of_logs(views, {"z": lines, "n": lines}) == []
    last_view = max(views)
    places = [at for at, line in enumerate(lines) if not isinstance(line, int) and line[2] < last_view]
    if places:
        lacks = data.draw(st.sampled_from(places))
        assert of_logs(views, {"n": lines, "z": [*lines[:lacks], *lines[lacks + 1 :]]})


def test_an_observer_may_have_more_of_who_died_and_never_less() -> None:
    """c is lost with view 3. The observer has two casts of it, or none; the member has one."""
    views = {2: (A,), 3: (A, C), 4: (A,)}
    for count, found in ((2, []), (0, ["divergent"])):
        observed: list[Line] = [(A, 1, 2), *((C, number + 1, 3) for number in range(count)), 4]
        assert of_logs(views, {"a": [2, (A, 1, 2), 3, (C, 1, 3), 4], "observer": observed}) == found
