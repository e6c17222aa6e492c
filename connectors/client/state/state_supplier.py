"""The supplier's half of a state transfer: answer the members that ask for the application's state.

`connectors.client.state.state_transfer` has the protocol and its invariant.

A request is answered only if its sender is in the view that the supplier knows: any client that may write into an inbox
topic can send one in any name. Of one joiner only the newest request counts. So the table of received letters is not
needed: a request is taken if it is newer than the last one of its sender.

A member that has asked for a state itself, and got none yet, has none to give, and answers so at once (`Nothing`).

The lock guards the requests, and whether there is a state to give. No other lock is taken under it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from connectors.client.deliveries.cut import Cut, packed
from connectors.client.state.state_letters import Chunk, Nothing, Request, RequestId, Send
from connectors.client.values.letter import LetterReceipt
from connectors.kafka.codec.letter_codec import WrittenLetter
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import AbcastError
from ordering.base.names import Address
from ordering.participant.events import ViewChange

CHUNK_BYTES = 512 * 1024
"""The largest part of a state in one letter."""

WINDOW = 8
"""The most chunks to one joiner that wait for Kafka: the application's own letters find room beside them."""

MAX_ASKED = 1_000
"""The most waiting requests: a group has fewer joiners. Of more, the oldest is dropped; a true joiner asks again."""

WRITE_TIMEOUT_S = 30.0

GetState = Callable[[], bytes]
_logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """A request that is not answered yet."""

    joiner: Address
    id: RequestId
    seqno: int
    with_casts: bool = False


class StatePosition(Protocol):
    """An application's place in its deliveries."""

    @property
    def taken_seqno(self) -> int:
        """Return the seqno up to which the application has taken everything."""

    def cut(self) -> Cut | None:
        """Return the cut at the application's place in all orders; None if there is none just now."""


class StateSupplier:
    """The supplier's half of one member's transfers. Thread-safe. `close` it."""

    def __init__(
        self,
        connection: Connection,
        address: Address,
        send: Send,
        get_state: GetState | None,
        current: Callable[[], ViewChange | None],
        *,
        casts: bool,
    ) -> None:
        """Answer nothing yet. `current` returns the newest view. `casts`: as for `StateTransfer`."""
        self.connection = connection
        self.address = address
        self.is_ready = False
        """Whether the application has the group's state, so that `get_state` may be called."""
        self._get_state = get_state
        self._send = send
        self._current = current
        self._casts = casts
        self._lock = threading.Lock()
        self._lacks_state = False  # it has asked for a state; until it is ready, it has none to give
        self._requests: dict[str, _Asked] = {}  # the newest waiting request of each joiner
        self._newest: dict[str, RequestId] = {}  # the newest of all; grows with the senders, as the inbox's table does
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def close(self, timeout: float) -> None:
        """Send no more chunks; wait up to `timeout` seconds for each thread. Unanswered joiners ask other members."""
        self._stopping.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def note_without_state(self) -> None:
        """Note that this member has no state until `is_ready`, and answer so to the joiners that have asked."""
        with self._lock:
            self._lacks_state = True
            waiting = list(self._requests.values())
        for asked in waiting:
            self._say_nothing(asked)

    def accept(self, letter: WrittenLetter, request: Request) -> None:
        """Keep a request, unless its sender has sent a newer one. Answer at once if there is no state to give."""
        number = RequestId(letter.incarnation, letter.local_seqno)
        asked = _Asked(Address.parse(letter.sender), number, *request)
        with self._lock:
            if number <= self._newest.get(letter.sender, RequestId(0, 0)):
                return
            self._newest[letter.sender] = number
            self._note_request(asked)
        if (self._lacks_state and not self.is_ready) or not self._may_supply(asked):
            self._say_nothing(asked)

    def between(self, position: StatePosition) -> None:
        """Answer the joiners that have asked. Called by the application's thread, between two deliveries.

        A request waits until `position` has reached its seqno. An error of `get_state` is logged: the joiners ask
        another member.
        """
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
        with self._lock:  # includes joiners that have asked, or asked again, since
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
                _logger.warning("%s: %s asked for the state, but is not in the view", self.address, asked.joiner)
        return [asked for asked in due if _is_members(asked, view)]

    def _supply(self, asked: _Asked, state: bytes, seqno: int, cut: Cut | None) -> None:
        thread = threading.Thread(
            target=self._send_chunks,
            args=(asked, state, seqno, cut),
            name=f"abcast-{self.address}-state-for-{asked.joiner}",
            daemon=True,
        )
        self._threads = [each for each in self._threads if each.is_alive()]
        thread.start()
        self._threads.append(thread)

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
            _logger.warning("%s could not send the whole state to %s: %s", self.address, asked.joiner, error)

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
            _logger.warning("%s could not tell %s that it has no state: %s", self.address, asked.joiner, error)


def _is_members(asked: _Asked, view: ViewChange | None) -> bool:
    """Whether a member of the view has asked. With an outbox its letters may have a higher incarnation."""
    incarnations = view.incarnations if view is not None else ()
    return any(
        member.address == str(asked.joiner) and member.incarnation <= asked.id.incarnation for member in incarnations
    )


def _is_strangers(asked: _Asked, view: ViewChange | None) -> bool:
    """Whether a stranger has asked: no member of the view, although the view is as new as the joiner's first one."""
    return view is not None and asked.seqno <= view.seqno and not _is_members(asked, view)
