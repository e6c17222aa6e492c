"""Test an application's use of `Member` without a broker: Kafka and a sequencer in this process's memory.

>>> from abcast.testing import MemoryGroup
>>> with MemoryGroup("orders") as group:
...     alice, bob = group.member("alice"), group.member("bob")
...     view = bob.connect()
...     seqno = alice.broadcast(b"buy 100").result(timeout=10)
...     delivery = next(bob.deliveries())
>>> view.members
('local/bob',)
>>> delivery.seqno == seqno, delivery.sender, delivery.payload
(True, 'local/alice', b'buy 100')

Code that makes its members itself is given `group.connection`: `Member("orders", "alice", connection=…)`.

The member is the real one, and so is the order. A test takes milliseconds. Nothing is kept when the `with` ends. What
this can't test: Kafka's own failures, several processes, several sites, the ledger.
"""

from __future__ import annotations

from connectors.testing import MemoryConnection, MemoryGroup

__all__ = ["MemoryConnection", "MemoryGroup"]
