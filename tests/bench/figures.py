"""The figures of the benchmark: the tables of each section, their aims, and how both sides were warmed.

The terminal (`tests.bench.report`) and docs/performance.md (`tests.bench.page`) show the same tables. Each has the
figures of one run. A rate is in thousand messages a second (k/s). CPU is that of our processes or of the peer's, a
message, without the broker's (µs).
"""

from __future__ import annotations

from statistics import median

from tests.bench import rows
from tests.bench.standby import HANDED_OVER, KILLED
from tests.bench.tables import Table, at_least, at_most

MIN_SEQUENCER_TO_COPY, MIN_LEDGER_TO_APPEND = 0.6, 0.7
MIN_TO_STREAMS = 1.0
MAX_LATENCY_RATIO = 3.5
MAX_MEMORY_MIB = 3 * 1024
ENGINE_AIMS = {"kafka-python": (15, 60, 20), "confluent": (10, 30, 80)}
"""By transport: p50 and p99 in ms at most, and thousand records/s at least."""
MAX_ENGINE_MIB, MAX_ENGINE_KILL_S = 150, 3
MAX_CAST_MS = {"kafka-python": 12, "confluent": 4}
"""By transport: p50 of fifo and causal messages at most."""
MIN_MEMBER_TO_BARE, MIN_READ_BACK_TO_BARE = 0.75, 0.5
MIN_BROADCASTS, MIN_DELIVERIES = 60, 100
"""Least rates of a member with the fast transport, k/s."""
MIN_PACKED = {"broadcast": 100, "broadcast_many": 200, "batches": 1_000, "in Arrow": 3_000, "process": 1_000}
"""Least rates with packs, k/s."""
MIN_PACKED_TO_COPY, MIN_PACKED_TO_PACKED_COPY, MIN_LEDGER_GAIN, MAX_PACKED_BYTES = 4.0, 0.65, 3.0, 0.55
MIN_RELAY_TO_COPY = 0.8
MAX_RELAY_MS = {"micro-batch": 150, "real-time": 20}
MAX_PROCESS_RELAY_MS = 1
MIN_AGREED_TO_HUB = 0.5
MAX_AGREED_P50_TO_HUB = {"micro-batch": 6, "real-time": 6, "process": 4}
MIN_PLAIN = 10
MAX_KILL_S, MAX_LOST_CHECKPOINT_S = 15, 30
MAX_FIRST_S, MAX_LIGHT_MIB = 3, 350
MAX_SILENT_S = {"spark": 3, "process": 2}
"""By engine: the most seconds from a kill -9 to the next delivery, with a standby on its host."""
MAX_HANDOVER_S = 1

WARMED = {
    "throughput": "One Spark session has drained a backlog with each kind before. No rate has the first batch of its "
    "query.",
    "peers": "All read the same 2 million records. Spark's session is warm from `throughput`; the rate of Kafka "
    "Streams is that of the second half, and its latency comes after two minutes of load.",
    "state": "In the warm session of `throughput`. No rate has the first batch.",
    "growth": "In the warm session of `throughput`. No rate has the first batch. With groups, both queries run twice, "
    "and the second time counts.",
    "latency": "Copy and sequencer each have two minutes of the same load before the measured half minute.",
    "memory": "The command starts cold, on the backlog: the peak has its start.",
    "engine": "Each library has 12 s of the same load before the latency. A backlog is drained from a cold start's "
    "`ready` on.",
    "rates": "Before the first rate, Spark has two minutes of load and the process engine 12 s; before each later one "
    "a tenth of that.",
    "groups": "Every start is cold. Each way has 20 s of the same load before the measured time.",
    "casts": "Each measured time has 6 s of the same load before it. There is no JVM but the broker's.",
    "members": "Each client's work and the bare client's take turns, after a turn that is not counted.",
    "packs": "Members take turns after one that is not counted. Spark drains each backlog twice, with copy and append, "
    "and the second time counts; the process engine's rate begins at `ready`.",
    "views": "The session is warm from `throughput`. Joins follow one another in one job.",
    "relay": "A backlog is read in the warm session, like the copy beside it. Before a latency, Spark has two minutes "
    "of the same load; the process engine and Kafka alone have 12 s.",
    "agreeing": "Sites and relays on Spark have 75 s of 300 messages/s before anything is measured, those of the "
    "process engine 3 s.",
    "recovery": "Nothing is warm: each process is new, and so is the bare session.",
    "standby": "Each start, and each sequencer and its standby, are new: they have 5 s of 1,000 messages/s, and Spark "
    "has its start before.",
}
"""The warm-up of both sides, by section."""


TABLES = (
    Table(
        "throughput",
        "A backlog on Spark: the sequencer beside a copy of FORWARD, the ledger beside an append of DATA.",
        (
            *("backlog", "copy, k/s", "sequencer, k/s", "ratio", "its CPU, µs"),
            *("append, k/s", "ledger, k/s", "ratio", "its CPU, µs"),
        ),
        rows.throughput,
        (
            at_least("sequencer to copy", MIN_SEQUENCER_TO_COPY, lambda r: [each["sequencer_to_copy"] for each in r]),
            at_least("ledger to append", MIN_LEDGER_TO_APPEND, lambda r: [each["ledger_to_append"] for each in r]),
        ),
    ),
    Table(
        "peers",
        "A backlog of 100 B, 4 senders, 4 partitions.",
        ("program", "k/s", "with its start, k/s", "CPU, µs"),
        lambda r: [
            (called, rows.thousands(r[name]), r[name]["whole_records_per_s"] / 1000, r[name]["cpu_us"])
            for name, called in (
                *(("copy", "copy, Spark"), ("sequencer", "sequencer, Spark")),
                ("streams", "Kafka Streams, exactly once"),
            )
        ],
        (at_least("sequencer to Kafka Streams", MIN_TO_STREAMS, rows.values_at("sequencer_to_streams")),),
    ),
    Table(
        "peers",
        "Kafka Streams at 1,000/s, from FORWARD to its output.",
        ("program", "p50, ms", "p99, ms"),
        lambda r: [("Kafka Streams, exactly once", *rows.percentiles(r["latency"]))],
    ),
    Table(
        "state",
        "The sequencer's state, compressed: it grows with senders only.",
        ("senders", "state, bytes", "backlog, k/s", "CPU, µs"),
        lambda r: [
            (each["senders"], each["state_bytes"], rows.thousands(each), rows.own_cpu(each["cpu_us_per_record"]))
            for each in r
        ],
    ),
    Table(
        "growth",
        "One thing grows, the others stay at 100 B, 4 senders, 1 partition, 1 group.",
        ("with", "size", "copy, k/s", "sequencer, k/s", "ratio", "its CPU, µs"),
        lambda r: [
            (name, row["size"], row["copy"] / 1000, row["sequencer"] / 1000, row["ratio"], row["cpu_us_per_record"])
            for name, all_ in r.items()
            for row in all_
        ],
    ),
    Table(
        "latency",
        "On Spark at 1,000/s, from FORWARD to DATA.",
        ("query", "p50, ms", "p99, ms"),
        lambda r: [(kind, *rows.percentiles(r[kind])) for kind in ("copy", "sequencer")],
        (at_most("p50 to the copy's", MAX_LATENCY_RATIO, rows.values_at("p50_ratio")),),
    ),
    Table(
        "latency",
        "A batch there, median. State, Python and the state's commit are parts of the run.",
        ("part", "copy", "sequencer"),
        rows.batch,
    ),
    Table(
        "memory",
        "`abcast sequence` drains a backlog on Spark, at the peak.",
        ("part", "MiB"),
        lambda r: [
            ("all", r["peak_mib"]),
            *((part, r["peak_parts_mib"][part]) for part in ("jvm", "worker", "driver")),
        ],
        (at_most("all, MiB", MAX_MEMORY_MIB, rows.values_at("peak_mib")),),
    ),
    Table(
        "engine",
        "The process engine: from `broadcast` to `deliveries` in another process at 1,000/s; a backlog; each kill -9 "
        "to the next delivery.",
        (
            *("library", "p50, ms", "p99, ms", "backlog, k/s", "CPU, µs", "memory, MiB"),
            *("kill, median, s", "kill, longest, s"),
        ),
        rows.engine,
        (
            *(
                aim
                for name, (p50, p99, rate) in ENGINE_AIMS.items()
                for aim in (
                    at_most(f"{name}: p50", p50, rows.values_at(name, "latency", "p50_ms")),
                    at_most(f"{name}: p99", p99, rows.values_at(name, "latency", "p99_ms")),
                    at_least(f"{name}: backlog", rate, rows.rates_at(name, "drain")),
                )
            ),
            at_most("memory", MAX_ENGINE_MIB, lambda r: [row["drain"]["peak_mib"] for row in r.values()]),
            at_most("kill", MAX_ENGINE_KILL_S, lambda r: [row["kills"]["max_s"] for row in r.values()]),
        ),
    ),
    Table(
        "rates",
        "From `broadcast` to `deliveries` in another process, with confluent-kafka.",
        ("engine", "messages/s", "p50, ms", "p99, ms"),
        lambda r: [(engine, row["per_s"], *rows.percentiles(row)) for engine, all_ in r.items() for row in all_],
    ),
    Table(
        "groups",
        "1,000 groups with a message a second each, from FORWARD to DATA; then 16 hot groups with a backlog.",
        (
            *("engine", "groups at a time", "start, s", "p50, ms", "p99, ms", "cores"),
            "hot groups, k/s",
        ),
        rows.groups,
    ),
    Table(
        "casts",
        "By order: at 1,000/s from `broadcast` to `deliveries` in another process; then one member until all receipts "
        "are there.",
        ("library", "order", "p50, ms", "p99, ms", "k/s"),
        lambda r: [
            (transport, order, *rows.percentiles(row), rows.thousands(row))
            for transport, measured in r.items()
            for order, row in measured["orders"].items()
        ],
        tuple(
            at_most(
                f"{name}: p50 of fifo and causal",
                limit,
                rows.p50_of_casts(name),
            )
            for name, limit in MAX_CAST_MS.items()
        ),
    ),
    Table(
        "casts",
        "Causal order, 300/s of all members in three processes together.",
        ("library", "members", "p50, ms", "p99, ms", "a clock, bytes"),
        lambda r: [
            (transport, row["members"], *rows.percentiles(row), row["clock_bytes"])
            for transport, measured in r.items()
            for row in measured["growth"]
        ],
    ),
    Table(
        "members",
        "Members in a group without packs, beside a bare producer and a bare consumer.",
        ("library", "work", "client", "k/s", "to bare", "CPU, µs"),
        rows.members,
        (
            at_least("sending to bare", MIN_MEMBER_TO_BARE, rows.of_members("sending", "member")),
            at_least("its CPU to bare", MIN_MEMBER_TO_BARE, rows.of_members("sending", "member", "cpu_to_bare")),
            at_least(
                "both ways to bare", MIN_READ_BACK_TO_BARE, rows.of_members("ordered", "member that delivers, too")
            ),
            at_least("delivering to bare", MIN_MEMBER_TO_BARE, rows.of_members("delivering", "member")),
            at_least("its CPU to bare", MIN_MEMBER_TO_BARE, rows.of_members("delivering", "member", "cpu_to_bare")),
            *(
                at_least(f"confluent: {kind}", limit, rows.rates_at("transports", "confluent", kind, "member"))
                for kind, limit in (("sending", MIN_BROADCASTS), ("delivering", MIN_DELIVERIES))
            ),
        ),
    ),
    Table(
        "packs",
        "Members in a group with packs, with confluent-kafka; the process engine orders.",
        ("work", "client", "k/s", "CPU, µs"),
        rows.packed_members,
        (
            *(
                at_least(name, MIN_PACKED[name], rows.rates_at("ordered", name))
                for name in ("broadcast", "broadcast_many")
            ),
            *(at_least(name, MIN_PACKED[name], rows.rates_at("delivering", name)) for name in ("batches", "in Arrow")),
        ),
    ),
    Table(
        "packs",
        "One such member under load. Messages in each record of FORWARD.",
        ("payload, bytes", "asked, messages/s", "k/s", "in a record", "CPU, µs"),
        rows.packed_loads,
    ),
    Table(
        "packs",
        "A backlog of 100 B in single records, and in packs of 100; messages a second.",
        ("stage", "single, k/s", "packs, k/s", "ratio", "single, CPU, µs", "packs, CPU, µs"),
        rows.packed_backlogs,
        (
            at_least("process engine", MIN_PACKED["process"], rows.rates_at("backlogs", "packs", "process")),
            at_least(
                "Spark to the copy of single records",
                MIN_PACKED_TO_COPY,
                rows.packed_to("sequencer", ("single", "copy")),
            ),
            at_least(
                "Spark to the copy of packs", MIN_PACKED_TO_PACKED_COPY, rows.packed_to("sequencer", ("packs", "copy"))
            ),
            at_least("ledger to single records", MIN_LEDGER_GAIN, rows.packed_to("ledger", ("single", "ledger"))),
            at_most(
                "bytes of DATA to single records",
                MAX_PACKED_BYTES,
                lambda r: [r["backlogs"]["packs"]["data_bytes"] / r["backlogs"]["single"]["data_bytes"]],
            ),
        ),
    ),
    Table(
        "views",
        "From JOIN to the view, on Spark.",
        ("members", "flush", "median, ms"),
        lambda r: [(each["members"], "yes" if each["flush"] else "no", median(each["ms"])) for each in r["joins"]],
    ),
    Table(
        "views",
        "Heartbeats of 1,000 members, one a second each, in the stateful function.",
        ("what", "ms a second"),
        lambda r: [("heartbeats", r["heartbeats"]["ms_per_second"])],
    ),
    Table(
        "relay",
        "A backlog on Spark: a hub's FORWARD (requests), its DATA (orders), a mesh's messages (news).",
        ("records", "copy, k/s", "relay, k/s", "ratio", "copy's CPU, µs", "relay's CPU, µs"),
        lambda r: [
            (row["kind"], row["copy"] / 1000, row["relay"] / 1000, row["ratio"], row["copy_cpu_us"], row["cpu_us"])
            for row in r["throughput"]
        ],
        (at_least("relay to copy", MIN_RELAY_TO_COPY, lambda r: [row["ratio"] for row in r["throughput"]]),),
    ),
    Table(
        "relay",
        "At 1,000/s from FORWARD at one site to the home's; `kafka` is Kafka's own way to FORWARD.",
        ("relay", "p50, ms", "p99, ms"),
        lambda r: [(way, *rows.percentiles(row)) for way, row in r["latency"].items()],
        (
            *(
                at_most(f"{trigger}: p50", limit, rows.values_at("latency", trigger, "p50_ms"))
                for trigger, limit in MAX_RELAY_MS.items()
            ),
            at_most(
                "process: p50 above Kafka's",
                MAX_PROCESS_RELAY_MS,
                lambda r: [r["latency"]["process"]["p50_ms"] - r["latency"]["kafka"]["p50_ms"]],
            ),
        ),
    ),
    Table(
        "agreeing",
        "Three sites: a burst, then 300/s to the DATA of the sender's own site.",
        ("engine, relays", "mode", "burst, k/s", "p50, ms", "p99, ms", "burst to hub", "p50 to hub", "CPU, µs"),
        rows.agreeing,
        (
            at_least("isis, burst to hub", MIN_AGREED_TO_HUB, rows.isis_to_hub(0, *MAX_AGREED_P50_TO_HUB)),
            *(
                at_most(f"isis, {relays}: p50 to hub", limit, rows.isis_to_hub(1, relays))
                for relays, limit in MAX_AGREED_P50_TO_HUB.items()
            ),
        ),
    ),
    Table(
        "agreeing",
        "The process engine at each rate.",
        ("mode", "messages/s", "p50, ms", "p99, ms"),
        lambda r: [
            (row["mode"], at["per_s"], *rows.percentiles(at))
            for row in r["sites"]
            if row["relays"] == "process"
            for at in row["rates"]
        ],
    ),
    Table(
        "agreeing",
        "What isis costs a message at 300/s. Hops are ways of a relay, one behind the other, until its own site has "
        "ordered it.",
        ("engine, relays", "entries", "an entry, bytes", "hops"),
        rows.costs,
    ),
    Table(
        "agreeing",
        "`abcast isis`: three plain processes over UDP, 100 B.",
        ("in flight of each", "k/s", "p50, ms", "CPU of all, µs"),
        lambda r: [
            (row["in_flight"], row["ordered_per_s"] / 1000, row["p50_ms"], row["cpu_us_per_message"])
            for row in r["processes"]
        ],
        (at_least("all", MIN_PLAIN, lambda r: [row["ordered_per_s"] / 1000 for row in r["processes"]]),),
    ),
    Table(
        "recovery",
        "On Spark at 1,000/s, from the end of the old process (or the start of the new one, without a checkpoint).",
        ("what", "claimed, s", "ready, s", "next delivery, s"),
        rows.recovery,
        (
            at_most("kill", MAX_KILL_S, lambda r: [row["next_delivery_s"] for row in r["kills"]["rounds"]]),
            at_most(
                "lost checkpoint",
                MAX_LOST_CHECKPOINT_S,
                lambda r: [row["next_delivery_s"] for row in r["lost_checkpoints"]],
            ),
        ),
    ),
    Table(
        "standby",
        "`abcast run --engine process`: from its start to the order of a message that waits; memory of its processes.",
        ("start", "first message, s", "memory, MiB"),
        lambda r: [(turn, row["ordered_s"], row["mib"]) for turn, row in enumerate(r["starts"], 1)],
        (
            at_most("first message, s", MAX_FIRST_S, lambda r: [row["ordered_s"] for row in r["starts"]]),
            at_most("memory, MiB", MAX_LIGHT_MIB, lambda r: [row["mib"] for row in r["starts"]]),
        ),
    ),
    Table(
        "standby",
        "A sequencer with a standby on its host, at 1,000/s: from its end to the next delivery, or the longest silence "
        "in a handover.",
        ("engine", "the sequencer is", "median, s", "longest, s"),
        rows.standby,
        (
            *(at_most(f"{each}: killed", limit, rows.silent(KILLED, each)) for each, limit in MAX_SILENT_S.items()),
            at_most("handed over", MAX_HANDOVER_S, rows.silent(HANDED_OVER, *MAX_SILENT_S)),
        ),
    ),
)
