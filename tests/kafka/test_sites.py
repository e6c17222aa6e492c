"""The sites' file: what it says of who relays to whom."""

from __future__ import annotations

from pathlib import Path

from connectors.kafka.sites import Direction, read_sites

EXAMPLE = Path(__file__).parents[2] / "conf" / "sites.example.toml"


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
