"""`python -m tests.bench.scale`: write the figures of docs/scale.md, and the picture of the soak.

From the JSON file of `make bench`, and from that of `python -m tests.bench.soak`. What they lack is not measured.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.page import DEFAULT_JSON, without_out
from tests.bench.picture import empty_figure, save
from tests.bench.soak import DEFAULT_OUT
from tests.bench.tables import NOT_MEASURED, NOT_RUN

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, PICTURE = DOCS / "scale.md", DOCS / "soak.svg"
HEAD = "| what | unit | from | figure |\n| --- | --- | --- | --- |\n"
SOAK_HEAD = (
    "| what | unit | mean of the second half | what it gains there | it may gain |\n| --- | --- | --- | --- | --- |\n"
)
PEAK_PER_S = 3e9 / 86_400
DAY = 1e9
COPIES = 3
_UNITS = {"mib": "MiB", "files": "files", "records": "records"}


class Row(NamedTuple):
    """A row of the arithmetic. `figure` takes the results of the bench and the verdict of the soak."""

    what: str
    unit: str
    source: str
    figure: Callable[[Mapping[str, Any], Mapping[str, Any]], float]


def _case(bench: Mapping[str, Any]) -> Any:
    """Return the case of 100 B, 16 senders, 4 partitions."""
    cases = bench["throughput"]
    return next(each for each in cases if (each["payload_bytes"], each["senders"], each["partitions"]) == (100, 16, 4))


def _cpu_us(bench: Mapping[str, Any]) -> float:
    return float(bench["growth"]["groups"][-1]["cpu_us_per_record"])


ROWS = (
    Row(
        "one group, Spark engine, a backlog of 100 B",
        "messages/s",
        "`make bench`, throughput",
        lambda bench, _: _case(bench)["sequencer"]["records_per_s"],
    ),
    Row(
        "one group, process engine, the same",
        "messages/s",
        "`make bench`, engine",
        lambda bench, _: bench["engine"]["confluent"]["drain"]["records_per_s"],
    ),
    Row(
        "most groups that were measured in one job, all together",
        "messages/s",
        "`make bench`, growth",
        lambda bench, _: bench["growth"]["groups"][-1]["sequencer"],
    ),
    Row("CPU of the sequencer there", "µs a message", "`make bench`, growth", lambda bench, _: _cpu_us(bench)),
    Row(
        "cores for ordering at the peak",
        "cores",
        "34,722 times the CPU of a message",
        lambda bench, _: PEAK_PER_S * _cpu_us(bench) / 1e6,
    ),
    Row(
        "machines like the measured one for the ledger at the peak",
        "machines",
        "34,722 / the ledger's rate",
        lambda bench, _: PEAK_PER_S / _case(bench)["ledger"]["records_per_s"],
    ),
    Row("DATA, a message of 100 B", "bytes", "the soak", lambda _, soak: soak["data_bytes_a_message"]),
    Row("the ledger, the same", "bytes", "the soak", lambda _, soak: soak["ledger_bytes_a_message"]),
    Row(
        "DATA a day, three copies",
        "GB",
        "10^9 times 3 times the bytes of DATA",
        lambda _, soak: DAY * COPIES * soak["data_bytes_a_message"] / 1e9,
    ),
    Row("the ledger a day", "GB", "10^9 times the bytes", lambda _, soak: DAY * soak["ledger_bytes_a_message"] / 1e9),
    Row(
        "what brokers write at the peak, FORWARD and DATA, three copies",
        "MB/s",
        "34,722 times 2 times 3 times the bytes of DATA",
        lambda _, soak: PEAK_PER_S * 2 * COPIES * soak["data_bytes_a_message"] / 1e6,
    ),
)


def table(bench: Mapping[str, Any], soak: Mapping[str, Any]) -> str:
    """Return the arithmetic with the measured figures."""
    lines = []
    for row in ROWS:
        figure = NOT_MEASURED
        with contextlib.suppress(KeyError, IndexError, StopIteration, TypeError):
            found = row.figure(bench, soak)
            figure = f"{found:,.0f}" if found >= 10 else f"{found:.1f}"
        lines.append(f"| {row.what} | {row.unit} | {row.source} | {figure} |\n")
    return HEAD + "".join(lines)


def soak_table(soak: Mapping[str, Any]) -> str:
    """Return the soak's verdict."""
    from tests.bench.soak import JUDGED

    lines = []
    for name in JUDGED:
        what, _, unit = name.rpartition("_")
        found = soak.get("trends", {}).get(name)
        figures = [f"{found[each]:,.1f}" for each in ("mean", "gain", "limit")] if found else [NOT_MEASURED, "", ""]
        lines.append(
            f"| {what} | {_UNITS[unit]} | {' | '.join(figures)} |\n".replace("|  |", "| |").replace("|  |", "| |")
        )
    return SOAK_HEAD + "".join(lines)


def filled(page: str, bench: Mapping[str, Any], soak: Mapping[str, Any]) -> str:
    """Return the page with the figures of these runs in place of all earlier ones."""
    verdict = soak.get("verdict", {})
    facts = {"Bench": bench, "Soak": soak}
    for name, run in facts.items():
        options = without_out(run["command"]) or "no options" if run else ""
        said = f"`{options}` on commit `{run['machine']['commit']}`" if run else NOT_RUN
        before, _, behind = page.partition(f"\n- {name}: ")
        page = f"{before}\n- {name}: {said}\n{behind.partition(chr(10))[2]}"
    for head, lines in ((HEAD, table(bench.get("results", {}), verdict)), (SOAK_HEAD, soak_table(verdict))):
        start = page.index(head)
        page = page[:start] + lines + page[page.index("\n\n", start) + 1 :]
    return page


def draw(samples: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw memory, Kafka's data, and files in Delta, over time."""
    figure = empty_figure(7)
    minutes = [each["at_s"] / 60 for each in samples]
    parts: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("memory, MiB", ("jvm_mib", "worker_mib", "driver_mib", "broker_mib", "members_mib")),
        ("on Kafka, MiB", ("forward_mib", "data_mib")),
        ("files of the ledger", ("delta_files",)),
    )
    for number, (label, names) in enumerate(parts, 1):
        axes = figure.add_subplot(3, 1, number, ylabel=label)
        for name in names:
            axes.plot(minutes, [each.get(name, 0.0) for each in samples], label=name.rpartition("_")[0])
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    axes.set_xlabel("minutes")
    save(figure, path)


def main(arguments: list[str]) -> int:
    """Write the page from two JSON files: the bench's and the soak's, or the last runs' here."""
    runs = []
    for source in [Path(each) for each in arguments] or [DEFAULT_JSON, DEFAULT_OUT]:
        run = json.loads(source.read_text(encoding="utf-8")) if source.exists() else {}
        if run and run["machine"]["commit"].endswith("+"):
            print(f"{source} was measured on a commit with changes: commit them, and measure again.", file=sys.stderr)
            return 1
        runs.append(run)
    bench, soak = runs
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), bench, soak), encoding="utf-8")
    if soak:
        draw(soak["samples"], PICTURE)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
