"""`abcast flush`: a quiet point of a group, in which a command may run."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Annotated

import typer

from connectors.kafka.login.configuration import configured
from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Member, connection_to
from ordering.base.errors import NotOrderedInTime, UsageError
from ordering.base.names import DEFAULT_SITE, Address


def flush(
    group: Group,
    member: Member,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="A command to run while no member sends; write -- before it."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the view, for the quiet point, and for its end.")
    ] = 30.0,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Make all members quiet while a command runs.

    `abcast flush -g orders -m backup -- ./backup.sh`. This one joins the group, which makes a view. Then each member's
    `block` returns, and everything sent before is ordered: that is the quiet point. In an open group, senders that are
    no members may still send. Without a command it ends at once. The group ends a quiet point itself after its
    `flush_timeout_ms` (30 s unless set): then this command fails, since others may have sent.

    The exit code is the command's, or 1 if the quiet point ended early.
    """
    from connectors import Member as MemberClient

    address = Address.parse(member, configured("site", DEFAULT_SITE))
    connection = connection_to(bootstrap_servers, kafka_config, str(address))
    code, began = 0, 0.0
    try:
        with MemberClient(group, str(address), connection=connection) as client:
            view = client.connect(timeout=timeout)
            with client.flush(timeout):
                began = time.monotonic()
                if command:
                    # Standard output is the command's own; with --json it must not mix with ours.
                    code = _run(command, to_standard_error=as_json)
            took_s = time.monotonic() - began
            others = [name for name in (client.view or view).members if name != str(address)]
    except NotOrderedInTime as error:
        what = "the end of the quiet point" if began else "the join"
        raise NotOrderedInTime(
            f"{what} of {address} was not ordered within {timeout:g} s. See whether the sequencer runs (`abcast "
            "status`), or give a longer --timeout."
        ) from error
    row = {"group": group, "view_id": view.view_id, "members": others, "seconds": round(took_s, 3), "exit_code": code}
    if as_json:
        typer.echo(json.dumps(row))
    else:
        who = ", ".join(others) or "nobody else"
        typer.echo(f"{group} was quiet for {took_s:.1f} s: {who}", err=bool(command))
    raise typer.Exit(code)


def _run(command: list[str], *, to_standard_error: bool) -> int:
    """Return the command's exit code, as a shell tells it. Raises UsageError if it can't be started."""
    try:
        code = subprocess.run(command, stdout=2 if to_standard_error else None, check=False).returncode
    except OSError as error:
        raise UsageError(f"{command[0]} can't be run: {error.strerror}.") from error
    return code if code >= 0 else 128 - code
