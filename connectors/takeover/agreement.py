"""The state from which a site that agrees with others goes on after the takeover of a group, with either engine.

A takeover (`connectors.takeover.takeover`) claims the group and seals its DATA. The site's log below the seal then
holds every promise that the site made to the others, and every promise that they made to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.inputs import Input, Neighbours
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import SUSPECT_AFTER_MS, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from connectors.kafka.log.same_copy import changed_copies
from ordering.agreement.formation import ProcessIncarnation, first_view
from ordering.agreement.group import Group
from ordering.agreement.process import suspecting_after
from ordering.agreement.site_state import SiteState, first_state
from ordering.base.errors import UsageError
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState

RESEND_AFTER_MS = 2_000
"""The time after which a site sends again. Links lose nothing, but a view that ends drops messages under way."""
ISIS = "isis"
"""The mode in the claim of a job that agrees."""


class AgreementSettings(NamedTuple):
    """The sites that agree on the order, and how long one may be silent before the others go on without it."""

    neighbours: Neighbours
    suspect_after_ms: int = SUSPECT_AFTER_MS

    def check(self) -> AgreementSettings:
        """Return these settings. Raises UsageError if the site is none of the names."""
        if self.neighbours.site not in self.neighbours.names:
            raise UsageError(f"site {self.neighbours.site} is none of {', '.join(self.neighbours.names)}.")
        return self


def known_state(connection: Connection, agreement: AgreementSettings, taken: SequencerState) -> SiteState:
    """Return the state that the site's log tells of a group just taken over; the first state if the group begins.

    Raises UsageError if the group was begun with other sites, or has an order but no entry; HistoryUnavailable.
    """
    (site, names, _), group = agreement.neighbours, taken.group
    with DataLog(connection, group, site) as data:
        state = last_state(data, data.end())
    if state is None:
        if taken.seqno:
            raise UsageError(f"{data.topic} has an order, but no entry of an agreement: take a new group.")
        return first_state(
            group, site, names, suspect_after_ms=agreement.suspect_after_ms, resend_after_ms=RESEND_AFTER_MS
        )
    if state.process.view.origin != first_view(map(ProcessIncarnation, names)).origin:
        raise UsageError(
            f"group {group} began with other sites than {', '.join(names)}. Name those sites in the sites' file, or "
            "take a new group."
        )
    return replace(state, process=suspecting_after(state.process, agreement.suspect_after_ms))


def inputs_of(neighbours: Neighbours, places: Iterable[TopicPartition]) -> dict[TopicPartition, Input]:
    """Return the partitions that the site's job reads, each with its role."""
    inputs = {}
    for place in places:
        topic = Topic.parse(place.topic)
        if topic is not None and (source := neighbours.input(topic, place.partition)) is not None:
            inputs[place] = source
    return inputs


def starts_of(
    connection: Connection,
    group: Group,
    sources: Mapping[TopicPartition, Input],
    beginnings: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offset from which each input is read. `beginnings`: the first offset that each still has.

    Raises BrokerUnreachable, HistoryUnavailable.
    """
    marks = {place: (source, group.mark(source.place)) for place, source in sources.items() if source.place}
    changed = changed_copies(connection, marks)
    return {
        place: group.start_of(source.place, beginnings[place], is_copy=source.is_copy, is_changed=place in changed)
        if source.place
        else group.start_of_log(source.site, beginnings[place])
        for place, source in sources.items()
    }


def neighbours_of(sites: Sites, site: str) -> Neighbours:
    """Return the neighbours of a site by the sites' file. Raises UsageError."""
    sites.connection(site)
    shared = {other for other in sites.connections if other != site and sites.shares_kafka(site, other)}
    return Neighbours(site, tuple(sorted(sites.connections)), frozenset(shared))
