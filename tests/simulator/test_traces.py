"""Scripted traces: each command of tests/traces/*.txt and tests/traces/isis/*.txt prints the text below it.

After a change on purpose, `ABCAST_REWRITE_TRACES=1 pytest tests/simulator/test_traces.py` writes them anew: read the
difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulator import isis_script, script

DIRECTORY = Path(__file__).parents[1] / "traces"
TRACES, ISIS_TRACES = sorted(DIRECTORY.glob("*.txt")), sorted((DIRECTORY / "isis").glob("*.txt"))
REWRITTEN = [
    *(pytest.param(path, script.rewrite, id=path.stem) for path in TRACES),
    *(pytest.param(path, isis_script.rewrite, id=f"isis-{path.stem}") for path in ISIS_TRACES),
]


@pytest.mark.parametrize(("path", "rewrite"), REWRITTEN)
def test_a_trace(path: Path, rewrite: Callable[[str], str]) -> None:
    expected = path.read_text(encoding="utf-8")
    actual = rewrite(expected)
    if os.environ.get("ABCAST_REWRITE_TRACES"):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == expected


@pytest.mark.parametrize(
    ("traces", "at_least", "end"),
    [(TRACES, 8, "every promise holds"), (ISIS_TRACES, 5, "all have delivered the same")],
    ids=["sequencer", "isis"],
)
def test_every_trace_ends_well(traces: list[Path], at_least: int, end: str) -> None:
    """Each trace asks the checker at its end, or compares the deliveries."""
    assert len(traces) >= at_least
    for path in traces:
        assert path.read_text(encoding="utf-8").rstrip().endswith(f"check\n    {end}"), path.name
