"""A group with packs (`ordering.base.packs`): its members, and backlogs of packs beside the same of single records.

Rates are in messages. Members: one sends until all is ordered, by the process engine; then another one delivers what
the first has sent. Loads: one sends at a rate, or payloads of a size as fast as it can; real loads fill few packs.
Backlogs: both engines order them; Spark also copies FORWARD, appends DATA to a table with the
ledger's columns, and writes DATA to a ledger. A backlog of packs has full ones, as `broadcast_many` makes them.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers, pack_headers
from connectors.kafka.connection.backlog import partition_bytes
from connectors.kafka.topics.upgrade import upgrade
from connectors.kafka.transport import VARIABLE
from ordering.base.packs import encode_pack
from tests.bench import engine, members
from tests.bench.drain import Drained
from tests.bench.lab import Lab, Place
from tests.bench.load import PAYLOAD_BYTES
from tests.bench.throughput import one_round

_TRANSPORT = "confluent"
_SENDERS = 16
_PATIENCE_S = 300.0
_LONGER, _MUCH_LONGER = 5, 20
"""The factors by which deliveries and a backlog of packs are longer. With few packs in a batch, Spark only plans."""
_LOADS = (
    *((PAYLOAD_BYTES, per_s) for per_s in (1000, 10_000, 50_000, 0)),
    *((size, 0) for size in (1000, 10_000, 100_000)),
)
"""The sizes of payloads and the messages a second; 0: as many as it can."""
_LOAD_S, _LOAD_RECORDS, _LOAD_BYTES = 5, 100_000, 100_000_000
_DELIVERING = {"deliveries": members.deliver, "batches": members.deliver_lists, "in Arrow": members.deliver_arrow}


def measure(lab: Lab) -> dict[str, Any]:
    """Measure members, then both backlogs."""
    lab.environment[VARIABLE] = _TRANSPORT
    try:
        messages, forms = lab.plan.records, {"single": 1, "packs": lab.plan.pack_messages}
        return {
            **_members(lab),
            "backlogs": {
                form: _backlog(lab, form, messages if each == 1 else _MUCH_LONGER * messages // each, each)
                for form, each in forms.items()
            },
        }
    finally:
        del lab.environment[VARIABLE]


def _members(lab: Lab) -> dict[str, Any]:
    with lab.place("packs") as place:
        upgrade(lab.connection, place.group, place.site)
        with lab.sequencer(place, lab.path("data"), "process") as sequencer:
            sequencer.wait_said("ready;")
            bench = members.Bench(lab, lab.member_connection(_TRANSPORT), place)
            sending = {
                "bare": members.send_bare,
                "broadcast": members.broadcast_with_room,
                "broadcast_many": members.broadcast_many,
            }
            ordered = members.alternate(bench, sending, lab.plan.delivered_records, then=members.fence)
            delivered = _LONGER * lab.plan.delivered_records
            members.broadcast_many(bench, "filler", delivered)
            delivering = members.alternate(bench, _DELIVERING, delivered)
            loads = [_load(bench, *each) for each in _LOADS]
    return {"ordered": ordered, "delivering": delivering, "loads": loads}


def _load(bench: members.Bench, size: int, per_s: int) -> dict[str, float]:
    """Send from one member until all is ordered. A few of the records are heartbeats and ticks."""
    bench.lab.say(f"packs: payloads of {size:,} B at {f'{per_s:,}/s' if per_s else 'the most'}")
    count = per_s * _LOAD_S or min(_LOAD_RECORDS, _LOAD_BYTES // size)
    payload, forward = bytes(size), bench.place.forward
    with bench.member(f"load-{size}-{per_s}", max_pending_records=count + 1, max_pending_bytes=1 << 40) as member:
        receipt = member.broadcast(payload)
        receipt.result(timeout=_PATIENCE_S)
        before, started = bench.lab.end_of(forward), members.Took.now()
        for number in range(count):
            ahead = started.seconds + number / per_s - time.monotonic() if per_s else 0.0
            if ahead > 0:
                time.sleep(ahead)
            receipt = member.broadcast(payload)
        receipt.result(timeout=_PATIENCE_S)
        took = members.Took.since(started)
        records = bench.lab.end_of(forward) - before
    return {
        "payload_bytes": size,
        "per_s": per_s,
        "records_per_s": count / took.seconds,
        "messages_a_record": count / records,
        "cpu_us": took.cpu_s / count * 1e6,
    }


def _backlog(lab: Lab, form: str, records: int, messages_each: int) -> dict[str, Any]:
    """Return rates and costs a message of each stage. Spark's first round warms it, and is not counted."""
    messages, usual = records * messages_each, lab.plan
    lab.say(f"packs: a backlog of {messages:,} messages, {form}")
    with lab.place("packs") as place:
        if messages_each > 1:
            upgrade(lab.connection, place.group, place.site)
        _fill(lab, place, records, messages_each)
        lab.plan = replace(usual, records=records)  # the batches follow from it
        try:
            for _ in range(2):
                spark = one_round(lab, place, f"packs, {form}", formatted=messages_each > 1)
        finally:
            lab.plan = usual
        process = engine.drain(lab, place, messages)
        partition = TopicPartition(place.data, 0)
        with lab.connection.admin() as admin:
            size = partition_bytes(admin, [partition])[partition]
    return {
        "messages": messages,
        "data_bytes": size / messages,
        "process": process,
        **{kind: _of_messages(drained, messages_each) for kind, drained in spark.items()},
    }


def _of_messages(drained: Drained, messages_each: int) -> dict[str, float]:
    return {"records_per_s": drained.rate * messages_each, "cpu_us": drained.own_cpu_us / messages_each}


def _fill(lab: Lab, place: Place, records: int, messages_each: int) -> None:
    """Write records of so many messages of 100 random bytes; the senders write in turn."""
    noise, incarnation = random.Random(7).randbytes(1 << 20), time.time_ns() // 10
    producer = lab.member_connection(_TRANSPORT).producer()
    for record in range(records):
        first, key = record // _SENDERS * messages_each + 1, f"{place.site}/m{record % _SENDERS}".encode()
        starts = range(record * messages_each, (record + 1) * messages_each)
        payloads = [noise[at : at + PAYLOAD_BYTES] for at in (start % (1 << 19) for start in starts)]
        if messages_each == 1:
            value, headers = payloads[0], forward_headers(incarnation, first)
        else:
            value, headers = encode_pack(payloads), pack_headers(incarnation, first, messages_each)
        producer.send(place.forward, value, key, headers, 0)
    producer.flush(timeout=_PATIENCE_S)
    producer.close(timeout=10)
