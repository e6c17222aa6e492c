"""State transfer: a joiner gets the application's state from a member, in letters, and delivers the later messages.

This module has both halves, the joiner's and the supplier's; `connectors.client.state.state_letters` has their letters.

Invariant. A state is a pair (bytes, p). `get_state` returned the bytes in the thread that iterates the supplier's
`deliveries()`, between two deliveries, when that had taken exactly the messages up to seqno p. The joiner takes all
chunks of one such pair, or none. Its own deliveries give the messages from p + 1 on, and the events from its first view
on. So every message is either in the state or delivered after it, whichever member supplies the state. p is not below
the joiner's first view. In a group without other members there is no state to get: the joiner begins with its view if
no message was ordered before, and raises StateUnavailable if there was one.

*Casts.* Between two members with casts, p is a *cut* (`connectors.client.deliveries.cut`): the messages of all orders
that the supplier's application had been given. The joiner installs the state when its own hub has delivered everything
that the cut counts (`ordering.casts.delivery_status`). Then the joiner's FLUSH_OK names those messages, and all members
that go on deliver them, even if the supplier is killed. Its hub may never deliver them: the supplier and others have
died, and the view came without some of their deliveries. Then the state is void, and the joiner asks again. A joiner
with casts gets no state from a member without. (A member that was wrongly taken for dead may have been given casts that
the others were not; its state counts them, too.)

The supplier is the oldest other member. When it leaves the view, or is silent for PATIENCE_S, the joiner asks the next
one. When all were asked in vain, it begins again, twice as patient. A request is named by its letter's (incarnation,
local seqno), which every chunk of the answer repeats: chunks of an earlier request are dropped.

A member that has asked for a state itself, and got none yet, has none to give, and answers so at once (`Nothing`). When
every other member of the newest view has answered so in this view, no member has the state: all that had it have died,
and the joiners would wait for each other for ever. A new view voids earlier answers: a member that has got the state
since then, from one that is gone now, is asked again.

*Between members only.* Any client that may write into an inbox topic can send a request in any name. So a request is
answered only if its sender is in the view that the supplier knows. A chunk is taken only from the incarnation that was
asked, which is in the joiner's view. A letter of a lower incarnation is from no member of that view.

*The letters* are of the kind `state`, and numbered together with the other letters. So `inbox()` judges them by the
same rule, and skips them. The transfer reads them with a consumer of its own. That begins at the inbox's end just
before the JOIN (no member asks or answers this incarnation earlier), commits nothing, and needs no received table: a
request is taken if it is newer than the last one of its sender, a chunk if it is the next one, which is go-back-N
again. So neither reader has a position that the other could move.

The cost: a member with `get_state` reads its inbox partition all the time. A state stays in the inbox topic, as every
letter does. Memory: the state itself, twice at the joiner for a moment; WINDOW chunks in the supplier's letter table.

The lock. `_changed` guards the requests and the awaited answer; docs/protocols/locks.md has the order of locks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.client.deliveries.cut import Cut, packed, unpacked
from connectors.client.deliveries.deliveries import POLL_S
from connectors.client.letters.inbox import inbox_partition
from connectors.client.state.state_letters import Chunk, Nothing, Request, RequestId, StateAssembly, decode_state_letter
from connectors.client.tail.cast_hub import CastHub
from connectors.client.values.letter import LetterReceipt
from connectors.kafka.codec.letter_codec import WrittenLetter, decode_letter, is_state_letter
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import RETRY_PAUSE_S
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, NotOrderedInTime, ProtocolViolation, UsageError
from ordering.base.names import Address
from ordering.base.records import Headers
from ordering.casts.delivery_status import DeliveryStatus
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import ViewChange

CHUNK_BYTES = 512 * 1024
"""The largest part of a state in one letter."""

WINDOW = 8
"""The most chunks to one joiner that wait for Kafka: the application's own letters find room beside them."""

PATIENCE_S = 5.0
"""Seconds that a joiner waits for the next chunk before it asks another member."""

MAX_ASKED = 1_000
"""The most waiting requests: of more, most are no member's. The oldest is dropped, and its joiner asks again."""

WRITE_TIMEOUT_S = 30.0

GetState = Callable[[], bytes]
SetState = Callable[[bytes], object]
Send = Callable[[Address, bytes, Headers], LetterReceipt]
_logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """A request that is not answered yet."""

    joiner: Address
    id: RequestId
    seqno: int
    with_casts: bool = False


class Fetched(NamedTuple):
    """The count of a state that was set: total messages up to `seqno`, and the cut's messages, if there is one."""

    seqno: int
    cut: Cut | None = None


class StatePosition(Protocol):
    """An application's place in its deliveries."""

    @property
    def taken_seqno(self) -> int:
        """Return the seqno up to which the application has taken everything."""

    def cut(self) -> Cut | None:
        """Return the cut at the application's place in all orders; None if there is none just now."""


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

        Raises UsageError.
        """
        for name, function in (("get_state", get_state), ("set_state", set_state)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} is a function, not {type(function).__name__}.")
        self.connection = connection
        self.group = group
        self.address = address
        self._lacks_state = False  # it has asked for a state; until it is ready, it has none to give
        self.is_ready = False
        """Whether the application has the group's state, so that `get_state` may be called."""
        self.set_state = set_state
        self._get_state = get_state
        self._send = send
        self._current = current
        self._casts = casts
        self._key = str(address).encode("ascii")
        self._changed = threading.Condition(threading.Lock())
        self._stopping = threading.Event()
        self._assembly: StateAssembly | None = None
        self._requests: dict[str, _Asked] = {}  # the newest waiting request of each joiner
        self._newest: dict[str, RequestId] = {}  # the newest of all; grows with the senders, as the inbox's table does
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Read the inbox from its end on. Call it before the JOIN. Raises BrokerUnreachable, TopicMissing."""
        if self._threads:
            return
        consumer = self.connection.consumer()
        try:
            partition = inbox_partition(self.connection, consumer, self.group, self.address)
            consumer.assign([partition])
            with self.connection.reachable():
                consumer.seek(partition, int(consumer.end_offsets([partition])[partition]))
        except BaseException:
            consumer.close()
            raise
        self._start_thread(lambda: self._read(consumer, partition), "state")

    def close(self) -> None:
        """End the threads. The joiner of an incomplete answer asks another member."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self.connection.timeout)

    # --- the joiner ---

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
            hub: of a member with casts.

        Raises NotOrderedInTime, UsageError.
        """
        own, deadline, patience = str(self.address), time.monotonic() + timeout, PATIENCE_S
        if {own, *joined.joined} >= set(joined.members):
            return None
        try:
            self._begin_to_fetch()
            asked: set[MemberIncarnation] = set()
            without_state, said_in = set[MemberIncarnation](), joined  # members without a state, as of that view
            while True:
                view = current() or joined
                others = [life for life in view.lives if life.address != own]
                if view != said_in:
                    without_state, said_in = set(), view
                if without_state >= set(others):
                    return None
                supplier = next((life for life in others if life not in asked), None)
                if supplier is None:
                    asked.clear()
                    patience *= 2
                    continue
                asked.add(supplier)
                assembly = self._ask(supplier, joined.seqno)
                self._wait(assembly, supplier, current, patience, deadline)
                if assembly.is_complete and (fetched := self._install(assembly, hub, patience)) is not None:
                    return fetched
                if assembly.is_nothing:
                    without_state.add(supplier)
                elif time.monotonic() >= deadline:
                    raise NotOrderedInTime(
                        f"{own} has joined, but got no state within {timeout:g} s; the last one it asked was "
                        f"{supplier.address}. Has an older member get_state, and does it iterate its deliveries()? "
                        "Then connect(state=True) again, with a longer timeout for a large state."
                    )
        finally:
            self._assembly = None

    def _begin_to_fetch(self) -> None:
        """Note that this member has no state to give, and answer so to the joiners that have asked."""
        with self._changed:
            self._lacks_state = True
            waiting = list(self._requests.values())
        for asked in waiting:
            self._say_nothing(asked)

    def _ask(self, supplier: MemberIncarnation, seqno: int) -> StateAssembly:
        request = Request(seqno, self._casts)
        with self._changed:  # the answer must not be read before the request's number is known
            receipt = self._send(Address.parse(supplier.address), b"", request.headers())
            number = RequestId(receipt.incarnation, receipt.local_seqno)
            self._assembly = StateAssembly(supplier.address, number, time.monotonic(), incarnation=supplier.incarnation)
            return self._assembly

    def _wait(
        self,
        assembly: StateAssembly,
        supplier: MemberIncarnation,
        current: Callable[[], ViewChange | None],
        patience: float,
        deadline: float,
    ) -> None:
        """Wait until the answer is complete, or none comes. Raises UsageError if the member is closed."""
        with self._changed:
            while not (assembly.is_complete or assembly.is_nothing):
                if self._stopping.is_set():
                    raise UsageError(f"{self.address} is closed.")
                view, now = current(), time.monotonic()
                if view is not None and supplier not in view.lives:
                    return
                if now >= deadline or now - assembly.heard_at >= patience:
                    return
                self._changed.wait(POLL_S)

    def _install(self, assembly: StateAssembly, hub: CastHub | None, patience: float) -> Fetched | None:
        """Set the state, and return its count; return None if it is void."""
        assert assembly.answer is not None
        assert self.set_state is not None
        self._assembly = None
        state, cut = b"".join(assembly.chunks), None
        assembly.chunks.clear()
        if hub is not None:
            try:
                cut, state = unpacked(state)
            except ProtocolViolation as error:
                _logger.warning("%s: the state of %s is void: %s", self.address, assembly.supplier, error)
                return None
            status = hub.delivery_status_of_state(cut.state.causal, patience)
            if status is not DeliveryStatus.DELIVERED:
                why = f"some messages that it counts are {status.value} delivered in the group"
                _logger.warning("%s: the state of %s is void: %s", self.address, assembly.supplier, why)
                return None
        self.set_state(state)
        return Fetched(assembly.answer[1] if cut is None else cut.seqno, cut)

    # --- the supplier ---

    def between(self, position: StatePosition) -> None:
        """Answer the joiners that have asked. Called by the application's thread, between two deliveries."""
        if not self._requests or not self.is_ready or self._get_state is None:
            return
        taken = position.taken_seqno
        due = self._due(taken)
        cut = position.cut() if any(asked.with_casts for asked in due) else None
        if not any(cut is not None or not asked.with_casts for asked in due):
            return
        try:
            state = self._get_state()
            if not isinstance(state, bytes):
                raise TypeError(f"get_state returned {type(state).__name__}, not bytes")
        except Exception:
            # The application's mistake must not end its deliveries. The joiner asks the next member.
            _logger.exception("%s can't supply its state", self.address)
            state = None
        with self._changed:  # includes joiners that have asked, or asked again, since
            due = [asked for asked in self._due(taken) if cut is not None or not asked.with_casts]
            for asked in due:
                del self._requests[str(asked.joiner)]
        if state is not None:
            for asked in due:
                self._supply(asked, state, taken, cut if asked.with_casts else None)

    def _due(self, taken: int) -> list[_Asked]:
        """Return the members' requests that can be answered; drop requests of strangers.

        The deliveries may be ahead of the sending half, which knows the view: then a request waits.
        """
        view = self._current()
        due = [asked for asked in list(self._requests.values()) if asked.seqno <= taken]
        for asked in due:
            if _is_strangers(asked, view) and self._requests.pop(str(asked.joiner), None) is not None:
                _logger.warning("%s: %s asks for the state, and is not in the view", self.address, asked.joiner)
        return [asked for asked in due if _is_members(asked, view)]

    def _supply(self, asked: _Asked, state: bytes, seqno: int, cut: Cut | None) -> None:
        self._start_thread(lambda: self._send_chunks(asked, state, seqno, cut), f"state-for-{asked.joiner}")

    def _send_chunks(self, asked: _Asked, state: bytes, seqno: int, cut: Cut | None) -> None:
        waiting: deque[LetterReceipt] = deque()
        try:
            if cut is not None:
                state = packed(cut._replace(cluster_id=self.connection.cluster_id()), state)
            total = max(1, -(-len(state) // CHUNK_BYTES))
            for number in range(total):
                # A newer request of the joiner makes this answer useless.
                if self._stopping.is_set() or self._newest[str(asked.joiner)] != asked.id:
                    return
                if len(waiting) >= WINDOW:
                    waiting.popleft().result(WRITE_TIMEOUT_S)
                part = state[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
                waiting.append(self._send(asked.joiner, part, Chunk(asked.id, seqno, number, total).headers()))
        except AbcastError as error:
            _logger.warning("%s: %s does not get the whole state: %s", self.address, asked.joiner, error)

    # --- the threads ---

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"abcast-{self.address}-{name}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _read(self, consumer: Consumer, partition: TopicPartition) -> None:
        is_failing = False
        while not self._stopping.is_set():
            try:
                polled = consumer.poll(timeout_ms=int(POLL_S * 1000))
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
        asked: _Asked | None = None
        with self._changed:
            if isinstance(what, Request):
                number = RequestId(letter.incarnation, letter.local_seqno)
                if number > self._newest.get(letter.sender, RequestId(0, 0)):
                    self._newest[letter.sender] = number
                    asked = _Asked(Address.parse(letter.sender), number, *what)
                    self._note_request(asked)
            elif self._assembly is not None and self._assembly.accept(letter, what):
                self._assembly.heard_at = time.monotonic()
                self._changed.notify_all()
        if asked is not None and ((self._lacks_state and not self.is_ready) or not self._may_supply(asked)):
            self._say_nothing(asked)

    def _note_request(self, asked: _Asked) -> None:
        self._requests.pop(str(asked.joiner), None)
        if self._may_supply(asked):
            self._requests[str(asked.joiner)] = asked
        if len(self._requests) > MAX_ASKED:
            del self._requests[next(iter(self._requests))]

    def _may_supply(self, asked: _Asked) -> bool:
        return self._casts or not asked.with_casts

    def _say_nothing(self, asked: _Asked) -> None:
        """Answer that there is no state yet. The request is kept: it is answered later, if it still counts then."""
        if _is_strangers(asked, self._current()):
            return
        try:
            self._send(asked.joiner, b"", Nothing(asked.id).headers())
        except AbcastError as error:
            _logger.warning("%s: %s does not hear that there is no state here: %s", self.address, asked.joiner, error)


def _is_members(asked: _Asked, view: ViewChange | None) -> bool:
    """Whether a member of the view has asked. With an outbox its letters may have a higher incarnation."""
    lives = view.lives if view is not None else ()
    return any(life.address == str(asked.joiner) and life.incarnation <= asked.id.incarnation for life in lives)


def _is_strangers(asked: _Asked, view: ViewChange | None) -> bool:
    """Whether a stranger has asked: no member of the view, although the view is as new as the joiner's first one."""
    return view is not None and asked.seqno <= view.seqno and not _is_members(asked, view)
