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


def test_all_groups() -> None:
    assert ALL_GROUPS.has("any")
    assert GroupChoice.parse(str(ALL_GROUPS)) == ALL_GROUPS


@pytest.mark.parametrize("text", ["", "a,", "a b", "a/b", "a;b"])
def test_what_no_group_can_match(text: str) -> None:
    with pytest.raises(UsageError, match="not names and patterns"):
        GroupChoice.parse(text)
