"""Test an application's use of `Member` without a broker: Kafka and a sequencer in this process's memory.

The member is the real one, and so are the core, the codec and how a sequencer takes over; only Kafka's client is
replaced. A test takes milliseconds. Nothing is kept when the process ends, and nothing fails unless the test says so
(`MemoryConnection.topics`). What this can't test: Kafka's own failures, several processes, several sites, the ledger.

>>> from connectors.testing import MemoryGroup
>>> with MemoryGroup("orders") as group:
...     alice, bob = group.member("alice"), group.member("bob")
...     view = bob.connect()
...     seqno = alice.broadcast(b"buy 100").result(timeout=10)
...     delivery = next(bob.deliveries())
>>> view.members
('nyc/bob',)
>>> delivery.seqno == seqno, delivery.sender, delivery.payload
(True, 'nyc/alice', b'buy 100')

Code that makes its members itself is given `group.connection`: `Member("orders", "nyc/alice", connection=…)`.
"""

from __future__ import annotations

from connectors.testing.memory_group import MemoryGroup
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.tiny_sequencer import TinySequencer

__all__ = ["MemoryConnection", "MemoryGroup", "TinySequencer"]
