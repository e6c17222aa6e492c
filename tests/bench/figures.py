"""The figures of the benchmark: what each section measures, its unit, its aim, and its values in a run's JSON.

The terminal (`tests.bench.report`) and docs/performance.md (`tests.bench.page`) show the same rows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ordering.casts.casts import TOTAL
from tests.bench.groups import WAYS
from tests.bench.plan import DEFAULT_RECORDS, KINDS, Case, Plan
from tests.bench.rates import ENGINES

MIN_SEQUENCER_TO_COPY = 0.6
MIN_LEDGER_TO_APPEND = 0.7
MIN_TO_STREAMS = 1.0
MAX_LATENCY_RATIO = 3.5
MAX_MEMORY_MIB = 3 * 1024
ENGINE_AIMS = {"kafka-python": (15, 60, 20), "confluent": (10, 30, 80)}
"""By transport: p50 and p99 in ms at most, and thousand records/s at least."""
MAX_CAST_MS = {"kafka-python": 12, "confluent": 4}
"""By transport: p50 of fifo and causal messages at most."""
MAX_ENGINE_MIB = 150
MAX_ENGINE_KILL_S = 3
MIN_MEMBER_TO_BARE = 0.75
MIN_READ_BACK_TO_BARE = 0.5
MIN_FAST_BROADCASTS_PER_S, MIN_FAST_DELIVERIES_PER_S = 60_000, 100_000
"""Least rates of a member with the fast transport."""
MIN_RELAY_TO_COPY = 0.8
MAX_RELAY_MS = {"micro-batch": 150, "real-time": 20}
MAX_PROCESS_RELAY_MS = 1
MIN_AGREED_TO_HUB = 0.5
MAX_AGREED_P50_TO_HUB = 3.0
MIN_PLAIN_PER_S = 10_000
MAX_KILL_S = 15
MAX_LOST_CHECKPOINT_S = 30

NOT_MEASURED = "not measured on this commit"
NOT_RUN = "not run on this commit"

Results = Mapping[str, Any]
Figures = Callable[[Any], list[str]]


class Row(NamedTuple):
    """A row of the table. `figures` and `is_met` take the section's result; without an aim, `is_met` is None."""

    section: str
    what: str
    unit: str
    aim: str
    figures: Figures
    is_met: Callable[[Any], bool] | None = None

    def measured(self, result: Any) -> list[str]:
        """Return the row's figures; none if its section failed, or the run was a quick one, which has fewer cases."""
        if "failed" in result:
            return []
        with contextlib.suppress(KeyError, IndexError):
            return self.figures(result)
        return []

    def cells(self, results: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the row's cells with its measured figures."""
        measured = self.measured(results.get(self.section, {"failed": NOT_RUN}))
        return self.section, self.what, self.unit, self.aim, "; ".join(measured) or NOT_MEASURED


def ratios_to_hub(row: Results, rows: Sequence[Results]) -> tuple[float, float]:
    """Return throughput and p50, each in relation to a hub with the same engine and the same relays."""
    hub = next(
        each for each in rows if each["mode"] == "hub" and all(each[key] == row[key] for key in ("engine", "trigger"))
    )
    return row["ordered_per_s"] / hub["ordered_per_s"], row["p50_ms"] / hub["p50_ms"]


def _throughput(case: Case, number: int) -> Row:
    def of_case(cases: Any) -> Any:
        found = {(each["payload_bytes"], each["senders"], each["partitions"]): each for each in cases}
        return found[case.payload_bytes, case.senders, case.partitions]

    def figures(cases: Any) -> list[str]:
        found = of_case(cases)
        rates = [f"{found[kind]['records_per_s'] / 1000:.0f}" for kind in KINDS]
        return [*rates, *(f"{found[ratio]:.2f}" for ratio in ("sequencer_to_copy", "ledger_to_append"))]

    def is_met(cases: Any) -> bool:
        sequencer, ledger = (of_case(cases)[ratio] for ratio in ("sequencer_to_copy", "ledger_to_append"))
        return bool(sequencer >= MIN_SEQUENCER_TO_COPY and ledger >= MIN_LEDGER_TO_APPEND)

    what = "copy; sequencer; append; ledger; sequencer to copy; ledger to append" if number == 0 else "the same"
    aim = f"ratios ≥ {MIN_SEQUENCER_TO_COPY}; {MIN_LEDGER_TO_APPEND}"
    return Row("throughput", f"{case}: {what}", "thousand records/s; ratios", aim, figures, is_met)


def _grown(what: str, result: Any) -> list[str]:
    return [f"{row['size']:,}: {row['ratio']:.2f}, {row['cpu_us_per_record']:.1f}" for row in result[what]]


def _latency(kind: str) -> Figures:
    return lambda result: [f"{result[kind][name]:.0f}" for name in ("p50_ms", "p99_ms")]


def _batch(result: Any) -> list[str]:
    parts = {name: value for name, value in result["sequencer"]["batch_ms"].items() if name != "records"}
    return [
        f"{result['sequencer']['batch_ms']['records']:.0f} records",
        *(f"{name} {value:.0f}" for name, value in parts.items()),
    ]


def _joins(result: Any) -> list[str]:
    return [
        f"{'with' if join['flush'] else 'without'} flush, {join['members']} members: {median(join['ms']):.0f}"
        for join in result["joins"]
    ]


def _of_rates(engine: str, result: Any) -> list[str]:
    return [f"{row['per_s']:,}: {row['p50_ms']:.1f}, {row['p99_ms']:.0f}" for row in result[engine]]


def _engine(transport: str) -> Row:
    p50, p99, rate = ENGINE_AIMS[transport]

    def figures(result: Any) -> list[str]:
        row = result[transport]
        return [
            *(f"{row['latency'][name]:.1f}" for name in ("p50_ms", "p99_ms")),
            f"{row['drain']['records_per_s'] / 1000:.0f}",
            f"{row['drain']['peak_mib']:.0f}",
            *(f"{each['next_delivery_s']:.1f}" for each in row["kills"]["rounds"]),
        ]

    def is_met(result: Any) -> bool:
        times, drain, kills = (result[transport][name] for name in ("latency", "drain", "kills"))
        is_fast = times["p50_ms"] <= p50 and times["p99_ms"] <= p99 and drain["records_per_s"] >= rate * 1000
        return bool(is_fast and drain["peak_mib"] <= MAX_ENGINE_MIB and kills["max_s"] <= MAX_ENGINE_KILL_S)

    return Row(
        "engine",
        f"process engine, {transport}: p50; p99 at 1,000/s, `broadcast` to `deliveries` in another process; a backlog; "
        "its memory; each kill -9 to the next delivery",
        "ms; thousand records/s; MiB; s",
        f"≤ {p50}; ≤ {p99}; ≥ {rate}; ≤ {MAX_ENGINE_MIB}; ≤ {MAX_ENGINE_KILL_S}",
        figures,
        is_met,
    )


def _groups(where: str) -> Row:
    called = {"process": "process engine", "local": "Spark on this machine", "two workers": "Spark on two workers"}

    def figures(result: Any) -> list[str]:
        return [
            f"{row['parallelism']}: {row['many']['ready_s']:.0f}, {row['many']['p50_ms']:.0f}, "
            f"{row['many']['p99_ms']:.0f}, {row['hot']['records_per_s'] / 1000:.0f}"
            for row in result
            if row["where"] == where
        ]

    plan = Plan(DEFAULT_RECORDS)
    what = (
        f"{called[where]}, by groups decided at a time: {plan.many_groups:,} groups with a message/s each, from start "
        f"to ready; p50; p99, FORWARD to DATA; {plan.hot_groups} hot groups"
    )
    return Row("groups", what, "s; ms; ms; thousand records/s", "", figures)


def _orders(transport: str) -> Row:
    def figures(result: Any) -> list[str]:
        return [
            f"{order} {row['p50_ms']:.1f}, {row['p99_ms']:.0f}" for order, row in result[transport]["orders"].items()
        ]

    def is_met(result: Any) -> bool:
        orders = result[transport]["orders"].items()
        return all(row["p50_ms"] <= MAX_CAST_MS[transport] for order, row in orders if order != TOTAL)

    what = f"{transport}: p50, p99 at 1,000/s by order, `broadcast` to `deliveries` in another process"
    return Row("casts", what, "ms", f"fifo, causal p50 ≤ {MAX_CAST_MS[transport]}", figures, is_met)


def _cast_rates(result: Any) -> list[str]:
    return [
        f"{transport}, {order}: {row['records_per_s']:,.0f}"
        for transport, measured in result.items()
        for order, row in measured["orders"].items()
    ]


def _cast_growth(result: Any) -> list[str]:
    return [
        f"{transport}, {row['members']}: {row['p50_ms']:.1f}, {row['p99_ms']:.0f}, {row['clock_bytes']:.0f}"
        for transport, measured in result.items()
        for row in measured["growth"]
    ]


def _member(kind: str, *names: str) -> Figures:
    def figures(result: Any) -> list[str]:
        return [
            f"{transport}, {name}: {rows[name]['records_per_s']:,.0f} ({rows[name]['to_bare']:.2f})"
            for transport, rows in ((each, measured[kind]) for each, measured in result["transports"].items())
            for name in names
        ]

    return figures


def _beside_bare(kind: str, name: str, min_ratio: float, min_fast_per_s: int = 0) -> Callable[[Any], bool]:
    def is_met(result: Any) -> bool:
        rows = {transport: measured[kind][name] for transport, measured in result["transports"].items()}
        fast = [row["records_per_s"] for transport, row in rows.items() if transport == "confluent"]
        return all(row["to_bare"] >= min_ratio for row in rows.values()) and min(fast, default=0) >= min_fast_per_s

    return is_met


def _added(trigger: str) -> Row:
    aim = f"p50 ≤ {MAX_RELAY_MS[trigger]}"

    def figures(result: Any) -> list[str]:
        return [f"{result['latency'][trigger][name]:.0f}" for name in ("p50_ms", "p99_ms")]

    def is_met(result: Any) -> bool:
        return bool(result["latency"][trigger]["p50_ms"] <= MAX_RELAY_MS[trigger])

    return Row("relay", f"from FORWARD at one site to the home's, {trigger}: p50; p99", "ms", aim, figures, is_met)


def _hop_ms(result: Any) -> float:
    """Return what a relay in the process engine adds to Kafka's own way."""
    return float(result["latency"]["process"]["p50_ms"] - result["latency"]["kafka"]["p50_ms"])


def _way(mode: str, trigger: str) -> Row:
    def figures(result: Any) -> list[str]:
        found = []
        for row in result["sites"]:
            if (row["mode"], row["trigger"]) == (mode, trigger):
                rate, p50 = ratios_to_hub(row, result["sites"])
                ratios = "" if mode == "hub" else f" ({rate:.2f}, {p50:.2f})"
                found.append(f"{row['engine']}: {row['ordered_per_s']:,.0f}, {row['p50_ms']:.0f}{ratios}")
        return found

    def is_met(result: Any) -> bool:
        rows = [row for row in result["sites"] if (row["mode"], row["trigger"]) == (mode, trigger)]
        ratios = [ratios_to_hub(row, result["sites"]) for row in rows]
        return all(rate >= MIN_AGREED_TO_HUB and p50 <= MAX_AGREED_P50_TO_HUB for rate, p50 in ratios)

    aim = f"≥ {MIN_AGREED_TO_HUB}; ≤ {MAX_AGREED_P50_TO_HUB:g}" if mode == "isis" else ""
    what = f"three sites, {mode}, {trigger} relays, by engine: ordered; p50 to the DATA of the sender's site"
    unit = "messages/s; ms" + (" (ratios to hub)" if mode != "hub" else "")
    return Row("agreeing", what, unit, aim, figures, is_met if aim else None)


def _costs(result: Any) -> list[str]:
    return [
        f"{row['engine']}, {row['trigger']}: {row['costs']['entries']:.2f}, {row['costs']['hops']:.1f}"
        for row in result["sites"]
        if row["mode"] == "isis"
    ]


ROWS = (
    *(_throughput(case, number) for number, case in enumerate(Plan(DEFAULT_RECORDS).cases)),
    Row(
        "peers",
        "100 B, 4 senders, 4 partitions: copy; sequencer; Kafka Streams exactly-once; sequencer to Streams",
        "thousand records/s; ratio",
        f"ratio ≥ {MIN_TO_STREAMS}",
        lambda result: [
            *(f"{result['records_per_s'][name] / 1000:.0f}" for name in ("copy", "sequencer", "streams")),
            f"{result['sequencer_to_streams']:.2f}",
        ],
        lambda result: result["sequencer_to_streams"] >= MIN_TO_STREAMS,
    ),
    Row(
        "peers",
        "at 1,000 records/s, Kafka Streams exactly-once: p50; p99",
        "ms",
        "",
        lambda result: [f"{result['latency'][name]:.0f}" for name in ("p50_ms", "p99_ms")],
    ),
    Row(
        "state",
        "the sequencer's state, by number of senders",
        "bytes, compressed",
        "grows with senders only",
        lambda rows: [f"{row['senders']:,} senders: {row['state_bytes']:,}" for row in rows],
    ),
    *(
        Row(
            "growth",
            f"with {what}: sequencer to copy; its CPU a record",
            "ratio; µs",
            "",
            functools.partial(_grown, what),
        )
        for what in ("payload, bytes", "senders", "partitions", "groups")
    ),
    Row("latency", "at 1,000 records/s, copy: p50; p99", "ms", "", _latency("copy")),
    Row(
        "latency",
        "at 1,000 records/s, sequencer: p50; p99; p50 to the copy's",
        "ms; ratio",
        f"ratio ≤ {MAX_LATENCY_RATIO}",
        lambda result: [*_latency("sequencer")(result), f"{result['p50_ratio']:.2f}"],
        lambda result: result["p50_ratio"] <= MAX_LATENCY_RATIO,
    ),
    Row(
        "latency",
        "a batch of the sequencer's at 1,000 records/s: records; ms of all and of its parts",
        "median",
        "",
        _batch,
    ),
    Row(
        "memory",
        "`abcast sequence` draining a backlog, at the peak: all; JVM; Python workers; driver",
        "MiB",
        f"all < {MAX_MEMORY_MIB:,}",
        lambda result: [
            f"{result['peak_mib']:,.0f}",
            *(f"{result['peak_parts_mib'][part]:,.0f}" for part in ("jvm", "worker", "driver")),
        ],
        lambda result: result["peak_mib"] < MAX_MEMORY_MIB,
    ),
    *(_engine(transport) for transport in ENGINE_AIMS),
    *(
        Row(
            "rates",
            f"{engine} engine, confluent: p50, p99 by messages/s, `broadcast` to `deliveries` in another process",
            "ms",
            "",
            functools.partial(_of_rates, engine),
        )
        for engine in ENGINES
    ),
    *(_groups(where) for where in dict.fromkeys(way.where for way in WAYS)),
    *(_orders(transport) for transport in MAX_CAST_MS),
    Row("casts", "one member's messages by order, until all receipts are there", "records/s", "", _cast_rates),
    Row(
        "casts",
        "causal, 300/s of all members together in three processes, by members: p50, p99; a clock",
        "ms; bytes",
        "",
        _cast_growth,
    ),
    Row(
        "members",
        "sending alone, to a bare producer",
        "records/s (ratio)",
        f"ratio ≥ {MIN_MEMBER_TO_BARE}; confluent ≥ {MIN_FAST_BROADCASTS_PER_S:,}",
        _member("sending", "bare", "member", "member, many at once", "member with outbox"),
        _beside_bare("sending", "member", MIN_MEMBER_TO_BARE, MIN_FAST_BROADCASTS_PER_S),
    ),
    Row(
        "members",
        "until all is ordered and read back, to a bare producer that flushes",
        "records/s (ratio)",
        f"that delivers, too: ratio ≥ {MIN_READ_BACK_TO_BARE}",
        _member(
            "ordered", "bare", "member", "member with outbox", "member that delivers, too", "three that deliver, too"
        ),
        _beside_bare("ordered", "member that delivers, too", MIN_READ_BACK_TO_BARE),
    ),
    Row(
        "members",
        "delivering, to a bare consumer",
        "records/s (ratio)",
        f"ratio ≥ {MIN_MEMBER_TO_BARE}; confluent ≥ {MIN_FAST_DELIVERIES_PER_S:,}",
        _member("delivering", "bare", "member", "member, in lists"),
        _beside_bare("delivering", "member", MIN_MEMBER_TO_BARE, MIN_FAST_DELIVERIES_PER_S),
    ),
    Row(
        "members",
        "the process's CPU time: sending alone; delivering; beside a bare one",
        "µs a record (ratio)",
        f"ratio ≥ {MIN_MEMBER_TO_BARE}",
        lambda result: [
            f"{transport}: {kind} {rows['member']['cpu_us_per_record']:.1f}, "
            f"bare {rows['bare']['cpu_us_per_record']:.1f} ({rows['member']['cpu_to_bare']:.2f})"
            for transport, measured in result["transports"].items()
            for kind, rows in ((kind, measured[kind]) for kind in ("sending", "delivering"))
        ],
        lambda result: all(
            measured[kind]["member"]["cpu_to_bare"] >= MIN_MEMBER_TO_BARE
            for measured in result["transports"].values()
            for kind in ("sending", "delivering")
        ),
    ),
    Row("views", "from JOIN to the view, median", "ms", "", _joins),
    Row(
        "views",
        "heartbeats of 1,000 members, at the sequencer",
        "ms per second",
        "",
        lambda result: [f"{result['heartbeats']['ms_per_second']:.1f}"],
    ),
    Row(
        "relay",
        "to a copy of the same topic: a hub's FORWARD (requests); its DATA (orders); a mesh's messages (news)",
        "ratio",
        f"≥ {MIN_RELAY_TO_COPY}",
        lambda result: [f"{row['kind']} {row['ratio']:.2f}" for row in result["throughput"]],
        lambda result: all(row["ratio"] >= MIN_RELAY_TO_COPY for row in result["throughput"]),
    ),
    *(_added(trigger) for trigger in MAX_RELAY_MS),
    Row(
        "relay",
        "from FORWARD at one site to the home's, process engine: p50; p99; Kafka's own way: p50; p99",
        "ms",
        f"p50 ≤ {MAX_PROCESS_RELAY_MS} more than Kafka",
        lambda result: [
            f"{result['latency'][way][name]:.1f}" for way in ("process", "kafka") for name in ("p50_ms", "p99_ms")
        ],
        lambda result: _hop_ms(result) <= MAX_PROCESS_RELAY_MS,
    ),
    *(_way(mode, trigger) for trigger in MAX_RELAY_MS for mode in ("hub", "isis", "mesh")),
    Row(
        "agreeing",
        "what agreeing costs a message at 300/s, by engine and relays: entries; ways of a relay, one behind the other, "
        "until it is ordered at its own site",
        "count",
        "",
        _costs,
    ),
    Row(
        "agreeing",
        "three plain processes over UDP, 100 B, by messages of each in flight: ordered; p50; CPU of all",
        "messages/s; ms; µs",
        f"one ≥ {MIN_PLAIN_PER_S:,}",
        lambda result: [
            f"{row['in_flight']}: {row['ordered_per_s']:,.0f}, {row['p50_ms']:.1f}, {row['cpu_us_per_message']:.0f}"
            for row in result["processes"]
        ],
        lambda result: all(r["ordered_per_s"] >= MIN_PLAIN_PER_S for r in result["processes"] if r["in_flight"] == 1),
    ),
    Row(
        "recovery",
        "kill -9 of the sequencer to the next delivery, each kill; a bare Spark session's start",
        "s",
        f"≤ {MAX_KILL_S}",
        lambda result: [
            *(f"{row['next_delivery_s']:.1f}" for row in result["kills"]["rounds"]),
            f"Spark {result['spark_start_s']:.1f}",
        ],
        lambda result: all(row["next_delivery_s"] <= MAX_KILL_S for row in result["kills"]["rounds"]),
    ),
    Row(
        "recovery",
        "a lost checkpoint, by number of messages ordered before",
        "s",
        f"≤ {MAX_LOST_CHECKPOINT_S}",
        lambda result: [f"{row['history']:,}: {row['next_delivery_s']:.1f}" for row in result["lost_checkpoints"]],
        lambda result: all(row["next_delivery_s"] <= MAX_LOST_CHECKPOINT_S for row in result["lost_checkpoints"]),
    ),
)
