"""`abcast topics`: the topics of a group."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from jobs.options import DEFAULT_BOOTSTRAP_SERVERS, AsJson, BootstrapServers, Group
from ordering.names import DEFAULT_SITE

app = typer.Typer(no_args_is_help=True, help="Create and list the topics of groups.")


@app.command()
def create(
    group: Group,
    site: Annotated[list[str] | None, typer.Option("--site", help="A site of the group; repeat for more.")] = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of each forward topic.")] = 1,
    replication_factor: Annotated[int, typer.Option(min=1, max=10, help="Copies of each partition.")] = 1,
    closed: Annotated[
        bool | None, typer.Option("--closed/--open", help="Only members may send; what others send is a dead letter.")
    ] = None,
    flush: Annotated[
        bool | None,
        typer.Option("--flush/--no-flush", help="Change views in a flush: a message comes in the view it was sent in."),
    ] = None,
    suspect_after_ms: Annotated[
        int | None, typer.Option(min=1, help="A member silent for so long is taken for dead (10000).")
    ] = None,
    flush_timeout_ms: Annotated[int | None, typer.Option(min=1, help="A flush takes so long at most (30000).")] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Create what is missing of a group's topics, with the settings that the promises need.

    Timestamps are the broker's, nothing is dropped by age or size. The data topic has one partition: its log is what
    orders. With a replication factor of 3, every write is on two brokers before it counts.

    The options on members can be given again later, alone: they hold from when the sequencer has read them.
    """
    from connectors.kafka.connection import Connection
    from connectors.kafka.settings import change_settings
    from connectors.kafka.topics import create_topics

    created = create_topics(
        Connection(bootstrap_servers), group, site or [DEFAULT_SITE], partitions, replication_factor
    )
    for name in created:
        typer.echo(f"created {name}")
    if not created:
        typer.echo("all topics are there already")
    wanted = {
        "closed": closed,
        "flush": flush,
        "suspect_after_ms": suspect_after_ms,
        "flush_timeout_ms": flush_timeout_ms,
    }
    if changes := {name: value for name, value in wanted.items() if value is not None}:
        holds = change_settings(Connection(bootstrap_servers), group, (site or [DEFAULT_SITE])[0], **changes)
        state = "in force" if holds else "asked for, and in force once a sequencer of the group has read it"
        typer.echo(f"{', '.join(f'{name} = {value}' for name, value in changes.items())}: {state}".lower())


@app.command("list")
def list_(bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, as_json: AsJson = False) -> None:
    """List the topics of all groups."""
    from connectors.kafka.connection import Connection
    from connectors.kafka.topics import find_topics

    for topic in find_topics(Connection(bootstrap_servers)):
        if as_json:
            typer.echo(json.dumps({"topic": str(topic), "group": topic.group, "role": topic.role, "site": topic.site}))
        else:
            typer.echo(str(topic))
