"""A seed is a history: in any process, whatever the order of its sets, and whatever time it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.simulator.histories import SEEDS

AHEAD_S = 1_000_000
PROGRAM = """
import json, logging, sys, time
wall, monotonic, ahead_s = time.time, time.monotonic, float(sys.argv[1])
time.time, time.monotonic = lambda: wall() + ahead_s, lambda: monotonic() + ahead_s
logging.disable()
from tests.simulator.histories import SEEDS, digest
print(json.dumps({world: digest(world) for world in SEEDS}))
"""


@pytest.mark.long
@pytest.mark.slow
def test_no_history_depends_on_its_process() -> None:
    """Two processes differ in the hashes of their texts, and in their clocks."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(ahead_s)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, ahead_s in ((1, 0), (2, AHEAD_S))
    ]
    try:
        one, other = (json.loads(run.communicate(timeout=240)[0]) for run in runs)
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert set(one) == set(SEEDS)
    assert [world for world in SEEDS if one[world] != other[world]] == []
