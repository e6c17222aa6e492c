"""Members that take part for long: `soak_members.py BOOTSTRAP GROUP SITE PREFIX COUNT RATE`.

All join; then they broadcast, one after the other, so many messages a second together; the first of them delivers all.
It says "in" when all are in a view, and ends with its standard input, or when a message is not ordered in time.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from connectors import Member
from tests.bench.load import PAYLOAD_BYTES, Pace

JOIN_S = 300.0
PAYLOAD = b"x" * PAYLOAD_BYTES


def main(bootstrap_servers: str, group: str, site: str, prefix: str, count: str, rate: str) -> None:
    """Join, broadcast, deliver."""
    members = [
        Member(group, f"{site}/{prefix}-{number}", bootstrap_servers=bootstrap_servers) for number in range(int(count))
    ]
    with ThreadPoolExecutor(min(16, len(members))) as pool:
        list(pool.map(lambda member: member.connect(timeout=JOIN_S), members))
    deliveries = members[0].deliveries()
    threading.Thread(target=lambda: sum(1 for _ in deliveries), daemon=True).start()
    print("in", flush=True)
    turns = itertools.cycle(members)
    sys.stdin.readline()  # until all processes are in
    pace = Pace(lambda: next(turns).broadcast(PAYLOAD), float(rate))
    sys.stdin.read()
    pace.halt()
    with contextlib.suppress(Exception), ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda member: member.close(timeout=10), members))


if __name__ == "__main__":
    main(*sys.argv[1:])
