"""`abcast status`: the status of each group, read from Kafka and from the log of the ledger's table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from jobs.terminal.interruption import EXIT_INTERRUPTED, taken, tell
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
from jobs.terminal.sites_option import SitesFile, optional_sites
from ordering.base.errors import AbcastError, UsageError
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from connectors.diagnosis.status import Decided, GroupStatus
    from connectors.diagnosis.statuses import InLedger, Statuses
    from connectors.kafka.connection.connection import Connection
    from connectors.ledger.last_row import LedgerEnd

WATCH_S = 2.0
COLUMNS = ("group", "sequencer", "last seqno", "lag", "rate", "members", "dead", "ledger")


def status(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    groups: Groups = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s, until Ctrl-C.")] = False,
    until_healthy: Annotated[
        bool, typer.Option("--until-healthy", help="Wait until each group has a sequencer, and none would fail.")
    ] = False,
    sites: SitesFile = None,
    as_json: AsJson = False,
) -> None:
    """Show whether the order goes on. Exit code 1 if messages wait in a group and nothing orders them, or if a group
    can't be read, for example because a topic is missing.

    Nothing orders them if no sequencer is alive, the site waits for others, or an open transaction blocks them.

    With --groups, as the job has it, judge the job only: a group that it goes on without, and reports, is no failure.

    `sequencer`: alive, silent (with the time), none yet, or elsewhere (this site has a copy). `lag`: FORWARD records
    that wait to be ordered. `rate`: records of DATA per second over the last minute (a pack is one record). `members`:
    members in the view. `dead`: dead letters. `ledger`: seqnos that the ledger below --data lacks, `-` without one.
    --json has more. With --sites, a neighbour whose relay has never begun is told, too.
    """
    connection = connection_to(bootstrap_servers, kafka_config, "status")
    of_job = groups if group is None else None  # a variable may have it
    chosen = ALL_GROUPS if of_job is None else GroupChoice.parse(of_job)

    topology = optional_sites(sites, kafka_config, "status")
    neighbours = topology.heard_at(site) if topology is not None else ()

    def read() -> Statuses:
        with Progress("looking at the groups") as progress:
            return read_with_ledger(
                connection, site, data, chosen, group, progress, raises=not until_healthy, neighbours=neighbours
            )

    is_healthy = partial(_is_healthy, is_of_job=of_job is not None)
    found = _read_if_possible(read) if until_healthy else read()
    if watch or until_healthy:
        show = partial(_refresh, site=site, as_json=as_json) if watch else _Errors().tell
        found = _watch(read, found, show, is_healthy if until_healthy else lambda _: False)
    if found is not None and not watch:
        _show(found, site, as_json=as_json)
    if found is None or (until_healthy and not is_healthy(found)):  # interrupted
        tell()
        raise typer.Exit(EXIT_INTERRUPTED)
    if _is_failure(found, is_of_job=of_job is not None):
        raise typer.Exit(EXIT_FAILED)


def _is_failure(found: Statuses, *, is_of_job: bool) -> bool:
    if is_of_job:
        return bool(found.errors.keys() - found.left_out) or any(row.is_failure for row in found.rows)
    return bool(found.errors) or any(row.is_stuck for row in found.rows)


def _is_healthy(found: Statuses, *, is_of_job: bool) -> bool:
    is_served = all(row.is_served or (is_of_job and row.is_left_out) for row in found.rows)
    return bool(found.rows) and is_served and not _is_failure(found, is_of_job=is_of_job)


class _Errors:
    """The errors of groups; each is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, found: Statuses) -> None:
        """Tell the new ones."""
        for sentence in {str(error): None for error in found.errors.values()}:
            if sentence not in self._told:
                self._told.add(sentence)
                _to_standard_error(sentence)


def _watch(
    read: Callable[[], Statuses],
    found: Statuses | None,
    show: Callable[[Statuses], object],
    is_enough: Callable[[Statuses], bool],
) -> Statuses | None:
    """Show the groups every WATCH_S, until that is enough or Ctrl-C comes; return the last reading, if there is one."""
    try:
        while True:
            if found is not None:
                show(found)
                if is_enough(found):
                    return found
            time.sleep(WATCH_S)
            found = _read_if_possible(read) or found
    except KeyboardInterrupt:
        taken()
        return found


def _read_if_possible(read: Callable[[], Statuses]) -> Statuses | None:
    """Return a reading. If no broker answers, or no group can be read, say so, and return None. Raises UsageError."""
    try:
        return read()
    except UsageError:
        raise
    except AbcastError as error:
        _to_standard_error(str(error))
        return None


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
    *,
    raises: bool = True,
    neighbours: Collection[str] = (),
    decided: Decided = lambda _: None,
) -> Statuses:
    """Return the status of groups, with the ledger below `data`. The last three: as for `read_statuses`.

    `say` takes the sentence of why the ledger can't be read.
    """
    from connectors.diagnosis.statuses import read_statuses

    def read_ledger() -> InLedger:
        in_ledger = None if data is None else _in_ledger(data, say)
        return in_ledger, None if data is None or not in_ledger else _ledger_end(data, in_ledger)

    return read_statuses(
        *(connection, site, read_ledger, group, of_job, progress),
        raises=raises,
        neighbours=neighbours,
        decided=decided,
    )


def _refresh(found: Statuses, site: str, *, as_json: bool) -> None:
    from rich.console import Console

    Console().clear()  # of a terminal only
    _show(found, site, as_json=as_json)


def _show(found: Statuses, site: str, *, as_json: bool) -> None:
    from connectors.diagnosis.sentences import notes_on, wrong_with
    from jobs.terminal.rows import show_sentence, show_table

    rows = found.rows
    for error in found.errors.values():
        typer.echo(f"abcast: {error}", err=True)
    if as_json:
        for plain in found.to_json(site)["groups"]:
            typer.echo(json.dumps(plain))
        return
    if not rows:
        typer.echo(f"no groups at site {site}; `abcast topics create --group G --site {site}` creates one")
        return
    show_table(COLUMNS, map(cells, rows), sys.stdout)
    typer.echo()
    for row in rows:
        for sentence in (*wrong_with(row, site), *notes_on(row, site)):
            show_sentence(f"{row.group}: {sentence}", sys.stdout)


def cells(row: GroupStatus) -> tuple[str, ...]:
    """Return the values of COLUMNS."""
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


def _ledger_end(data: Location, last_seqno: Mapping[str, int]) -> LedgerEnd:
    from connectors.ledger.last_row import LedgerEnd

    return LedgerEnd(data / "ledger", last_seqno)


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
    except OSError as error:
        say(f"the ledger {table} can't be read: {error.strerror or error}.")
        return None
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        say(f"the ledger {missing_extra(error)}")
        return None
    return None if held.newest is None else held.last_seqno


if __name__ == "__main__":
    run_script(status)
