"""Members beside a bare producer and a bare consumer of the same library, on each transport, taking turns.

One that sends; one that delivers; one that does both; three that do both in one process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from kafka import KafkaProducer

from connectors import Member
from connectors.client.tail.sharing import BATCH_BYTES, LINGER_MS
from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import TRANSPORTS
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS, client_settings
from ordering.base.errors import NotOrderedInTime
from tests.bench.lab import Lab, Place
from tests.bench.latency import sequencing
from tests.bench.load import PAYLOAD_BYTES, BareReader, BareSender

_PAYLOAD = b"x" * PAYLOAD_BYTES
_NEVER_S = 3600.0
_PATIENCE_S = 300.0
_AT_ONCE = 100
"""Messages in one `broadcast_many`."""


class Bench(NamedTuple):
    """A transport and the place where it is measured."""

    lab: Lab
    connection: Connection
    place: Place

    def member(self, name: str, **options: Any) -> Member:
        """Return a member of that name."""
        return Member(self.place.group, f"{self.place.site}/{name}", connection=self.connection, **options)


class Took(NamedTuple):
    """The cost of some work: seconds, and CPU seconds of this process."""

    seconds: float
    cpu_s: float

    @classmethod
    def now(cls) -> Took:
        """Return both clocks."""
        return cls(time.monotonic(), time.process_time())

    @classmethod
    def since(cls, started: Took) -> Took:
        """Return the cost since then."""
        seconds, cpu_s = cls.now()
        return cls(seconds - started.seconds, cpu_s - started.cpu_s)


Work = Callable[[Bench, str, int], Took]
"""Process so many records under a name, and return the cost."""


def measure(lab: Lab) -> dict[str, Any]:
    """Measure each transport by itself."""
    measured = {name: _measure(lab, replace(lab.connection, transport=name)) for name in TRANSPORTS}
    return {"records": lab.plan.member_records, "payload_bytes": PAYLOAD_BYTES, "transports": measured}


def _measure(lab: Lab, connection: Connection) -> dict[str, Any]:
    """(i) sending alone, with no sequencer; (ii) everything ordered, with one; (iii) delivering what it has ordered."""
    plan = lab.plan
    what = f"members on {connection.transport}: {plan.member_rounds} times {plan.member_records:,}"
    lab.say(f"{what} broadcasts, nothing is ordered")
    with lab.place("members") as place:
        sending = alternate(
            Bench(lab, connection, place),
            {
                "bare": send_bare,
                "member": _send,
                "member, many at once": _send_many,
                "member with outbox": _send_with_outbox,
            },
            plan.member_records,
        )
    lab.say(f"{what} broadcasts, the sequencer runs and all receipts are awaited")
    with lab.place("members") as place, sequencing(lab, place):
        bench = Bench(lab, connection, place)
        fence(bench)
        ordered = alternate(
            bench,
            {
                "bare": send_bare,
                "member": broadcast_with_room,
                "member, default limits": _broadcast,
                "member with outbox": _broadcast_with_outbox,
                "member that delivers, too": _read_back,
                "three that deliver, too": _three,
            },
            plan.member_records,
            then=fence,
        )
        lab.say(f"members on {connection.transport}: {plan.member_rounds} times {plan.delivered_records:,} deliveries")
        delivering = alternate(
            bench, {"bare": _read_bare, "member": deliver, "member, in lists": deliver_lists}, plan.delivered_records
        )
    return {"sending": sending, "ordered": ordered, "delivering": delivering}


def alternate(
    bench: Bench, works: Mapping[str, Work], records: int, then: Callable[[Bench], object] = lambda _: None
) -> dict[str, Any]:
    """Return records/s of each work and this process's CPU time for one record, after an unmeasured turn; and both
    beside the first work, a bare client. `then` is called after each.
    """
    plan, rates, cpu_us = bench.lab.plan, dict[str, list[float]](), dict[str, list[float]]()
    for turn in range(-1, plan.member_rounds):
        for name, work in works.items():
            count = records if turn >= 0 else max(1000, records // 10)
            took = work(bench, f"{name.replace(' ', '-').replace(',', '')}-{turn + 1}", count)
            then(bench)
            if turn >= 0:
                rates.setdefault(name, []).append(count / took.seconds)
                cpu_us.setdefault(name, []).append(took.cpu_s / count * 1e6)
                bench.lab.say(
                    f"members, round {turn + 1}/{plan.member_rounds}: {name} {rates[name][-1]:,.0f} records/s"
                )
    bare, bare_cpu_us = (median(next(iter(each.values()))) for each in (rates, cpu_us))
    return {
        name: {
            "records_per_s": median(values),
            "to_bare": median(values) / bare,
            "cpu_us_per_record": median(cpu_us[name]),
            "cpu_to_bare": bare_cpu_us / median(cpu_us[name]),
            "rounds": values,
        }
        for name, values in rates.items()
    }


def fence(bench: Bench) -> None:
    """Return when every message is ordered: the log has a message behind them."""
    with bench.member("fence") as member:
        member.broadcast(b"").result(timeout=_PATIENCE_S)


# --- sending ---


def send_bare(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds until the broker has every record."""
    producer = _bare_producer(bench.connection)
    with contextlib.closing(BareSender(bench.connection, bench.place, name, producer)) as sender:
        sender.send(_PAYLOAD)  # connected, topic known: as a member is after its first broadcast
        producer.flush()
        started = Took.now()
        for _ in range(count):
            sender.send(_PAYLOAD)
        producer.flush()
        return Took.since(started)


def _bare_producer(connection: Connection) -> Any:
    """Return the library's own producer, with a member's settings."""
    limits = {"linger_ms": LINGER_MS, "batch_size": BATCH_BYTES}
    if connection.transport == "kafka-python":
        return KafkaProducer(**{**client_settings(connection), **PRODUCER_SETTINGS, **limits})
    return _BareLibrdkafka(connection.producer(**limits))


class _BareLibrdkafka:
    """confluent-kafka's producer in the words of the other library: no future for a record."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.flush, self.close = producer.flush, producer.close

    def send(self, topic: str, value: bytes, key: bytes, headers: list[tuple[str, bytes]]) -> None:
        """Send once the queue has room."""
        while True:
            try:
                self._producer._client.produce(topic, value, key, headers=headers)
            except BufferError:
                time.sleep(0.01)
            else:
                return


def _send(bench: Bench, name: str, count: int, outbox: Path | None = None, at_once: int = 1) -> Took:
    """Return the seconds until the broker has every record; none is ordered, and the member is abandoned."""
    lab, forward = bench.lab, bench.place.forward
    room = {"max_pending_records": count + 1, "max_pending_bytes": 1 << 40}
    member = bench.member(name, outbox=outbox, resend_after_s=_NEVER_S, **room)
    try:
        member.broadcast(_PAYLOAD)
        # The public way to see that a member has sent all is its receipts, which nobody resolves here.
        forwarder = member._sending.forwarder
        assert forwarder is not None
        forwarder._send_queue.sending.flush()
        goal = lab.end_of(forward) + count
        started = Took.now()
        if at_once == 1:
            for _ in range(count):
                member.broadcast(_PAYLOAD)
        else:
            for start in range(0, count, at_once):
                member.broadcast_many([_PAYLOAD] * min(at_once, count - start))
        forwarder._send_queue.sending.flush()
        took = Took.since(started)
        assert lab.end_of(forward) == goal, "the member sent each message once"
    finally:
        with contextlib.suppress(NotOrderedInTime):
            member.close(timeout=0)
    return took


def _send_many(bench: Bench, name: str, count: int) -> Took:
    return _send(bench, name, count, at_once=_AT_ONCE)


def _send_with_outbox(bench: Bench, name: str, count: int) -> Took:
    return _send(bench, name, count, bench.lab.path("outbox.sqlite"))


# --- until it is ordered ---


def _broadcast(bench: Bench, name: str, count: int, room: int = 10_000, outbox: Path | None = None) -> Took:
    """Return the seconds until every message is ordered and the member knows it."""
    with bench.member(name, outbox=outbox, max_pending_records=room) as member:
        member.broadcast(_PAYLOAD).result(timeout=_PATIENCE_S)
        started = Took.now()
        receipts = [member.broadcast(_PAYLOAD, timeout=_PATIENCE_S) for _ in range(count)]
        for receipt in receipts:
            receipt.result(timeout=_PATIENCE_S)
        return Took.since(started)


def broadcast_with_room(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds until every message is ordered; none waits for room in the forward table."""
    return _broadcast(bench, name, count, room=count + 1)


def broadcast_many(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds until every message is ordered; a receipt is for `_AT_ONCE` of them."""
    with bench.member(name, max_pending_records=count + 1) as member:
        member.broadcast(_PAYLOAD).result(timeout=_PATIENCE_S)
        started = Took.now()
        sizes = [_AT_ONCE] * (count // _AT_ONCE)
        receipts = [member.broadcast_many([_PAYLOAD] * size, timeout=_PATIENCE_S) for size in sizes]
        for receipt in receipts:
            receipt.result(timeout=_PATIENCE_S)
        return Took.since(started)


def _broadcast_with_outbox(bench: Bench, name: str, count: int) -> Took:
    return _broadcast(bench, name, count, room=count + 1, outbox=bench.lab.path("outbox.sqlite"))


def _read_back(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds until one member has sent and delivered every message."""
    return _both(bench, [name], count)


def _three(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds until each of three members has sent a third, and delivered every message."""
    return _both(bench, [f"{name}-{number}" for number in range(3)], count)


def _both(bench: Bench, names: list[str], count: int) -> Took:
    with contextlib.ExitStack() as closing:
        members = [closing.enter_context(bench.member(name, max_pending_records=count + 1)) for name in names]
        first = max(member.broadcast(_PAYLOAD).result(timeout=_PATIENCE_S) for member in members) + 1
        share = count // len(members)
        streams = [member.deliveries(from_seqno=first, timeout=_PATIENCE_S) for member in members]

        def deliver(stream: Any) -> None:
            for number, _ in enumerate(stream, start=1):
                if number == share * len(members):
                    return

        def send(member: Member) -> None:
            for _ in range(share):
                member.broadcast(_PAYLOAD, timeout=_PATIENCE_S)

        works = [(deliver, stream) for stream in streams] + [(send, member) for member in members]
        threads = [threading.Thread(target=work, args=(each,), daemon=True) for work, each in works]
        started = Took.now()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_S)
        return Took.since(started)


# --- delivering ---


def _read_bare(bench: Bench, _: str, count: int) -> Took:
    """Return the seconds from the first batch of DATA on."""
    with contextlib.closing(BareReader(bench.connection, bench.place)) as reader:
        left = count - reader.read()
        started = Took.now()
        while left > 0:
            left -= reader.read()
        return Took.since(started)


def deliver(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds from the first delivery on."""
    with bench.member(name) as member, contextlib.closing(member.deliveries(from_seqno=1, timeout=_PATIENCE_S)) as all_:
        next(all_)
        started = Took.now()
        for number, _ in enumerate(all_, start=2):
            if number == count:
                break
        return Took.since(started)


def deliver_lists(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds from the first list on, for as many deliveries as the other works."""
    with bench.member(name) as member, contextlib.closing(member.deliveries(from_seqno=1, timeout=_PATIENCE_S)) as all_:
        return _time_of(map(len, all_.batches()), count)


def deliver_arrow(bench: Bench, name: str, count: int) -> Took:
    """Return the seconds from the first batch on, as `deliver_lists`."""
    with bench.member(name) as member, contextlib.closing(member.deliveries_arrow(1, _PATIENCE_S)) as all_:
        return _time_of((batch.num_rows for batch in all_), count)


def _time_of(sizes: Iterator[int], count: int) -> Took:
    next(sizes)
    started, left = Took.now(), count
    while left > 0:
        left -= next(sizes)
    return Took.since(started)
