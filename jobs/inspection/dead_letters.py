"""`abcast dead-letters`: the FORWARD records of a group that were refused: list, show, and send them again."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Site, Why, connection_to
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE, Address

if TYPE_CHECKING:
    from connectors.diagnosis.dead_letters import StoredLetter
    from connectors.kafka.connection.connection import Connection

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show refused records, and send them again.")

RESENDER = "resender"
"""The name of the sender of dead letters, unless the user gives one."""
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
    from jobs.terminal.rows import printable, write_json

    letter = _letter(connection_to(bootstrap_servers, kafka_config, "dead-letters"), group, site, offset)
    row = {**_row(letter), "headers": [[key, value] for key, value in letter.headers], "payload": letter.payload}
    if as_json:
        write_json(list(row), [list(row.values())], sys.stdout)
        return
    for name, value in row.items():
        typer.echo(f"{name.replace('_', ' '):<11} {printable(value)}")


@app.command()
def resend(
    offset: Annotated[int, typer.Argument(min=0, help="The dead letter's offset, as `list` shows it.")],
    group: Group,
    member: Annotated[
        str | None,
        typer.Option("--member", "-m", help=f"The sender, SITE/NAME, which no process uses. [default: {RESENDER}]"),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Send it, even if it was sent again before, or may have been ordered.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for it to be ordered.")] = 60.0,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Broadcast a refused message again, as a new one.

    It has the payload and the headers, and two headers more: `dead-letter`, the dead letter's place and its sender, and
    `resent-by`, the operator. The dead letter stays. A message can be sent again if it would not be refused for itself:
    a record without the header `abcast` can, one that is too large, has no payload or is no message can't. Of a pack
    the messages are sent that the order lacks.

    End its sender first: a member repeats its unordered messages. A second run for the same dead letter finds the first
    one in the order, says its seqno, and sends nothing; nor does a run that finds the sender's repeat. If the first one
    was cut off in a pack, the second one sends the rest. Run one at a time. If the sender was forgotten, or DATA of
    that time is purged, it needs --anyway: the order may have the message.
    """
    from connectors import Member
    from connectors.diagnosis.dead_letters import messages_of, unsent
    from connectors.kafka.log.acts import act_of_this_user, record_act

    connection = connection_to(bootstrap_servers, kafka_config, "dead-letters")
    address = Address.parse(member or RESENDER, site)
    act = act_of_this_user("resend", f"dead letter {offset}", why)
    letter = _letter(connection, group, site, offset)
    payloads, headers = messages_of(letter, group, site, act.who)
    left = payloads if anyway else unsent(connection, group, site, letter, payloads)
    with Member(group, str(address), connection=connection) as client:
        record_act(connection, group, site, act)
        receipt = client.broadcast_many(left, headers, timeout)
        seqno = receipt.result(timeout)
    row = {"group": group, "dead_letter": offset, "seqno": seqno, "sender": str(address), "resent_by": act.who}
    sent = "" if len(left) == len(payloads) else f", {len(left)} of them sent now"
    what = "is" if len(payloads) == 1 else f"has {len(payloads)} messages{sent}, the last one is"
    typer.echo(json.dumps(row) if as_json else f"dead letter {offset} {what} seqno {seqno}, from {address}")


def _letter(connection: Connection, group: str, site: str, offset: int) -> StoredLetter:
    """Return the dead letter at the offset. Raises UsageError if there is none."""
    from connectors.diagnosis.dead_letters import read_dead_letters

    letter = next(read_dead_letters(connection, group, site, offset=offset), None)
    if letter is None:
        raise UsageError(f"there is no dead letter at offset {offset}: `abcast dead-letters list -g {group}` has them.")
    return letter


def _row(letter: StoredLetter) -> dict[str, Any]:
    at = datetime.fromtimestamp(letter.at_ms / 1000, timezone.utc)
    return {
        "offset": letter.offset,
        "refused_at": f"{at:%Y-%m-%d %H:%M:%S} UTC",
        "sender": letter.sender,
        "reason": letter.reason,
        "source": letter.source,
    }
