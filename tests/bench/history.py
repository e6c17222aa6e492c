"""The main ratios of each measured commit: docs/performance-history.json, its picture, and the comparison with a run.

Only ratios within one run, and milliseconds that Kafka or Spark bound, are worth comparing between machines and days.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from tests.bench.picture import empty_figure, save
from tests.bench.rows import ratios_to_hub
from tests.bench.standby import KILLED
from tests.bench.tables import Results, figure, unless_missing

DOCS = Path(__file__).resolve().parents[2] / "docs"
HISTORY, PICTURE = DOCS / "performance-history.json", DOCS / "performance-history.svg"
TOLERANCE = 0.3
"""A ratio may be worse than the last one by this part of it: these machines differ by a fifth from run to run."""
_COLUMNS = 3

Run = Mapping[str, Any]
"""A commit, its date, and its ratios by name."""


class Ratio(NamedTuple):
    """A ratio of a run's results; `is_more`: more is better."""

    is_more: bool
    of: Callable[[Results], float]


def _member(kind: str) -> Callable[[Results], float]:
    return lambda results: float(results["members"]["transports"]["confluent"][kind]["member"]["to_bare"])


def _packs(stage: str, form: str, base: str) -> Callable[[Results], float]:
    def of(results: Results) -> float:
        backlogs = results["packs"]["backlogs"]
        return float(backlogs["packs"][stage]["records_per_s"] / backlogs[form][base]["records_per_s"])

    return of


def _isis(relays: str) -> Callable[[Results], float]:
    def of(results: Results) -> float:
        rows = results["agreeing"]["sites"]
        return ratios_to_hub(next(row for row in rows if (row["mode"], row["relays"]) == ("isis", relays)), rows)[1]

    return of


def _beside_a_standby(results: Results) -> float:
    return 1000 * float(median(row["s"] for row in results["standby"]["silent_s"]["spark"] if row["way"] == KILLED))


RATIOS = {
    "sequencer to copy": Ratio(True, lambda r: geometric_mean(each["sequencer_to_copy"] for each in r["throughput"])),
    "ledger to append": Ratio(True, lambda r: geometric_mean(each["ledger_to_append"] for each in r["throughput"])),
    "sequencer to Kafka Streams": Ratio(True, lambda r: r["peers"]["sequencer_to_streams"]),
    "p50 of the sequencer to the copy's": Ratio(False, lambda r: r["latency"]["p50_ratio"]),
    "process engine, p50, ms": Ratio(False, lambda r: r["engine"]["confluent"]["latency"]["p50_ms"]),
    "member sending to bare": Ratio(True, _member("sending")),
    "member delivering to bare": Ratio(True, _member("delivering")),
    "packs, Spark to the copy of single records": Ratio(True, _packs("sequencer", "single", "copy")),
    "packs to single records, process engine": Ratio(True, _packs("process", "single", "process")),
    "relay to copy": Ratio(True, lambda r: geometric_mean(row["ratio"] for row in r["relay"]["throughput"])),
    "isis to hub, process engine, p50": Ratio(False, _isis("process")),
    "isis to hub, Spark, p50": Ratio(False, _isis("real-time")),
    "kill -9 on Spark, ms": Ratio(False, lambda r: 1000 * r["recovery"]["kills"]["median_s"]),
    "the same beside a standby, ms": Ratio(False, _beside_a_standby),
}
"""The main ratios, by name."""


def ratios(results: Results) -> dict[str, float]:
    """Return the ratios that a run has measured."""
    found = {}
    for name, ratio in RATIOS.items():
        with unless_missing():
            found[name] = float(f"{ratio.of(results):.3g}")
    return found


def load() -> list[Run]:
    """Return the measured commits, oldest first."""
    runs: list[Run] = json.loads(HISTORY.read_text(encoding="utf-8"))
    return runs


def with_run(history: Sequence[Run], run: Mapping[str, Any]) -> list[Run]:
    """Return the history with a run of the bench at its end, in place of an earlier one of the same commit."""
    new = {"commit": run["machine"]["commit"], "date": run["started_at"][:10], "ratios": ratios(run["results"])}
    return [*(each for each in history if each["commit"] != new["commit"]), new]


def worse(history: Sequence[Run], results: Results) -> list[str]:
    """Return a sentence for each ratio of a run that is worse than the last one in the history by the tolerance."""
    last = {name: value for run in history for name, value in run["ratios"].items()}
    found = []
    for name, value in ratios(results).items():
        if name in last:
            loss = last[name] / value if RATIOS[name].is_more else value / last[name]
            if loss > 1 + TOLERANCE:
                found.append(f"{name}: {figure(value)}, {figure(last[name])} before")
    return found


def draw(history: Sequence[Run], path: Path = PICTURE) -> None:
    """Write a panel for each ratio, with its value at each commit."""
    rows = -(-len(RATIOS) // _COLUMNS)
    picture = empty_figure(1.7 * rows)
    commits = [run["commit"] for run in history]
    for number, (name, ratio) in enumerate(RATIOS.items(), 1):
        axes = picture.add_subplot(rows, _COLUMNS, number)
        at = [place for place, run in enumerate(history) if name in run["ratios"]]
        axes.plot(
            at, [history[place]["ratios"][name] for place in at], "o-", color="#1b9e77" if ratio.is_more else "#d95f02"
        )
        axes.set_title(name, fontsize=7)
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.3, len(commits) - 0.7)
        axes.set_xticks(range(len(commits)), commits, fontsize=6, rotation=20)
        axes.tick_params(axis="y", labelsize=6)
        axes.grid(visible=True, alpha=0.3)
    save(picture, path)
