"""Members beside a bare producer and a bare consumer of the same library, on each transport, taking turns.

One that sends; one that delivers; one that does both; three that do both in one process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from connectors import Member
from connectors.kafka.connection import Connection
from connectors.kafka.transport import TRANSPORTS
from ordering.errors import NotOrderedInTime
from tests.bench.lab import Lab, Place
from tests.bench.latency import sequencing
from tests.bench.load import PAYLOAD_BYTES, BareReader, BareSender

_PAYLOAD = b"x" * PAYLOAD_BYTES
_NEVER_S = 3600.0
_PATIENCE_S = 300.0


class Bench(NamedTuple):
    """Where one transport is measured."""

    lab: Lab
    connection: Connection
    place: Place

    def member(self, name: str, **options: Any) -> Member:
        """A member of that name."""
        return Member(self.place.group, f"{self.place.site}/{name}", connection=self.connection, **options)


Work = Callable[[Bench, str, int], float]
"""Does so many records under a name; the seconds that it took."""


def measure(lab: Lab) -> dict[str, Any]:
    """Each transport by itself."""
    measured = {name: _measure(lab, replace(lab.connection, transport=name)) for name in TRANSPORTS}
    return {"records": lab.plan.member_records, "payload_bytes": PAYLOAD_BYTES, "transports": measured}


def _measure(lab: Lab, connection: Connection) -> dict[str, Any]:
    """(i) sending alone, with no sequencer; (ii) everything ordered, with one; (iii) delivering what it has ordered."""
    what = f"members on {connection.transport}: {lab.plan.member_rounds} times {lab.plan.member_records:,}"
    lab.say(f"{what} broadcasts, nothing is ordered")
    with lab.place("members") as place:
        sending = _alternate(
            Bench(lab, connection, place),
            {"bare": _send_bare, "member": _send, "member with outbox": _send_with_outbox},
        )
    lab.say(f"{what} broadcasts, the sequencer runs and all receipts are awaited")
    with lab.place("members") as place, sequencing(lab, place):
        bench = Bench(lab, connection, place)
        _fence(bench)
        ordered = _alternate(
            bench,
            {
                "bare": _send_bare,
                "member": _broadcast_with_room,
                "member, default limits": _broadcast,
                "member with outbox": _broadcast_with_outbox,
                "member that delivers, too": _read_back,
                "three that deliver, too": _three,
            },
            then=_fence,
        )
        lab.say(f"{what} deliveries")
        delivering = _alternate(bench, {"bare": _read_bare, "member": _deliver})
    return {"sending": sending, "ordered": ordered, "delivering": delivering}


def _alternate(
    bench: Bench, works: dict[str, Work], then: Callable[[Bench], object] = lambda _: None
) -> dict[str, Any]:
    """Records/s of each, once unmeasured and then in turns. `then`: what is done after each."""
    plan, rates = bench.lab.plan, dict[str, list[float]]()
    for turn in range(-1, plan.member_rounds):
        for name, work in works.items():
            count = plan.member_records if turn >= 0 else max(1000, plan.member_records // 10)
            rate = count / work(bench, f"{name.replace(' ', '-').replace(',', '')}-{turn + 1}", count)
            then(bench)
            if turn >= 0:
                rates.setdefault(name, []).append(rate)
                bench.lab.say(f"members, round {turn + 1}/{plan.member_rounds}: {name} {rate:,.0f} records/s")
    bare = median(rates["bare"])
    return {
        name: {"records_per_s": median(values), "to_bare": median(values) / bare, "rounds": values}
        for name, values in rates.items()
    }


def _fence(bench: Bench) -> None:
    """Return when everything sent before is ordered: a message behind it in the log is."""
    with bench.member("fence") as fence:
        fence.broadcast(b"").result(timeout=_PATIENCE_S)


# --- sending ---


def _send_bare(bench: Bench, name: str, count: int) -> float:
    """Seconds until the broker has everything."""
    with contextlib.closing(BareSender(bench.connection, bench.place, name)) as sender:
        sender.send(_PAYLOAD)  # connected, topic known: as a member is after its first broadcast
        sender.producer.flush()
        started = time.monotonic()
        for _ in range(count):
            sender.send(_PAYLOAD)
        sender.producer.flush()
        return time.monotonic() - started


def _send(bench: Bench, name: str, count: int, outbox: Path | None = None) -> float:
    """Seconds until the broker has everything; nothing is ordered, and the member is abandoned."""
    lab, forward = bench.lab, bench.place.forward
    room = {"max_pending_records": count + 1, "max_pending_bytes": 1 << 40}
    member = bench.member(name, outbox=outbox, resend_after_s=_NEVER_S, **room)
    try:
        goal = lab.end_of(forward) + 1 + count
        member.broadcast(_PAYLOAD)
        while lab.end_of(forward) < goal - count:
            time.sleep(0.02)
        started = time.monotonic()
        for _ in range(count):
            member.broadcast(_PAYLOAD)
        # The public way to see that a member has sent all is its receipts, which nobody resolves here.
        forwarder = member._sending.forwarder
        assert forwarder is not None
        forwarder._dispatch.sending.flush()
        took = time.monotonic() - started
        assert lab.end_of(forward) == goal, "the member sent each message once"
    finally:
        with contextlib.suppress(NotOrderedInTime):
            member.close(timeout=0)
    return took


def _send_with_outbox(bench: Bench, name: str, count: int) -> float:
    return _send(bench, name, count, bench.lab.path("outbox.sqlite"))


# --- until it is ordered ---


def _broadcast(bench: Bench, name: str, count: int, room: int = 10_000, outbox: Path | None = None) -> float:
    """Seconds until everything is ordered and the member knows it."""
    with bench.member(name, outbox=outbox, max_pending_records=room) as member:
        member.broadcast(_PAYLOAD).result(timeout=_PATIENCE_S)
        started = time.monotonic()
        receipts = [member.broadcast(_PAYLOAD, timeout=_PATIENCE_S) for _ in range(count)]
        for receipt in receipts:
            receipt.result(timeout=_PATIENCE_S)
        return time.monotonic() - started


def _broadcast_with_room(bench: Bench, name: str, count: int) -> float:
    return _broadcast(bench, name, count, room=count + 1)


def _broadcast_with_outbox(bench: Bench, name: str, count: int) -> float:
    return _broadcast(bench, name, count, room=count + 1, outbox=bench.lab.path("outbox.sqlite"))


def _read_back(bench: Bench, name: str, count: int) -> float:
    """Seconds until one member has sent everything and delivered it."""
    return _both(bench, [name], count)


def _three(bench: Bench, name: str, count: int) -> float:
    """Seconds until each of three members has sent a third, and delivered everything."""
    return _both(bench, [f"{name}-{number}" for number in range(3)], count)


def _both(bench: Bench, names: list[str], count: int) -> float:
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
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_S)
        return time.monotonic() - started


# --- delivering ---


def _read_bare(bench: Bench, _: str, count: int) -> float:
    """Seconds from the first batch of DATA on."""
    with contextlib.closing(BareReader(bench.connection, bench.place)) as reader:
        left = count - reader.read()
        started = time.monotonic()
        while left > 0:
            left -= reader.read()
        return time.monotonic() - started


def _deliver(bench: Bench, name: str, count: int) -> float:
    """Seconds from the first delivery on."""
    with bench.member(name) as member, contextlib.closing(member.deliveries(from_seqno=1, timeout=_PATIENCE_S)) as all_:
        next(all_)
        started = time.monotonic()
        for number, _ in enumerate(all_, start=2):
            if number == count:
                break
        return time.monotonic() - started
