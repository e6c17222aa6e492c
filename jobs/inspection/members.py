"""`abcast members`: list and forget the senders that a group remembers."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Site, Why, connection_to
from ordering.base.errors import AbcastError, UsageError
from ordering.base.names import DEFAULT_SITE, Address

_KEPT = "It has sent a message since, has joined, or began less than a day ago"

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and forget the senders of a group.")


@app.command("list")
def list_(
    group: Group,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """List all senders that the sequencer remembers, in the view or not."""
    from connectors.kafka.topics.senders import known_senders

    senders = known_senders(connection_to(bootstrap_servers, kafka_config, "members"), group, site)
    if not senders and not as_json:
        typer.echo(f"group {group} remembers no senders")
    for sender in senders:
        if as_json:
            typer.echo(json.dumps(sender._asdict()))
        else:
            member = "\tmember" if sender.is_member else ""
            typer.echo(f"{sender.address}\tincarnation {sender.incarnation}\tlocal seqno {sender.local_seqno}{member}")


@app.command()
def forget(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names at the site, or SITE/NAME.")],
    group: Group,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Forget senders that will not come back. The sequencer's state loses a row for each.

    Members of the view, and senders that began less than a day ago, stay. Forgetting orders no message twice. A sender
    that comes back begins a new incarnation, as at each start; its records of the old one become dead letters.
    """
    from connectors.kafka.log.acts import act_of_this_user, record_act
    from connectors.kafka.topics.senders import forget_senders, known_senders

    connection = connection_to(bootstrap_servers, kafka_config, "members")
    wanted = [str(Address.parse(name, site)) for name in names]
    known = {sender.address: sender for sender in known_senders(connection, group, site)}
    for address in wanted:
        if address not in known:
            raise UsageError(f"{address} is unknown in {group}: `abcast members list --group {group}` shows all.")
        if known[address].is_member:
            raise UsageError(f"{address} is a member of {group}, or waits for its view: stop it first.")
    record_act(connection, group, site, act_of_this_user("forget", ", ".join(wanted[:10]), why))
    done = forget_senders(connection, group, site, [known[address].row for address in dict.fromkeys(wanted)])
    kept = [address for address in dict.fromkeys(wanted) if address not in {*done.forgotten, *done.asked_for}]
    if as_json:
        typer.echo(json.dumps({**done._asdict(), "kept": kept}))
    else:
        for address in done.forgotten:
            typer.echo(f"{address}: forgotten")
        for address in done.asked_for:
            typer.echo(f"{address}: requested, and forgotten once a sequencer of the group has read the request")
    if kept:
        # A new request is possible only once the last one was read.
        why = "The request for it was not sent: run the command again then" if done.asked_for else _KEPT
        raise AbcastError(f"{', '.join(kept)}: not forgotten. {why}.")
