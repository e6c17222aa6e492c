"""A member in a process of its own that delivers stamped messages: `deliverer.py BOOTSTRAP GROUP ADDRESS OUT`.

It says "delivering", and ends when its standard input does. OUT then has a line for each message: when it was sent and
when it was delivered, in ns of the machine's monotonic clock.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from connectors import Member
from tests.bench.load import sent_at


def main(bootstrap_servers: str, group: str, address: str, out: str) -> None:
    """Deliver from the beginning until standard input ends."""
    seen: list[tuple[int, int]] = []
    with Member(group, address, bootstrap_servers=bootstrap_servers) as member:
        deliveries = member.deliveries(from_seqno=1)

        def deliver() -> None:
            for delivery in deliveries:
                seen.append((sent_at(delivery.payload), time.monotonic_ns()))

        threading.Thread(target=deliver, daemon=True).start()
        print("delivering", flush=True)
        sys.stdin.read()
    Path(out).write_text("".join(f"{sent} {delivered}\n" for sent, delivered in seen), encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
