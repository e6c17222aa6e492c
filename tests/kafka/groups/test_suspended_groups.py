"""The waits before a group that can't be served is tried again."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from connectors.kafka.groups.retrying import HEALTHY_S
from connectors.kafka.groups.suspended_groups import LONGEST_WAIT_S, WAITS_S, SuspendedGroups
from ordering.base.errors import AbcastError, BrokerUnreachable, Disagreement, Fenced

DAY_S = 86_400


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, in a list of one element."""
    now = [0.0]
    monkeypatch.setattr("connectors.kafka.groups.suspended_groups.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def tries(suspended: SuspendedGroups, now: list[float], error: AbcastError, *, has_claimed: bool) -> list[float]:
    """Return the times of a day at which the group is tried, if it fails each time."""
    suspended.suspend("g", error, has_claimed=has_claimed)
    begun, found = now[0], list[float]()
    while now[0] - begun < DAY_S:
        now[0] += 0.5
        if suspended.is_due("g"):
            found.append(now[0])
            suspended.suspend("g", error, has_claimed=has_claimed)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "has_claimed", "fewest", "most"),
    [
        (Disagreement("it can't go on."), True, 24, 40),
        (Disagreement("it can't go on."), False, 2_870, 2_890),
        (BrokerUnreachable("nothing is written."), True, 2_870, 2_890),
    ],
    ids=["costly", "free", "passing"],
)
def test_claims_without_an_effect_become_rare(
    now: list[float], error: AbcastError, *, has_claimed: bool, fewest: int, most: int
) -> None:
    """EPOCH keeps each claim, and DATA a snapshot for each. A failure that may pass is worth more."""
    suspended = SuspendedGroups("sequence")
    found = tries(suspended, now, error, has_claimed=has_claimed)
    assert fewest <= len(found) <= most
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) <= LONGEST_WAIT_S
    suspended.resume(["g"])
    now[0] += HEALTHY_S
    began = now[0]
    assert tries(suspended, now, error, has_claimed=has_claimed)[0] - began == WAITS_S[0]


@pytest.mark.slow
@pytest.mark.parametrize("error", [BrokerUnreachable("a broker restarts."), Fenced("another one takes over.")])
def test_a_failure_that_cost_no_claim_is_tried_again_soon(now: list[float], error: AbcastError) -> None:
    """A group's right is given at last. The next try meets a broker that restarts, or another sequencer."""
    suspended = SuspendedGroups("sequence")
    tries(suspended, now, Disagreement("it can't go on."), has_claimed=True)
    suspended.suspend("g", error)
    now[0] += WAITS_S[-1]
    assert suspended.is_due("g")


@pytest.mark.parametrize(("held_up_s", "longest_s"), [(0.001, 30.0), (1.0, 1_000.0), (60.0, LONGEST_WAIT_S)])
def test_a_failure_that_holds_up_others_becomes_rare(now: list[float], held_up_s: float, longest_s: float) -> None:
    """A short start costs the others little. A failure that holds up nobody is tried again soon."""
    suspended = SuspendedGroups("relay")
    for count in range(12):
        suspended.suspend("g", BrokerUnreachable("nothing is written."), held_up_s=held_up_s)
        now[0] += 10 * held_up_s - 0.001
        assert count or not suspended.is_due("g")
    suspended.suspend("g", BrokerUnreachable("nothing is written."), held_up_s=held_up_s)
    now[0] += longest_s - 0.001
    assert not suspended.is_due("g")
    now[0] += 0.002
    assert suspended.is_due("g")
    suspended.suspend("g", BrokerUnreachable("a broker restarts."))
    now[0] += WAITS_S[-1] + 0.001
    assert suspended.is_due("g")
