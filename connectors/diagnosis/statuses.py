"""The status of a site's groups, one after the other: a group that can't be read keeps none from the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from connectors.diagnosis.broker_clocks import ClockDifference
from connectors.diagnosis.latencies import Latency
from connectors.diagnosis.replicas import under_replicated
from connectors.diagnosis.sentences import wrong_with
from connectors.diagnosis.status import Decided, GroupStatus, is_left_out, read_status
from connectors.kafka.connection.connection import NO_LEADER, Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from connectors.kafka.groups.unservable_groups import START_ERRORS, raise_unservable
from connectors.kafka.log.liveness import SecondLook
from connectors.kafka.log.sign_of_life import read_signs
from connectors.kafka.topics.topics import find_groups
from ordering.base.errors import AbcastError, BrokerUnreachable, TopicMissing, UsageError
from ordering.base.names import BY_RELAYS, ROLES, Role, Topic

if TYPE_CHECKING:
    from connectors.ledger.last_row import LedgerEnd

InLedger: TypeAlias = "tuple[Mapping[str, int] | None, LedgerEnd | None]"
COUNT_EVERY_S = 600.0
_READ: tuple[Role, ...] = ("data", "epoch", "forward")


class Statuses(NamedTuple):
    """The status of groups, the errors of groups that can't be read, and the groups that a job reports to leave out.

    `clocks`: the largest difference between clocks; None if it is not known. `latencies`: by group, as far as known.
    """

    rows: Sequence[GroupStatus]
    errors: Mapping[str, AbcastError] = MappingProxyType({})
    left_out: frozenset[str] = frozenset()
    clocks: ClockDifference | None = None
    latencies: Mapping[str, Latency] = MappingProxyType({})

    def to_json(self, site: str) -> dict[str, Any]:
        """Return the status as plain values, with the sentences on wrong things."""
        errors = {group: str(error) for group, error in self.errors.items()}
        groups = [{**row.to_json(), "wrong": list(wrong_with(row, site))} for row in self.rows]
        clocks = None if self.clocks is None else self.clocks._asdict()
        wrong = [str(self.clocks)] if self.clocks is not None and self.clocks.is_wrong else []
        waits = {group: each._asdict() for group, each in self.latencies.items()}
        plain = {"site": site, "groups": groups, "errors": errors}
        return {**plain, "clocks": clocks, "latencies": waits, "wrong": wrong}


class StrayCount:
    """Readings of a sequencer's own process, with the strays of the last one that read DATA back to the snapshots.

    A reading whose states come from memory sees only the newest records of DATA. `read`: read with such states.
    """

    def __init__(self, read: Callable[[Decided], Statuses], decided: Decided) -> None:
        self._read, self._decided = read, decided
        self._strays: dict[str, int] = {}
        self._counted_at = -math.inf

    def __call__(self) -> Statuses:
        """Return a reading. Raises as `read` does."""
        if time.monotonic() - self._counted_at >= COUNT_EVERY_S:
            found = self._read(lambda _: None)
            self._counted_at, self._strays = time.monotonic(), {row.group: row.strays for row in found.rows}
            return found
        found = self._read(self._decided)
        rows = [row._replace(strays=max(row.strays, self._strays.get(row.group, 0))) for row in found.rows]
        return found._replace(rows=rows)


class ReadingProgress(Protocol):
    """A display of how far the reading is."""

    def say(self, what: str, total: int | None = None) -> None:
        """Show a step and its total."""

    def advance(self, count: int = 1) -> None:
        """Add to the count."""


def read_statuses(
    connection: Connection,
    site: str,
    read_ledger: Callable[[], InLedger] = lambda: (None, None),
    group: str | None = None,
    of_job: GroupChoice = ALL_GROUPS,
    progress: ReadingProgress | None = None,
    *,
    raises: bool = True,
    neighbours: Collection[str] = (),
    decided: Decided = lambda _: None,
) -> Statuses:
    """Return the status of `group`, or of all groups, among the groups that `of_job` has.

    `read_ledger` returns `in_ledger` and `ledger` of `read_status`, which has `neighbours` and `decided`, too.

    Raises BrokerUnreachable, UsageError for an unknown group, and the groups' errors if none can be read and no job
    leaves one out. Without `raises`, the result has the errors of groups, also of an unknown one.
    """
    groups = find_groups(connection, site)
    if group is not None and group not in groups:
        sentence = f"there is no group {group!r} at site {site}: `abcast topics list` shows all."
        if raises:
            raise UsageError(sentence)
        return Statuses((), {group: TopicMissing(sentence)})
    chosen = [name for name in groups if group in (None, name) and of_job.has(name)]
    copies = connection.copies(
        str(Topic(name, role, site)) for name in chosen for role in ROLES if role not in BY_RELAYS
    )
    leaderless = {
        topic.group: str(topic)
        for topic in (Topic.of(each.topic) for each in copies if each.leader == NO_LEADER)
        if topic.role in _READ
    }
    short = under_replicated(connection, copies)
    in_ledger, ledger = read_ledger()  # before DATA: a lag below zero then shows that the rows are another group's
    second_look = SecondLook(connection, chosen, site)
    rows = []
    errors: dict[str, AbcastError] = {}
    if progress is not None:
        progress.say("looking at the groups", len(chosen))
    for name in chosen:
        try:
            if name in leaderless:  # questions would wait for seconds, in vain
                raise BrokerUnreachable(f"group {name}: {leaderless[name]} has a partition without a leader.")
            row = read_status(connection, name, site, in_ledger, ledger, second_look, neighbours, decided)
            rows.append(row._replace(under_replicated=tuple(short.get(name, ()))))
        except (*START_ERRORS, BrokerUnreachable) as error:
            errors[name] = error
        if progress is not None:
            progress.advance()
    signs = read_signs(connection, errors, site).of_groups if errors else {}
    left_out = frozenset(name for name, sign in signs.items() if is_left_out(sign))
    if raises and not rows and not left_out:
        raise_unservable(errors, chosen)
    return Statuses(rows, errors, left_out)
