"""The records of a site's DATA that its neighbours lack. Until they have them, `connectors.kafka.topics.data_purge`
keeps them.

The neighbour's own log tells, as for a relay that starts (`connectors.relay.link_start`): a hub's copy by the seqno
that it has reached, a site of a mesh by its rows. Both only grow, so the answer stays true. A neighbour whose state
can't be read counts as lacking something, and one without the group as lacking nothing.
"""

from __future__ import annotations

import functools

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.data_purge import Lacking
from connectors.relay.link_start import is_ordered
from ordering.base.errors import AbcastError, TopicMissing
from ordering.sequencer.state import SequencerState


def lacking_beside(sites: Sites, site: str) -> Lacking:
    """Return the check of what the neighbours of `site` lack, by this sites' file."""
    return lambda group, state: next(
        filter(None, (_lacks(sites, Direction(site, other), group, state) for other in sites.neighbours(site))), ""
    )


def _lacks(sites: Sites, direction: Direction, group: str, state: SequencerState) -> str:
    source, target = direction
    try:
        with DataLog(sites.connection(target), group, target) as log:
            there = log.state()
    except TopicMissing:
        return ""  # the group is not there
    except AbcastError as error:
        return f"it is not known whether {target} has all of it: {error}"
    if sites.one_order:
        has_all = there.seqno >= state.seqno
    else:
        has_all = is_ordered(state, there, source, functools.partial(sites.carries, direction))
    return "" if has_all else f"{target} does not have all of it. Does its relay run?"
