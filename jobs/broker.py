"""`abcast broker`: the embedded Kafka, for development and tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jobs.terminal.options import DEFAULT_DATA, EXIT_FAILED, AsJson
from ordering.base.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start and stop an embedded Kafka, for development and tests.",
)

Directory = Annotated[Path, typer.Option("--dir", envvar="ABCAST_BROKER_DIR", help="Directory of its data and logs.")]
DEFAULT_DIRECTORY = DEFAULT_DATA / "broker"


@app.command()
def start(
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Port of the first node; 0 takes a free one.")
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, help="Nodes: 1, or 3 for a cluster that survives the loss of one.")
    ] = None,
    secure: Annotated[
        bool | None, typer.Option("--secure", help="Use TLS, users with passwords, and ACLs that deny by default.")
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="Add this user to a secure broker; repeat for more.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the broker in the background. It runs until `abcast broker stop`, and keeps its data between runs.

    A secure broker has its own certificate authority, and writes a file DIR/secure/USER.properties for each user, for
    --kafka-config. `admin` may do everything; other users have the rights that `abcast acl` gives them.
    """
    from connectors.local.broker import EmbeddedBroker

    broker = EmbeddedBroker(directory, port, nodes, secure=secure)
    if user and broker.secure is None:
        raise UsageError("only a secure broker has users: add --secure, with a --dir that has no other broker.")
    started = broker.start(detached=True)
    if not as_json:
        typer.echo(f"{'running' if started else 'was running already'} at {broker.bootstrap_servers}")
    users = dict.fromkeys(["admin", *(user or [])])
    logins = list(broker.secure.add_users(broker.bootstrap_servers, users)) if broker.secure is not None else []
    if as_json:
        files = {login.stem: str(login) for login in logins}
        typer.echo(json.dumps({"started": started, "bootstrap_servers": broker.bootstrap_servers, "logins": files}))
        return
    for login in logins:
        typer.echo(f"{login.stem} logs in with --kafka-config {login}")


@app.command()
def stop(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Stop the broker."""
    from connectors.local.broker import EmbeddedBroker

    broker = EmbeddedBroker(directory)
    is_running = any(node.pid is not None for node in broker.status().nodes)
    if is_running:
        broker.stop()
    typer.echo(json.dumps({"stopped": is_running}) if as_json else "stopped" if is_running else "was not running")
    if not is_running:
        typer.echo(f"this is the broker of {directory.absolute()}; --dir names another", err=True)


@app.command()
def status(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Show whether the broker of this directory runs, and its addresses. Exit code 1 if it does not run."""
    from connectors.local.broker import EmbeddedBroker

    directory = directory.absolute()
    found = EmbeddedBroker(directory).status()
    if as_json:
        nodes = [{"node": n.node, "pid": n.pid, "address": n.address, "log": str(n.log)} for n in found.nodes]
        typer.echo(json.dumps({"running": found.running, "bootstrap_servers": found.bootstrap_servers, "nodes": nodes}))
    else:
        for node in found.nodes:
            shown = "not running" if node.pid is None else f"running at {node.address}, pid {node.pid}, log {node.log}"
            typer.echo(f"node {node.node}: {shown}")
        if not found.running:
            typer.echo(f"this is the broker of {directory}; --dir names another", err=True)
    raise typer.Exit(0 if found.running else EXIT_FAILED)
