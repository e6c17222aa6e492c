"""The options of an engine job, and the state that its attempts share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.log.same_log import Ledger
from connectors.storage.location import Location
from connectors.takeover.takeover import GroupCheck


class EngineOptions(NamedTuple):
    """The options of the engine.

    `ledger`: the Delta table, or its rows; a group is not claimed if its DATA has lost seqnos that the ledger has.
    `groups`: the groups to serve. `look_every_s`: the seconds between two looks for new topics. `troubles`: of all jobs
    of the process. `check_group`: checks each group before it is claimed. `takeover_after_s`: stand by, and take over
    after so many seconds without a sequencer (`connectors.engine.standby`); None takes over at once.
    """

    connection: Connection
    site: str
    ledger: Location | Ledger | None = None
    groups: GroupChoice = ALL_GROUPS
    look_every_s: float = LOOK_EVERY_S
    troubles: Troubles | None = None
    check_group: GroupCheck | None = None
    takeover_after_s: float | None = None


@dataclass(slots=True)
class JobState:
    """The state of a job that outlives its attempts.

    `epochs`: the epochs that this process has claimed, by group; takeovers keep it up to date.
    """

    finder: TopicFinder
    suspended: SuspendedGroups
    epochs: dict[str, int] = field(default_factory=dict)
