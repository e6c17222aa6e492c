"""`abcast takeover`: hands a site's groups over to the standby that waits, for a rolling restart."""

from __future__ import annotations

import json

import typer

from jobs.terminal.options import AsJson, BootstrapServers, Groups, KafkaConfig, Site, Why, connection_to, run_script
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE


def takeover(
    groups: Groups = None,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Let the site's standby take over now, and wait until it has.

    The other sequencer becomes the standby if it was started with --standby, and ends otherwise. If a supervisor then
    starts it again, it takes the groups back: hand over between two processes with --standby. The order pauses for less
    than a second. It counts as no feud. A standby takes over all groups that it serves, even if --groups names some of
    them. Within 10 s of a handover, the command only tells of that one.
    """
    from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
    from connectors.kafka.topics.topics import find_groups
    from connectors.takeover.handover import hand_over

    connection = connection_to(bootstrap_servers, kafka_config, "takeover")
    chosen = ALL_GROUPS if groups is None else GroupChoice.parse(groups)
    at_site = find_groups(connection, site)
    found = list(filter(chosen.has, at_site))
    if not found:
        raise UsageError(f"no groups {chosen} at site {site}.")
    for each in hand_over(connection, found, site, why, beside=at_site):
        text = json.dumps(each._asdict()) if as_json else f"{each.group}: handed over to {each.who}, epoch {each.epoch}"
        typer.echo(text)


if __name__ == "__main__":
    run_script(takeover)
