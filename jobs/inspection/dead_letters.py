"""`abcast dead-letters`: the FORWARD records of a group that were refused."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Site, connection_to
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from connectors.diagnosis.dead_letters import StoredLetter

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show refused records, and the reasons.")

_COLUMNS = ("offset", "refused at", "sender", "reason", "source")


@app.command("list")
def list_(
    group: Group,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    last: Annotated[int, typer.Option(min=1, help="The number of newest dead letters to list.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the newest dead letters, oldest first.

    Each has its reason, and its place in FORWARD.
    """
    from connectors.diagnosis.dead_letters import read_dead_letters
    from jobs.terminal.rows import show_table, write_json

    letters = list(
        read_dead_letters(connection_to(bootstrap_servers, kafka_config, "dead-letters"), group, site, last=last)
    )
    if as_json:
        rows = (_row(letter).values() for letter in letters)
        write_json(list(_row(letters[0])) if letters else [], map(list, rows), sys.stdout)
    elif letters:
        shown = (
            (row["offset"], row["refused_at"], row["sender"], row["reason"], row["source"])
            for row in map(_row, letters)
        )
        show_table(_COLUMNS, shown, sys.stdout, is_folded=True)
    else:
        typer.echo(f"no dead letters in group {group}")


@app.command()
def show(
    offset: Annotated[int, typer.Argument(min=0, help="The dead letter's offset, as `list` shows it.")],
    group: Group,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its key, headers and payload."""
    from connectors.diagnosis.dead_letters import read_dead_letters
    from jobs.terminal.rows import printable, write_json

    letter = next(
        read_dead_letters(connection_to(bootstrap_servers, kafka_config, "dead-letters"), group, site, offset=offset),
        None,
    )
    if letter is None:
        raise UsageError(f"there is no dead letter at offset {offset}: `abcast dead-letters list -g {group}` has them.")
    row = {**_row(letter), "headers": [[key, value] for key, value in letter.headers], "payload": letter.payload}
    if as_json:
        write_json(list(row), [list(row.values())], sys.stdout)
        return
    for name, value in row.items():
        typer.echo(f"{name.replace('_', ' '):<11} {printable(value)}")


def _row(letter: StoredLetter) -> dict[str, Any]:
    at = datetime.fromtimestamp(letter.at_ms / 1000, timezone.utc)
    return {
        "offset": letter.offset,
        "refused_at": f"{at:%Y-%m-%d %H:%M:%S} UTC",
        "sender": letter.sender,
        "reason": letter.reason,
        "source": letter.source,
    }
