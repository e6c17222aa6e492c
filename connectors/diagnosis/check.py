"""Input for the checker from real logs: DATA topics, the Delta ledger, delivery logs of members."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple, Protocol

from kafka.structs import TopicPartition

from connectors.diagnosis.casts import is_cast
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.data_log import DataLog
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.names import Topic
from ordering.base.reader import Reader, epoch_of
from ordering.base.records import STRAY, VIEW, MessageId
from ordering.checker.anomalies import LOST, Anomaly
from ordering.checker.checker import Checker
from ordering.checker.mesh_checker import MeshChecker, Shortfall

STALLED_AFTER_S = 15.0
"""The time in which a site that lacks messages must get some, if the relay that brings them runs."""


class CheckProgress(Protocol):
    """The progress of a check."""

    def say(self, what: str, total: int | None = None) -> None:
        """Report a new step, and the number of records to read."""

    def advance(self) -> None:
        """Report one more record read."""


class Unwatched:
    """Ignores the progress."""

    def say(self, what: str, total: int | None = None) -> None:
        """Do nothing."""

    def advance(self) -> None:
        """Do nothing."""


UNWATCHED = Unwatched()


def check_data(
    checker: Checker,
    connection: Connection,
    group: str,
    site: str,
    mesh: MeshChecker | None = None,
    progress: CheckProgress = UNWATCHED,
) -> tuple[int, Strays | None]:
    """Give the checkers the whole DATA topic of the site; return its highest seqno, and its strays (None without any).

    Raises BrokerUnreachable, TopicMissing, HistoryUnavailable.
    """
    with DataLog(connection, group, site) as data:
        beginning, end = data.beginning(), data.end()
        if beginning > 0:
            reader = _reader_at(data, beginning, end)
            checker.start(site, reader)
            if mesh is not None:
                mesh.start(site, reader)
        highest, count, first_stray = 0, 0, -1
        progress.say(f"reading DATA of {site}", end - beginning)
        for stored in data.records(beginning, end):
            progress.advance()
            checker.data(site, stored.data)
            if mesh is not None:
                mesh.data(site, stored.data)
            highest = max(highest, stored.data.seqno + stored.data.count - 1)
            if stored.data.kind == STRAY:
                count, first_stray = count + 1, stored.offset if first_stray < 0 else first_stray
        return highest, Strays(count, first_stray) if count else None


class Strays(NamedTuple):
    """Records of a DATA topic that are no DATA: their number, and the offset of the first. All readers skip them."""

    number: int
    first_offset: int

    def __str__(self) -> str:
        what = "record is not" if self.number == 1 else "records are not"
        where = f"from offset {self.first_offset} on"
        return f"{self.number} {what} DATA and skipped, {where}: find out which program writes there."


class SitesVerdict:
    """The anomalies of several sites, with one order together (`one_order`) or each with its own."""

    def __init__(self, names: Iterable[str], *, one_order: bool) -> None:
        common = Checker()
        self.checkers = {name: common if one_order else Checker() for name in names}
        self.mesh = None if one_order else MeshChecker(self.checkers)
        self.read: dict[str, int] = {}
        self.strays: dict[str, Strays] = {}

    def lacking(self) -> list[Shortfall]:
        """Return how far each site is behind the others, which is normal while messages are under way."""
        if self.mesh is not None:
            return self.mesh.lacking()
        ends = {name: checker.last_seqno(name) for name, checker in self.checkers.items()}
        furthest = max(ends, key=lambda name: ends[name], default="")
        return [
            Shortfall(name, furthest, end, ends[furthest] - end) for name, end in ends.items() if end < ends[furthest]
        ]

    def anomalies(self, *, settled: bool) -> list[Anomaly]:
        """Return all anomalies. `settled`: nothing is under way, so messages that a site lacks are lost."""
        found = [anomaly for checker in dict.fromkeys(self.checkers.values()) for anomaly in checker.finish()]
        found += self.mesh.anomalies() if self.mesh is not None else []
        return found + ([Anomaly(LOST, f"{lack}.", ()) for lack in self.lacking()] if settled else [])


def check_sites(
    group: str, connections: Mapping[str, Connection], *, one_order: bool, progress: CheckProgress = UNWATCHED
) -> SitesVerdict:
    """Read the whole DATA topic of every site. Raises as `check_data`."""
    verdict = SitesVerdict(connections, one_order=one_order)
    for site, connection in connections.items():
        read, strays = check_data(verdict.checkers[site], connection, group, site, verdict.mesh, progress)
        verdict.read[f"DATA of {site}"] = read
        if strays is not None:
            verdict.strays[f"DATA of {site}"] = strays
    return verdict


def stalled(sites: Sites, group: str, lacks: Iterable[Shortfall], wait_s: float = STALLED_AFTER_S) -> list[Anomaly]:
    """Wait for `wait_s` seconds; return the shortfalls of a mesh's sites that got no less although the relay runs.

    A relay writes at least a heartbeat in that time. Returns at once if nothing is lacking. Raises BrokerUnreachable.
    """
    watched = {lack: sites.next_hop(lack.site, lack.origin) for lack in lacks if lack.site in sites.connections}
    if not watched:
        return []
    before = {lack: _relayed_end(sites, group, lack.site, hop) for lack, hop in watched.items()}
    time.sleep(wait_s)
    return [
        Anomaly(LOST, f"{lack}, and gets none of them, although the relay from {hop} runs.", ())
        for lack, hop in watched.items()
        if _reached(sites, group, lack) <= lack.after_seqno
        and _relayed_end(sites, group, lack.site, hop) > before[lack]
    ]


def _reached(sites: Sites, group: str, lack: Shortfall) -> int:
    """Return the last seqno of an origin that a site has ordered by now."""
    with DataLog(sites.connection(lack.site), group, lack.site) as data:
        return data.state().origins.get(lack.origin, 0)


def _relayed_end(sites: Sites, group: str, site: str, neighbour: str | None) -> int:
    """Return the end of the topic that the relay from a neighbour fills; 0 if there is none."""
    connection = sites.connection(site)
    partition = TopicPartition(str(Topic(group, "relayed", site, neighbour or site)), 0)
    with closing(connection.consumer()) as consumer, connection.reachable():
        is_there = bool(consumer.partitions_for_topic(partition.topic))
        return int(consumer.end_offsets([partition])[partition]) if is_there else 0


def _reader_at(data: DataLog, beginning: int, end: int) -> Reader:
    """Return the reading rule for a log whose beginning retention has dropped, from its first effective record."""
    seals = data.state(end).seals
    for stored in data.records(beginning, end):
        record = stored.data
        if record.kind not in WITHOUT_SEQNO and record.epoch == epoch_of(seals, record.seqno):
            return Reader(record.epoch, record.seqno - 1)
    return Reader()


def check_ledger(checker: Checker, path: Location, group: str, progress: CheckProgress = UNWATCHED) -> int:
    """Give the checker the group's rows of the ledger, a chunk at a time; return their number: 0 without a table."""
    from pyarrow import dataset as ds

    from connectors.ledger.delta_files import dataset_of
    from connectors.ledger.row import GROUP
    from connectors.ledger.table_state import open_table

    columns = ["seqno", "sender", "incarnation", "local_seqno", "kind", "payload"]
    rows = 0
    progress.say("reading the ledger")
    opened = open_table(path)
    if opened is None:
        return 0
    table = dataset_of(opened, path)
    for batch in table.to_batches(columns=columns, filter=ds.field(GROUP) == group):
        for row in batch.to_pylist():
            message = MessageId(row["sender"] or "", row["incarnation"] or 0, row["local_seqno"] or 0)
            checker.ledger(row["seqno"], message, row["payload"], kind=row["kind"])
            progress.advance()
            rows += 1
    return rows


def check_deliveries(checker: Checker, member: str, lines: Iterable[str]) -> int:
    """Give the checker a delivery log as `abcast deliver --json` prints it; return the number of deliveries in it.

    Casts are validated and not counted: `check_casts` reads them. Raises UsageError for an invalid line.
    """
    count = 0
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not all(
                isinstance(row.get(name, 0), int) for name in ("incarnation", "local_seqno", "seqno", "view_id")
            ):
                raise TypeError("one of its numbers is no number")
            if "event" in row:
                if row["event"] == VIEW:
                    row["view_id"]
                continue
            message = MessageId(row["sender"], row["incarnation"], row["local_seqno"])
            payload = base64.b64decode(row["payload_base64"]) if "payload_base64" in row else row["payload"].encode()
            if is_cast(row):  # for `check_casts`
                continue
            checker.delivery(member, row["seqno"], message, payload, row.get("view_id"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"line {number} of {member} is not what `abcast deliver --json` prints: {error}."
            ) from error
        count += 1
    return count
