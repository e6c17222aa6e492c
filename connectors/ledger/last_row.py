"""The end of a ledger: a group's last rows, a check that the group in Kafka has them, and the place to go on from."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.log.data_log import DataLog, Start, lost_at
from connectors.kafka.log.same_log import Fit, LedgerRow, fit
from connectors.kafka.transport import Consumer
from connectors.ledger.delta_files import LedgerOutdated, dataset_of
from connectors.ledger.row import GROUP
from connectors.ledger.table_state import TableState, open_table, read_rows, read_table_state
from connectors.storage.location import Location
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable
from ordering.sequencer.state import SequencerState

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_LOOKED_AT = 100
"""Rows searched for one with a sender: a sequencer's own records look alike in any group."""
_COLUMNS = ("seqno", "epoch", "sender", "incarnation", "local_seqno", "data_offset", "sequenced_at", "forwarded_at")


class LedgerEnd:
    """The last rows of a ledger, as they were at the first question, or behind `look_again`. Thread-safe.

    A table of 0.1.0 tells nothing until its ledger job has renamed a column: a sequencer does not wait for that.
    """

    def __init__(self, path: Location, last_seqno: Mapping[str, int] | None = None) -> None:
        """Keep the path; the table is opened at the first question. `last_seqno`: of each group, if it is known."""
        self.path = path
        self._opening = threading.Lock()
        self._rows: Dataset | None = None
        self._state = None if last_seqno is None else TableState(last_seqno)
        self._looked_at = float("-inf")

    def last_seqno(self, group: str) -> int:
        """Return the group's last seqno; 0 without rows. Raises LedgerDamaged, LedgerUnreadable."""
        with self._opening:
            if self._state is None:
                try:
                    self._state = read_table_state(self.path)
                except LedgerOutdated:
                    self._state = TableState()
            return self._state.last_seqno.get(group, 0)

    def look_again(self) -> None:
        """Look whether others have committed since. One look serves all threads that ask before it begins.

        Raises StoreUnreachable, EnvironmentProblem.
        """
        asked_at = time.monotonic()
        with self._opening:
            if self._looked_at > asked_at:
                return
            began = time.monotonic()
            newest = None if self._state is None else self._state.newest
            if newest is None or not newest.is_newest(self.path):
                self._state = self._rows = None
            self._looked_at = began  # a look that failed serves nobody

    def row(self, group: str, seqno: int) -> LedgerRow | None:
        """Return the newest row up to that seqno, if possible one with a sender; None without rows.

        Raises LedgerDamaged, LedgerUnreadable.
        """
        with self._opening:
            if self._rows is None:
                try:
                    table = open_table(self.path)
                except LedgerOutdated:
                    return None
                if table is None:
                    return None
                self._rows = dataset_of(table, self.path)
            rows = self._rows
        return _read(rows, self.path, group, seqno)


def _read(rows: Dataset, path: Location, group: str, seqno: int) -> LedgerRow | None:
    from pyarrow import dataset as ds

    number = ds.field("seqno")
    wanted = (ds.field(GROUP) == group) & (number <= seqno) & (number > seqno - _LOOKED_AT)
    columns = [name for name in _COLUMNS if name in rows.schema.names]
    found = read_rows(rows, path, columns, wanted).to_pylist()
    found.sort(key=lambda row: (bool(row["sender"]), row["seqno"]))
    return _row(found[-1]) if found else None


def _row(row: dict[str, Any]) -> LedgerRow:
    at, forwarded_at = row.get("sequenced_at"), row.get("forwarded_at")
    return LedgerRow(
        row["seqno"],
        row["epoch"],
        row["sender"] or "",
        row["incarnation"] or 0,
        row["local_seqno"] or 0,
        row.get("data_offset"),
        round(at.timestamp() * 1000) if at else 0,
        round(forwarded_at.timestamp() * 1000) if forwarded_at else None,
    )


def other_history(data: DataLog, ledger: LedgerEnd, known: tuple[int, SequencerState] | None = None) -> str:
    """Return the fault and what to do if the ledger has another history of the group than DATA; else "".

    `known`: as for `fit`. Raises LedgerDamaged, LedgerUnreadable, BrokerUnreachable.
    """
    group = data.topic.group
    if not (last := ledger.last_seqno(group)):
        return ""
    try:
        known = known or data.end_and_state()
        found = fit(data, ledger, known)
    except HistoryUnavailable:  # DATA does not tell
        return ""
    if (lost := lost_at(known[1], last)) is not None and found is not Fit.LOST:
        return (
            f"{ledger.path} has seqnos {lost.first} to {last} of {group}, which it lost when it was restored from "
            "another ledger: keep these rows, and take another --data."
        )
    if found is Fit.SAME:
        return ""
    if found is Fit.OTHER:
        fault = f"{ledger.path} has another history of {group}, up to seqno {last}"
        return f"{fault}: take another --data, or another name."
    remedy = "go on in a new group, or take another --data."
    return f"{ledger.path} has {group} up to seqno {last}, and {data.topic} has lost its end, or is a new one: {remedy}"


class Starts(NamedTuple):
    """The places where groups go on, and the errors of the other groups."""

    found: dict[str, Start]
    errors: dict[str, AbcastError]


def starts_of(
    connection: Connection, site: str, path: Location, groups: Collection[str], last_seqno: Mapping[str, int]
) -> Starts:
    """Return where the ledger at `path`, which ends with these seqnos, goes on. Many groups are asked side by side."""
    starts, ledger = Starts({}, {}), LedgerEnd(path)
    with contextlib.closing(SideBySide[Start](connection)) as asking:
        for group in groups:
            asking.ask(group, partial(start_after, last_seqno.get(group, 0), connection, site, group, path, ledger))
        while asking.is_waiting:
            for group, found in asking.answers(1.0).items():
                if isinstance(found, AbcastError):
                    starts.errors[group] = found
                else:
                    starts.found[group] = found
    return starts


def start_after(
    seqno: int,
    connection: Connection,
    site: str,
    group: str,
    path: Location,
    ledger: LedgerEnd,
    consumer: Consumer | None = None,
) -> Start:
    """Return the place in DATA where the ledger at `path`, which has the group up to `seqno`, goes on.

    Raises HistoryChanged if the ledger has the history of another log; HistoryUnavailable if retention has dropped the
    records that follow; NoSnapshot if DATA does not tell before a sequencer has started; OvertakenByRetention.
    """
    with DataLog(connection, group, site, consumer) as data:
        if why := other_history(data, ledger):
            raise HistoryChanged(why)
        try:
            return data.after(seqno)
        except HistoryUnavailable as gone:
            if gone.retriable:  # only after a sequencer's start, or a purge, is it known whether records are missing
                raise
            content = f"ends at seqno {seqno} of group {group}" if seqno else f"has nothing of group {group}"
            raise HistoryUnavailable(
                f"the ledger {path} {content}, and can't go on without a gap: "
                f"{str(gone).partition('. ')[0]}. Put a copy of the ledger and the views there that has later seqnos, "
                "and start again; or go on without a ledger (`abcast sequence` instead of `abcast run`)."
            ) from gone
