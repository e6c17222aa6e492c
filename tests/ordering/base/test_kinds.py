"""Every part follows the table of kinds: it has no list of its own, and treats a new row as the row says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ordering.base import kinds, records
from ordering.base.records import FLUSH_COMPLETED, REFUSED
from tests.test_house import MODULES, ROOT

ROWS = {kind.name for kind in kinds.KINDS}
FOLLOWERS = ("engine", "kafka/codec", "kafka/log", "sequencer", "spark")
NAMES = {name for name, value in vars(records).items() if name.isupper() and value in ROWS}


def test_each_name_has_one_row() -> None:
    texts = {name for name, value in vars(records).items() if name.isupper() and isinstance(value, str)}
    assert texts - NAMES == {"STRAY"}
    assert len(ROWS) == len(kinds.KINDS) == len(NAMES)


@pytest.mark.slow
def test_nobody_else_lists_kinds() -> None:
    """Three kinds or more in one list are a group, which is derived from a column of the table."""
    found = []
    for path in set(MODULES) - {Path(kinds.__file__)}:
        nodes = ast.walk(ast.parse(path.read_text()))
        lists = [node.elts for node in nodes if isinstance(node, ast.Tuple | ast.List | ast.Set)]
        named = [[each.id for each in of_list if isinstance(each, ast.Name) and each.id in NAMES] for of_list in lists]
        found += [(str(path), group) for group in named if len(group) > 2]
    assert found == []


@pytest.mark.slow
def test_where_a_new_kind_is_written_down() -> None:
    """The parts that follow the table name no kind that changes the membership. CONTRIBUTING has the other places."""
    followers = "ordering/base", "ordering/sequencer", *(f"connectors/{room}" for room in FOLLOWERS)
    owners = {ROOT / "ordering/base/records.py", Path(kinds.__file__)}
    of_membership = {*kinds.NEXT_KINDS, *kinds.NEWER_KINDS, FLUSH_COMPLETED, REFUSED} - kinds.MESSAGE_KINDS
    changing = {name for name in NAMES if getattr(records, name) in of_membership}
    paths = {path for path in MODULES if str(path.relative_to(ROOT)).startswith(followers)} - owners
    found = {
        (path.name, alias.name)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == records.__name__
        for alias in node.names
        if alias.name in changing
    }
    assert found == set()
    assert len(paths) > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", ["codec", "membership", "columns", "engine", "mesh", "checker", "spark"])
def test_a_new_row(part: str) -> None:
    """A process whose table has three more kinds, with no other change."""
    command = [sys.executable, "-m", "tests.ordering.base.new_kinds", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
