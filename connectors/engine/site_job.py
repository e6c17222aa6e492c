"""The job of a site that agrees with others (`ordering.agreement.site`), in a plain Python process.

It is the process engine's job with other machines (`connectors.engine.agreeing`), which read other inputs.
Claims, seals, ticks, signs of life and retries are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from kafka.structs import TopicPartition

from connectors.engine.agreeing import Agreeing
from connectors.engine.forward_partitions import ForwardPartitions, Starts
from connectors.engine.group_supervisor import GroupSupervisor, Taken
from connectors.engine.job import EngineJob
from connectors.engine.loop import Beginnings, Deciders
from connectors.engine.options import EngineOptions, JobState
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import Troubles
from connectors.takeover.agreement import ISIS, AgreementSettings, inputs_of, known_state, starts_of
from ordering.agreement.group import after_takeover
from ordering.base.errors import AbcastError
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState


class AgreeingSites:
    """The makers of the machines of a site that agrees."""

    def __init__(self, connection: Connection, agreement: AgreementSettings) -> None:
        self._connection, self._agreement = connection, agreement

    def machine(self, state: SequencerState) -> Agreeing:
        """Return the group's machine, from its states in the site's log and DATA. Raises the group's error."""
        return Agreeing(after_takeover(known_state(self._connection, self._agreement, state), state))

    def starts(
        self, machine: Agreeing, found: Mapping[TopicPartition, int], beginnings: Beginnings
    ) -> Mapping[TopicPartition, int]:
        """Return the offset from which each input is to be read, by the group's state. Raises the group's error."""
        sources = inputs_of(self._agreement.neighbours, found)
        with self._connection.reachable("READ", " and ".join(sorted({place.topic for place in sources}))):
            begins = beginnings(sources)
        machine.sources |= sources
        return starts_of(self._connection, machine.group, sources, begins)


class InputPartitions(ForwardPartitions):
    """The inputs of the served groups: FORWARD of all sites, and the other sites' logs.

    The loop asks for their offsets, and waits for the answers. So a group whose inputs give no offsets here, in the
    supervisor's thread, is not passed to the loop.
    """

    def __init__(self, connection: Connection, neighbours: Neighbours, finder: TopicFinder) -> None:
        super().__init__(connection)
        self._neighbours, self._finder = neighbours, finder

    def find(
        self,
        topics: Mapping[str, Iterable[str]],
        positions: Mapping[TopicPartition, int],  # noqa: ARG002 - a group knows its own
    ) -> tuple[Starts, dict[str, AbcastError]]:
        """Return the inputs of these groups, and the errors of the other groups. Raises as the base class does."""
        counts = {str(topic): count for topic, count in self._finder.count_partitions().items()}
        inputs: dict[str, set[str]] = {}
        for place, group in self._places(topics, counts):
            inputs.setdefault(group, set()).add(place.topic)
        found, lost = super().find(inputs, {})
        return {place: (found[place][0], 0) for place in inputs_of(self._neighbours, found)}, lost

    def _places(
        self, topics: Mapping[str, Iterable[str]], counts: Mapping[str, int]
    ) -> Iterator[tuple[TopicPartition, str]]:
        """Yield the inputs of these groups, in one pass over all topics: the supervisor looks each second."""
        for name, count in counts.items():
            topic = Topic.parse(name)
            if topic is not None and topic.group in topics:
                places = [TopicPartition(name, number) for number in range(count)]
                yield from ((place, topic.group) for place in inputs_of(self._neighbours, places))


class SiteSupervisor(GroupSupervisor):
    """The supervisor of a site's job."""

    def __init__(self, options: EngineOptions, state: JobState, agreement: AgreementSettings) -> None:
        """Take over no group yet. Raises BrokerUnreachable."""
        super().__init__(options._replace(check_group=self._check), state, ISIS)
        self._connection, self._sites = options.connection, AgreeingSites(options.connection, agreement)
        self._partitions = InputPartitions(options.connection, agreement.neighbours, state.finder)

    def _check(self, taken: SequencerState) -> None:
        """Raise the error of a group that is not to be claimed: its log can't be continued, or an input can't be read.

        Each retry of a suspended group would else cost a claim and a snapshot.
        """
        machine = self._sites.machine(taken)
        if taken.group in self._state.suspended:
            found, lost = self._partitions.find({taken.group: ()}, {})
            for error in lost.values():
                raise error
            with closing(self._connection.consumer()) as consumer:
                places = {place: offset for place, (_, offset) in found.items()}
                self._sites.starts(machine, places, consumer.beginning_offsets)

    def _look(self) -> None:
        super()._look()
        # The check of the claims has just read the new records of EPOCH, exclusions among them.
        groups = [group for group in self._maintenance.forward if group not in self._maintenance.away]
        known = {group: self._maintenance.log(group).epochs.known.exclusions for group in groups}
        if any(known.values()):
            self._changes.put(Taken(decisions=known))

    def _topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        # Only the topics of the site's own members are ticked. The topics that relays fill are read, not ticked.
        own = {
            group: [name for name in names if (topic := Topic.parse(name)) and topic.role == "forward"]
            for group, names in super()._topics(fresh=fresh).items()
        }
        return {group: names for group, names in own.items() if names}


class SiteJob(EngineJob):
    """Agrees on the order of the chosen groups that have a DATA topic at the site."""

    def __init__(
        self,
        connection: Connection,
        agreement: AgreementSettings,
        groups: GroupChoice = ALL_GROUPS,
        look_every_s: float = LOOK_EVERY_S,
        troubles: Troubles | None = None,
        takeover_after_s: float | None = None,
    ) -> None:
        """Raise UsageError if the site is not among the sites that agree."""
        site = agreement.neighbours.site
        super().__init__(
            EngineOptions(connection, site, None, groups, look_every_s, troubles, takeover_after_s=takeover_after_s)
        )
        self._agreement = agreement.check()

    def _supervisor(self) -> SiteSupervisor:
        return SiteSupervisor(self.options, self._state, self._agreement)

    def _deciders(self) -> Deciders[Agreeing]:
        return AgreeingSites(self.options.connection, self._agreement)
