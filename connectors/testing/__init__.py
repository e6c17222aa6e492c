"""A group in memory: Kafka and a sequencer in this process. `abcast.testing` is its public interface, with examples.

The member is the real one, and so are the core, the codec and the takeover. Only Kafka's client is replaced.
"""

from __future__ import annotations

from connectors.testing.memory_group import MemoryGroup
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.tiny_sequencer import TinySequencer

__all__ = ["MemoryConnection", "MemoryGroup", "TinySequencer"]
