"""What a relay between the sites of a mesh says for itself, beside the news it carries. Its driver writes it.

* A *heartbeat* each second for every group that has had a view at its site: without it the neighbour's sequencer takes
  the site for unreachable. It also says how far the news are copied (`abcast-relayed-from`), so that a relay that
  starts finds a mark near the end.
* The *view in force*, after the relay's start and after a takeover at its site, as a `remote-view`.
* A *farewell* (kind `leave`), when the relay is stopped on purpose.

Invariant. The neighbour comes to know the view in force. It takes the highest one by (epoch, view id), and the news
bring all views of DATA in their places. That leaves two ways in which it could have another one: retention dropped the
view before a relay could carry it, or a fenced sequencer wrote one behind its successor's seal. So the view is told
again as the reading rule has it, with the epoch in force, once everything that stands before it is copied: no view of a
fenced sequencer is higher than that. A crash before it is told loses nothing, as every start tells it.

In a group that never had a view, what a fenced sequencer says of one does not last: no heartbeat comes for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.producer.future import FutureRecordMetadata

from connectors.codec import H_RELAYED_FROM, H_VISITED, forward_headers
from connectors.connection import Connection
from connectors.data_log import DataLog
from connectors.sites import Direction
from ordering.errors import HistoryUnavailable
from ordering.membership import Life
from ordering.names import Topic, relay_of
from ordering.records import EPOCH, HEARTBEAT, LEAVE, REMOTE_VIEW, Source

WRITTEN_S = 5.0
"""How long to wait until Kafka has a view, or a farewell."""

log = logging.getLogger(__name__)


class Herald:
    """Speaks for the relay of one direction, in some groups. Not thread-safe; `close` it."""

    def __init__(self, source: Connection, target: Connection, way: Direction, groups: Iterable[str]) -> None:
        """Raises BrokerUnreachable, TopicMissing."""
        self._way = way
        self._producer: KafkaProducer = target.producer()
        self._groups: dict[str, _Group] = {}
        try:
            for group in groups:
                self._groups[group] = _Group(DataLog(source, group, way.source))
        except BaseException:
            self.close()
            raise

    def tell(self, copied: Mapping[str, int]) -> None:
        """What there is to say now. `copied`: how many offsets of each DATA topic are known to be at the neighbour.

        Raises BrokerUnreachable if the site's own Kafka does not answer: then it says nothing.
        """
        try:
            for group in self._groups.values():
                group.look()
                topic = str(group.log.topic)
                upto = copied.get(topic, 0)
                if (untold := group.untold(upto)) is not None:
                    view = json.dumps({"members": untold.members}).encode("ascii")
                    self._send(group, REMOTE_VIEW, untold.epoch, untold.view_id, view).get(timeout=WRITTEN_S)
                    group.told_epoch = untold.epoch
                if group.in_force.view_id:
                    mark = f"{self._way.source}/{Source(topic, 0, upto - 1)}" if upto else ""
                    self._send(group, HEARTBEAT, mark=mark)
        except KafkaError as error:
            log.warning("%s: a heartbeat of the relay could not be written: %r", self._way, error)

    def farewell(self) -> None:
        """Say that the relay is stopped; the neighbour finds it out by itself if that gets lost."""
        try:
            for sent in [self._send(group, LEAVE) for group in self._groups.values() if group.in_force.view_id]:
                sent.get(timeout=WRITTEN_S)
        except KafkaError as error:
            log.warning("%s: the relay's farewell could not be written: %r", self._way, error)

    def close(self) -> None:
        """Close the connections."""
        for group in self._groups.values():
            group.log.close()
        self._producer.close(timeout=1)

    def _send(
        self, group: _Group, kind: str, incarnation: int = 1, local_seqno: int = 1, value: bytes = b"", mark: str = ""
    ) -> FutureRecordMetadata:
        sender, site = relay_of(self._way.source), self._way.source.encode("ascii")
        headers = [*forward_headers(sender, incarnation, local_seqno, kind=kind), (H_VISITED, site)]
        if mark:
            headers.append((H_RELAYED_FROM, mark.encode("ascii")))
        topic = str(Topic(group.log.topic.group, "relayed", self._way.target, self._way.source))
        return self._producer.send(topic, key=sender.encode("ascii"), value=value, headers=headers, partition=0)


class _View(NamedTuple):
    """A view, and the epoch in force, which may be later than the view's own. View 0 is none."""

    epoch: int
    view_id: int
    members: tuple[Life, ...] = ()


class _Group:
    """A group's DATA at the relay's site, and which view is in force there."""

    def __init__(self, log: DataLog) -> None:
        self.log = log
        self.in_force = _View(0, 0)
        self.told_epoch = 0
        self._waiting: _View | None = None
        self._waits_for = 0
        self._end = 0

    def look(self) -> None:
        """Find out which view is in force; mostly the last record says: the same. Raises BrokerUnreachable."""
        end = self.log.end()
        if end != self._end and self._may_differ(end):
            with suppress(HistoryUnavailable):  # then DATA holds no view either
                state = self.log.state(end)
                self.in_force = _View(state.epoch, state.view, state.membership.members)
        self._end = end

    def _may_differ(self, end: int) -> bool:
        known = self.in_force
        for _, _, last in self.log.records(max(end - 1, self.log.beginning()), end):
            is_same = last.kind != EPOCH and (last.epoch, last.view) == known[:2]
            return not is_same and last.epoch >= known.epoch
        return True

    def untold(self, copied: int) -> _View | None:
        """The view that is to be told with its epoch, if it is time: once all that stood before it is copied."""
        if self._waiting is None and self.in_force.view_id and self.in_force.epoch > self.told_epoch:
            self._waiting, self._waits_for = self.in_force, self._end
        if self._waiting is None or copied < self._waits_for:
            return None
        told, self._waiting = self._waiting, None
        return told
