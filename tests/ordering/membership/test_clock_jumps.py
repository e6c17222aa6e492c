"""Brokers' clocks that jump: each partition has a leader of its own, hours ahead or behind, once or for ever.

Decisions by time are late by some steps at most: a dead member is out after `suspect_after_ms`, a flush ends, and no
live member is suspected.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest

from ordering.base.formats import NEWEST
from ordering.base.records import EPOCH, FLUSH_OK, HEARTBEAT, JOIN, SETTINGS, START_FLUSH, VIEW, Data, Forward, Source
from ordering.membership.failure_detector import LastHeard
from ordering.membership.flush import FlushPhase
from ordering.membership.log_time import Watch
from ordering.membership.settings import Settings
from ordering.sequencer.sequencer import absorb, begin_batch, end_batch, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import TOPIC, opened
from tests.simulator.columns import step_by_columns

HOUR_MS = 3_600_000
SUSPECT_AFTER_MS = 10_000
STEPS = 8
"""Seconds by which jumps, batches and a takeover may delay a decision."""
seeds = pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.soak) for n in range(8, 60))])


@dataclass
class Brokers:
    """A FORWARD topic with a leader for each partition; `now_ms` is the true time, which no leader need know."""

    skew_ms: list[int]
    now_ms: int = 1_763_856_000_000
    away: set[int] = field(default_factory=set)
    """The partitions that can't be written."""
    state: SequencerState = field(default_factory=opened)
    waiting: list[Forward] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0, 0, 0])
    locals: dict[str, int] = field(default_factory=dict)
    data: list[Data] = field(default_factory=list)

    def write(self, partition: int, sender: str, kind: str, payload: bytes = b"") -> None:
        if partition in self.away:
            return
        local = max(1, self.state.seqno)
        if kind != HEARTBEAT:
            local = self.locals[sender] = self.locals.get(sender, 0) + 1
        source = Source(TOPIC, partition, self.ends[partition])
        self.ends[partition] += 1
        at_ms = self.now_ms + self.skew_ms[partition]
        self.waiting.append(Forward(sender, 1, local, payload, source, kind=kind, timestamp_ms=at_ms))

    def pass_second(self, alive: dict[str, int]) -> None:
        self.now_ms += 1_000
        for partition in range(3):
            self.write(partition, "s/abcast.tick", HEARTBEAT)
        for member, partition in alive.items():
            self.write(partition, member, HEARTBEAT)

    def decide(self) -> list[Data]:
        """Decide a batch of the records since the last one."""
        rows, self.waiting = sorted(self.waiting, key=lambda record: record.source), []
        state, opening = begin_batch(self.state)
        columnwise, (state, outputs) = step_by_columns(state, rows), step(state, rows)
        assert columnwise == (state, outputs)
        assert SequencerState.from_bytes(state.to_bytes()) == state
        self.state, closing = end_batch(state)
        written = [*opening, *(record for record in outputs if isinstance(record, Data)), *closing]
        self.data += written
        return written

    def take_over(self) -> None:
        taken = absorb(opened(), self.data)
        self.state = replace(taken, positions=self.state.positions)

    @property
    def members(self) -> set[str]:
        return {member.address for member in self.state.membership.members}


def begun(dice: random.Random, *, flush: bool) -> Brokers:
    """Return a group of three members, each in its own partition, with clocks that differ from the first."""
    brokers = Brokers([dice.choice((0, 0, dice.randint(-HOUR_MS, HOUR_MS))) for _ in range(3)])
    settings = Settings(flush=flush, suspect_after_ms=SUSPECT_AFTER_MS).to_json()
    brokers.write(0, "s/admin", SETTINGS, settings)
    for partition, member in enumerate(("s/a", "s/b", "s/c")):
        brokers.write(partition, member, JOIN)
    brokers.decide()
    assert brokers.members == {"s/a", "s/b", "s/c"}
    return brokers


@seeds
def test_jumps_delay_no_suspicion_and_put_nobody_out(seed: int) -> None:
    dice = random.Random(seed)
    brokers = begun(dice, flush=dice.random() < 0.5)
    alive = {"s/a": 0, "s/b": 1, "s/c": 2}
    dies_at, taken_over_at = dice.randint(5, 60), dice.choice((None, dice.randint(5, 90)))
    joins_at = dice.randint(5, 90)
    jumps = {dice.randint(1, 100) // 10 * 10: dice.randint(0, 2) for _ in range(dice.randint(1, 6))}
    due = max(dies_at, taken_over_at or 0) + SUSPECT_AFTER_MS // 1_000 + STEPS
    for second in range(130):
        if second in jumps:
            before = brokers.skew_ms[jumps[second]]
            brokers.skew_ms[jumps[second]] = dice.choice((0, dice.randint(-24 * HOUR_MS, 24 * HOUR_MS)))
        elif second - 1 in jumps and dice.random() < 0.5:  # it was wrong for a second only
            brokers.skew_ms[jumps[second - 1]] = before
        if second == dies_at:
            del alive["s/b"]
        if second == joins_at:
            brokers.write(0, "s/d", JOIN)
            alive["s/d"] = 0
        brokers.pass_second(alive)
        if dice.random() < 0.6:
            flushes = [record.seqno for record in brokers.decide() if record.kind == START_FLUSH]
            for member in brokers.members & alive.keys():
                for flush in flushes:
                    brokers.write(alive[member], member, FLUSH_OK, b"%d" % flush)
        if second == taken_over_at:
            brokers.take_over()
        assert second < due or "s/b" not in brokers.members, f"s/b is there {second - dies_at} s after its death"
        assert second < max(due, joins_at + STEPS) or "s/d" in brokers.members
        assert {"s/a", "s/c"} <= brokers.members, f"a live member is out: {brokers.members}"
    assert brokers.state.membership.flush.phase is FlushPhase.RUNNING


@pytest.mark.slow
@seeds
def test_jumps_delay_no_snapshot_and_bring_few(seed: int) -> None:
    """A snapshot comes each hour of true time, however few the messages, and whatever the clocks did before."""
    dice = random.Random(seed)
    brokers = Brokers([dice.choice((0, dice.randint(-24 * HOUR_MS, 24 * HOUR_MS))) for _ in range(3)])
    brokers.state = replace(opened(), format=NEWEST.number)
    minutes = 24 * 60
    jumps = {dice.randrange(minutes): dice.randrange(3) for _ in range(dice.randint(1, 6))}
    since, snapshots, back = 0, 0, None
    for minute in range(minutes):
        brokers.now_ms += 60_000
        if back is not None:
            brokers.skew_ms[back[0]], back = back[1], None
        if minute in jumps:
            partition = jumps[minute]
            back = (partition, brokers.skew_ms[partition]) if dice.random() < 0.5 else None
            brokers.skew_ms[partition] = dice.choice((-1, 1)) * dice.choice((HOUR_MS, 24 * HOUR_MS, 9_000 * HOUR_MS))
        brokers.write(dice.randrange(3), "s/a", HEARTBEAT)
        written = [record for record in brokers.decide() if record.kind == EPOCH]
        since, snapshots = (0, snapshots + 1) if written else (since + 1, snapshots)
        assert since <= 60 + STEPS, f"no snapshot for {since} minutes"
    assert snapshots <= minutes // 60 + 2 * len(jumps)


def test_a_flush_is_not_held_by_a_partition_without_a_leader() -> None:
    """No answer can come from that partition. The others wait for twice the time, as an answer may only be read
    late.
    """
    brokers = begun(random.Random(0), flush=True)
    brokers.skew_ms = [0, 0, 0]
    for _ in range(3):
        brokers.pass_second({"s/a": 0, "s/b": 1, "s/c": 2})
        brokers.decide()
    brokers.away.add(2)
    brokers.write(0, "s/d", JOIN)
    [flush] = [record.seqno for record in brokers.decide() if record.kind == START_FLUSH]
    for partition, member in enumerate(("s/a", "s/b")):
        brokers.write(partition, member, FLUSH_OK, b"%d" % flush)
    timeout_s = brokers.state.membership.settings.flush_timeout_ms // 1_000
    for second in range(2 * timeout_s + 3):
        assert "s/c" in brokers.members or second > 2 * timeout_s
        brokers.pass_second({"s/a": 0, "s/b": 1, "s/d": 0})
        brokers.decide()
    assert brokers.members == {"s/a", "s/b", "s/d"}
    assert json.loads([record for record in brokers.data if record.kind == VIEW][-1].payload)["suspected"] == ["s/c"]


def hear_by_timestamps(watch: Watch, record: Forward) -> None:
    """Do as 0.1.0: a partition's clock is its newest timestamp."""
    partition = record.source.topic_partition
    at_ms = watch.clock[partition] = max(watch.clock.get(partition, 0), record.timestamp_ms)
    if watch.members.get(record.sender) == record.incarnation:
        watch.heard[record.sender] = LastHeard(partition, at_ms)


def excluded_at(seed: int, upgraded_at: int) -> int:
    """Return the second at which a dead member is out, if this version goes on from a snapshot of that second."""
    dice = random.Random(seed)
    brokers = begun(dice, flush=False)
    state = brokers.state
    for second in range(60):
        brokers.now_ms += dice.randrange(700)
        brokers.pass_second({"s/a": 0, "s/c": 2} if second >= 2 else {"s/a": 0, "s/b": 1, "s/c": 2})
        rows, brokers.waiting = sorted(brokers.waiting, key=lambda record: record.source), []
        if second == upgraded_at:
            assert state.membership.detector.stamped == {}
            state = SequencerState.from_bytes(state.to_bytes())
        rule = Watch.hear if second >= upgraded_at else hear_by_timestamps
        before = replace(state.membership.detector, stamped={}) if second < upgraded_at else state.membership.detector
        with patch.object(Watch, "hear", rule):
            state = step(replace(state, membership=replace(state.membership, detector=before)), rows).state
        state, closing = end_batch(state)
        if any(record.kind == VIEW for record in closing):
            return second
    return -1


@pytest.mark.parametrize("seed", range(10))
def test_sites_go_on_from_different_snapshots_of_0_1_0_alike(seed: int) -> None:
    """Sites that agree are upgraded together. Each then decides again what it has ordered behind its last snapshot."""
    seconds = {excluded_at(seed, upgraded_at) for upgraded_at in (3, 5, 8, 60)}
    assert len(seconds) == 1, seconds
    assert seconds != {-1}
