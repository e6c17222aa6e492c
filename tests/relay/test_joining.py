"""Choose the site that a new one copies the history from."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.kafka.connection.sites import Direction, Sites, read_sites
from connectors.relay.joining import direction_of_history
from ordering.base.errors import UsageError


def sites(directory: Path, head: str) -> Sites:
    """Return three sites; in a mesh they form the row a, b, c."""
    entries = "".join(f'[sites.{name}]\nbootstrap_servers = "{name}:9092"\n' for name in "abc")
    (directory / "sites.toml").write_text(f"{head}\n{entries}")
    return read_sites(directory / "sites.toml")


def test_in_a_hub(tmp_path: Path) -> None:
    """The source is the home, named or not; the home itself has no source."""
    hub = sites(tmp_path, 'mode = "hub"\nhome = "a"')
    assert direction_of_history(hub, "b", None, from_ledger=True) == Direction("a", "b")
    assert direction_of_history(hub, "b", "a", from_ledger=True) == Direction("a", "b")
    assert direction_of_history(hub, "b", None, from_ledger=False) is None
    with pytest.raises(UsageError, match="a is the home"):
        direction_of_history(hub, "a", None, from_ledger=False)
    with pytest.raises(UsageError, match="b has no link to c: its neighbours are a"):
        direction_of_history(hub, "b", "c", from_ledger=True)


def test_in_a_mesh(tmp_path: Path) -> None:
    """The source is a neighbour, which must be named."""
    mesh = sites(tmp_path, 'mode = "mesh"\nlinks = [["a", "b"], ["b", "c"]]')
    assert direction_of_history(mesh, "c", "b", from_ledger=True) == Direction("b", "c")
    assert direction_of_history(mesh, "c", None, from_ledger=False) is None
    with pytest.raises(UsageError, match="say with --from"):
        direction_of_history(mesh, "c", None, from_ledger=True)
    with pytest.raises(UsageError, match="c has no link to a"):
        direction_of_history(mesh, "c", "a", from_ledger=True)
