"""Suspends a sequencer where a batch can be cut. A process of its own: in the test's, the members' threads would have
their turn in between, and the moment would be over.

`python -m tests.crash.sniper WINDOW BOOTSTRAP_SERVERS GROUP SITE DATA JAVA_PID`; it says "watching" when it does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from tests.crash.checkpoint import Checkpoint

BEFORE_OFFSETS = "before the offset log"
BEFORE_WRITE = "after the offset log, before the Kafka write"
AMID_WRITE = "amid the Kafka write"
BEFORE_COMMIT = "after the Kafka write, before the commit log"
LARGE = 500
"""Records of a write that takes long enough to be cut."""
PATIENCE_S = 60.0


def watch(window: str, checkpoint: Checkpoint, log: DataLog) -> None:
    """Return when a batch seems to be there, or after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    begun, committed = checkpoint.begun(), checkpoint.committed()
    while time.monotonic() < deadline:
        if window == BEFORE_OFFSETS:
            if checkpoint.committed() > committed:
                return
        elif checkpoint.begun() > begun:
            begun = checkpoint.begun()
            if window != AMID_WRITE or _records_of(checkpoint, begun) >= LARGE:
                break
        time.sleep(0.0005)
    if window in (AMID_WRITE, BEFORE_COMMIT):
        want = log.end() + (1 if window == AMID_WRITE else _records_of(checkpoint, begun))
        while log.end() < want and checkpoint.committed() < begun and time.monotonic() < deadline:
            pass


def _records_of(checkpoint: Checkpoint, batch: int) -> int:
    """Count the batch's FORWARD records."""
    before = checkpoint.end(batch - 1)
    return sum(end - before.get(place, 0) for place, end in checkpoint.end(batch).items())


if __name__ == "__main__":
    window, bootstrap_servers, group, site, data, java = sys.argv[1:]
    checkpoint = Checkpoint(Path(data))
    with DataLog(Connection(bootstrap_servers), group, site) as log:
        log.end()  # connected
        print("watching", flush=True)
        watch(window, checkpoint, log)
        os.kill(int(java), signal.SIGSTOP)
