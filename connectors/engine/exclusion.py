"""The exclusion of a site: an operator decides that the sites of an agreement no longer wait for it.

`abcast site exclude` writes the decision into the EPOCH topic of a site, for one view. The site's job reads it there
(`ordering.agreement.messages.Exclude`); in any other view it has no effect.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from connectors.kafka.codec.epochs import encode_exclusion
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.acts import act_header, act_of_this_user
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from ordering.agreement.flush import may_exclude
from ordering.agreement.formation import View
from ordering.base.errors import UsageError
from ordering.base.records import Exclusion

_LOOK_S = 0.5


class ExclusionOutcome(NamedTuple):
    """The view that the site has now, and whether it goes on without the excluded site."""

    view: int
    sites: tuple[str, ...]
    is_done: bool


def exclude(connection: Connection, group: str, site: str, name: str, wait_s: float, why: str = "") -> ExclusionOutcome:
    """Let the job of `site` go on without `name`; wait up to `wait_s` until it does. EPOCH records the user.

    Raises UsageError if too few sites would be left, `site` is `name`, or its log has no agreement; BrokerUnreachable,
    TopicMissing.
    """
    act = act_of_this_user("exclude", f"{site} goes on without {name}", why)
    with DataLog(connection, group, site) as data:
        view, decided_for = _view(data), 0
        deadline = time.monotonic() + wait_s
        while name in (members := _names(view)):
            if name == site:
                raise UsageError(
                    f"{site} can't exclude itself: give the command for one of the sites that are to go on."
                )
            if not may_exclude(len(members), [members.index(name)]):
                raise UsageError(
                    f"without {name}, too few of the sites {', '.join(members)} are left: bring another back first."
                )
            # A ballot under way may have decided one more view with the site.
            if view.id != decided_for:
                value, headers = encode_exclusion(Exclusion(view.id, (name,)))
                append(connection, data.epochs.topic, (None, value, [*headers, act_header(act)]))
                decided_for = view.id
            if time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_S)
            view = _view(data)
        return ExclusionOutcome(view.id, members, is_done=name not in members)


def _view(data: DataLog) -> View:
    state = last_state(data, data.end())
    if state is None:
        raise UsageError(
            f'{data.topic} has no entry of an agreement: does its job run, with mode = "isis" in the sites\' file?'
        )
    return state.process.view


def _names(view: View) -> tuple[str, ...]:
    return tuple(site.name for site in view.members)
