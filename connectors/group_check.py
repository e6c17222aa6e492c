"""Feeding the checker from the real thing: DATA topics, the Delta ledger, delivery logs of members."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from connectors.connection import Connection
from connectors.data_log import DataLog
from ordering.checker import LOST, Anomaly, Checker
from ordering.errors import UsageError
from ordering.reader import Reader, epoch_of
from ordering.records import EPOCH, MessageId


def check_data(checker: Checker, connection: Connection, group: str, site: str) -> int:
    """Read the whole DATA topic of the site; return how many seqnos it holds."""
    with DataLog(connection, group, site) as data:
        beginning, end = data.beginning(), data.end()
        if beginning > 0:
            checker.start(site, _reader_at(data, beginning, end))
        highest = 0
        for stored in data.records(beginning, end):
            checker.data(site, stored.data)
            highest = max(highest, stored.data.seqno)
        return highest


class Lack(NamedTuple):
    """What a site has not got (yet): `count` messages of a sender that other sites have, after `local_seqno`."""

    site: str
    sender: str
    incarnation: int
    local_seqno: int
    missing: int

    def __str__(self) -> str:
        return (
            f"{self.site} lacks {self.missing} messages of {self.sender}, incarnation {self.incarnation}, "
            f"after local seqno {self.local_seqno}"
        )


def lacking(ordered: Mapping[str, Mapping[tuple[str, int], int]]) -> list[Lack]:
    """By what each site is behind the others. `ordered`: by site, the highest local seqno of each incarnation.

    A hole in what a site has is no lag but an anomaly of its own, which the checker names.
    """
    furthest: dict[tuple[str, int], int] = {}
    for lives in ordered.values():
        for life, local_seqno in lives.items():
            furthest[life] = max(furthest.get(life, 0), local_seqno)
    return [
        Lack(site, *life, has, most - has)
        for site, lives in ordered.items()
        for life, most in sorted(furthest.items())
        if (has := lives.get(life, 0)) < most
    ]


class SitesVerdict:
    """What is wrong at several sites, which have one order together (`one_order`) or each its own."""

    def __init__(self, names: Iterable[str], *, one_order: bool) -> None:
        common = Checker()
        self.checkers = {name: common if one_order else Checker() for name in names}
        self.read: dict[str, int] = {}

    def lacking(self) -> list[Lack]:
        """By what each site is behind the others; normal as long as messages are under way."""
        return lacking({name: checker.ordered(name) for name, checker in self.checkers.items()})

    def anomalies(self, *, settled: bool) -> list[Anomaly]:
        """Everything that was found. `settled`: nothing is under way, so that what a site lacks is lost."""
        found = [anomaly for checker in dict.fromkeys(self.checkers.values()) for anomaly in checker.finish()]
        return found + ([Anomaly(LOST, f"{lack}.", ()) for lack in self.lacking()] if settled else [])


def check_sites(group: str, connections: Mapping[str, Connection], *, one_order: bool) -> SitesVerdict:
    """Read the whole DATA topic of every site."""
    verdict = SitesVerdict(connections, one_order=one_order)
    for site, connection in connections.items():
        verdict.read[f"DATA of {site}"] = check_data(verdict.checkers[site], connection, group, site)
    return verdict


def _reader_at(data: DataLog, beginning: int, end: int) -> Reader:
    """The reading rule for a log whose beginning retention has dropped: its first effective record tells."""
    seals = data.state(end).seals
    for stored in data.records(beginning, end):
        record = stored.data
        if record.kind != EPOCH and record.epoch == epoch_of(seals, record.seqno):
            return Reader(record.epoch, record.seqno - 1)
    return Reader()


def check_ledger(checker: Checker, path: Path, group: str) -> int:
    """Read the group's rows of the ledger, a chunk at a time; return how many there are."""
    from deltalake import DeltaTable
    from pyarrow import dataset as ds

    from connectors.delta_files import dataset_of

    columns = ["seqno", "sender", "incarnation", "local_seqno", "kind", "payload"]
    rows = 0
    table = dataset_of(DeltaTable(str(path)), path)
    for batch in table.to_batches(columns=columns, filter=ds.field("group") == group):
        for row in batch.to_pylist():
            message = MessageId(row["sender"] or "", row["incarnation"] or 0, row["local_seqno"] or 0)
            checker.ledger(row["seqno"], message, row["payload"], kind=row["kind"])
            rows += 1
    return rows


def check_deliveries(checker: Checker, member: str, lines: Iterable[str]) -> int:
    """Read a delivery log as `abcast deliver --json` prints it; return how many deliveries it has."""
    count = 0
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if "event" in row:
                continue
            message = MessageId(row["sender"], row["incarnation"], row["local_seqno"])
            payload = base64.b64decode(row["payload_base64"]) if "payload_base64" in row else row["payload"].encode()
            checker.delivery(member, row["seqno"], message, payload, row.get("view_id"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"line {number} of {member} is not what `abcast deliver --json` prints: {error}."
            ) from error
        count += 1
    return count
