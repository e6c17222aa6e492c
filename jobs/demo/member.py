"""A member of the demo: it joins its group and broadcasts its lines at a pace, in a thread or as a process.

As a process: `python -m jobs.demo.member SERVERS GROUP MEMBER SECONDS`, with the lines on standard input.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ordering.base.errors import Excluded

if TYPE_CHECKING:
    from connectors import Member, Receipt

PATIENCE_SECONDS = 180.0


def speak(member: Member, lines: Sequence[bytes], seconds: float, stop: threading.Event) -> Iterator[Receipt]:
    """Broadcast the lines, one after another, spread over `seconds`; end early after `stop`."""
    if not lines:
        return
    began = time.monotonic()
    for number, line in enumerate(lines):
        due = began + seconds * (number + 0.5) / len(lines)
        if stop.wait(max(0.0, due - time.monotonic())):
            return
        yield _broadcast(member, line, stop)


def _broadcast(member: Member, line: bytes, stop: threading.Event) -> Receipt:
    while True:
        try:
            return member.broadcast(line, timeout=PATIENCE_SECONDS)
        except Excluded:  # the machine was so busy that the group took it for dead; it is joining again
            if stop.wait(0.2):
                raise


def main() -> None:
    """Send the lines, and stay until killed."""
    from connectors import Member
    from connectors.kafka.connection.connection import Connection

    servers, group, address, seconds = sys.argv[1:]
    lines = sys.stdin.buffer.read().splitlines()
    with Member(group, address, connection=Connection(servers, timeout=PATIENCE_SECONDS)) as member:
        member.connect(timeout=PATIENCE_SECONDS)
        for _ in speak(member, lines, float(seconds), threading.Event()):
            pass
        time.sleep(PATIENCE_SECONDS)


if __name__ == "__main__":
    main()
