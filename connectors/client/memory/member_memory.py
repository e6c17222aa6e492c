"""A member's memory in Kafka between two runs: its incarnation, and its positions in the order and in its inbox.

All three are committed offsets of one consumer group (`connectors.client.memory.committed_offsets`). Two have their
number in the commit's metadata: `incarnation=N` on partition 0 of the FORWARD topic
(`connectors.client.memory.incarnation_numbers`), `seqno=N` on the DATA topic. The third, on the member's partition of
the INBOX topic, is the offset itself. Its metadata has the trace of a record before it (`after=OFFSET:DIGEST`), so that
another log is told from the one that was read.

Kafka forgets a committed offset after `offsets.retention.minutes` without a commit (7 days by default), and an operator
may reset or delete it with Kafka's tools. Notes tell a name whose position is forgotten from a new one
(`connectors.client.memory.position_notes`). An offset on DATA that an operator has set means the seqno at that offset.
"""

from __future__ import annotations

from kafka.structs import TopicPartition

from connectors.client.memory.committed_offsets import CommittedOffsets, told
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.memory.position_notes import DELIVERIES, LETTERS, TIMEOUT_S, PositionNotes
from connectors.client.tail.sharing import share
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog, topic_missing
from connectors.kafka.log.same_log_consumer import Trace
from ordering.base.errors import HistoryUnavailable, PositionLost
from ordering.base.names import Address, Topic

_SEQNO = "seqno="
_AFTER = "after="


class MemberMemory:
    """The memory of one member's name. Not thread-safe. `close` it."""

    def __init__(self, connection: Connection, group: str, address: Address, *, sends: bool = False) -> None:
        """Check that the topics are there. With `sends`, check the right to write FORWARD, too.

        Raises BrokerUnreachable, KafkaRefused, TopicMissing.
        """
        self.connection = connection
        self.group = group
        self.address = address
        self._data = TopicPartition(str(Topic(group, "data", address.site)), 0)
        forward = TopicPartition(str(Topic(group, "forward", address.site)), 0)
        self.shared = share(connection)
        self._is_closed = False
        try:
            for partition, operation in ((forward, "WRITE" if sends else ""), (self._data, "READ")):
                if not self.shared.metadata.partitions_of(partition.topic, operation):
                    raise topic_missing(partition.topic, group, address.site)
        except BaseException:
            self.close()
            raise
        self._offsets = offsets = CommittedOffsets(self.shared.metadata, group, address)
        self._notes = PositionNotes(connection, self.shared, group, address, offsets)
        self.numbers = IncarnationNumbers(address, forward, offsets, self.shared.producers, connection.timeout)
        """The numbers of the name's incarnations."""

    def close(self) -> None:
        """Release the connections. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self.shared.release()

    # --- the position in the total order ---

    def taken(self) -> int | None:
        """Return the last seqno that the application took; None if Kafka has none from a member.

        Raises BrokerUnreachable.
        """
        return self._offsets.number(self._data, _SEQNO)

    def position(self) -> int:
        """Return the last seqno that the application took; 0 for a new name.

        Raises PositionLost if Kafka has lost it, BrokerUnreachable.
        """
        committed = self._offsets.at(self._data)
        if committed is None:
            if self._notes.has(DELIVERIES):
                if (last := self._notes.restored) is not None:
                    raise PositionLost(
                        f"{self.group} was restored from a ledger up to seqno {last}, and all positions are lost, that "
                        f"of {self.address}, too, if it had one. Say where to go on: deliveries(from_seqno=N, "
                        "remember=True), or `abcast deliver --from-seqno N --remember`. N is one above the last seqno "
                        f"that the application has taken, and at most {last + 1}: messages above {last} that it has "
                        "taken are lost. A new name begins at 1."
                    )
                raise self._position_lost("Kafka has forgotten its position (after offsets.retention.minutes)")
            return 0
        if (seqno := told(committed, _SEQNO)) is not None:
            return seqno
        return self._seqno_before(int(committed.offset))

    def remember_taken(self, seqno: int, offset: int) -> None:
        """Commit the last seqno taken, and the offset to read on from, which Kafka's tools show as the lag.

        Raises BrokerUnreachable (after 2 s).
        """
        self._notes.write(DELIVERIES, self._data, f"{_SEQNO}0")
        self._offsets.commit(self._data, offset, f"{_SEQNO}{seqno}", TIMEOUT_S)

    def _seqno_before(self, offset: int) -> int:
        """Return the last seqno below the offset to which an operator has set the position.

        `kafka-consumer-groups` can do that. Raises PositionLost if DATA does not tell the seqno, as in a copy;
        BrokerUnreachable, TopicMissing.
        """
        try:
            with DataLog(self.connection, self.group, self.address.site) as log:
                if log.epochs.newest_base() is None:
                    return log.state(min(offset, log.end())).seqno
        except HistoryUnavailable:
            pass
        raise self._position_lost(
            f"its position was set to the offset {offset} of {self._data.topic}, whose seqno is not known"
        )

    def _position_lost(self, why: str) -> PositionLost:
        return PositionLost(
            f"{self.address} has delivered messages of {self.group} before, but {why}. Say where to go on: "
            "deliveries(from_seqno=N, remember=True), or `abcast deliver --from-seqno N --remember`. N is one above "
            "the last seqno that the application has taken; 1 is the group's first message."
        )

    # --- the letters taken ---

    def letters_taken(self, inbox: TopicPartition) -> tuple[int, Trace | None]:
        """Return the offset up to which the application took its letters, and the trace of a record below it.

        The offset is 0 for a new name. The trace is None if there was no record, or an earlier version has committed
        the offset. Raises PositionLost if Kafka has lost the offset, BrokerUnreachable.
        """
        committed = self._offsets.at(inbox)
        if committed is not None:
            known = Trace.parse((committed.metadata or "").removeprefix(_AFTER))
            return int(committed.offset), known if known and known.offset < committed.offset else None
        if self._notes.has(LETTERS):
            raise PositionLost(
                f"{self.address} has taken letters before, but Kafka has forgotten its position (after "
                "offsets.retention.minutes). inbox(from_beginning=True) gives all that are left again; their (sender, "
                "incarnation, local_seqno) tell which the application has seen."
            )
        return 0, None

    def remember_letters_taken(self, inbox: TopicPartition, offset: int, known: Trace | None = None) -> None:
        """Commit the first offset whose record the application has not taken, and the trace of one below.

        Raises BrokerUnreachable (after 2 s).
        """
        self._notes.write(LETTERS, inbox, "")
        self._offsets.commit(inbox, offset, f"{_AFTER}{known}" if known else "", TIMEOUT_S)
