"""Where a site that agrees with others begins, with either engine: behind the takeover of a group.

A takeover (`connectors.takeover.takeover`) claims the group and seals its DATA; what the site's log has below the seal
is then all that the site has promised to the others, and was promised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import SUSPECT_AFTER_MS, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from ordering.agreement.formation import ProcessIncarnation, first_view
from ordering.agreement.process import suspecting_after
from ordering.agreement.site_state import SiteState, first_state
from ordering.base.errors import UsageError
from ordering.sequencer.sequencer import SequencerState

RESEND_AFTER_MS = 2_000
"""Between sites nothing gets lost, but a view that ends purges what is under way."""
ISIS = "isis"
"""What the claim of a job says that agrees."""


class AgreementSettings(NamedTuple):
    """With which sites a site agrees on the order, and how long one may be silent until the others go on."""

    neighbours: Neighbours
    suspect_after_ms: int = SUSPECT_AFTER_MS

    def check(self) -> AgreementSettings:
        """Itself. Raises UsageError if the site is none of the names."""
        if self.neighbours.site not in self.neighbours.names:
            raise UsageError(f"site {self.neighbours.site} is none of {', '.join(self.neighbours.names)}.")
        return self


def known_state(connection: Connection, agreement: AgreementSettings, taken: SequencerState) -> SiteState:
    """What the site's log tells of a group that was taken over. Raises UsageError, HistoryUnavailable."""
    (site, names, _), group = agreement.neighbours, taken.group
    with DataLog(connection, group, site) as data:
        state = last_state(data, data.end())
    if state is None:
        if taken.seqno:
            raise UsageError(f"{data.topic} has an order already, but no entry: was it copied from elsewhere?")
        return first_state(
            group, site, names, suspect_after_ms=agreement.suspect_after_ms, resend_after_ms=RESEND_AFTER_MS
        )
    if state.process.view.origin != first_view(map(ProcessIncarnation, names)).origin:
        raise UsageError(
            f"group {group} was begun with other sites than {', '.join(names)}: name those in the sites' file that "
            "it was begun with, or take a new group."
        )
    return replace(state, process=suspecting_after(state.process, agreement.suspect_after_ms))


def neighbours_of(sites: Sites, site: str) -> Neighbours:
    """What the sites' file says for the job of one of them. Raises UsageError."""
    sites.connection(site)
    shared = {other for other in sites.connections if other != site and sites.shares_kafka(site, other)}
    return Neighbours(site, tuple(sorted(sites.connections)), frozenset(shared))
