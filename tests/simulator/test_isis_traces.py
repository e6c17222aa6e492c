"""The scripted traces of ISIS: each command of tests/traces/isis/*.txt does what stands under it.

After a change on purpose, `ABCAST_REWRITE_TRACES=1 pytest tests/simulator/test_isis_traces.py` writes them anew: read
the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulator.isis_script import rewrite

TRACES = sorted((Path(__file__).parents[1] / "traces" / "isis").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_trace(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    actual = rewrite(expected)
    if os.environ.get("ABCAST_REWRITE_TRACES"):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == expected


def test_every_trace_ends_well() -> None:
    """Each one looks at its end at what was delivered, and that is the same."""
    assert len(TRACES) >= 5
    for path in TRACES:
        assert path.read_text(encoding="utf-8").rstrip().endswith("check\n    all have delivered the same"), path.name
