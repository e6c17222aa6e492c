"""`abcast acl`: print or give the rights that each role needs in a Kafka with ACLs."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, SeveralSites, connection_to
from jobs.terminal.sites_option import SitesFile, optional_sites, required_sites
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from connectors.kafka.topics.rights import Right

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Print or give the rights that each role needs.")


class Role(str, Enum):
    """The roles that need rights. A user may have several."""

    member = "member"
    observer = "observer"
    sequencer = "sequencer"
    ledger = "ledger"
    maintainer = "maintainer"
    archivist = "archivist"
    relay = "relay"


RoleOption = Annotated[
    Role,
    typer.Option(
        help="member: sends and delivers. observer: delivers, and checks. sequencer: decides the order (with --sites, "
        "for sites that agree in one Kafka). ledger: writes the tables. maintainer: purges topics (with --sites, "
        "letters to other sites, too). archivist: deletes DATA that the ledger has. "
        "relay: carries records from one site to another (with --from, --to and --sites)."
    ),
]
Principal = Annotated[str, typer.Option(help="The user that gets the rights, as Kafka names it: User:NAME.")]
Source = Annotated[str | None, typer.Option("--from", help="Relay: the site that it carries from.")]
Target = Annotated[str | None, typer.Option("--to", help="Relay: the site that it carries to.")]


@app.command("print")
def print_(
    group: Group,
    role: RoleOption,
    principal: Principal,
    site: SeveralSites = None,
    source: Source = None,
    target: Target = None,
    sites: SitesFile = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print the `kafka-acls` commands that give a role exactly its rights. No broker is needed."""
    rights = _rights(group, role, principal, site, source, target, sites, kafka_config)
    servers = connection_to(bootstrap_servers, kafka_config, "acl").bootstrap_servers
    for right in rights:
        row = {"principal": principal, **right._asdict()}
        typer.echo(json.dumps(row) if as_json else right.command(principal, servers))


@app.command()
def apply(
    group: Group,
    role: RoleOption,
    principal: Principal,
    site: SeveralSites = None,
    source: Source = None,
    target: Target = None,
    sites: SitesFile = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Give a role exactly its rights, in the configured Kafka.

    Log in as a user that may give rights (ALTER of the cluster). Existing rights stay. If the two ends of a relay are
    in two Kafkas, run it for both.
    """
    from connectors.kafka.topics.rights import grant

    rights = _rights(group, role, principal, site, source, target, sites, kafka_config)
    connection = connection_to(bootstrap_servers, kafka_config, "acl")
    grant(connection, principal, rights)
    if as_json:
        for right in rights:
            typer.echo(json.dumps({"principal": principal, **right._asdict()}))
        return
    where = connection.bootstrap_servers
    typer.echo(f"{principal} has the {len(rights)} rights of a {role.value} of {group} at {where}")


def _rights(
    group: str,
    role: Role,
    principal: str,
    site: list[str] | None,
    source: str | None,
    target: str | None,
    sites: Path | None,
    kafka_config: Path | None,
) -> list[Right]:
    from connectors.kafka.connection.sites import Direction
    from connectors.kafka.topics.rights import check_principal, rights_beside, rights_of, rights_of_relay

    check_principal(principal)
    if role is not Role.relay:
        if source or target:
            raise UsageError("--from and --to are for --role relay.")
        names = site or [DEFAULT_SITE]
        rights = [right for name in names for right in rights_of(role.value, group, name)]
        if (known := optional_sites(sites, kafka_config, "acl")) is not None:
            rights += [right for name in names for right in rights_beside(role.value, known, group, name)]
        return rights
    if not source or not target:
        raise UsageError("a relay needs --from SITE and --to SITE.")
    return rights_of_relay(required_sites(sites, kafka_config, "acl"), group, Direction(source, target))
