"""The check of casts: delivery logs against the cast topics and the views of DATA, and casts that copies lack.

Sites with one order have one set of views, so a delivery log may be of any of them: it is compared with the cast topics
of all of them, originals and copies. In a mesh a log is compared with its own site.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import decode_cast
from connectors.kafka.codec.headers import depends_of
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog
from ordering.base.kinds import MESSAGE_KINDS
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import SETTINGS, VIEW
from ordering.casts.casts import NO_VIEW, TOTAL, OrderedRecord
from ordering.casts.merging import separates
from ordering.checker.anomalies import LOST, Anomaly
from ordering.checker.cast_checker import CastChecker
from ordering.membership.membership import MemberIncarnation
from ordering.membership.settings import Settings
from ordering.participant.events import BEGIN

CASTS_OF = "casts of {member}"


def is_cast(row: dict[str, Any]) -> bool:
    """Whether a line of a delivery log is a cast."""
    return bool(row.get("order", TOTAL) != TOTAL)


class _Name(NamedTuple):
    """The identity of a cast."""

    sender: MemberIncarnation
    view: int
    local_seqno: int


class _Log(NamedTuple):
    """The casts in a cast topic of one Kafka, and whether retention has dropped none."""

    names: set[_Name]
    is_whole: bool


_NOTHING = _Log(set(), is_whole=True)


def check_casts(
    group: str, connections: Mapping[str, Connection], logs: Sequence[Path], *, one_order: bool, settled: bool
) -> tuple[dict[str, int], list[Anomaly]]:
    """Return the number of casts in each delivery log that has any, by `CASTS_OF`, and the anomalies of casts.

    `settled`: a cast that one of several sites lacks is lost. If there is nothing to compare, no Kafka is read. The
    logs must be valid (`check.check_deliveries`). Raises BrokerUnreachable, HistoryUnavailable, TopicMissing.
    """
    counts = {log.name: sum(map(is_cast, _rows(log))) for log in logs}
    has_casts, compares = any(counts.values()), settled and len(connections) > 1
    checker = CastChecker()
    found: dict[str, dict[str, _Log]] = {}
    for site, connection in connections.items() if has_casts or compares else ():
        if has_casts:
            _read_data(checker, connection, group, site)
        found[site] = _read_casts(checker, connection, group)
    lost = list(_lost(group, found, of_views=one_order)) if compares else []
    for log in logs:
        for row in _rows(log):
            if is_cast(row):
                sender = MemberIncarnation(row["sender"], row["incarnation"])
                checker.delivered_cast(log.name, sender, row["local_seqno"], row.get("view_id", 0))
            elif row.get("event") == BEGIN:
                checker.begins(
                    log.name, MemberIncarnation(row["sender"], row["incarnation"]) if "sender" in row else None
                )
            elif row.get("event") == VIEW:
                checker.delivered_view(log.name, row["view_id"])
            elif "event" not in row:
                checker.delivered_total(log.name, row["seqno"], row.get("view_id", NO_VIEW))
    found_in_logs = {CASTS_OF.format(member=name): count for name, count in counts.items() if count}
    return found_in_logs, [*lost, *checker.finish()]


def _lost(group: str, found: Mapping[str, Mapping[str, _Log]], *, of_views: bool) -> Iterator[Anomaly]:
    """Yield an anomaly for each site that lacks casts of another one. `of_views`: of a view, too; no mesh has these."""
    for origin, there in found.items():
        topic = str(Topic(group, "cast", origin))
        names = {name for name in there.get(topic, _NOTHING).names if of_views or name.view == NO_VIEW}
        for site, here in found.items():
            copy = here.get(topic, _NOTHING)
            if copy.is_whole and (lacking := len(names - copy.names)):
                yield Anomaly(LOST, f"{site} lacks {lacking} casts of {origin}.", ())


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a delivery log, which `check_deliveries` has checked."""
    with log.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _read_data(checker: CastChecker, connection: Connection, group: str, site: str) -> None:
    reader, flush = Reader(), Settings().flush
    members: tuple[MemberIncarnation, ...] = ()
    with DataLog(connection, group, site) as log:
        for stored in log.records(log.beginning(), log.end()):
            data = stored.data
            if not reader.last_seqno and data.seqno:
                # Retention may have dropped earlier records, and with them the setting of flush.
                reader, flush = Reader(data.epoch, data.seqno - 1), flush or data.seqno > 1
            if reader.judge(data) is not Verdict.TAKE:
                continue
            if data.kind == SETTINGS:
                flush = Settings(flush=flush).decided(data.payload).flush
            elif data.kind == VIEW:
                view = OrderedRecord.of_view(data.seqno, data.view, data.payload)
                members = view.members if separates(view, members, flush=flush) else ()
                checker.view(data.view, members)
            elif data.kind in MESSAGE_KINDS and (depends := depends_of(data.headers)) is not None:
                for seqno in range(data.seqno, data.seqno + data.count):  # a pack has the headers of each message
                    checker.total(seqno, depends)


def _read_casts(checker: CastChecker, connection: Connection, group: str) -> dict[str, _Log]:
    """Give the checker all casts in a Kafka; return the casts of each cast topic."""
    found: dict[str, _Log] = {}
    with contextlib.closing(connection.consumer()) as consumer, connection.reachable():
        for topic in connection.topics_of(group, "cast"):
            name = str(topic)
            places = [TopicPartition(name, number) for number in sorted(consumer.partitions_for_topic(name))]
            begins, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            log = found[name] = _Log(set(), not any(begins.values()))
            for place in places:
                for record in read_range(connection, consumer, place, int(begins[place]), int(ends[place])):
                    cast = decode_cast(record.key, record.value, record.headers, record.timestamp, topic.site)
                    if not isinstance(cast, str):
                        checker.cast(cast)
                        log.names.add(_Name(cast.member, cast.view, cast.local_seqno))
    return found
