"""Find the seqno from which on messages are as young as a time, by the broker's timestamps of DATA."""

from __future__ import annotations

from contextlib import suppress

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.storage.location import Location
from ordering.base.errors import HistoryUnavailable


def seqno_since(connection: Connection, group: str, site: str, at_ms: int, ledger: Location | None = None) -> int:
    """Return the seqno of the first record that DATA got at `at_ms` (ms since the epoch) or later.

    If there is none yet, return the next seqno. A pack has one time. Where a broker's clock went back, records behind
    the first one may have earlier times.

    `ledger` tells the seqno if Kafka has dropped records of that time. Raises HistoryUnavailable if it would be needed;
    BrokerUnreachable, TopicMissing, KafkaRefused, UsageError.
    """
    with DataLog(connection, group, site) as data:
        offset, beginning = data.offset_since(at_ms), data.beginning()
        if offset > beginning or not beginning:
            with suppress(HistoryUnavailable):  # no snapshot below is left
                return data.state(offset).seqno + 1
    if ledger is not None:
        from connectors.ledger.history import first_seqno_since

        return first_seqno_since(ledger, group, at_ms)
    raise HistoryUnavailable(
        f"messages of {group} as young as that may be among those that Kafka has dropped: give the group's ledger, "
        "or a later time."
    )
