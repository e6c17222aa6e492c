"""`abcast doctor`: checks of everything that abcast needs, with advice about each failure."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from jobs.terminal.options import (
    DEFAULT_DATA,
    EXIT_FAILED,
    AsJson,
    BootstrapServers,
    Data,
    KafkaConfig,
    Site,
    connection_to,
)
from jobs.terminal.rows import printable
from ordering.base.names import DEFAULT_SITE


class Checked(str, Enum):
    """The roles whose rights it checks: all but relay, which has rights at two sites."""

    member = "member"
    observer = "observer"
    sequencer = "sequencer"
    ledger = "ledger"
    maintainer = "maintainer"
    archivist = "archivist"


_MARKS = {True: "✓", False: "✗", None: "-"}


def doctor(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    role: Annotated[
        Checked, typer.Option(help="The role whose rights to check. A relay's: see `abcast acl print --role relay`.")
    ] = Checked.member,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that abcast needs, and say what to do. Exit code 1 if a check fails.

    The checks, in this order: the Kafka library; of each broker the name, TCP, TLS and the login; of each group the
    topics, the rights, the settings, the sequencer and open transactions; the ledger, and whether it is of the same
    groups. A `-` marks a check that is not needed, or not possible.
    """
    from connectors.diagnosis.doctor import examine

    connection = connection_to(bootstrap_servers, kafka_config, "doctor")
    is_well = True
    for check in examine(connection, site, group, role.value, data / "ledger"):
        is_well = is_well and check.is_ok is not False
        if as_json:
            typer.echo(json.dumps({"check": check.name, "ok": check.is_ok, "detail": check.detail}))
        else:
            text = f"{check.name}: {check.detail}" if check.detail else check.name
            typer.echo(f"{_MARKS[check.is_ok]} {printable(text)}")
    if not is_well:
        raise typer.Exit(EXIT_FAILED)
