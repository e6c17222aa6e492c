"""`abcast site`: list, add, promote and exclude the sites of a deployment."""

from __future__ import annotations

import functools
import json
from typing import Annotated

import typer

from jobs.terminal.options import EXIT_FAILED, AsJson, Group, KafkaConfig, Location, Why, location
from jobs.terminal.progress import Progress
from jobs.terminal.sites_option import SitesFile, required_sites
from ordering.base.errors import UsageError, counted

EXCLUDED_S = 30.0

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, add, promote and exclude sites of a deployment."
)


@app.command("list")
def list_(sites: SitesFile = None, kafka_config: KafkaConfig = None, as_json: AsJson = False) -> None:
    """List the sites of the file, with their neighbours."""
    topology = required_sites(sites, kafka_config, "site")
    for name, connection in topology.connections.items():
        home = topology.home == name
        row = {"site": name, "bootstrap_servers": connection.bootstrap_servers, "home": home}
        row["neighbours"] = topology.neighbours(name)
        if as_json:
            typer.echo(json.dumps(row))
        else:
            ends = ", ".join(topology.neighbours(name)) or "nobody"
            typer.echo(f"{name}{' (home)' if home else ''}\t{connection.bootstrap_servers}\trelays to {ends}")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The new site; the sites' file must have it.")],
    group: Group,
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    ledger: Annotated[
        Location | None,
        typer.Option(
            parser=location,
            metavar="DIR|URL",
            help="A Delta ledger (DIR/ledger) of the home, or of the site of --from.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option("--from", help="Mesh: the neighbour that wrote the ledger.")] = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of the forward topic.")] = 1,
    replication_factor: Annotated[int, typer.Option(min=1, max=10, help="Copies of each partition.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Add a site to a group: create the topics, and write the history.

    The relay brings the records that the neighbours' Kafka still has. --ledger supplies records that retention has
    dropped there: the command writes them first, and the relay continues without a gap. A member at the new site can
    then deliver from seqno 1. If the command is interrupted, run it again. Start the relay after it, not before.
    """
    from connectors.kafka.topics.topics import create_topics
    from connectors.relay.joining import check_has_begun, direction_of_history

    topology = required_sites(sites, kafka_config, "site")
    if topology.mode == "isis":
        raise UsageError("a group of sites that agree keeps the sites that it began with: create a new group.")
    connection, direction = (
        topology.connection(name),
        direction_of_history(topology, name, source, from_ledger=ledger is not None),
    )
    check_has_begun(topology, group, name)
    write_history = None
    if ledger is not None and direction is not None:
        from connectors.relay.bootstrap import bootstrap  # it needs an extra, so before anything is created

        write_history = functools.partial(bootstrap, topology, group, ledger, direction)
    created = create_topics(connection, group, [name], partitions, replication_factor)
    for topic in created if not as_json else ():
        typer.echo(f"created {topic}")
    last = 0
    if write_history is not None and direction is not None:
        with Progress("reading the ledger") as progress:
            last = write_history(lambda count: progress.say("writing the history", count), progress.advance)
    if as_json:
        typer.echo(json.dumps({"group": group, "site": name, "created": created, "last_seqno_of_ledger": last}))
        return
    what = f" with the history up to seqno {last} of {direction.source}" if write_history and direction else ""
    typer.echo(f"{name} has joined {group}{what}; the relay brings the rest")


@app.command()
def promote(
    name: Annotated[str, typer.Argument(help="The new home: a site with a copy of the group's order.")],
    group: Group,
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Make a site the home of a hub.

    Use it to replace a home, even a lost one. First write home = "NAME" into the sites' file, give it to all sites,
    and stop the jobs that run with the old file. The new home then gets the records that it lacks from the other sites;
    its sequencer goes on from there (`abcast run`). The old home is fenced: at once if it answers, otherwise by the
    first relay that reaches it. Messages that only a lost home had are not in the order any more.
    """
    from connectors.relay.promotion import promote as make_home

    done = make_home(required_sites(sites, kafka_config, "site"), group, name, why)
    if as_json:
        typer.echo(json.dumps({"home": name, "group": group, **done._asdict()}))
        return
    typer.echo(f"{name} is the home of {group}; the order goes on after seqno {done.last_seqno}")
    if done.copied:
        typer.echo(f"copied from other sites first: {counted(done.copied, 'seqno')}")
    for silent in done.not_copied:
        typer.echo(
            f"{silent} did not answer, or has other messages: those that it alone had are not in the order any more"
        )


@app.command()
def exclude(
    name: Annotated[str, typer.Argument(help="The site to go on without.")],
    group: Group,
    at: Annotated[str, typer.Option("--at", help="A site that is to go on; its job makes the change.")],
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Go on without a site, if sites agree (mode "isis").

    It is for sites that are too few to decide that by themselves. Of two sites, one alone is no majority: if the other
    is gone for long, this command lets it go on. Run it at one side of a cut only. When the excluded site is back, it
    asks to join, and its members' messages are ordered. A site whose log is lost must not come back under its name. The
    command waits 30 s for the view without the site.
    """
    from connectors.engine.exclusion import exclude as decide

    topology = required_sites(sites, kafka_config, "site")
    if topology.mode != "isis":
        raise UsageError('only sites that agree (mode = "isis") wait for each other.')
    topology.connection(name)
    done = decide(topology.connection(at), group, at, name, EXCLUDED_S, why)
    if as_json:
        typer.echo(json.dumps({"group": group, "excluded": name, **done._asdict()}))
    elif done.is_done:
        typer.echo(f"{group} goes on in view {done.view} of the sites {', '.join(done.sites)}")
    else:
        typer.echo(f"recorded, but {at} does not go on yet: check that its job runs, and that the other sites answer")
    if not done.is_done:
        raise typer.Exit(EXIT_FAILED)
