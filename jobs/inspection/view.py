"""`abcast view`: the present members of a group."""

from __future__ import annotations

import json

import typer

from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Site, connection_to, run_script
from ordering.base.names import DEFAULT_SITE
from ordering.participant.events import EventReader


def view(
    group: Group,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the group's view: its number and its members.

    The oldest member is first. In a mesh, the members of neighbouring sites follow. With --json, show the settings and
    the flush, too.
    """
    from connectors.kafka.log.data_log import DataLog

    with DataLog(connection_to(bootstrap_servers, kafka_config, "view"), group, site) as data:
        state = data.state()
    membership, events = state.membership, EventReader()
    events.know_remote(membership)
    if as_json:
        values = membership.to_json()
        line = {
            "group": group,
            "view_id": state.view,
            "seqno": state.seqno,
            "members": [member.address for member in membership.members],
            "incarnations": [member.incarnation for member in membership.members],
            "remote_views": {
                name: {"members": list(remote.members), "reachable": remote.reachable}
                for name, remote in sorted(events.remote.items())
            },
            "settings": values["settings"],
            "flush": {"phase": membership.flush.phase.value, "requester": membership.flush.requester},
        }
        typer.echo(json.dumps(line))
        return
    typer.echo(f"view {state.view} of {group}, as of seqno {state.seqno}")
    for member in membership.members:
        typer.echo(f"{member.address}\tincarnation {member.incarnation}")
    if not membership.members:
        typer.echo("no members")
    for name, remote in sorted(events.remote.items()):
        members = ", ".join(remote.members) or "nobody"
        typer.echo(f"remote view of {name}: {members if remote.reachable else 'unreachable'}")


if __name__ == "__main__":
    run_script(view)
