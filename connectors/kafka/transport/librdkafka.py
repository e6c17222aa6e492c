"""The fast transport: confluent-kafka, the Python binding of the C library librdkafka. Its promises are `seam`'s.

How it keeps a producer's promises: `enable.idempotence` numbers the batches, so that a repeated request writes nothing
twice and no batch passes a lost one; `max.in.flight=1` for the same reason as in `kafka_python`. The experimental
`enable.gapless.guarantee` is off: it stops the whole producer when one record can't be written. The producer is shared
by many senders, and a sender that has lost a record begins again by itself.

Two of its habits matter here. It reports the outcome of a record only to callers of `poll`: each producer has a thread
for that. And `consume` waits until a batch is full: so only the first record is waited for, and the rest is taken as
available.
"""

from __future__ import annotations

from connectors.kafka.transport.librdkafka_consumer import consumer
from connectors.kafka.transport.librdkafka_producer import producer

__all__ = ["consumer", "producer"]
