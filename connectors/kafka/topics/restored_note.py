"""The note of a restore in the group's memory topic: with Kafka, all positions were lost.

Nobody knows which names had one. So each name may have had a position, and a name without one is asked where to go on
(`connectors.client.memory.position_notes`). The note is written before DATA has a record.
"""

from __future__ import annotations

from connectors.kafka.connection.sending import Record

NOTE_OF_ALL_NAMES = b"* deliveries"
"""The key of the note. A later restore of the group replaces it."""


def encode_restored(last: int) -> Record:
    """Return the note that the group was restored up to seqno `last`."""
    return NOTE_OF_ALL_NAMES, b"%d" % last, []


def restored_up_to(value: bytes | None) -> int | None:
    """Return the last seqno that was restored, from a note's value; None for any other value."""
    return int(value) if value is not None and value.isdigit() else None
