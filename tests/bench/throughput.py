"""Records per second over the same backlog: sequencer (b) to stateless copy (a), ledger (d) to plain append (c)."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.upgrade import upgrade
from tests.bench.backlog import fill
from tests.bench.drain import Drained, drain_append, drain_copy, drain_ledger, drain_sequencer
from tests.bench.lab import Lab, Place
from tests.bench.plan import KINDS, Case

_WARM_UP = Case(100, 16, 4)


def warm_up(lab: Lab) -> None:
    """Drain a backlog of each kind before the measurement: the JVM compiles, Python workers start."""
    lab.say(f"warming up: copy, sequencer, append and ledger, {lab.plan.warm_up_records:,} records each")
    with lab.place("warm-up", _WARM_UP.partitions) as place:
        fill(lab, place, lab.plan.warm_up_records, _WARM_UP)
        one_round(lab, place)


def measure(lab: Lab) -> list[dict[str, Any]]:
    """Measure each case; the four kinds take turns within it, so that other work on the machine hits all of them."""
    return [_case(lab, case, number) for number, case in enumerate(lab.plan.cases, 1)]


def _case(lab: Lab, case: Case, number: int) -> dict[str, Any]:
    say_case = f"throughput {number}/{len(lab.plan.cases)} ({case})"
    lab.say(f"{say_case}: writing {lab.plan.records:,} FORWARD records")
    rounds: dict[str, list[Drained]] = {kind: [] for kind in KINDS}
    with lab.place("throughput", case.partitions) as place:
        fill(lab, place, lab.plan.records, case)
        for turn in range(lab.plan.rounds):
            for kind, drained in one_round(lab, place, f"{say_case}, round {turn + 1}/{lab.plan.rounds}").items():
                rounds[kind].append(drained)
    rates = {kind: fmean(drained.rate for drained in turns) for kind, turns in rounds.items()}
    return {
        **asdict(case),
        "records": lab.plan.records,
        "max_offsets_per_trigger": lab.plan.batch_records,
        **{
            kind: {
                "records_per_s": rates[kind],
                "whole_records_per_s": fmean(drained.whole for drained in turns),
                "cpu_us_per_record": _mean_cpu(turns),
                "rounds": [asdict(drained) for drained in turns],
            }
            for kind, turns in rounds.items()
        },
        "sequencer_to_copy": rates["sequencer"] / rates["copy"],
        "ledger_to_append": rates["ledger"] / rates["append"],
    }


def one_round(lab: Lab, place: Place, said: str = "", *, formatted: bool = False) -> dict[str, Drained]:
    """Drain the place's FORWARD by each kind in turn. `formatted`: in the newest format, so DATA may have packs."""

    def say(kind: str, drained: Drained) -> Drained:
        if said:
            lab.say(f"{said}: {kind} {drained.rate:,.0f} records/s in {drained.batches} batches")
        return drained

    with lab.output(place) as copied:
        round_ = {"copy": say("copy", drain_copy(lab, place, copied))}
    with lab.output(place) as output:
        if formatted:
            upgrade(lab.connection, output.group, output.site)
        round_["sequencer"] = say("sequencer", drain_sequencer(lab, place, output))
        round_["append"] = say("append", drain_append(lab, output))
        round_["ledger"] = say("ledger", drain_ledger(lab, output))
    return round_


def _mean_cpu(turns: list[Drained]) -> dict[str, float]:
    return {part: fmean(turn.cpu_us.get(part, 0.0) for turn in turns) for part in turns[0].cpu_us}


def measure_state(lab: Lab) -> list[dict[str, Any]]:
    """The sequencer with few senders and with many: its rate, and the size of its state."""
    results = []
    for senders in lab.plan.state_senders:
        records = max(lab.plan.records // 2, senders)
        lab.say(f"state: {senders:,} senders, {records:,} records of 100 B")
        with lab.place("state") as place:
            fill(lab, place, records, Case(100, senders, 1))
            with lab.output(place) as output:
                drained = drain_sequencer(lab, place, output)
                with DataLog(lab.connection, output.group, output.site) as log:
                    state = log.state()
        encoded = state.to_bytes()
        results.append(
            {
                "senders": len(state.received),
                "records": state.seqno,
                "records_per_s": drained.rate,
                "state_bytes": len(encoded),
                "state_bytes_per_sender": len(encoded) / len(state.received),
                "spark_state_store_bytes": drained.state_bytes,
                "cpu_us_per_record": drained.cpu_us,
            }
        )
    return results
