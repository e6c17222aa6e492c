"""A replicated key-value store: every replica applies the same writes in the same order to a SQLite file of its own.

The file holds the entries and the seqno up to which they count, and both change in one transaction. So a replica that
is killed at any point goes on with the next message: nothing is applied twice, and nothing is left out. If all replicas
stop, each goes on from its own file. A new one begins with the group's first message.

    python replicated_kv.py SERVERS GROUP NAME FILE

and then, a line each:  set KEY VALUE  |  cas KEY OLD NEW  |  get KEY  |  digest
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import threading

from abcast import Delivery, Member

TIMEOUT_S = 30.0


class Store:
    """The entries, as the order makes them. The same messages make the same store, wherever they are applied."""

    def __init__(self, file: str) -> None:
        self.database = sqlite3.connect(file, check_same_thread=False)
        with self.database:
            self.database.execute("CREATE TABLE IF NOT EXISTS entry (key TEXT PRIMARY KEY, value TEXT)")
            self.database.execute("CREATE TABLE IF NOT EXISTS applied (seqno INTEGER)")
            if self.applied is None:
                self.database.execute("INSERT INTO applied VALUES (0)")

    @property
    def applied(self) -> int | None:
        """Up to this seqno everything is in the file."""
        row = self.database.execute("SELECT seqno FROM applied").fetchone()
        return row[0] if row else None

    def get(self, key: str) -> str | None:
        row = self.database.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def apply(self, delivery: Delivery) -> bool:
        """Do what a message says, once; whether it has changed something."""
        write = json.loads(delivery.payload)
        with self.database:  # one transaction: the effect and its seqno
            self.database.execute("UPDATE applied SET seqno = ?", (delivery.seqno,))
            if "old" in write and self.get(write["key"]) != write["old"]:
                return False
            self.database.execute("INSERT OR REPLACE INTO entry VALUES (?, ?)", (write["key"], write["value"]))
            return True

    def digest(self) -> str:
        rows = self.database.execute("SELECT key, value FROM entry ORDER BY key").fetchall()
        return f"{self.applied} {hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}"


class Replica:
    """A store, and a member that keeps it up to date."""

    def __init__(self, group: str, name: str, file: str, bootstrap_servers: str) -> None:
        self.store = Store(file)
        self.member = Member(group, name, bootstrap_servers=bootstrap_servers)
        self.changed = threading.Condition()
        self.outcomes: dict[int, bool] = {}  # of our own writes, by seqno
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        # The store knows better than Kafka how far it is.
        for delivery in self.member.deliveries(from_seqno=(self.store.applied or 0) + 1):
            with self.changed:
                outcome = self.store.apply(delivery)
                if delivery.sender == str(self.member.address):
                    self.outcomes[delivery.seqno] = outcome
                self.changed.notify_all()

    def write(self, **write: str | None) -> bool:
        """Write on all replicas; return whether the condition held. Raise NotOrderedInTime: then it may still
        happen.
        """
        seqno = self.member.broadcast(json.dumps(write).encode()).result(TIMEOUT_S)
        with self.changed:
            if not self.changed.wait_for(lambda: seqno in self.outcomes, TIMEOUT_S):
                raise TimeoutError(f"seqno {seqno} was not applied here within {TIMEOUT_S:g} s")
            return self.outcomes.pop(seqno)

    def set(self, key: str, value: str) -> bool:
        return self.write(key=key, value=value)

    def compare_and_set(self, key: str, old: str | None, new: str) -> bool:
        """Set `key` if it is `old` when its turn comes. Of several that try at the same time, one succeeds."""
        return self.write(key=key, old=old, value=new)

    def get(self, key: str) -> str | None:
        """Return this replica's value. (To read the newest one, write something first.)"""
        with self.changed:
            return self.store.get(key)


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    servers, group, name, file = sys.argv[1:]
    replica = Replica(group, name, file, servers)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "set":
            print(replica.set(*words), flush=True)
        elif command == "cas":
            print(replica.compare_and_set(words[0], None if words[1] == "-" else words[1], words[2]), flush=True)
        elif command == "get":
            print(replica.get(words[0]), flush=True)
        elif command == "digest":
            with replica.changed:
                print(replica.store.digest(), flush=True)
    replica.member.close()


if __name__ == "__main__":
    main()
