"""A group in memory: Kafka and a sequencer in this process. `abcast.testing` is its public interface, with examples.

The member is the real one, and so are the core, the codec, the takeover and the process engine's loop. Only Kafka's
client is replaced.
"""

from __future__ import annotations

from connectors.testing.memory_group import MemoryGroup
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread

__all__ = ["MemoryConnection", "MemoryGroup", "SequencerThread"]
