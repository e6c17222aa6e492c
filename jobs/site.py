"""`abcast site`: the sites of a deployment."""

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
    no_args_is_help=True, rich_markup_mode=None, help="List the sites of a deployment, and let a new one join."
)


@app.command("list")
def list_(sites: SitesFile = None, kafka_config: KafkaConfig = None, as_json: AsJson = False) -> None:
    """List the sites of the file. It tells where their Kafka is, and whom they relay to."""
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
    name: Annotated[str, typer.Argument(help="The new site, which the sites' file describes already.")],
    group: Group,
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    ledger: Annotated[
        Location | None,
        typer.Option(
            parser=location,
            metavar="DIR|URL",
            help="A Delta ledger (DIR/ledger) of the home, or of the site named by --from.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option("--from", help="Mesh: the neighbour whose ledger it is.")] = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of the forward topic.")] = 1,
    replication_factor: Annotated[int, typer.Option(min=1, max=10, help="Copies of each partition.")] = 1,
) -> None:
    """Let a site join a group. It creates the topics, and gives it the history.

    What Kafka still holds at the neighbours, the relay brings. --ledger is for what retention has dropped there: its
    rows are written first, and the relay goes on after them without a seam. A member at the new site can then
    deliver from seqno 1. Cut off and run again, it goes on where it was. Start the relay afterwards, not before.
    """
    from connectors.kafka.topics.topics import create_topics
    from connectors.relay.joining import check_has_begun, direction_of_history

    topology = required_sites(sites, kafka_config, "site")
    if topology.mode == "isis":
        raise UsageError("sites that agree are those that the group was begun with: take a new group.")
    connection, direction = (
        topology.connection(name),
        direction_of_history(topology, name, source, from_ledger=ledger is not None),
    )
    check_has_begun(topology, group, name)
    write_history = None
    if ledger is not None and direction is not None:
        from connectors.relay.bootstrap import bootstrap  # it needs an extra, so before anything is created

        write_history = functools.partial(bootstrap, topology, group, ledger, direction)
    for topic in create_topics(connection, group, [name], partitions, replication_factor):
        typer.echo(f"created {topic}")
    what = ""
    if write_history is not None and direction is not None:
        with Progress("reading the ledger") as progress:
            last = write_history(lambda count: progress.say("writing the history", count), progress.advance)
            what = f" with the history up to seqno {last} of {direction.source}"
    typer.echo(f"{name} has joined {group}{what}; the relay brings the rest")


@app.command()
def promote(
    name: Annotated[str, typer.Argument(help="The new home: a site that has a copy of the group's order.")],
    group: Group,
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Make a copy the home of a hub. Do so when the home is lost, or is to be replaced.

    Write home = "NAME" into the sites' file first, give it to all sites, and stop what runs with the old one. The new
    home then gets what the other sites have and it lacks; its sequencer goes on from there (`abcast run`). The old home
    is fenced: at once if it answers, else by the first relay that reaches it. What only a home that is lost had is not
    in the order any more.
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
        typer.echo(f"{silent} did not answer in time: what it alone had ordered is not in the order any more")


@app.command()
def exclude(
    name: Annotated[str, typer.Argument(help="The site that is not to be waited for any more.")],
    group: Group,
    at: Annotated[str, typer.Option("--at", help="A site that is to go on; its job carries it out.")],
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Go on without a site, where sites agree. Too few must be left to decide that by themselves (mode "isis").

    Two sites need each other: if one is gone for good, or for long, this lets the other one go on. Say it at one side
    of a cut only. The site that was excluded asks to join again when it is back, and what its members have sent is
    ordered then. A site whose log is lost must not come back under its name. Waits 30 s for the view without the site.
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
        typer.echo(f"it is noted, but {at} does not go on yet: does its job run, and do the others answer it?")
    if not done.is_done:
        raise typer.Exit(EXIT_FAILED)
