"""The rows of the tables in `tests.bench.figures`, and the values behind their aims, from the result of a section."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from ordering.casts.casts import TOTAL
from tests.bench.plan import Case
from tests.bench.tables import Cell

Rows = Iterable[tuple[Cell, ...]]
Values = Callable[[Any], Iterable[Any]]


def thousands(row: Mapping[str, Any]) -> float:
    """Return the rate in k/s."""
    return float(row["records_per_s"] / 1000)


def values_at(*path: str) -> Values:
    """Return a function that finds the value at that path of a result."""
    return lambda result: [functools.reduce(operator.getitem, path, result)]


def rates_at(*path: str) -> Values:
    """Return a function that finds the rate at that path, in k/s."""
    return lambda result: [thousands(row) for row in values_at(*path)(result)]


def own_cpu(cpu: Mapping[str, float]) -> float:
    """Return the CPU of all parts but the broker."""
    return sum(used for part, used in cpu.items() if part != "broker")


def percentiles(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return p50 and p99 in ms."""
    return row["p50_ms"], row["p99_ms"]


def throughput(cases: Any) -> Rows:
    for case in cases:
        named = str(Case(case["payload_bytes"], case["senders"], case["partitions"]))
        cells: list[Cell] = [named]
        for base, kind in (("copy", "sequencer"), ("append", "ledger")):
            both = thousands(case[base]), thousands(case[kind])
            cells += [*both, case[f"{kind}_to_{base}"], own_cpu(case[kind]["cpu_us_per_record"])]
        yield tuple(cells)


def batch(result: Any) -> Rows:
    copy, sequencer = (result[kind]["batch_ms"] for kind in ("copy", "sequencer"))
    for name in sequencer:
        yield (
            name if name == "records" else f"{name}, ms",
            *(float(each[name]) if name in each else "" for each in (copy, sequencer)),
        )


def engine(result: Any) -> Rows:
    for transport, row in result.items():
        kills = [each["next_delivery_s"] for each in row["kills"]["rounds"]]
        drain = row["drain"]
        yield (
            transport,
            *percentiles(row["latency"]),
            thousands(drain),
            drain["cpu_us"],
            drain["peak_mib"],
            median(kills),
            max(kills),
        )


def groups(result: Any) -> Rows:
    called = {"process": "process engine", "local": "Spark here", "two workers": "Spark on two workers"}
    for row in result:
        many = row["many"]
        cores = own_cpu(many["cpu"])
        yield (
            called[row["where"]],
            row["parallelism"],
            many["ready_s"],
            *percentiles(many),
            cores,
            thousands(row["hot"]),
        )


def p50_of_casts(transport: str) -> Values:
    return lambda result: [row["p50_ms"] for order, row in result[transport]["orders"].items() if order != TOTAL]


def members(result: Any) -> Rows:
    called = {"sending": "send", "ordered": "until all is ordered", "delivering": "deliver"}
    for transport, measured in result["transports"].items():
        for kind, rows in measured.items():
            for name, row in rows.items():
                yield transport, called[kind], name, thousands(row), row["to_bare"], row["cpu_us_per_record"]


def of_members(kind: str, name: str, value: str = "to_bare") -> Values:
    return lambda result: [measured[kind][name][value] for measured in result["transports"].values()]


def packed_members(result: Any) -> Rows:
    for kind, called in (("ordered", "until all is ordered"), ("delivering", "deliver")):
        for name, row in result[kind].items():
            yield called, name, thousands(row), row["cpu_us_per_record"]


def packed_loads(result: Any) -> Rows:
    for row in result["loads"]:
        asked = row["per_s"] or "the most"
        yield row["payload_bytes"], asked, thousands(row), row["messages_a_record"], row["cpu_us"]


STAGES = {
    "copy": "copy of FORWARD, Spark",
    "sequencer": "sequencer, Spark",
    "process": "sequencer, process engine",
    "append": "append of DATA, Spark",
    "ledger": "ledger, Spark",
}


def packed_backlogs(result: Any) -> Rows:
    single, packs = (result["backlogs"][form] for form in ("single", "packs"))
    for stage, called in STAGES.items():
        one, many = single[stage], packs[stage]
        ratio = many["records_per_s"] / one["records_per_s"]
        yield called, thousands(one), thousands(many), ratio, one["cpu_us"], many["cpu_us"]


def packed_to(stage: str, to: tuple[str, str]) -> Values:
    """Return the rate of a stage with packs, beside that of another form and stage."""
    form, base = to
    return lambda result: [
        result["backlogs"]["packs"][stage]["records_per_s"] / result["backlogs"][form][base]["records_per_s"]
    ]


def ratios_to_hub(row: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return throughput and p50, each in relation to a hub with the same relays."""
    hub = next(each for each in rows if each["mode"] == "hub" and each["relays"] == row["relays"])
    return row["ordered_per_s"] / hub["ordered_per_s"], row["p50_ms"] / hub["p50_ms"]


def agreeing(result: Any) -> Rows:
    for row in result["sites"]:
        ratios = ratios_to_hub(row, result["sites"])
        yield (
            relays(row),
            row["mode"],
            row["ordered_per_s"] / 1000,
            *percentiles(row),
            *ratios,
            row["cpu_us_per_message"],
        )


def relays(row: Mapping[str, Any]) -> str:
    return "process engine" if row["relays"] == "process" else f"Spark, {row['relays']}"


def isis_to_hub(number: int, *relays: str) -> Values:
    """Return the ratio to the hub of that number, of isis with these relays."""

    def of(result: Any) -> Iterator[float]:
        for row in result["sites"]:
            if row["mode"] == "isis" and row["relays"] in relays:
                yield ratios_to_hub(row, result["sites"])[number]

    return of


def costs(result: Any) -> Rows:
    for row in result["sites"]:
        if row["mode"] == "isis":
            yield relays(row), row["costs"]["entries"], row["costs"]["entry_bytes"], row["costs"]["hops"] or ""


def recovery(result: Any) -> Rows:
    yield "start of a bare Spark session", "", "", result["spark_start_s"]
    called = [(f"kill -9, turn {turn}", row) for turn, row in enumerate(result["kills"]["rounds"], 1)]
    called += [(f"checkpoint lost after {row['history']:,} messages", row) for row in result["lost_checkpoints"]]
    for name, row in called:
        yield name, row["epoch_began_s"], row["ready_s"], row["next_delivery_s"]


def standby(result: Any) -> Rows:
    for engine, rows in result["silent_s"].items():
        for way in dict.fromkeys(row["way"] for row in rows):
            silences = [row["s"] for row in rows if row["way"] == way]
            yield engine, way, median(silences), max(silences)


def silent(way: str, *engines: str) -> Values:
    return lambda result: [row["s"] for each in engines for row in result["silent_s"][each] if row["way"] == way]
