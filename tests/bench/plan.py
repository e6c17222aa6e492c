"""Sizes and durations of one run, derived from `--records` and `--quick`."""

from __future__ import annotations

from dataclasses import dataclass, replace

SECTIONS = (
    *("throughput", "peers", "state", "growth", "latency", "memory"),
    *("engine", "rates", "groups", "casts", "members", "packs", "views", "relay", "agreeing", "recovery", "standby"),
)
DEFAULT_RECORDS = 1_000_000
QUICK_RECORDS = 200_000
KINDS = ("copy", "sequencer", "append", "ledger")
"""The measured kinds of the section about throughput."""
_JOB_BATCH_RECORDS = 200_000  # the default of `--max-batch-records`
_MIN_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A backlog of FORWARD records: payload size in bytes, senders, partitions of FORWARD."""

    payload_bytes: int
    senders: int
    partitions: int

    def __str__(self) -> str:
        payload = "1 KB" if self.payload_bytes == 1000 else f"{self.payload_bytes} B"
        return f"{payload}, {self.senders} sender{'s' * (self.senders > 1)}, {self.partitions} partition" + "s" * (
            self.partitions > 1
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes in records, durations in seconds; `rounds` alternations of each throughput and latency comparison."""

    records: int
    rounds: int = 1
    peer_records: int = 2_000_000
    """Records of the peers, whatever `records` is: a JVM that has read fewer is cold."""
    pack_messages: int = 100
    """Messages in each pack of a packed backlog."""
    latency_rate: int = 1000
    latency_warm_up_s: float = 120.0  # Java compiles last what runs a few times a second: how Spark plans a batch
    latency_s: float = 30.0
    many_groups: int = 1000
    """Groups with a message a second each."""
    many_warm_up_s: float = 20.0  # the first batches of a thousand groups take Spark as long
    many_s: float = 10.0
    hot_groups: int = 16
    hot_records: int = 10_000
    """Records in each hot group."""
    rates: tuple[int, ...] = (100, 1000, 10_000, 20_000, 40_000, 60_000)
    window_s: float = 10.0
    """Seconds at each of the rates, and of the casts."""
    cast_members: tuple[int, ...] = (3, 30, 300)
    cast_rate: int = 300
    """Casts a second of all those members together."""
    member_rounds: int = 3
    agreeing_records: int = 50_000
    """Messages at each of three sites. Fewer would be but a few batches of a site on Spark."""
    agreeing_warm_up_s: float = 75.0
    """Seconds of the warm-up with Spark."""
    agreeing_rate: int = 300
    """Messages a second at all sites together."""
    agreeing_other_rates: tuple[int, ...] = (30, 1000)
    """Rates at which the process engine is measured, too."""
    agreeing_s: float = 15.0
    plain_messages: int = 20_000
    """Messages of each plain process."""
    kills: int = 3
    session_starts: int = 3
    cases: tuple[Case, ...] = (
        *(Case(100, senders, partitions) for senders in (1, 16) for partitions in (1, 4)),
        *(Case(1000, 1, 1), Case(1000, 16, 4)),
    )
    state_senders: tuple[int, ...] = (10, 10_000)
    growing_payloads: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    growing_senders: tuple[int, ...] = (1, 1000, 100_000)
    growing_partitions: tuple[int, ...] = (1, 2, 4, 8)
    growing_groups: tuple[int, ...] = (1, 10, 100)

    @classmethod
    def of(cls, records: int | None, *, quick: bool, rounds: int) -> Plan:
        """The plan of a command line."""
        records = records or (QUICK_RECORDS if quick else DEFAULT_RECORDS)
        plan = cls(records, rounds, agreeing_records=min(50_000, records // 20))
        if not quick:
            return plan
        return replace(
            plan,
            peer_records=plan.records,
            latency_warm_up_s=30.0,
            latency_s=10.0,
            window_s=5.0,
            rates=(100, 1000, 10_000, 30_000),
            many_groups=20,
            many_warm_up_s=2.0,
            many_s=5.0,
            hot_groups=4,
            hot_records=1000,
            cast_members=(3, 30),
            member_rounds=1,
            agreeing_records=2_000,
            agreeing_warm_up_s=5.0,
            agreeing_s=10.0,
            plain_messages=5_000,
            kills=1,
            session_starts=1,
            cases=(Case(100, 1, 1), Case(1000, 16, 4)),
            growing_payloads=(100, 10_000),
            growing_senders=(1, 10_000),
            growing_partitions=(1, 4),
            growing_groups=(1, 10),
        )

    @property
    def batch_records(self) -> int:
        """`maxOffsetsPerTrigger` of every drain: the jobs' own default, less where there are few records."""
        return max(1000, min(_JOB_BATCH_RECORDS, self.records // _MIN_BATCHES))

    @property
    def warm_up_records(self) -> int:
        """Drained once by each kind of query before anything is measured."""
        return max(1000, min(600_000, self.records // 2))

    @property
    def memory_records(self) -> int:
        """2.5 M if 1 M are measured."""
        return self.records * 5 // 2

    @property
    def member_records(self) -> int:
        """Broadcasts per measurement: a few seconds' worth."""
        return max(2000, min(100_000, self.records // 10))

    @property
    def delivered_records(self) -> int:
        """Deliveries per measurement: more than a reader's queue holds, and fewer than the broadcasts before it."""
        return 5 * self.member_records

    @property
    def histories(self) -> tuple[int, ...]:
        """Records ordered before the sequencer loses everything: 50 k and 500 k beside 1 M."""
        return self.records // 20, self.records // 2
