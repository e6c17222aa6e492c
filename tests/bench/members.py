"""`Member.broadcast` beside a bare kafka-python producer with the same settings and headers, taking turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from connectors import Member
from ordering.errors import NotOrderedInTime
from tests.bench.lab import Lab, Place
from tests.bench.latency import sequencing
from tests.bench.load import PAYLOAD_BYTES, BareSender

_PAYLOAD = b"x" * PAYLOAD_BYTES
_NEVER_S = 3600.0
_PATIENCE_S = 300.0

Work = Callable[[Lab, Place, str, int], float]


def measure(lab: Lab) -> dict[str, Any]:
    """(i) sending alone, with no sequencer; (ii) everything ordered, with one."""
    count, rounds = lab.plan.member_records, lab.plan.member_rounds
    lab.say(f"members: {rounds} times {count:,} broadcasts, nothing is ordered")
    with lab.place("members") as place:
        sending = _alternate(
            lab, place, {"bare": _send_bare, "member": _send, "member with outbox": _send_with_outbox}, fenced=False
        )
    lab.say(f"members: {rounds} times {count:,} broadcasts, the sequencer runs and all receipts are awaited")
    with lab.place("members") as place, sequencing(lab, place):
        _fence(lab, place)
        ordered = _alternate(
            lab,
            place,
            {
                "bare": _send_bare,
                "member": _broadcast_with_room,
                "member, default limits": _broadcast,
                "member with outbox": _broadcast_with_outbox,
            },
            fenced=True,
        )
    return {"records": count, "payload_bytes": PAYLOAD_BYTES, "sending": sending, "ordered": ordered}


def _alternate(lab: Lab, place: Place, works: dict[str, Work], *, fenced: bool) -> dict[str, Any]:
    """Records/s of each, once unmeasured and then in turns. `fenced`: wait in between until all is ordered."""
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1, lab.plan.member_rounds):
        for name, work in works.items():
            count = lab.plan.member_records if turn >= 0 else max(1000, lab.plan.member_records // 10)
            member = f"{name.replace(' ', '-').replace(',', '')}-{turn + 1}"
            rate = count / work(lab, place, member, count)
            if fenced:
                _fence(lab, place)
            if turn >= 0:
                rates[name].append(rate)
                lab.say(f"members, round {turn + 1}/{lab.plan.member_rounds}: {name} {rate:,.0f} records/s")
    bare = median(rates["bare"])
    return {
        name: {"records_per_s": median(values), "to_bare": median(values) / bare, "rounds": values}
        for name, values in rates.items()
    }


def _fence(lab: Lab, place: Place) -> None:
    """Return when everything sent before is ordered: a message behind it in the log is."""
    with Member(place.group, f"{place.site}/fence", connection=lab.connection) as fence:
        fence.broadcast(b"").result(timeout=_PATIENCE_S)


def _send_bare(lab: Lab, place: Place, name: str, count: int) -> float:
    """Seconds until the broker has everything."""
    with contextlib.closing(BareSender(lab, place, name)) as sender:
        sender.send(_PAYLOAD)  # connected, topic known: as a member is after its first broadcast
        sender.producer.flush()
        started = time.monotonic()
        for _ in range(count):
            sender.send(_PAYLOAD)
        sender.producer.flush()
        return time.monotonic() - started


def _send(lab: Lab, place: Place, name: str, count: int, outbox: Path | None = None) -> float:
    """Seconds until the broker has everything; nothing is ordered, and the member is abandoned."""
    member = Member(
        place.group,
        f"{place.site}/{name}",
        connection=lab.connection,
        outbox=outbox,
        max_pending_records=count + 1,
        max_pending_bytes=1 << 40,
        resend_after_s=_NEVER_S,
    )
    try:
        goal = lab.end_of(place.forward) + 1 + count
        member.broadcast(_PAYLOAD)
        while lab.end_of(place.forward) < goal - count:
            time.sleep(0.02)
        started = time.monotonic()
        for _ in range(count):
            member.broadcast(_PAYLOAD)
        # The public way to see that a member has sent all is its receipts, which nobody resolves here.
        forwarder = member._sending.forwarder
        assert forwarder is not None
        forwarder._sending.flush()
        took = time.monotonic() - started
        assert lab.end_of(place.forward) == goal, "the member sent each message once"
    finally:
        with contextlib.suppress(NotOrderedInTime):
            member.close(timeout=0)
    return took


def _send_with_outbox(lab: Lab, place: Place, name: str, count: int) -> float:
    return _send(lab, place, name, count, lab.path("outbox.sqlite"))


def _broadcast(lab: Lab, place: Place, name: str, count: int, room: int = 10_000, outbox: Path | None = None) -> float:
    """Seconds until everything is ordered and the member knows it."""
    with Member(
        place.group,
        f"{place.site}/{name}",
        connection=lab.connection,
        outbox=outbox,
        max_pending_records=room,
    ) as member:
        member.broadcast(_PAYLOAD).result(timeout=_PATIENCE_S)
        started = time.monotonic()
        receipts = [member.broadcast(_PAYLOAD, timeout=_PATIENCE_S) for _ in range(count)]
        for receipt in receipts:
            receipt.result(timeout=_PATIENCE_S)
        return time.monotonic() - started


def _broadcast_with_room(lab: Lab, place: Place, name: str, count: int) -> float:
    return _broadcast(lab, place, name, count, room=count + 1)


def _broadcast_with_outbox(lab: Lab, place: Place, name: str, count: int) -> float:
    return _broadcast(lab, place, name, count, room=count + 1, outbox=lab.path("outbox.sqlite"))
