"""The sites' file, and the relays that follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connectors.kafka.connection.sites import Direction, read_sites
from ordering.base.errors import UsageError

EXAMPLE = Path(__file__).parents[3] / "conf" / "sites.example.toml"


def written(directory: Path, head: str, *names: str) -> Path:
    tables = "".join(f'[sites.{name}]\nbootstrap_servers = "{name}:9092"\n' for name in names)
    file = directory / "sites.toml"
    file.write_text(head + "\n" + tables, encoding="utf-8")
    return file


def test_the_example_can_be_read() -> None:
    sites = read_sites(EXAMPLE)
    assert (sites.mode, sites.home, list(sites.connections)) == ("hub", "nyc", ["nyc", "sfo"])
    assert sites.connections["sfo"].security.password_file == str(EXAMPLE.parent / "sfo.password")


def test_a_hub_is_a_star(tmp_path: Path) -> None:
    sites = read_sites(written(tmp_path, 'home = "a"', "a", "b", "c"))
    assert sites.directions() == [
        Direction(*direction) for direction in (("a", "b"), ("a", "c"), ("b", "a"), ("c", "a"))
    ]
    assert [site for site in "abc" if sites.sequences(site)] == ["a"]
    assert (sites.next_hop("b", "c"), sites.next_hop("b", "a"), sites.next_hop("b", "b")) == ("a", "a", None)


def test_a_mesh_links_all_or_those_it_names(tmp_path: Path) -> None:
    full = read_sites(written(tmp_path, "", "a", "b", "c"))
    assert len(full.directions()) == 6
    assert all(full.sequences(site) for site in "abc")
    chain = read_sites(written(tmp_path, 'links = [["a", "b"], ["c", "b"]]', "a", "b", "c", "d"))
    assert chain.neighbours("b") == ["a", "c"]
    assert (chain.next_hop("a", "c"), chain.next_hop("a", "d")) == ("b", None)


def test_where_heartbeats_of_relays_are_expected(tmp_path: Path) -> None:
    """From the neighbours in a mesh, and from sites that agree and have another Kafka; in a hub from none."""
    chain = read_sites(written(tmp_path, 'links = [["a", "b"], ["c", "b"]]', "a", "b", "c"))
    assert (chain.heard_at("b"), chain.heard_at("a"), chain.heard_at("unknown")) == (["a", "c"], ["b"], [])
    assert read_sites(written(tmp_path, 'home = "a"', "a", "b")).heard_at("a") == []
    agreeing = read_sites(written(tmp_path, 'mode = "isis"', "a", "b", "c"))
    assert agreeing.heard_at("a") == ["b", "c"]
    shared = replace(agreeing, connections={**agreeing.connections, "b": agreeing.connection("a")})
    assert (shared.heard_at("a"), shared.heard_at("c")) == (["c"], ["a", "b"])


def test_sites_that_agree(tmp_path: Path) -> None:
    """Each site is linked to each, no site is the home, and some share a Kafka."""
    file = written(tmp_path, 'mode = "isis"', "a", "b")
    file.write_text(file.read_text() + '[sites.c]\nbootstrap_servers = " a:9092"\n', encoding="utf-8")
    sites = read_sites(file)
    assert len(sites.directions()) == 6
    assert sites.one_order
    assert all(sites.sequences(site) for site in "abc")
    assert [other for other in "bc" if sites.shares_kafka("a", other)] == ["c"]
    with pytest.raises(UsageError, match="leave links out"):
        read_sites(written(tmp_path, 'mode = "isis"\nlinks = [["a", "b"]]', "a", "b"))
    assert read_sites(written(tmp_path, 'mode = "isis"\nsuspect_after_ms = 3000', "a", "b")).suspect_after_ms == 3000
    with pytest.raises(UsageError, match="from 1000 to"):
        read_sites(written(tmp_path, 'mode = "isis"\nsuspect_after_ms = 0', "a", "b"))
    with pytest.raises(UsageError, match="is for mode"):
        read_sites(written(tmp_path, "suspect_after_ms = 3000", "a", "b"))
    with pytest.raises(UsageError, match="have none"):
        read_sites(written(tmp_path, 'mode = "isis"\nhome = "a"', "a", "b"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('home = ["a"]', "home is \\['a'\\], which is not one of the sites"),
        ("home = {a = 1}", "which is not one of the sites"),
        ('links = [["a", ["b"]]]', "links is a list of two different sites"),
        ('links = [[{a = 1}, "b"]]', "links is a list of two different sites"),
    ],
)
def test_a_list_in_the_place_of_a_name(tmp_path: Path, settings: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_sites(written(tmp_path, settings, "a", "b"))
