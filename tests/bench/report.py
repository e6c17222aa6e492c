"""The tables on the terminal, each with a target beside the measured figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ordering.casts.casts import TOTAL
from tests.bench.plan import KINDS, Case

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
MIN_AGREED_TO_HUB = 0.5
MAX_AGREED_P50_TO_HUB = 3.0
MIN_PLAIN_PER_S = 10_000
MAX_KILL_S = 15
MAX_LOST_CHECKPOINT_S = 30

Results = Mapping[str, Any]


def show(console: Console, section: str, result: Any) -> None:
    """Print a section's tables."""
    console.print()
    if isinstance(result, dict) and "failed" in result:
        console.print(f"{section}: failed: {result['failed']}", style="red")
        return
    for table in _TABLES[section](result):
        console.print(table)


def show_machine(console: Console, machine: Results) -> None:
    """Show the machine in one line."""
    packages = machine["packages"]
    console.print(
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory']}, load {machine['load_average']:.1f}; "
        f"Python {machine['python']}, {machine['java']}, pyspark {packages['pyspark']}, "
        f"delta-spark {packages['delta-spark']}, kafka-python {packages['kafka-python']}; commit {machine['commit']}",
        style="dim",
        highlight=False,
    )


def _throughput(cases: Sequence[Results]) -> list[Table]:
    if not cases:
        return []
    table = _table(
        f"Throughput: thousand records/s, {cases[0]['records']:,} records in batches of "
        f"{cases[0]['max_offsets_per_trigger']:,}; steady: without the first batch (in brackets: with it)",
        "FORWARD",
        *("(a) copy", "(b) sequencer", "(c) append", "(d) ledger"),
        *(f"b/a, target ≥ {MIN_SEQUENCER_TO_COPY}", f"d/c, target ≥ {MIN_LEDGER_TO_APPEND}"),
        *("CPU µs/record: copy", "sequencer", "of it Python", "append", "ledger"),
    )
    for case in cases:
        cpu = {kind: case[kind]["cpu_us_per_record"] for kind in KINDS}
        table.add_row(
            str(Case(case["payload_bytes"], case["senders"], case["partitions"])),
            *(_rates(case[kind]) for kind in KINDS),
            _judged(case["sequencer_to_copy"], case["sequencer_to_copy"] >= MIN_SEQUENCER_TO_COPY),
            _judged(case["ledger_to_append"], case["ledger_to_append"] >= MIN_LEDGER_TO_APPEND),
            *(f"{_spark_cpu(cpu[kind]):.2f}" for kind in ("copy", "sequencer")),
            f"{cpu['sequencer'].get('worker', 0.0):.2f}",
            *(f"{_spark_cpu(cpu[kind]):.2f}" for kind in ("append", "ledger")),
        )
    return [table]


def _peers(result: Results) -> list[Table]:
    rates = _table("Peers: 100 B, 4 senders, 4 partitions", "", "thousand records/s")
    for name, rate in result["records_per_s"].items():
        rates.add_row(name, f"{rate / 1000:.0f}")
    ratio = result["sequencer_to_streams"]
    rates.add_row(f"sequencer to streams, target ≥ {MIN_TO_STREAMS}", _judged(ratio, ratio >= MIN_TO_STREAMS))
    times = _table("Peers: broadcast to delivery, ms", *("", "p50", "p99", "max"))
    times.add_row("streams", *(f"{result['latency'][name]:.0f}" for name in ("p50_ms", "p99_ms", "max_ms")))
    return [rates, times]


def _rates_of_engines(result: Results) -> list[Table]:
    table = _table("Rates: broadcast to deliveries in another process, ms", "engine", "messages/s", "p50", "p99", "max")
    for engine, rows in result.items():
        for row in rows:
            table.add_row(engine, f"{row['per_s']:,}", *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")))
    return [table]


def _groups(result: list[Any]) -> list[Table]:
    many, hot = result[0]["many"]["groups"], result[0]["hot"]["groups"]
    table = _table(
        f"{many:,} groups with a message/s each: FORWARD to DATA, ms; and {hot} hot groups",
        *("", "groups at a time", "ready, s", "p50", "p99", "CPU s a second", "hot: thousand records/s"),
    )
    for row in result:
        steady = row["many"]
        table.add_row(
            *(row["where"], str(row["parallelism"]), f"{steady['ready_s']:.1f}"),
            *(f"{steady[name]:.0f}" for name in ("p50_ms", "p99_ms")),
            f"{sum(steady['cpu'].values()):.2f}",
            f"{row['hot']['records_per_s'] / 1000:.1f}",
        )
    return [table]


def _growth(result: Results) -> list[Table]:
    tables = []
    for what, rows in result.items():
        table = _table(f"Growth with {what}", what, "copy", "sequencer", "ratio", "CPU µs/record")
        for row in rows:
            table.add_row(
                f"{row['size']:,}",
                *(f"{row[kind] / 1000:,.1f}" for kind in ("copy", "sequencer")),
                *(f"{row[name]:.2f}" for name in ("ratio", "cpu_us_per_record")),
            )
        tables.append(table)
    return tables


def _rates(kind: Results) -> str:
    return f"{kind['records_per_s'] / 1000:.0f} ({kind['whole_records_per_s'] / 1000:.0f})"


def _spark_cpu(cpu: Results) -> float:
    """Return Spark's CPU without Kafka's own."""
    return float(sum(used for part, used in cpu.items() if part != "broker"))


def _state(rows: Sequence[Results]) -> list[Table]:
    table = _table(
        "State: the sequencer by number of senders, 100 B payloads",
        *("senders", "records", "thousand records/s", "state, bytes", "a sender, bytes", "Spark's store, KiB"),
    )
    for row in rows:
        table.add_row(
            f"{row['senders']:,}",
            f"{row['records']:,}",
            f"{row['records_per_s'] / 1000:.0f}",
            f"{row['state_bytes']:,}",
            f"{row['state_bytes_per_sender']:.1f}",
            f"{row['spark_state_store_bytes'] / 1024:,.0f}",
        )
    return [table]


def _latency(result: Results) -> list[Table]:
    table = _table(
        f"Latency, broadcast to delivery, at {result['records_per_s']:,} records/s for {result['seconds']:g} s: ms",
        *("", "p50", "p99", "max", "records", "p50 to the copy's"),
    )
    for kind in ("copy", "sequencer"):
        row = result[kind]
        ratio = result["p50_ratio"]
        judged = f"{_judged(ratio, ratio <= MAX_LATENCY_RATIO)}, target ≤ {MAX_LATENCY_RATIO}"
        table.add_row(
            kind,
            *(f"{row[name]:.0f}" for name in ("p50_ms", "p99_ms", "max_ms")),
            f"{row['records']:,}",
            judged if kind == "sequencer" else "1",
        )
    parts = [name for name in result["sequencer"]["batch_ms"] if name != "records"]
    batches = _table("The same: of a batch, median: ms", "", "records", *parts)
    for kind in ("copy", "sequencer"):
        of_kind = result[kind]["batch_ms"]
        batches.add_row(kind, *(f"{of_kind[name]:.0f}" if name in of_kind else "" for name in ("records", *parts)))
    return [table, batches]


def _memory(result: Results) -> list[Table]:
    table = _table(
        f"Memory of `abcast sequence` while it drains {result['records']:,} records of 100 B in "
        f"{result['seconds']:.0f} s: MiB",
        *("at the peak of all", "driver JVM", "Python workers", "driver Python", f"target < {MAX_MEMORY_MIB:,}"),
    )
    parts = result["peak_parts_mib"]
    table.add_row(
        f"{result['peak_mib']:,.0f}",
        *(f"{parts.get(part, 0.0):,.0f}" for part in ("jvm", "worker", "driver")),
        _verdict(result["peak_mib"] < MAX_MEMORY_MIB),
    )
    return [table]


def _engine(result: Results) -> list[Table]:
    table = _table(
        "Process engine, by transport: broadcast to deliveries in another process, ms; a backlog of 100 B; kill -9",
        *("", "p50", "p99", "max", "target", "thousand records/s", "target", f"MiB, target ≤ {MAX_ENGINE_MIB}"),
        f"s to the next delivery, target ≤ {MAX_ENGINE_KILL_S}",
    )
    for transport, row in result.items():
        times, taken = row["latency"], row["kills"]["max_s"]
        p50, p99, rate = ENGINE_AIMS[transport]
        table.add_row(
            transport,
            *(f"{times[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")),
            f"{p50}, {p99}: {_verdict(times['p50_ms'] <= p50 and times['p99_ms'] <= p99)}",
            f"{row['drain']['records_per_s'] / 1000:.1f}",
            f"≥ {rate}: {_verdict(row['drain']['records_per_s'] >= rate * 1000)}",
            _judged(row["drain"]["peak_mib"], row["drain"]["peak_mib"] <= MAX_ENGINE_MIB),
            _judged(taken, taken <= MAX_ENGINE_KILL_S),
        )
    return [table]


def _casts(result: Results) -> list[Table]:
    orders = _table(
        "Orders side by side: broadcast to deliveries in another process, ms; until all receipts are there",
        *("", "order", "p50", "p99", "max", "target", "sender's CPU, s", "records/s"),
    )
    growth = _table(
        "Casts in causal order, by members in three processes: broadcast to deliveries, ms; bytes of a clock",
        *("", "members", "casts/s of all", "p50", "p99", "bytes"),
    )
    for transport, measured in result.items():
        for order, row in measured["orders"].items():
            aim = MAX_CAST_MS[transport]
            orders.add_row(
                transport,
                order,
                *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")),
                "" if order == TOTAL else f"p50 ≤ {aim}: {_verdict(row['p50_ms'] <= aim)}",
                f"{row['sender_cpu_s']:.1f}",
                f"{row['records_per_s']:,.0f}",
            )
        for row in measured["growth"]:
            growth.add_row(
                transport,
                *(f"{row[name]:,}" for name in ("members", "per_s")),
                *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "clock_bytes")),
            )
    return [orders, growth]


def _members(result: Results) -> list[Table]:
    tables = []
    for transport, measured in result["transports"].items():
        for kind, title in (
            ("sending", "sending alone: no sequencer runs, the broker has everything"),
            ("ordered", "the sequencer runs: all receipts resolved, beside a bare producer that flushes"),
            ("delivering", "delivering what stands in DATA, beside a bare consumer"),
        ):
            table = _table(
                f"Members on {transport}, {result['records']:,} messages of {result['payload_bytes']} B, {title}",
                *("", "records/s, median", f"to the bare one, target ≥ {MIN_MEMBER_TO_BARE}"),
                *("CPU, µs a record", "bare CPU to it"),
            )
            for name, row in measured[kind].items():
                judged = "1" if name == "bare" else _judged(row["to_bare"], row["to_bare"] >= MIN_MEMBER_TO_BARE)
                cpu = f"{row['cpu_us_per_record']:.1f}", f"{row['cpu_to_bare']:.2f}"
                table.add_row(name, f"{row['records_per_s']:,.0f}", judged, *cpu)
            tables.append(table)
    return tables


def _views(result: Results) -> list[Table]:
    joins = _table("Views: from JOIN to the installed view, ms", "members", "flush", "median", "max")
    for row in result["joins"]:
        times = sorted(row["ms"])
        joins.add_row(str(row["members"]), "yes" if row["flush"] else "no", f"{median(times):.0f}", f"{times[-1]:.0f}")
    cost = result["heartbeats"]
    beats = _table(
        "Heartbeats, one a second from each: the sequencer's time for them", "members", "ms per second", "state"
    )
    beats.add_row(f"{cost['members']:,}", f"{cost['ms_per_second']:.1f}", f"{cost['state_bytes']:,} B")
    return [joins, beats]


def _relay(result: Results) -> list[Table]:
    rates = _table(
        "Relay: thousand records/s, 100 B, beside a stateless copy of the same topic",
        *("", "copy", "relay", f"relay/copy, target ≥ {MIN_RELAY_TO_COPY}"),
    )
    for row in result["throughput"]:
        judged = _judged(row["ratio"], row["ratio"] >= MIN_RELAY_TO_COPY)
        rates.add_row(row["kind"], f"{row['copy'] / 1000:.0f}", f"{row['relay'] / 1000:.0f}", judged)
    times = _table("Relay: from FORWARD at one site to the home's, ms", "", "p50", "p99", "max", "records", "target")
    for trigger, row in result["latency"].items():
        target = MAX_RELAY_MS[trigger]
        times.add_row(
            trigger,
            *(f"{row[name]:.0f}" for name in ("p50_ms", "p99_ms", "max_ms")),
            f"{row['records']:,}",
            f"p50 ≤ {target}: {_verdict(row['p50_ms'] <= target)}",
        )
    return [rates, times]


def ratios_to_hub(row: Results, rows: Sequence[Results]) -> tuple[float, float]:
    """Return throughput and p50, each in relation to a hub with the same engine and the same relays."""
    hub = next(
        each for each in rows if each["mode"] == "hub" and all(each[key] == row[key] for key in ("engine", "trigger"))
    )
    return row["ordered_per_s"] / hub["ordered_per_s"], row["p50_ms"] / hub["p50_ms"]


def _agreeing(result: Results) -> list[Table]:
    ways = _table(
        f"Three sites: {result['records']:,} messages of 100 B at each; then {result['rate']}/s, FORWARD to DATA of "
        "the sender's site, ms (of a hub: not of the home)",
        *("", "engine", "relays", "ordered/s", f"to hub, isis ≥ {MIN_AGREED_TO_HUB}", "CPU µs/message"),
        *("p50", f"to hub, isis ≤ {MAX_AGREED_P50_TO_HUB:g}", "p99"),
    )
    costs = _table("What agreeing costs, by message, at that rate", "engine", *("relays", "entries", "bytes of one"))
    for name in ("messages a run", "send", "propose", "finals", "known", "hops until ordered at its own site"):
        costs.add_column(name, justify="right")
    for row in result["sites"]:
        rate, p50 = ratios_to_hub(row, result["sites"])
        is_judged = row["mode"] == "isis"
        ways.add_row(
            *(row["mode"], row["engine"], row["trigger"], f"{row['ordered_per_s']:,.0f}"),
            _judged(rate, rate >= MIN_AGREED_TO_HUB) if is_judged else f"{rate:.2f}",
            *(f"{row['cpu_us_per_message']:.0f}", f"{row['p50_ms']:.0f}"),
            _judged(p50, p50 <= MAX_AGREED_P50_TO_HUB) if is_judged else f"{p50:.2f}",
            f"{row['p99_ms']:.0f}",
        )
        if is_judged:
            of_row = row["costs"]
            costs.add_row(
                *(row["engine"], row["trigger"], f"{of_row['entries']:.3f}", f"{of_row['entry_bytes']:,.0f}"),
                f"{of_row['messages_a_run']:.1f}",
                *(f"{of_row['letters'].get(kind, 0.0):.3f}" for kind in ("send", "propose", "finals", "known")),
                f"{of_row['hops']:.2f}",
            )
    plain = _table(
        "Three plain processes that agree over UDP, 100 B",
        *("messages of each in flight", f"ordered/s, one ≥ {MIN_PLAIN_PER_S:,}", "p50", "p99", "CPU µs/message"),
    )
    for row in result["processes"]:
        plain.add_row(
            str(row["in_flight"]),
            f"{row['ordered_per_s']:,.0f}",
            *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms")),
            f"{row['cpu_us_per_message']:.0f}",
        )
    return [ways, costs, plain]


def _recovery(result: Results) -> list[Table]:
    table = _table(
        f"Recovery at {result['load_records_per_s']:,} records/s: seconds since the kill or the start "
        f"(a bare Spark session alone takes {result['spark_start_s']:.1f})",
        *("", "history", "process started", "epoch began", "ready", "next delivery", "target"),
    )
    kills = result["kills"]
    for number, row in enumerate(kills["rounds"], 1):
        _add_timeline(table, f"kill -9, {number}", row, MAX_KILL_S)
    for row in result["lost_checkpoints"]:
        _add_timeline(table, "checkpoint lost", row, MAX_LOST_CHECKPOINT_S)
    return [table]


def _add_timeline(table: Table, what: str, row: Results, target: float) -> None:
    table.add_row(
        what,
        f"{row['history']:,}",
        *(f"{row[name]:.1f}" for name in ("started_s", "epoch_began_s", "ready_s", "next_delivery_s")),
        f"≤ {target:g}: {_verdict(row['next_delivery_s'] <= target)}",
    )


def _judged(value: float, is_met: bool) -> str:
    return f"[{'green' if is_met else 'red'}]{value:.2f}[/]"


def _verdict(is_met: bool) -> str:
    return "[green]met[/]" if is_met else "[red]missed[/]"


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


_TABLES: dict[str, Callable[[Any], list[Table]]] = {
    "throughput": _throughput,
    "peers": _peers,
    "state": _state,
    "growth": _growth,
    "latency": _latency,
    "memory": _memory,
    "engine": _engine,
    "rates": _rates_of_engines,
    "groups": _groups,
    "casts": _casts,
    "members": _members,
    "views": _views,
    "relay": _relay,
    "agreeing": _agreeing,
    "recovery": _recovery,
}
