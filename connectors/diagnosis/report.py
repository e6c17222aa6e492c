"""The report on a group: every record of its order is read, and checked together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from connectors.diagnosis.casts import check_casts
from connectors.diagnosis.check import (
    UNWATCHED,
    CheckProgress,
    Strays,
    check_deliveries,
    check_ledger,
    check_sites,
    stalled,
)
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.data_log import DataLog
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE
from ordering.checker.anomalies import DIVERGENT, Anomaly
from ordering.checker.mesh_checker import Shortfall


class Report(NamedTuple):
    """The result of a check of a group.

    `read`: the highest seqno of each DATA topic, the number of ledger rows, and the number of deliveries and of casts
    in each file. `lacks`: how far sites are behind others. `under_way`: the same, or () if the check was `settled`.
    `strays`: the DATA topics with records that are no DATA, which break no promise.
    """

    read: Mapping[str, int]
    lacks: Sequence[Shortfall]
    under_way: Sequence[Shortfall]
    anomalies: Sequence[Anomaly]
    strays: Mapping[str, Strays]


def check_group(
    group: str,
    where: Connection | Sites,
    *,
    names: Sequence[str] = (),
    ledger: Location | None = None,
    deliveries: Sequence[Path] = (),
    settled: bool = False,
    progress: CheckProgress = UNWATCHED,
) -> Report:
    """Read the DATA topics, the ledger if it is there, and the files of deliveries; name every anomaly.

    Args:
        group: the group's name.
        where: one Kafka, or the sites.
        names: the sites whose DATA to read; if there are none, all sites, or the default site in one Kafka.
        ledger: the directory of a ledger. It is not used for several sites that each have their own order.
        deliveries: the output of `abcast deliver --json`, a file for each member.
        settled: nothing is under way between sites, so messages that one lacks are lost. Otherwise messages that a site
            of a mesh lacks are lost if it gets no further although the relay runs, which takes 15 s to see.
        progress: gets each step, and the number of its records.

    Raises UsageError, BrokerUnreachable, TopicMissing, HistoryUnavailable.
    """
    sites = where if isinstance(where, Sites) else None
    chosen = names or (list(sites.connections) if sites else [DEFAULT_SITE])
    one_order = sites is None or sites.one_order or len(chosen) == 1
    if deliveries and not one_order:
        raise UsageError("in a mesh each site has its own order: check delivery logs with --site of their site.")
    connections = {name: where.connection(name) if isinstance(where, Sites) else where for name in chosen}
    verdict = check_sites(group, connections, one_order=one_order, progress=progress)
    checker, read, of_history = verdict.checkers[chosen[0]], verdict.read, list[Anomaly]()
    if one_order and ledger is not None and (ledger / "_delta_log").is_dir():
        read["ledger"] = check_ledger(checker, ledger, group, progress)
        from connectors.ledger.last_row import LedgerEnd, other_history  # needs Delta

        with DataLog(connections[chosen[0]], group, chosen[0]) as data:
            why = other_history(data, LedgerEnd(ledger))
        if why:
            of_history.append(Anomaly(DIVERGENT, why, ()))
    for file in deliveries:
        try:
            with file.open(encoding="utf-8") as lines:
                read[f"deliveries of {file.name}"] = check_deliveries(checker, file.name, lines)
        except OSError as error:
            raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    counts, of_casts = check_casts(group, connections, deliveries, one_order=one_order, settled=settled)
    read |= counts
    anomalies, lacks = [*of_history, *verdict.anomalies(settled=settled), *of_casts], verdict.lacking()
    if sites is not None and not one_order and not settled:
        anomalies += stalled(sites, group, lacks)
    return Report(read, lacks, () if settled else lacks, anomalies, verdict.strays)
