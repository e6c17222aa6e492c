"""Names round-trip, and names that Kafka or the protocol can't carry are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import UsageError
from ordering.base.names import BY_RELAYS, ROLES, Address, Role, Topic, check_group, check_site, is_address
from ordering.base.records import Source

groups = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", fullmatch=True)
sites = st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True)
members = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)
own = [role for role in ROLES if role not in BY_RELAYS]
topics = st.builds(Topic, groups, st.sampled_from(own), sites) | st.builds(
    Topic, groups, st.sampled_from(BY_RELAYS), sites, sites
)


@given(topics)
def test_topic_round_trip(topic: Topic) -> None:
    """Also for groups such as `data.nyc` or `abcast.x.data.y`: the site has no dot, so parsing from the right works."""
    assert Topic.parse(str(topic)) == topic
    assert len(str(topic)) <= 249, "Kafka's limit"


@given(sites, members)
def test_address_round_trip(site: str, name: str) -> None:
    address = Address(site, name)
    assert Address.parse(str(address)) == address
    assert Address.parse(name, default_site=site) == address
    assert is_address(str(address))


@given(topics, st.integers(0, 10**6), st.integers(0, 10**15))
def test_source_round_trip(topic: Topic, partition: int, offset: int) -> None:
    source = Source(str(topic), partition, offset)
    assert Source.parse(str(source)) == source


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_a_usage_error(text: str) -> None:
    for parse in (check_group, check_site, Address.parse):
        with contextlib.suppress(UsageError):
            assert str(parse(text)) == text
    assert is_address(text) == (parses(text))


def parses(text: str) -> bool:
    try:
        Address.parse(text)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("name", ["g", "g" * 128, "a.b", "_", "-x", "9"])
def test_groups_that_can_be_used(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "g" * 129, "a b", "a/b", "ü", "a\n", "a\0"])
def test_groups_that_cannot(name: str) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        check_group(name)


@pytest.mark.parametrize(
    "text",
    ["", "nyc", "nyc/", "/alice", "nyc/a/b", "nyc/a b", "n.yc/a", "s" * 33 + "/a", "nyc/" + "n" * 129, "nyc/a\n"],
)
def test_addresses_that_cannot(text: str) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        Address.parse(text)
    assert not is_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "orders",
        "abcast.g.data",
        "abcast.g.relayed.nyc",
        "abcast.g.relayed-.nyc",
        "abcast.g.data-sfo.nyc",
        "abcast.g.other.nyc",
        "abcast..data.nyc",
        "other.g.data.nyc",
        "abcast.g.data.n yc",
    ],
)
def test_other_topics_are_not_ours(text: str) -> None:
    assert Topic.parse(text) is None


@pytest.mark.parametrize("text", ["", "t", "t:1", "t-1", "t-x:1", "t-1:x", "-1:1"])
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  int() words it
        Source.parse(text)


def test_roles_are_the_topics() -> None:
    kept: tuple[Role, ...] = (
        "forward",
        "data",
        "epoch",
        "dead-letter",
        "inbox",
        "memory",
        "cast",
        "relayed",
        "entries",
    )
    assert kept == ROLES
