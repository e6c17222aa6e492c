"""The partition of a key: the same as every Kafka client's that hashes with murmur2."""

from __future__ import annotations

import functools

from kafka.partitioner.default import murmur2


def partition_of(key: bytes, count: int) -> int:
    """Return the partition, of `count`, that has the records of the key."""
    return _hash(key) % count


@functools.lru_cache(maxsize=10_000)
def _hash(key: bytes) -> int:
    """Return the hash. A sender has one key, and hashing takes a tenth of a record's time."""
    return int(murmur2(key)) & 0x7FFFFFFF
