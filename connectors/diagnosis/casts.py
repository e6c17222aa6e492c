"""What `abcast check` says of casts: delivery logs against the cast topics and the views of DATA."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.cast_codec import decode_cast
from connectors.kafka.codec import depends_of
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.ranges import read_range
from ordering.cast_checker import CastChecker
from ordering.casts import TOTAL
from ordering.checker import Anomaly
from ordering.membership import Life
from ordering.reader import Reader, Verdict
from ordering.records import MESSAGE, VIEW

CASTS_OF = "casts of {member}"


def is_cast(row: dict[str, Any]) -> bool:
    """Whether a line of a delivery log is a cast."""
    return bool(row.get("order", TOTAL) != TOTAL)


def check_casts(
    group: str, connection: Connection, site: str, logs: Sequence[Path]
) -> tuple[dict[str, int], list[Anomaly]]:
    """How many casts each log has, and what is wrong with them; nothing is read if there are none.

    Raises BrokerUnreachable, HistoryUnavailable, TopicMissing.
    """
    counts = {log.name: sum(map(is_cast, _rows(log))) for log in logs}
    if not any(counts.values()):
        return {}, []
    checker = CastChecker()
    _read_data(checker, connection, group, site)
    _read_casts(checker, connection, group)
    for log in logs:
        for row in _rows(log):
            if is_cast(row):
                life = Life(row["sender"], row["incarnation"])
                checker.delivered_cast(log.name, life, row["local_seqno"], row.get("view_id", 0))
            elif "event" not in row:
                checker.delivered_total(log.name, row["seqno"])
    return {CASTS_OF.format(member=name): count for name, count in counts.items() if count}, checker.finish()


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    """The lines; `check_deliveries` has seen that they can be read."""
    with log.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _read_data(checker: CastChecker, connection: Connection, group: str, site: str) -> None:
    reader = Reader()
    with DataLog(connection, group, site) as log:
        for stored in log.records(log.beginning(), log.end()):
            data = stored.data
            if not reader.last_seqno and data.seqno:
                reader = Reader(data.epoch, data.seqno - 1)  # retention may have dropped what stood before
            if reader.accept(data.kind, data.epoch, data.seqno) is not Verdict.TAKE:
                continue
            if data.kind == VIEW:
                checker.view(data.view, _lives(json.loads(data.payload)["members"]))
            elif data.kind == MESSAGE:
                checker.total(data.seqno, depends_of(data.headers))


def _lives(members: Iterable[Sequence[Any]]) -> tuple[Life, ...]:
    return tuple(Life(*row) for row in members)


def _read_casts(checker: CastChecker, connection: Connection, group: str) -> None:
    with contextlib.closing(connection.consumer()) as consumer, connection.reachable():
        for topic in map(str, connection.topics_of(group, "cast")):
            places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
            begins, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            for place in places:
                for record in read_range(connection, consumer, place, int(begins[place]), int(ends[place])):
                    cast = decode_cast(record.key, record.value, record.headers, record.timestamp)
                    if not isinstance(cast, str):
                        checker.cast(cast)
