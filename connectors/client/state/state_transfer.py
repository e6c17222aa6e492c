"""State transfer: a joiner gets the application's state from a member, in letters, and delivers the later messages.

This module reads the letters. `connectors.client.state.state_joiner` asks for a state, and
`connectors.client.state.state_supplier` answers. `connectors.client.state.state_letters` has the letters.

Invariant. A state is a pair (bytes, p). `get_state` returned the bytes in the thread that iterates the supplier's
`deliveries()`, between two deliveries, when that had taken exactly the messages up to seqno p. The joiner takes all
chunks of one such pair, or none. Its own deliveries give the messages from p + 1 on, and the events from its first view
on. So every message is either in the state or delivered after it, whichever member supplies the state. p is not below
the joiner's first view. In a group without other members there is no state to get: the joiner begins with its view if
no message was ordered before, and raises StateUnavailable if there was one.

*Casts.* Between two members with casts, p is a *cut* (`connectors.client.deliveries.cut`): the messages of all orders
that the supplier's application had been given. The joiner installs the state when its own hub has delivered everything
that the cut counts (`ordering.casts.delivery_status`). Then the joiner's FLUSH_OK names those messages, and all members
that go on deliver them, even if the supplier is killed. The joiner's hub may never deliver them: the supplier and
others have died, and the view came without some of their deliveries. Then the state is void, and the joiner asks again.
A joiner with casts gets no state from a member without. (A member that was wrongly taken for dead may have been given
casts that the others were not; its state counts them, too.)

*No state.* A member that has asked for a state itself, and got none yet, answers so (`Nothing`). When every other
member of the newest view has answered so in this view, no member has the state: all that had it have died, and the
joiners would wait for each other for ever. A new view voids earlier answers: a member that has got the state since
then, from one that is gone now, is asked again.

*Between members only.* A request is answered only if its sender is in the view that the supplier knows. A chunk is
taken only from the incarnation that was asked, which is in the joiner's view. A letter of a lower incarnation is from
no member of that view.

*The letters* are of the kind `state`, and numbered together with the other letters. So `inbox()` judges them by the
same rule, and skips them. The transfer reads them with a consumer of its own. That begins at the inbox's end just
before the JOIN (no member asks or answers this incarnation earlier), commits nothing, and needs no received table: a
request is taken if it is newer than the last one of its sender, a chunk if it is the next one, which is go-back-N
again. So neither reader has a position that the other could move. Nor has a purge anything to keep for it: a reader
whose next letters are gone goes on with the rest, and joiners ask again.

The cost: a member with `get_state` or `set_state` reads its inbox partition from `connect` to `close`. A state stays in
the inbox topic, as every letter does. Memory: the state itself, twice at the joiner for a moment; WINDOW chunks in the
supplier's letter table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.client.deliveries.deliveries import POLL_S
from connectors.client.letters.inbox import inbox_partition
from connectors.client.state.state_joiner import Fetched, SetState, StateJoiner
from connectors.client.state.state_letters import Request, Send, decode_state_letter
from connectors.client.state.state_supplier import GetState, StateSupplier
from connectors.client.tail.cast_hub import CastHub
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.codec.letter_codec import WrittenLetter, decode_letter, is_state_letter
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import RETRY_PAUSE_S
from connectors.kafka.transport import Consumer
from ordering.base.names import Address
from ordering.participant.events import ViewChange

_logger = logging.getLogger(__name__)


class StateTransfer:
    """A member's part in state transfers. Thread-safe. `close` it."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        send: Send,
        get_state: GetState | None,
        set_state: SetState | None,
        current: Callable[[], ViewChange | None],
        *,
        casts: bool = False,
    ) -> None:
        """Start nothing yet.

        Args:
            connection: the member's.
            group: the group's name.
            address: the member's.
            send: sends a letter of the kind `state`.
            get_state: the application's, if it supplies its state.
            set_state: the application's, if it takes a state.
            current: returns the newest view.
            casts: whether the member takes part in fifo and causal order.
        """
        self.connection = connection
        self.group = group
        self.address = address
        self.joiner = StateJoiner(address, send, set_state, casts=casts)
        self.supplier = StateSupplier(connection, address, send, get_state, current, casts=casts)
        self._key = str(address).encode("ascii")
        self._stopping = threading.Event()
        self._thread = ThreadOnDemand(f"abcast-{address}-state", self._read)

    def start(self) -> None:
        """Start to read the inbox, from its end on. Call it before the JOIN. Raises BrokerUnreachable, TopicMissing."""
        if self._thread.has_begun:
            return
        consumer = self.connection.consumer()
        try:
            partition = inbox_partition(self.connection, consumer, self.group, self.address)
            consumer.assign([partition])
            with self.connection.reachable():
                consumer.seek(partition, int(consumer.end_offsets([partition])[partition]))
            self._thread.begin(consumer, partition)
        except BaseException:
            if not self._thread.has_begun:
                consumer.close()
            raise

    def close(self) -> None:
        """End the threads, and a running `fetch`. The joiner of an incomplete answer asks another member."""
        self._stopping.set()
        self.joiner.close()
        self.supplier.close(self.connection.timeout)
        self._thread.join(self.connection.timeout)

    def fetch(
        self,
        joined: ViewChange,
        current: Callable[[], ViewChange | None],
        timeout: float,
        hub: CastHub | None = None,
    ) -> Fetched | None:
        """Get the state and set it. Return None if no other member has one.

        Args:
            joined: this member's first view.
            current: returns the newest view.
            timeout: seconds to wait for a state.
            hub: the process's hub, if the member takes part in fifo and causal order.

        Raises NotOrderedInTime if no state comes in time, UsageError if the member is closed, and the errors of `send`
        and `set_state`.
        """
        if {str(self.address), *joined.joined} >= set(joined.members):
            return None
        self.supplier.note_without_state()
        return self.joiner.fetch(joined, current, timeout, hub)

    def _read(self, consumer: Consumer, partition: TopicPartition) -> None:
        is_failing = False
        while not self._stopping.is_set():
            try:
                polled = _poll(consumer, partition)
                is_failing = is_failing and not polled
            except KafkaError as error:
                # The consumer connects again by itself, and the joiner asks again for what it missed.
                if not is_failing:
                    _logger.warning("reading %s: %r; trying again", partition.topic, error)
                is_failing = True
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            for record in polled.get(partition, ()):
                try:
                    self._take(record)
                except Exception:
                    # No letter may end the thread that all joiners depend on.
                    _logger.exception("%s: skipped a letter at offset %d", self.address, record.offset)
        consumer.close()

    def _take(self, record: Any) -> None:
        if record.key != self._key or not is_state_letter(record.headers):
            return
        letter = decode_letter(self._key, record.key, record.value, record.headers, record.timestamp)
        what = decode_state_letter(letter) if isinstance(letter, WrittenLetter) else None
        if not isinstance(letter, WrittenLetter) or what is None:
            warn_seldom(_logger, "%s: skipped a malformed letter at offset %d", self.address, record.offset)
            return
        if isinstance(what, Request):
            self.supplier.accept(letter, what)
        else:
            self.joiner.accept(letter, what)


def _poll(consumer: Consumer, partition: TopicPartition) -> Mapping[TopicPartition, Sequence[Any]]:
    """Return the next records. If a purge has passed the position, or the log has lost its end, go on with the rest.

    Joiners ask again for letters that are gone. Raises KafkaError.
    """
    try:
        return consumer.poll(timeout_ms=int(POLL_S * 1000))
    except (OffsetOutOfRangeError, NoOffsetForPartitionError):
        begins = int(consumer.beginning_offsets([partition])[partition])
        end = int(consumer.end_offsets([partition])[partition])
        consumer.seek(partition, min(max(begins, consumer.position(partition)), end))
        return {}
