"""The soak's rule, and the page that it and the benchmark fill."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bench import scale
from tests.bench.soak import JUDGED
from tests.bench.steadiness import SLACK, trend, trends
from tests.bench.tables import NOT_MEASURED
from tests.papers import doc, tables

AT_S = [10.0 * number for number in range(180)]


@pytest.mark.parametrize(
    ("values", "is_steady"),
    [
        ([100.0] * 180, True),
        ([100.0 + number / 2 for number in range(180)], False),
        ([min(number, 60) * 5.0 for number in range(180)], True),
        ([500.0 + 30 * math.sin(number / 5) for number in range(180)], True),
        ([number % 6 * 10.0 for number in range(180)], True),
        ([number % 6 * 10.0 + number / 2 for number in range(180)], False),
        ([100.0 - number / 4 for number in range(180)], True),
    ],
    ids=["flat", "a leak", "a warm-up", "it breathes", "a saw tooth", "one that grows", "it falls"],
)
def test_what_keeps_growing_is_seen(values: list[float], is_steady: bool) -> None:
    found = trend(AT_S, values, SLACK["mib"])
    assert found.is_steady == is_steady, found


def test_each_series_has_a_unit() -> None:
    assert set(trends(AT_S, {name: [1.0] * 180 for name in JUDGED})) == set(JUDGED)
    with pytest.raises(ValueError, match="too few"):
        trend([1.0], [1.0], 0.0)


@pytest.mark.slow
def test_the_page_has_the_rows_and_takes_figures(tmp_path: Path) -> None:
    """Each figure is a run's; one that a run lacks is not measured, even if it was there before."""
    page = doc("scale")
    arithmetic, grown = tables(page)
    assert [row[:3] for row in arithmetic] == [(row.what, row.unit, row.source) for row in scale.ROWS]
    assert len(grown) == len(JUDGED)
    machine = {"machine": {"commit": "0123abc"}, "command": "--minutes 30"}
    verdict = {
        "data_bytes_a_message": 200.0,
        "ledger_bytes_a_message": 20.0,
        "trends": {"jvm_mib": {"mean": 900.0, "gain": 1.5, "limit": 90.0}},
    }
    shown = scale.filled(page, {}, {**machine, "verdict": verdict})
    arithmetic, grown = tables(shown)
    measured = {row[0]: row[3] for row in arithmetic if row[3] != NOT_MEASURED}
    assert measured["DATA a day, three copies"] == "600"
    assert measured["the ledger a day"] == "20"
    assert len(measured) == 5
    assert tuple(grown[0][2:]) == ("900.0", "1.5", "90.0")
    assert "- Soak: `--minutes 30` on commit `0123abc`" in shown
    unmeasured = scale.filled(shown, {}, {})
    assert [row[3] for row in tables(unmeasured)[0]] == [NOT_MEASURED] * len(scale.ROWS)
    samples = [{"at_s": 10.0 * number, **dict.fromkeys(JUDGED, 1.0)} for number in range(6)]
    scale.draw(samples, tmp_path / "soak.svg")
    assert (tmp_path / "soak.svg").read_text(encoding="utf-8").startswith("<?xml")
