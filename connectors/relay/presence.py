"""The records that a relay between the sites of a mesh writes in its own name.

* The *beginning of a session* (`ordering.sequencer.links`): its offset, and the view in force there. The copies
  bring the views that follow. The neighbour takes the highest by (epoch, view id), so a repeated view does no harm.
* A *heartbeat* each second for every group that has had a view at its site. Without it the neighbour's sequencer takes
  the site for unreachable. Other groups get one now and then, so that a running relay can be told from a stopped one.
* A *farewell* (kind `leave`), when the relay is stopped on purpose.

A crash between any two of them loses nothing: the next start begins a session of its own.
"""

from __future__ import annotations

import json
import logging
import time

from kafka.errors import KafkaError
from kafka.producer.future import FutureRecordMetadata

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import windows_back
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Direction
from connectors.kafka.groups.unservable_groups import JOB_ERRORS
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.transport import Producer
from connectors.relay.link_start import Carries, SessionStart, link_start
from ordering.base.errors import AbcastError, BrokerUnreachable
from ordering.base.names import Topic, relay_of
from ordering.base.records import EPOCH, HEARTBEAT, LEAVE, LINK_START, REMOTE_VIEW, STRAY
from ordering.sequencer.state import SequencerState

FAREWELL_S = 5.0
"""The longest wait until Kafka has a farewell."""
QUIET_BEAT_S = 10.0
"""The seconds between heartbeats for a group that never had a view at its site."""
BEAT_FOR_S = 1.0
"""The seconds after which an error leaves the heartbeats of the other groups to the next round."""

_logger = logging.getLogger(__name__)


class Presence:
    """Writes a relay's own records in the groups that had a `begin`. Not thread-safe; `close` it."""

    def __init__(self, source: Connection, target: Connection, direction: Direction) -> None:
        """Open the producer. Raises BrokerUnreachable, KafkaRefused."""
        self._source = source
        self._target = target
        self._direction = direction
        self._sender = relay_of(direction.source).encode("ascii")
        self._producer: Producer = target.producer()
        self._groups: dict[str, _Group] = {}
        self._beat_at = 0.0

    def begin(self, group: str, beginning: SessionStart, carries: Carries) -> int:
        """Begin a session in a group; return its name, an offset. Raises BrokerUnreachable, TopicMissing."""
        state = beginning.state
        start = link_start(state, self._direction.source, carries)
        session = self._append(group, LINK_START, value=start.to_json())
        if state.view:
            self._append(group, REMOTE_VIEW, state.epoch, state.view, _members(state))
            self.drop(group)
        if group not in self._groups:
            log = None if state.view else DataLog(self._source, group, self._direction.source)
            self._groups[group] = _Group(log)
        return session

    def tell(self) -> dict[str, AbcastError]:
        """Write the heartbeats that are due; return the error of each group that takes none, or whose DATA can't be
        read.

        Raises BrokerUnreachable if the relay's source does not answer.
        """
        return {**self._beat(), **self._look()}

    def _beat(self) -> dict[str, AbcastError]:
        """Write the heartbeats that are due; return the error of each group that takes none.

        An error may take a timeout. So one that has taken long ends the round, and the next one is without its group.
        """
        errors: dict[str, AbcastError] = {}
        began = time.monotonic()
        is_time = began - self._beat_at >= QUIET_BEAT_S
        for name, group in self._groups.items():
            if not (group.had_view or is_time):
                continue
            try:
                self._send(name, HEARTBEAT)
            except KafkaError as error:
                errors[name] = BrokerUnreachable(f"{self._topic(name)} takes no heartbeat of the relay: {error!r}.")
                if time.monotonic() - began > BEAT_FOR_S:
                    break
        if is_time and not errors:
            self._beat_at = time.monotonic()
        return errors

    def _look(self) -> dict[str, AbcastError]:
        """Look for first views, behind all heartbeats: a broker that does not answer holds up only the next ones."""
        errors: dict[str, AbcastError] = {}
        for name, group in self._groups.items():
            try:
                group.look()
            except (BrokerUnreachable, *JOB_ERRORS):
                raise
            except AbcastError as error:
                errors[name] = error
        return errors

    def farewell(self) -> None:
        """Write that the relay is stopped. A failure is only logged: the neighbour misses the heartbeats anyway."""
        try:
            for sent in [self._send(name, LEAVE) for name, group in self._groups.items() if group.had_view]:
                sent.get(timeout=FAREWELL_S)
        except KafkaError as error:
            _logger.warning("%s: the record of the relay's end could not be written: %r", self._direction, error)

    def drop(self, group: str) -> None:
        """Write no more in a group."""
        if (dropped := self._groups.pop(group, None)) is not None:
            dropped.close()

    def close(self) -> None:
        """Close the connections."""
        for group in list(self._groups):
            self.drop(group)
        self._producer.close(timeout=1)

    def _append(self, group: str, kind: str, incarnation: int = 1, local_seqno: int = 1, value: bytes = b"") -> int:
        """Write a record, and wait no longer than for an answer: the heartbeats of all groups wait as well."""
        record = self._sender, value, forward_headers(incarnation, local_seqno, kind=kind)
        topic, timeout_s = self._topic(group), self._target.timeout
        return append(self._target, topic, record, producer=self._producer, timeout_s=timeout_s)

    def _send(self, group: str, kind: str) -> FutureRecordMetadata:
        """Send a record of this kind, without waiting."""
        headers = forward_headers(1, 1, kind=kind)
        return self._producer.send(self._topic(group), key=self._sender, headers=headers, value=b"", partition=0)

    def _topic(self, group: str) -> str:
        return str(Topic(group, "relayed", self._direction.target, self._direction.source))


def _members(state: SequencerState) -> bytes:
    return json.dumps({"members": state.membership.members}).encode("ascii")


class _Group:
    """Whether a group ever had a view at the relay's site; until then, its DATA there, which is closed by `close`."""

    def __init__(self, log: DataLog | None) -> None:
        """Look for a view in this log; there has been one if it is None."""
        self._log = log
        self._end = 0

    @property
    def had_view(self) -> bool:
        """Whether there has been a view."""
        return self._log is None

    def close(self) -> None:
        """Look no more."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def look(self) -> None:
        """Find out from the newest records whether there has been a view. Raises BrokerUnreachable."""
        log = self._log
        if log is None:
            return
        end = log.end()
        for start, below in windows_back(max(self._end, log.beginning()), end, 1):
            records = (stored.data for stored in log.records(start, below))
            newest = [record for record in records if record.kind not in (EPOCH, STRAY)]
            if newest:
                if newest[-1].view > 0:
                    self.close()
                break
        self._end = end
