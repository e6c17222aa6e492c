"""The scripted traces: each command of tests/traces/*.txt does what stands under it.

After a change on purpose, `ABCAST_REWRITE_TRACES=1 pytest tests/simulator/test_traces.py` writes them anew: read the
difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulator.script import rewrite

TRACES = sorted((Path(__file__).parents[1] / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_trace(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    actual = rewrite(expected)
    if os.environ.get("ABCAST_REWRITE_TRACES"):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == expected


def test_there_are_traces() -> None:
    assert len(TRACES) >= 8


def test_every_trace_ends_well() -> None:
    """Each one asks the checker at its end, and all promises hold."""
    for path in TRACES:
        assert path.read_text(encoding="utf-8").rstrip().endswith("check\n    every promise holds"), path.name
