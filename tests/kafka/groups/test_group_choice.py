"""Choose the groups that a job serves."""

from __future__ import annotations

import pytest

from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from ordering.base.errors import UsageError


def test_names_and_patterns() -> None:
    choice = GroupChoice.parse("orders, pay-*,v[12]")
    names = ("orders", "pay-", "pay-eu", "v2", "v3", "orders2", "Orders", "a.pay-eu")
    assert [name for name in names if choice.has(name)] == ["orders", "pay-", "pay-eu", "v2"]
    assert str(choice) == "orders,pay-*,v[12]"


def test_shares() -> None:
    """Each group is in one share. Another version must put it into the same one, or two jobs would serve it."""
    shares = [GroupChoice.parse(f"{number}/3") for number in (1, 2, 3)]
    names = [f"pay-{number}" for number in range(300)]
    parts = [[name for name in names if share.has(name)] for share in shares]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(80 < len(part) < 120 for part in parts)
    assert [shares.index(share) for name in ("orders", "pay", "a.b") for share in shares if share.has(name)] == [
        2,
        2,
        1,
    ]
    both = GroupChoice.parse("2/3, pay-1*")
    assert [name for name in names if both.has(name)] == [name for name in parts[1] if name.startswith("pay-1")]
    assert [str(choice) for choice in (both, shares[0])] == ["pay-1*,2/3", "1/3"]
    assert GroupChoice.parse(str(both)) == both


def test_all_groups() -> None:
    assert ALL_GROUPS.has("any")
    assert GroupChoice.parse(str(ALL_GROUPS)) == ALL_GROUPS


@pytest.mark.parametrize("text", ["", "a,", "a b", "a/b", "a;b", "0/2", "3/2", "1/2,2/2", "1/"])
def test_what_no_group_can_match(text: str) -> None:
    with pytest.raises(UsageError, match="not names and patterns"):
        GroupChoice.parse(text)
