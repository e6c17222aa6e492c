"""`abcast status`: the status of each group, read from Kafka and from the log of the ledger's table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

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
from ordering.base.errors import AbcastError, BrokerUnreachable
from ordering.base.formats import NEWEST
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from connectors.diagnosis.status import GroupStatus
    from connectors.diagnosis.statuses import InLedger, Statuses
    from connectors.kafka.connection.connection import Connection
    from connectors.ledger.last_row import LedgerEnd

WATCH_S = 2.0
_SHOWN_GAPS = 5
_SHOWN_ACTS = 3
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

    def read() -> Statuses:
        with Progress("looking at the groups") as progress:
            return read_with_ledger(connection, site, data, chosen, group, progress)

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


def _watch(read: Callable[[], Statuses], found: Statuses, site: str, *, as_json: bool) -> Statuses:
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


def _to_standard_error(sentence: str) -> None:
    typer.echo(f"abcast: {sentence}", err=True)


def read_with_ledger(
    connection: Connection,
    site: str,
    data: Location | None,
    of_job: GroupChoice = ALL_GROUPS,
    group: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], object] = _to_standard_error,
) -> Statuses:
    """Return the status of groups, with the ledger below `data`. Raises like `read_statuses`.

    `say` takes the sentence of why the ledger can't be read.
    """
    from connectors.diagnosis.statuses import read_statuses

    def read_ledger() -> InLedger:
        in_ledger = None if data is None else _in_ledger(data, say)
        return in_ledger, None if data is None or not in_ledger else _ledger_end(data)

    return read_statuses(connection, site, read_ledger, group, of_job, progress)


def _show(found: Statuses, site: str, *, as_json: bool) -> None:
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


def _in_ledger(data: Location, say: Callable[[str], object]) -> Mapping[str, int] | None:
    """Return the last seqno of each group in the ledger below `data`; None without rows, or if it can't be read."""
    table = data / "ledger"
    try:
        if not table.exists():
            return None  # and Delta need not be loaded
        from connectors.ledger.table_state import read_table_state

        held = read_table_state(table)
    except AbcastError as error:  # the status from Kafka is useful without it
        say(str(error))
        return None
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        say(f"the ledger {missing_extra(error)}")
        return None
    return None if held.newest is None else held.last_seqno


if __name__ == "__main__":
    run_script(status)
