"""`abcast status`: the status of each group, read from Kafka and from the log of the ledger's table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from jobs.terminal.interruption import taken
from jobs.terminal.options import (
    DEFAULT_DATA,
    EXIT_FAILED,
    AsJson,
    BootstrapServers,
    Data,
    Groups,
    KafkaConfig,
    Location,
    Site,
    connection_to,
    missing_extra,
    run_script,
)
from jobs.terminal.progress import Progress
from ordering.base.errors import AbcastError, BrokerUnreachable, UsageError
from ordering.base.formats import NEWEST
from ordering.base.names import DEFAULT_SITE, Role, Topic

if TYPE_CHECKING:
    from connectors.diagnosis.status import GroupStatus
    from connectors.kafka.connection.connection import Connection
    from connectors.ledger.last_row import LedgerEnd

WATCH_S = 2.0
_SHOWN_GAPS = 5
_SHOWN_ACTS = 3
_READ: tuple[Role, ...] = ("data", "epoch", "forward")
_COLUMNS = ("group", "sequencer", "last seqno", "lag", "rate", "members", "dead", "ledger")


def status(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    groups: Groups = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether the order goes on. Exit code 1 if messages wait in a group and no sequencer is alive, or if a group
    can't be read, for example because a topic is missing.

    With --groups, as the job has it, judge the job only: a group that it goes on without, and reports, is no failure.

    `sequencer`: alive, silent (with the time), none yet, or elsewhere (this site has a copy). `lag`: FORWARD records
    that wait to be ordered. `rate`: messages per second over the last minute. `members`: members in the view. `dead`:
    dead letters. `ledger`: seqnos that the ledger below --data lacks, `-` without one. --json has more.
    """
    connection = connection_to(bootstrap_servers, kafka_config, "status")
    of_job = groups if group is None else None  # a variable may have it
    chosen = ALL_GROUPS if of_job is None else GroupChoice.parse(of_job)

    def read() -> _Found:
        return _read(connection, group, chosen, site, data)

    found = read()
    if watch:
        found = _watch(read, found, site, as_json=as_json)
    else:
        _show(found, site, as_json=as_json)
    if of_job is None:
        is_failure = bool(found.errors) or any(row.is_stuck for row in found.rows)
    else:
        is_failure = bool(found.errors.keys() - found.left_out) or any(row.is_failure for row in found.rows)
    if is_failure:
        raise typer.Exit(EXIT_FAILED)


class _Found(NamedTuple):
    """The status of groups, the errors of groups that can't be read, and the groups that a job reports to leave out."""

    rows: Sequence[GroupStatus]
    errors: Mapping[str, AbcastError] = MappingProxyType({})
    left_out: frozenset[str] = frozenset()


def _watch(read: Callable[[], _Found], found: _Found, site: str, *, as_json: bool) -> _Found:
    """Show the groups again and again, until Ctrl-C, also over a broker's absence; return the last reading."""
    from rich.console import Console

    screen = Console()
    try:
        while True:
            screen.clear()  # of a terminal only
            _show(found, site, as_json=as_json)
            time.sleep(WATCH_S)
            try:
                found = read()
            except BrokerUnreachable as error:
                typer.echo(f"abcast: {error}", err=True)
    except KeyboardInterrupt:
        taken()
        return found


def _read(connection: Connection, group: str | None, of_job: GroupChoice, site: str, data: Location) -> _Found:
    """Return the status of `group`, or of all groups, among the groups that `of_job` has.

    Raises UsageError for an unknown group, and the groups' errors if none can be read and no job leaves one out.
    """
    from connectors.diagnosis.status import is_left_out, read_status
    from connectors.kafka.groups.unservable_groups import START_ERRORS, raise_unservable
    from connectors.kafka.log.sign_of_life import read_signs
    from connectors.kafka.topics.topics import find_groups

    with Progress("looking at the groups") as progress:
        groups = find_groups(connection, site)
        if group is not None and group not in groups:
            raise UsageError(f"there is no group {group!r} at site {site}: `abcast topics list` shows all.")
        chosen = [name for name in groups if group in (None, name) and of_job.has(name)]
        topics = {str(Topic(name, role, site)): name for name in chosen for role in _READ}
        leaderless = {topics[topic]: topic for topic in connection.leaderless(topics)}
        in_ledger = _in_ledger(data)  # before DATA: a lag below zero then shows that the rows are another group's
        ledger = _ledger_end(data) if in_ledger else None
        rows = []
        errors: dict[str, AbcastError] = {}
        progress.say("looking at the groups", len(chosen))
        for name in chosen:
            try:
                if name in leaderless:  # questions would wait for seconds, in vain
                    raise BrokerUnreachable(f"group {name}: {leaderless[name]} has a partition without a leader.")
                rows.append(read_status(connection, name, site, in_ledger, ledger))
            except (*START_ERRORS, BrokerUnreachable) as error:
                errors[name] = error
            progress.advance()
    signs = read_signs(connection, errors, site).of_groups if errors else {}
    left_out = frozenset(name for name, sign in signs.items() if is_left_out(sign))
    if not rows and not left_out:
        raise_unservable(errors, chosen)
    return _Found(rows, errors, left_out)


def _show(found: _Found, site: str, *, as_json: bool) -> None:
    from jobs.terminal.rows import show_sentence, show_table

    rows = found.rows
    for error in found.errors.values():
        typer.echo(f"abcast: {error}", err=True)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row.to_json()))
        return
    if not rows:
        typer.echo(f"no groups at site {site}; `abcast topics create --group G --site {site}` creates one")
        return
    show_table(_COLUMNS, map(_cells, rows), sys.stdout)
    typer.echo()
    for row in rows:
        for sentence in _sentences(row, site):
            show_sentence(f"{row.group}: {sentence}", sys.stdout)


def _sentences(row: GroupStatus, site: str) -> Iterator[str]:
    """Yield sentences on a group that have no room in the table."""
    yield str(row.sequencer)
    if row.trouble:
        yield f"its job reports: {row.trouble}"
    if row.strays:
        yield (
            f"{row.strays} of the newest records in DATA are not from abcast, and readers skip them: find the other "
            "writer. `abcast check` counts all"
        )
    yield from map(str, row.open_transactions)
    if row.wrong_settings:
        yield row.wrong_settings
    if row.other_history:
        yield row.other_history
    if row.format < NEWEST.number:
        yield (
            f"it has format {row.format}: `abcast topics upgrade --group {row.group} --site {site}` gives it "
            f"{NEWEST.number}, once all its processes run abcast {NEWEST.version} or later"
        )
    if row.agreement is not None:
        yield f"{site} {row.agreement}"
    for neighbour, silent_s in row.relays.items():
        heard = "has sent no heartbeat" if silent_s is None else f"sent a heartbeat {silent_s:,.0f} s ago"
        yield f"the relay from {neighbour} {heard}"
    for gap in row.gaps[:_SHOWN_GAPS]:
        of_incarnation = f" of incarnation {gap.incarnation}" if gap.missing == 1 else ""
        yield (
            f"{gap.sender} sent {gap.dropped:,} record{'' if gap.dropped == 1 else 's'} behind a gap, dropped until it "
            f"sends local seqno {gap.missing}{of_incarnation}"
        )
    if len(row.gaps) > _SHOWN_GAPS:
        yield f"{len(row.gaps) - _SHOWN_GAPS:,} more senders have a gap: see --json"
    for act in row.acts[-_SHOWN_ACTS:]:
        at = datetime.fromtimestamp(act.at_ms / 1000, timezone.utc)
        yield f"{act.act} by {act.who}, {at:%Y-%m-%d %H:%M} UTC: {act.what}{f' ({act.why})' if act.why else ''}"


def _cells(row: GroupStatus) -> tuple[str, ...]:
    state, silent_s = row.sequencer.state, row.sequencer.silent_s
    return (
        row.group,
        f"silent {silent_s:,.0f} s" if state == "silent" else state,
        f"{row.last_seqno:,}",
        f"{row.lag:,}",
        f"{row.rate:,.1f}/s",
        f"{row.members:,}",
        f"{row.dead_letters:,}",
        "-" if row.ledger_lag is None else f"{row.ledger_lag:,}",
    )


def _ledger_end(data: Location) -> LedgerEnd:
    from connectors.ledger.last_row import LedgerEnd

    return LedgerEnd(data / "ledger")


def _in_ledger(data: Location) -> Mapping[str, int] | None:
    """Return the last seqno of each group in the ledger below `data`; None without rows, or if it can't be read.

    Says on standard error why the ledger can't be read.
    """
    table = data / "ledger"
    try:
        if not table.exists():
            return None  # and Delta need not be loaded
        from connectors.ledger.table_state import read_table_state

        held = read_table_state(table)
    except AbcastError as error:  # the status from Kafka is useful without it
        typer.echo(f"abcast: {error}", err=True)
        return None
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        typer.echo(f"abcast: the ledger {missing_extra(error)}", err=True)
        return None
    return None if held.newest is None else held.last_seqno


if __name__ == "__main__":
    run_script(status)
