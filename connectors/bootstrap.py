"""Giving a new site the history from another site's ledger, for what Kafka's retention there has dropped.

A hub's new site gets DATA itself; a mesh's gets FORWARD, as a relay would have brought it. Both are written in the
order of seqnos, each after what stands there already. So it may be cut off and started again, and the relay goes on
where it ends: see the invariant of `connectors.relay_job`, of which this writes the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kafka.future import Future

from connectors.codec import H_RELAYED_FROM, H_VISITED, encode_data, forward_headers
from connectors.connection import Connection
from connectors.data_log import DataLog
from connectors.ledger_history import read_rows
from connectors.ledger_state import state_from_ledger
from connectors.relay_job import last_relayed, post_base
from connectors.sites import Direction, Sites
from connectors.topics import ensure_topic
from ordering.errors import UsageError
from ordering.names import Topic
from ordering.records import MESSAGE, Data, Headers, Source

UNACKNOWLEDGED = 10_000
"""Records written ahead of Kafka's acknowledgement, at most."""

Record = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
Written = Callable[[], None]
"""Told of each record that was written."""


def bootstrap(sites: Sites, group: str, ledger: Path, way: Direction, written: Written = lambda: None) -> int:
    """Write what the ledger of `way.source` has and `way.target` lacks; return the ledger's last seqno.

    Raises UsageError (no ledger, or none of this group), BrokerUnreachable, TopicMissing.
    """
    known = state_from_ledger(ledger, group)
    if known is None:
        raise UsageError(f"there is no ledger of group {group} in {ledger}: name the home's DIR/ledger.")
    there = sites.connection(way.target)
    if sites.home is None:
        topic = Topic(group, "relayed", way.target, way.source)
        ensure_topic(there, topic, 1)
        relayed = str(topic)
        data = str(Topic(group, "data", way.source))
        done = last_relayed(there, relayed, 0, way.source, data, 0) + 1
        _write(there, relayed, _news(sites, way, data, read_rows(ledger, group, done + 1)), written)
        return known.seqno
    with DataLog(there, group, way.target) as copy:
        if copy.claims():
            raise UsageError(f"{copy.topic} has a sequencer of its own, so it can't follow {way.source}.")
        done = copy.state().seqno
        _write(there, str(copy.topic), _orders(group, way.source, read_rows(ledger, group, done + 1)), written)
        post_base(there, copy.claims_topic, known)
    return known.seqno


def _orders(group: str, home: str, rows: Iterator[list[dict[str, Any]]]) -> Iterator[Record]:
    """DATA as the sequencer wrote it, as far as the ledger tells."""
    for chunk in rows:
        for row in chunk:
            relayed = row["site"] != home
            topic = Topic(group, "relayed", home, row["site"]) if relayed else Topic(group, "forward", home)
            yield encode_data(
                Data(
                    kind=row["kind"],
                    epoch=row["epoch"],
                    seqno=row["seqno"],
                    view=row["view_id"],
                    sender=row["sender"],
                    incarnation=row["incarnation"],
                    local_seqno=row["local_seqno"],
                    payload=row["payload"] or b"",
                    source=Source(str(topic), row["forward_partition"] or 0, row["forward_offset"] or 0),
                    headers=((H_VISITED, row["site"].encode("ascii")), *_headers(row)) if relayed else _headers(row),
                    forwarded_at_ms=round(row["forwarded_at"].timestamp() * 1000) if row["forwarded_at"] else 0,
                )
            )


def _news(sites: Sites, way: Direction, data: str, rows: Iterator[list[dict[str, Any]]]) -> Iterator[Record]:
    """FORWARD of the original senders, marked as the relay of `way` would mark it."""
    others = [site for site in sites.neighbours(way.source) if site != way.target]
    for chunk in rows:
        for row in chunk:
            if row["kind"] != MESSAGE or row["site"] == way.target:
                continue
            visited = ",".join(dict.fromkeys((row["site"], way.source, *others)))
            # Seqno n stands at offset n - 1 or later: a relay that goes on after this mark leaves nothing out.
            mark = f"{way.source}/{Source(data, 0, row['seqno'] - 1)}"
            headers = forward_headers(row["sender"], row["incarnation"], row["local_seqno"])
            marks = [(H_VISITED, visited.encode("ascii")), (H_RELAYED_FROM, mark.encode("ascii"))]
            yield row["sender"].encode("ascii"), row["payload"] or b"", [*headers, *marks, *_headers(row)]


def _headers(row: dict[str, Any]) -> Headers:
    return tuple((header["key"], header["value"]) for header in row["headers"] or ())


def _write(connection: Connection, topic: str, records: Iterator[Record], written: Written) -> None:
    """Append in order; the producer never gives up on a record, so nothing is left out in the middle."""
    producer = connection.producer(delivery_timeout_ms=2**31 - 1)
    waiting: deque[Future] = deque()
    try:
        for key, value, headers in records:
            waiting.append(producer.send(topic, key=key, value=value, headers=headers, partition=0))
            if len(waiting) >= UNACKNOWLEDGED:
                waiting.popleft().get(timeout=120)
            written()
        while waiting:
            waiting.popleft().get(timeout=120)
    finally:
        producer.close(timeout=10)
