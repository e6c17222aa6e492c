"""The numbers of a name's incarnations: each start claims one that is higher than all before.

The last claim is in the metadata `incarnation=N` of the committed offset of partition 0 of the FORWARD topic. Kafka may
forget it (`connectors.client.memory.member_memory`), and needs no note: DATA has every incarnation that was ever
ordered. For letters, and for a name without an ordered message, the time makes each start higher than all before,
unless the clock was set back by more than the time after which Kafka forgets.

The clock of this machine may be wrong. So it is compared with the clock of the broker that stores this name's records.
If they are more than a day apart, the earlier one counts: an incarnation from a clock ahead would be this name's for
good, while one from a clock behind is raised above all that was ordered. A remembered incarnation from a clock ahead is
ignored: the group takes no record of it (`FUTURE_INCARNATION`).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from functools import cached_property

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.client.memory.committed_offsets import CommittedOffsets
from connectors.client.tail.producers import Producers
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.headers import highest_incarnation
from ordering.base.errors import KafkaRefused, UsageError
from ordering.base.names import Address
from ordering.base.records import CLOCK_AHEAD_MS, HEARTBEAT, INCARNATIONS_A_MS, MAX_NUMBER

_INCARNATION = "incarnation="
_CLOCK_IS_SET_MS = 1_700_000_000_000
"""November 2023. A machine with an earlier time has no clock that is set."""
_HEARTBEAT_TIMEOUT_S = 2.0
_logger = logging.getLogger(__name__)


class IncarnationNumbers:
    """The numbers of one name's incarnations. Not thread-safe. It owns nothing."""

    def __init__(
        self,
        address: Address,
        forward: TopicPartition,
        offsets: CommittedOffsets,
        producers: Producers,
        timeout_s: float,
    ) -> None:
        """Read nothing yet. A commit to `offsets` takes `timeout_s` at most."""
        self.address = address
        self._forward = forward
        self._offsets = offsets
        self._producers = producers
        self._timeout_s = timeout_s

    def latest(self) -> int:
        """Return the last claimed incarnation, 0 if Kafka remembers none. Raises BrokerUnreachable."""
        return self._offsets.number(self._forward, _INCARNATION) or 0

    def claim(self, above: int, note: Callable[[int], object]) -> int:
        """Choose and commit a new incarnation, higher than all claimed before and than `above`; return it.

        `note` is called with it before the commit, which may succeed although it raises. Two processes that claim at
        the same instant get different incarnations, so that one supersedes the other. For a name that Kafka has
        forgotten, the clock makes the new one higher than earlier ones.

        Raises as `note`; BrokerUnreachable; UsageError if no higher incarnation can be ordered, so that another name is
        needed.
        """
        remembered = self.latest()
        if self.is_of_a_wrong_clock(remembered):
            remembered = 0
        if self.is_of_a_wrong_clock(above):
            raise UsageError(
                f"{self.address} has sent while the clocks of the broker and of its machine were ahead. The group "
                "orders nothing of it until that time: take another name."
            )
        lowest = max(self._time_ms() * INCARNATIONS_A_MS, remembered + 1, above + 1)
        if lowest > MAX_NUMBER:
            raise UsageError(
                f"the incarnations of {self.address} are used up ({lowest - 1} is taken): take another name."
            )
        incarnation = lowest + secrets.randbelow(min(INCARNATIONS_A_MS, MAX_NUMBER + 1 - lowest))
        note(incarnation)
        self._offsets.commit(self._forward, 0, f"{_INCARNATION}{incarnation}", self._timeout_s)
        return incarnation

    def is_of_a_wrong_clock(self, incarnation: int) -> bool:
        """Whether an incarnation is so far ahead of the broker's clock that the group takes no record of it.

        Raises BrokerUnreachable.
        """
        return incarnation > highest_incarnation(self.broker_ms)

    def _time_ms(self) -> int:
        """Return the time of this machine, in ms.

        If it is a day or more from the broker's, return the earlier one; the broker's if this machine has no clock.
        """
        own_ms, broker_ms = time.time_ns() // 1_000_000, self.broker_ms
        if not broker_ms or abs(own_ms - broker_ms) < CLOCK_AHEAD_MS:
            return own_ms
        days = (own_ms - broker_ms) / 86_400_000
        _logger.warning(
            "the clock of this machine is %.1f days %s the Kafka broker's clock. %s takes the earlier time, unless it "
            "is before November 2023. Find out which clock is wrong, and set it",
            abs(days),
            "ahead of" if days > 0 else "behind",
            self.address,
        )
        return min(own_ms, broker_ms) if own_ms > _CLOCK_IS_SET_MS else broker_ms

    @cached_property
    def broker_ms(self) -> int:
        """Return the time, in ms, of the broker that stores this name's records; 0 if that broker does not answer.

        The broker is asked once, by a heartbeat of incarnation 1, which no member has. Raises BrokerUnreachable if no
        broker answers at all.
        """
        headers = forward_headers(1, 1, kind=HEARTBEAT)
        with contextlib.suppress(KafkaError, KafkaRefused):
            producer = self._producers.lease()
            try:
                sent = producer.send(self._forward.topic, b"", str(self.address).encode("ascii"), headers)
                return int(sent.get(timeout=_HEARTBEAT_TIMEOUT_S).timestamp)
            finally:
                self._producers.release(producer)
        return 0
