"""A member's memory in Kafka between two runs: its incarnation, its position, and the letters that it has taken.

All three are committed offsets of the consumer group `abcast.member.<group>.<site>.<name>`. Two have their number in
the commit's metadata: `incarnation=N` on partition 0 of the FORWARD topic, `seqno=N` on the DATA topic. The third, on
the member's partition of the INBOX topic, is the offset itself. Its metadata has the trace of a record before it
(`after=OFFSET:DIGEST`), so that another log is told from the one that was read.

Kafka forgets a committed offset after `offsets.retention.minutes` without a commit (7 days by default), and an operator
may reset or delete it with Kafka's tools. So:

*Positions.* Invariant: no name begins at the first message, or letter, again unless the application asks for it. Before
the first position of a name above the beginning is committed, a *note* that it has one is written to the group's memory
topic, which is compacted and keeps it for good. If Kafka has no position, the notes are read. A name without a note is
new, and begins at the beginning; a name with a note gets PositionLost. A crash between the steps does no harm: the
beginning itself is committed first, so there is never a note without a position that Kafka may forget. The commit on
the memory topic remembers that the note was written; if Kafka forgets it, the note is written again. An offset on DATA
that an operator has set means the seqno at that offset.
A group without that topic (an earlier version created it) is served as before, with a warning: in it, a name that Kafka
has forgotten is new. `abcast topics create` creates the topic.

*The incarnation* needs no note. DATA has every incarnation that was ever ordered. For letters, and for a name without
an ordered message, the time makes each start higher than all before, unless the clock was set back by more than Kafka's
memory.
The clock of this machine may be wrong. So it is compared with the clock of the broker that stores this name's records.
If they are more than a day apart, the earlier one counts: an incarnation from a clock ahead would be this name's for
good, while one from a clock behind is raised above all that was ordered. A remembered incarnation from a clock ahead is
ignored: the group takes no record of it (`FUTURE_INCARNATION`).

The cost: one more produce request for each name. The notes, some 50 bytes a name, are read by names that are new or
forgotten.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from functools import cached_property
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.client.tail.sharing import share
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.headers import highest_incarnation
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog, topic_missing
from connectors.kafka.log.same_log_consumer import Trace
from ordering.base.errors import HistoryUnavailable, KafkaRefused, PositionLost, UsageError
from ordering.base.names import Address, Topic
from ordering.base.records import CLOCK_AHEAD_MS, HEARTBEAT, MAX_NUMBER

LIVES_PER_MS = 100_000
"""Incarnations in a millisecond: an incarnation is the time in ms, followed by five random digits."""

_INCARNATION = "incarnation="
_SEQNO = "seqno="
_AFTER = "after="
_DELIVERIES = "deliveries"
_LETTERS = "letters"
_NUMBER = re.compile(r"[0-9]{1,18}")
_CLOCK_IS_SET_MS = 1_700_000_000_000
"""November 2023. A machine with an earlier time has no clock that is set."""
_TAKEN_TIMEOUT_S = 2.0  # deliveries wait for this commit, and the next one makes up for it
_logger = logging.getLogger(__name__)


class MemberMemory:
    """The memory of one member's name. Not thread-safe. `close` it."""

    def __init__(self, connection: Connection, group: str, address: Address, *, sends: bool = False) -> None:
        """Check that the topics are there. With `sends`, check the right to write FORWARD, too.

        Raises BrokerUnreachable, KafkaRefused, TopicMissing.
        """
        self.connection = connection
        self.group = group
        self.address = address
        self.forward = TopicPartition(str(Topic(group, "forward", address.site)), 0)
        self.data = TopicPartition(str(Topic(group, "data", address.site)), 0)
        self._notes = TopicPartition(str(Topic(group, "memory", address.site)), 0)
        self._noted: set[str] | None = None  # the notes in the commit on the memory topic
        self._found: set[str] | None = None  # the notes in the topic itself
        self._may_note = True
        self._name = f"abcast.member.{group}.{address.site}.{address.name}"  # of a consumer group
        self.shared = share(connection)
        self._is_closed = False
        try:
            for partition, operation in ((self.forward, "WRITE" if sends else ""), (self.data, "READ")):
                if not self.shared.metadata.partitions_of(partition.topic, operation):
                    raise topic_missing(partition.topic, group, address.site)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the connections. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self.shared.release()

    # --- the incarnation ---

    def incarnation(self) -> int:
        """Return the last claimed incarnation, 0 if Kafka remembers none. Raises BrokerUnreachable."""
        return self._recall(self.forward, _INCARNATION) or 0

    def remember_incarnation(self, incarnation: int) -> None:
        """Commit an incarnation, before its first message is sent. Raises BrokerUnreachable."""
        self._commit({self.forward: _offset(0, f"{_INCARNATION}{incarnation}")}, self.connection.timeout)

    def claim_incarnation(self, above: int, claimed: set[int]) -> int:
        """Choose and commit a new incarnation, higher than all claimed before and than `above`; return it.

        It is added to `claimed` before the commit, which may succeed although it raises. Two processes that claim at
        the same instant get different incarnations, so that one supersedes the other. For a name that Kafka has
        forgotten, the clock makes the new one higher than earlier ones. Raises BrokerUnreachable, UsageError.
        """
        remembered = self.incarnation()
        if self.is_of_a_wrong_clock(remembered):
            remembered = 0
        if self.is_of_a_wrong_clock(above):
            raise UsageError(
                f"{self.address} was ordered when the clocks of the broker and of its machine were ahead, and "
                "nothing of it is ordered until that time has come: take another name."
            )
        lowest = max(self._time_ms() * LIVES_PER_MS, remembered + 1, above + 1)
        if lowest > MAX_NUMBER:
            raise UsageError(
                f"the incarnations of {self.address} are used up ({lowest - 1} is taken): take another name."
            )
        incarnation = lowest + secrets.randbelow(min(LIVES_PER_MS, MAX_NUMBER + 1 - lowest))
        claimed.add(incarnation)
        self.remember_incarnation(incarnation)
        return incarnation

    def is_of_a_wrong_clock(self, incarnation: int) -> bool:
        """Whether an incarnation is so far ahead of the broker's clock that the group takes no record of it."""
        return incarnation > highest_incarnation(self.broker_ms)

    def _time_ms(self) -> int:
        """Return the time of this machine, in ms; another one if its clock is wrong."""
        own_ms, broker_ms = time.time_ns() // 1_000_000, self.broker_ms
        if not broker_ms or abs(own_ms - broker_ms) <= CLOCK_AHEAD_MS:
            return own_ms
        days = (own_ms - broker_ms) / 86_400_000
        _logger.warning(
            "the clock of this machine is %.1f days %s the Kafka broker's clock: see which of them is wrong. %s takes "
            "the earlier time, unless it is before November 2023",
            abs(days),
            "ahead of" if days > 0 else "behind",
            self.address,
        )
        return min(own_ms, broker_ms) if own_ms > _CLOCK_IS_SET_MS else broker_ms

    @cached_property
    def broker_ms(self) -> int:
        """Return the time, in ms, of the broker that stores this name's records; 0 if it does not answer.

        It is asked by a heartbeat of incarnation 1, which no member has.
        """
        producers, headers = self.shared.producers, forward_headers(1, 1, kind=HEARTBEAT)
        with contextlib.suppress(KafkaError, KafkaRefused):
            producer = producers.lease()
            try:
                sent = producer.send(self.forward.topic, b"", str(self.address).encode("ascii"), headers)
                return int(sent.get(timeout=_TAKEN_TIMEOUT_S).timestamp)
            finally:
                producers.release(producer)
        return 0

    # --- the position in the total order ---

    def taken(self) -> int | None:
        """Return the last seqno that the application took; None if Kafka has none. Raises BrokerUnreachable."""
        return self._recall(self.data, _SEQNO)

    def position(self) -> int:
        """Return the last seqno that the application took; 0 for a new name.

        Raises PositionLost if Kafka has lost it, BrokerUnreachable.
        """
        committed = self._committed(self.data)
        if committed is None:
            if self._has_note(_DELIVERIES):
                raise self._position_lost(
                    "Kafka no longer knows up to where (it forgets after offsets.retention.minutes)"
                )
            return 0
        if (seqno := _told(committed, _SEQNO)) is not None:
            return seqno
        return self._seqno_before(int(committed.offset))

    def remember_taken(self, seqno: int, offset: int) -> None:
        """Commit the last seqno taken, and the offset to read on from, which Kafka's tools show as the lag.

        Raises BrokerUnreachable (after 2 s).
        """
        self._note(_DELIVERIES, self.data, f"{_SEQNO}0")
        self._commit({self.data: _offset(offset, f"{_SEQNO}{seqno}")}, _TAKEN_TIMEOUT_S)

    def _seqno_before(self, offset: int) -> int:
        """Return the last seqno below an offset that an operator has set, with `kafka-consumer-groups` say.

        Raises PositionLost.
        """
        try:
            with DataLog(self.connection, self.group, self.address.site) as log:
                if log.epochs.newest_base() is None:
                    return log.state(min(offset, log.end())).seqno
        except HistoryUnavailable:
            pass
        raise self._position_lost(
            f"its position was set to the offset {offset} of {self.data.topic}, which tells no seqno"
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
        committed = self._committed(inbox)
        if committed is not None:
            known = Trace.parse((committed.metadata or "").removeprefix(_AFTER))
            return int(committed.offset), known if known and known.offset < committed.offset else None
        if self._has_note(_LETTERS):
            raise PositionLost(
                f"{self.address} has taken letters before, but Kafka no longer knows up to which (it forgets after "
                "offsets.retention.minutes). inbox(from_beginning=True) gives all that are left again; their (sender, "
                "incarnation, local_seqno) tell which the application has seen."
            )
        return 0, None

    def remember_letters_taken(self, inbox: TopicPartition, offset: int, known: Trace | None = None) -> None:
        """Commit the first offset whose record the application has not taken, and the trace of one below.

        Raises BrokerUnreachable (after 2 s).
        """
        self._note(_LETTERS, inbox, "")
        self._commit({inbox: _offset(offset, f"{_AFTER}{known}" if known else "")}, _TAKEN_TIMEOUT_S)

    # --- notes ---

    def _note(self, what: str, place: TopicPartition, beginning: str) -> None:
        """Make sure that the note of the position `what` is written, before a position above 0 is committed at `place`.

        If there is neither a position nor a note yet, commit offset 0 first, with `beginning` as its metadata. Without
        a memory topic no note is written.
        """
        if self._noted is None:
            self._noted = self._known_notes()
        if what in self._noted:
            return
        if self._committed(place) is None and not self._has_note(what):
            self._commit({place: _offset(0, beginning)}, _TAKEN_TIMEOUT_S)
        if self._has_notes():
            self._write_note(what)
        self._noted.add(what)

    def _known_notes(self) -> set[str]:
        """Return the notes that the commit says are written: they need not be written again."""
        if not self._has_notes():
            return set()
        try:
            committed = self._committed(self._notes)
        except KafkaRefused as error:
            self._give_up_notes(f"can't be read ({error})")
            return set()
        return set((committed.metadata or "").split()) if committed is not None else set()

    def _has_notes(self) -> bool:
        """Whether the memory topic is there, and this member may use it."""
        if not self._may_note:
            return False
        with contextlib.suppress(KafkaRefused):
            if self.shared.metadata.partitions_of(self._notes.topic):
                return True
        self._give_up_notes("does not exist")
        return False

    def _give_up_notes(self, why: str) -> None:
        if self._may_note:
            self._may_note = False
            _logger.warning(
                "topic %s %s: should Kafka forget the position of %s, it begins at the first message again. "
                "`abcast topics create --group %s --site %s` creates what is missing",
                self._notes.topic,
                why,
                self.address,
                self.group,
                self.address.site,
            )

    def _write_note(self, what: str) -> None:
        assert self._noted is not None
        known = " ".join(sorted({*self._noted, what}))
        try:
            producers = self.shared.producers
            producer = producers.lease()
            try:
                with self.connection.reachable("WRITE", self._notes.topic):
                    sent = producer.send(self._notes.topic, key=self._key(what), value=b"1", partition=0)
                    sent.get(timeout=_TAKEN_TIMEOUT_S)
            finally:
                producers.release(producer)
            self._commit({self._notes: _offset(0, known)}, _TAKEN_TIMEOUT_S)
        except (KafkaError, KafkaRefused) as error:
            self._give_up_notes(f"can't be written ({error})")

    def _has_note(self, what: str) -> bool:
        """Whether the topic has a note, so that there was a position above the beginning."""
        if self._found is None and self._has_notes():
            try:
                self._found = self._read_notes()
            except KafkaRefused as error:
                self._give_up_notes(f"can't be read ({error})")
        return self._found is not None and what in self._found

    def _read_notes(self) -> set[str]:
        """Read the notes of all names; return this name's."""
        place, keys, found = self._notes, {self._key(what): what for what in (_DELIVERIES, _LETTERS)}, set()
        with contextlib.closing(self.connection.consumer()) as consumer:
            with self.connection.reachable("READ", place.topic):
                beginning, end = (ask([place])[place] for ask in (consumer.beginning_offsets, consumer.end_offsets))
            for record in read_range(self.connection, consumer, place, int(beginning), int(end)):
                if record.key in keys and record.value is not None:
                    found.add(keys[record.key])
                elif record.key in keys:  # an operator has deleted the note
                    found.discard(keys[record.key])
        return found

    def _key(self, what: str) -> bytes:
        return f"{self.address} {what}".encode("ascii")

    # --- committed offsets ---

    def _recall(self, partition: TopicPartition, prefix: str) -> int | None:
        committed = self._committed(partition)
        return None if committed is None else _told(committed, prefix)

    def _committed(self, partition: TopicPartition) -> Any:
        """Return the committed offset with its metadata, or None."""
        return self.shared.metadata.committed(self._name, [partition]).get(partition)

    def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        self.shared.metadata.commit(self._name, offsets, timeout_s)


def _told(committed: Any, prefix: str) -> int | None:
    """Return the number behind a prefix; None for anything else, as other members may write here."""
    found = _NUMBER.fullmatch((committed.metadata or "").removeprefix(prefix))
    return int(found[0]) if found and committed.metadata.startswith(prefix) else None


def _offset(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata, -1)
