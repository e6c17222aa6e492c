"""Members with casts in a process of their own: `cast_members.py BOOTSTRAP GROUP SITE PREFIX COUNT RATE OUT`.

They share what a process shares. It says "in" when all are in a view. From the line "go" on they cast in causal order,
one after the other, so many messages a second; from the line "stop" on no more. It ends when its standard input does.
The first of them delivers: OUT has a line for each message, of all senders: its order, when it was sent and when it was
delivered, in ns of the machine's monotonic clock.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from connectors import Member
from tests.bench.load import Pace, sent_at, stamped_payload

JOIN_S = 300.0


def main(bootstrap_servers: str, group: str, site: str, prefix: str, count: str, rate: str, out: str) -> None:
    """Join, cast, deliver."""
    seen: list[tuple[str, int, int]] = []
    members = [
        Member(group, f"{site}/{prefix}-{number}", bootstrap_servers=bootstrap_servers, casts=True)
        for number in range(int(count))
    ]
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(lambda member: member.connect(timeout=JOIN_S), members))
    deliveries = members[0].deliveries()

    def deliver() -> None:
        for delivery in deliveries:
            seen.append((delivery.order, sent_at(delivery.payload), time.monotonic_ns()))

    threading.Thread(target=deliver, daemon=True).start()
    print("in", flush=True)
    turns = itertools.cycle(members)
    pace: Pace | None = None
    for line in sys.stdin:
        if line == "go\n":
            pace = Pace(lambda: next(turns).broadcast(stamped_payload(), order="causal"), float(rate))
        elif pace is not None:
            pace.halt()
    Path(out).write_text("".join(f"{order} {sent} {taken}\n" for order, sent, taken in seen), encoding="ascii")
    with contextlib.suppress(Exception), ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(lambda member: member.close(timeout=1), members))


if __name__ == "__main__":
    main(*sys.argv[1:])
