"""`abcast topics`: create, list, delete and upgrade the topics of groups."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from jobs.terminal.options import (
    DEFAULT_DATA,
    AsJson,
    BootstrapServers,
    Data,
    Group,
    KafkaConfig,
    Location,
    SeveralSites,
    Why,
    connection_to,
)
from ordering.base.errors import AbcastError, UsageError, counted
from ordering.base.formats import FIRST, NEWEST, known
from ordering.base.names import DEFAULT_SITE, Topic

SHORTEST_SILENCE_MS = 3_000
"""The least silence: members send a heartbeat each second, and after too few seconds living ones would be suspected."""
SHORTEST_FLUSH_MS = 1_000
"""The least timeout of a flush, which takes at least two batches of the sequencer."""

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list, delete and upgrade the topics of groups."
)


@app.command()
def create(
    group: Group,
    site: SeveralSites = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Partitions of each forward topic, for good (1).")
    ] = None,
    replication_factor: Annotated[int | None, typer.Option(min=1, max=10, help="Copies of each partition (1).")] = None,
    closed: Annotated[
        bool | None,
        typer.Option("--closed/--open", help="Accept messages from members only; others become dead letters."),
    ] = None,
    flush: Annotated[
        bool | None,
        typer.Option(
            "--flush/--no-flush",
            help="Change views in a flush: each message is delivered in the view in which it was sent.",
        ),
    ] = None,
    suspect_after_ms: Annotated[
        int | None,
        typer.Option(
            min=SHORTEST_SILENCE_MS,
            help="Exclude a member after this silence (10000). It sends a heartbeat each second.",
        ),
    ] = None,
    flush_timeout_ms: Annotated[
        int | None, typer.Option(min=SHORTEST_FLUSH_MS, help="The longest time of a flush (30000).")
    ] = None,
    data: Data = DEFAULT_DATA,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Create the missing topics of a group.

    They have the settings that the promises need. Timestamps are the broker's, and no record is dropped by age or size.
    The data topic has one partition, whose log is the order. With a replication factor of 3, every write is on two
    brokers before it counts.

    You can give the options on members again later, alone: they hold from the seqno at which the sequencer reads them.
    """
    from connectors.kafka.topics.settings import change_settings
    from connectors.kafka.topics.topics import check_layout, create_topics

    connection, sites = connection_to(bootstrap_servers, kafka_config, "topics"), site or [DEFAULT_SITE]
    check_layout(connection, group, sites, partitions, replication_factor)
    created = create_topics(connection, group, sites, partitions or 1, replication_factor or 1)
    for name in created if not as_json else ():
        typer.echo(f"created {name}")
    if not created and not as_json:
        typer.echo("all topics exist already")
    if any(Topic.parse(name) == Topic(group, "data", at) for name in created for at in sites):
        _warn_of_rows(group, data / "ledger")
    wanted = {
        "closed": closed,
        "flush": flush,
        "suspect_after_ms": suspect_after_ms,
        "flush_timeout_ms": flush_timeout_ms,
    }
    changes = {name: value for name, value in wanted.items() if value is not None}
    holds = change_settings(connection, group, sites[0], **changes) if changes else None
    if as_json:
        typer.echo(json.dumps({"group": group, "created": created, "settings": changes, "in_force": holds}))
    elif changes:
        when = "in force" if holds else "requested, and in force once a sequencer of the group has read it"
        typer.echo(f"{', '.join(f'{name} = {value}' for name, value in changes.items())}: {when}".lower())


def _warn_of_rows(group: str, ledger: Location) -> None:
    """Warn if the ledger has rows of an earlier group with the new group's name. Say nothing if it can't be read."""
    try:
        if not ledger.exists():
            return
        from connectors.ledger.table_state import read_table_state

        held = read_table_state(ledger).last_seqno.get(group, 0)
    except (AbcastError, ModuleNotFoundError):
        return
    if held:
        typer.echo(
            f"abcast: {ledger} has another history of {group}, up to seqno {held}: the ledger job skips the group. "
            "Give the jobs another --data, or the group another name.",
            err=True,
        )


@app.command()
def upgrade(
    group: Group,
    site: SeveralSites = None,
    to: Annotated[
        int | None,
        typer.Option("--to", min=FIRST.number, max=NEWEST.number, help=f"The format (the newest, {NEWEST.number})."),
    ] = None,
    why: Why = "",
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Give a group the newest format, or that of --to, for good.

    Format 2 allows any later version's additions. Format 3 allows packs, too: several messages of a sender as one
    record. Run it once all processes of the group know the format: an older process stops, and names the version to
    install. The format is in force from the next start of the sequencer on. A group never gets a lower format.
    """
    from connectors.kafka.topics.upgrade import upgrade as upgraded

    connection = connection_to(bootstrap_servers, kafka_config, "topics")
    for name in site or [DEFAULT_SITE]:
        done = upgraded(connection, group, name, why, NEWEST if to is None else known(to))
        if as_json:
            typer.echo(json.dumps({"group": group, "site": name, **done._asdict()}))
        elif done.before == done.after:
            typer.echo(f"{group} at {name} has format {done.after} already")
        else:
            typer.echo(
                f"{group} at {name} has format {done.after}, which needs abcast {done.version} or later: in force once "
                "its sequencer starts again"
            )


@app.command("list")
def list_(
    bootstrap_servers: BootstrapServers = None, kafka_config: KafkaConfig = None, as_json: AsJson = False
) -> None:
    """List the topics of all groups."""
    from connectors.kafka.topics.topics import find_topics

    topics = find_topics(connection_to(bootstrap_servers, kafka_config, "topics"))
    if not topics and not as_json:
        typer.echo("no group has topics here; `abcast topics create --group G` creates some")
    for topic in topics:
        if as_json:
            typer.echo(json.dumps({"topic": str(topic), "group": topic.group, "role": topic.role, "site": topic.site}))
        else:
            typer.echo(str(topic))


@app.command()
def delete(
    group: Group,
    site: SeveralSites = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a group's topics, and with them its order, for good.

    With a site (--site, ABCAST_SITE, or `site` in abcast.toml) at that site only, else at all sites of this Kafka.

    Stop its members first. The ledger keeps the group's rows, and a new group begins at seqno 1: give it another name,
    or another --data.
    """
    from connectors.kafka.topics.topics import delete_topics, find_topics

    connection = connection_to(bootstrap_servers, kafka_config, "topics")
    found = [topic for topic in find_topics(connection) if topic.group == group and (not site or topic.site in site)]
    if not found:
        where = f" at {', '.join(site)}" if site else ""
        raise UsageError(f"there are no topics of group {group}{where}: `abcast topics list` shows all.")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"this deletes {counted(len(found), 'topic')} of group {group} for good: confirm with --yes."
            )
        for topic in found:
            typer.echo(str(topic), err=as_json)
        typer.confirm(f"Delete these {len(found)} topics and their whole order?", abort=True, err=as_json)
    delete_topics(connection, found)
    if as_json:
        typer.echo(json.dumps({"group": group, "deleted": list(map(str, found))}))
        return
    for topic in found:
        typer.echo(f"deleted {topic}")
