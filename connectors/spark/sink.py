"""Options of Spark's Kafka sink, so that it loses nothing and writes nothing twice."""

from __future__ import annotations

import uuid

from ordering.base.records import MAX_RECORD_BYTES

SINK_OPTIONS = {
    "includeHeaders": "true",
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.max.request.size": str(MAX_RECORD_BYTES),
    "kafka.linger.ms": "0",
    # With one request in flight, each batch waits for the answer to the one before it. So a batch takes several records
    # of 100 KB: 128 KiB have room for one only. From half a MiB on, Java's G1 would take a MiB for each batch.
    "kafka.batch.size": "520000",
    "kafka.compression.type": "none",
    # What Kafka does not take for so long ends the query, and takes its group out of the next one. A broker that is
    # down has a successor before that. By default it is two minutes with twice the memory, at the same least rate.
    "kafka.delivery.timeout.ms": "60000",
    "kafka.buffer.memory": str(2 * MAX_RECORD_BYTES),
    # A new producer's first batch may be refused and its second taken (KAFKA-15591): nothing may rest on their order.
    "kafka.max.in.flight.requests.per.connection": "1",
}

COPY_SINK_OPTIONS = {
    **SINK_OPTIONS,
    # The producer never gives up on a record: if later ones got through, the copy would have a hole.
    "kafka.delivery.timeout.ms": str(2**31 - 1),
    "kafka.retries": str(2**31 - 1),
    "kafka.max.block.ms": "60000",
}


def own_producer() -> dict[str, str]:
    """Return an option that keeps a query from sharing a producer with an earlier one.

    Spark caches producers by their settings, and each task of a query waits until its producer has written all its
    records, even an earlier query's that was stopped because Kafka did not take them.
    """
    return {"kafka.abcast.query": uuid.uuid4().hex}
