"""A lock service without a server: the first request in the group's order gets the lock; the next one waits.

Requests and views have one order, so all members agree at every point on the holder of each lock. A member that dies
leaves the view, and its locks are free. Each grant has a *fencing token*, the seqno that made it. Tokens of a lock only
grow: a store that refuses lower ones is safe from a holder that was suspended and has not noticed the loss of its lock.

A member that joins gets the table of locks from an older one; if there is none, it makes it from the group's history.

    python lock_service.py SERVERS GROUP NAME LOCK      takes the lock, prints its token, holds it until a line comes
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from abcast import Delivery, Member, ViewChange

TIMEOUT_S = 60.0


class Locks:
    """The members that wait for each lock, the holder first, and the token of its grant. A function of the order."""

    def __init__(self) -> None:
        self.seqno = 0
        self.queues: dict[str, list[str]] = {}
        self.tokens: dict[str, int] = {}

    def apply(self, what: Delivery | ViewChange) -> None:
        """Apply the next message or view. (A view may come again that a joiner's state has counted.)"""
        if what.seqno <= self.seqno:
            return
        self.seqno = what.seqno
        if isinstance(what, ViewChange):
            # A member that left or died holds no lock and waits for none; a new or returning one has none yet.
            for lock in list(self.queues):
                self.drop(lock, {*what.left, *what.suspected, *what.joined})
            return
        action, lock = json.loads(what.payload)
        queue = self.queues.setdefault(lock, [])
        if action == "release":
            self.drop(lock, {what.sender})
        elif what.sender not in queue:
            queue.append(what.sender)
            if len(queue) == 1:
                self.tokens[lock] = what.seqno

    def drop(self, lock: str, members: set[str]) -> None:
        before = self.queues[lock]
        after = [member for member in before if member not in members]
        self.queues[lock] = after
        if after[:1] != before[:1]:
            self.tokens[lock] = self.seqno

    def holder(self, lock: str) -> str | None:
        return next(iter(self.queues.get(lock, [])), None)


class LockService:
    """A member's part. Thread-safe; a lock is the member's, so only one of its threads may ask for it."""

    def __init__(self, group: str, name: str, bootstrap_servers: str | None = None) -> None:
        """Join the group and follow it."""
        self.locks = Locks()
        self.changed = threading.Condition()
        self.member = Member(group, name, bootstrap_servers=bootstrap_servers, get_state=self.dump, set_state=self.load)
        self.member.connect(state=True, or_history=True, timeout=TIMEOUT_S)
        threading.Thread(target=self.follow, daemon=True).start()

    def dump(self) -> bytes:
        with self.changed:
            return json.dumps([self.locks.seqno, self.locks.queues, self.locks.tokens]).encode()

    def load(self, state: bytes) -> None:
        with self.changed:
            self.locks.seqno, self.locks.queues, self.locks.tokens = json.loads(state)

    def follow(self) -> None:
        for what in self.member.deliveries(events=True):
            with self.changed:
                if isinstance(what, Delivery | ViewChange):
                    self.locks.apply(what)
                self.changed.notify_all()

    @contextmanager
    def lock(self, name: str, timeout: float = TIMEOUT_S) -> Iterator[int]:
        """Hold the lock inside the `with`; gives the fencing token. Raises TimeoutError."""
        own = str(self.member.address)
        self.member.broadcast(json.dumps(["acquire", name]).encode())
        try:
            with self.changed:
                if not self.changed.wait_for(lambda: self.locks.holder(name) == own, timeout):
                    raise TimeoutError(f"{self.locks.holder(name)} holds {name}")
                token = self.locks.tokens[name]
            yield token
        finally:
            self.member.broadcast(json.dumps(["release", name]).encode()).result(timeout=TIMEOUT_S)


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    servers, group, name, lock = sys.argv[1:]
    service = LockService(group, name, servers)
    with service.lock(lock) as token:
        print(token, flush=True)
        sys.stdin.readline()
    service.member.close()


if __name__ == "__main__":
    main()
