"""Letters of the kind `state`: the messages between a joiner and a supplier.

`connectors.client.state.state_transfer` has the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from connectors.client.values.letter import LetterReceipt
from connectors.kafka.codec.letter_codec import WrittenLetter
from ordering.base.canonical import UNREADABLE
from ordering.base.names import Address
from ordering.base.records import MAX_NUMBER, Headers

H_STATE = "state"

Send = Callable[[Address, bytes, Headers], LetterReceipt]
"""A function that sends a letter of the kind `state`, and returns its receipt."""


class RequestId(NamedTuple):
    """The incarnation and local seqno of the letter that asks. A joiner's later requests are greater."""

    incarnation: int
    local_seqno: int


class Request(NamedTuple):
    """A joiner's request for a state that counts at least the messages up to `seqno`; `with_casts`, at a cut."""

    seqno: int
    with_casts: bool = False

    def headers(self) -> Headers:
        """Encode it as a letter's headers."""
        numbers = [self.seqno, 1] if self.with_casts else [self.seqno]
        return ((H_STATE, json.dumps(["request", *numbers]).encode("ascii")),)


class Chunk(NamedTuple):
    """Chunk `number` (from 0) of `total` of the state at `seqno`. The letter's payload is the chunk."""

    request: RequestId
    seqno: int
    number: int
    total: int

    def headers(self) -> Headers:
        """Encode it as a letter's headers."""
        return ((H_STATE, json.dumps(["chunk", *self.request, *self[1:]]).encode("ascii")),)


class Nothing(NamedTuple):
    """The answer of a member that has no state to give: it waits for one itself, or has none at a cut."""

    request: RequestId

    def headers(self) -> Headers:
        """Encode it as a letter's headers."""
        return ((H_STATE, json.dumps(["nothing", *self.request]).encode("ascii")),)


def decode_state_letter(letter: WrittenLetter) -> Request | Chunk | Nothing | None:
    """Decode a letter of the kind `state`; return None if it is malformed."""
    try:
        what, *numbers = json.loads(dict(letter.headers)[H_STATE])
    except UNREADABLE:
        return None
    if any(type(number) is not int or not 0 <= number <= MAX_NUMBER for number in numbers):
        return None
    if what == "request" and len(numbers) in (1, 2):
        return Request(numbers[0], bool(numbers[1:] and numbers[1]))
    if what == "nothing" and len(numbers) == 2:
        return Nothing(RequestId(*numbers))
    if what == "chunk" and len(numbers) == 5:
        return Chunk(RequestId(*numbers[:2]), *numbers[2:])
    return None


@dataclass(slots=True)
class StateAssembly:
    """The part of the answer to one request that has come. It takes each chunk of one answer once, in order.

    `heard_at` is the time of the last letter taken, or of the request, by the monotonic clock.
    """

    supplier: str
    request: RequestId
    heard_at: float
    answer: tuple[int, int, int] | None = None
    """The supplier's incarnation, the state's seqno, the number of its chunks."""
    chunks: list[bytes] = field(default_factory=list)
    is_nothing: bool = False
    """Whether the supplier has answered that it has no state."""
    incarnation: int = 1
    """The supplier's incarnation in the view: letters of an earlier one are ignored."""

    def accept(self, letter: WrittenLetter, what: Chunk | Nothing) -> bool:
        """Take a letter; return whether it was the next chunk, or the answer that there is no state."""
        if (letter.sender, what.request) != (self.supplier, self.request) or letter.incarnation < self.incarnation:
            return False
        if isinstance(what, Nothing):
            self.is_nothing = True
            return True
        return self._accept_chunk(letter, what)

    def _accept_chunk(self, letter: WrittenLetter, chunk: Chunk) -> bool:
        answer = (letter.incarnation, chunk.seqno, chunk.total)
        if chunk.number != len(self.chunks):
            return False
        if self.answer not in (None, answer) or chunk.number >= chunk.total:
            return False
        self.answer = answer
        self.chunks.append(letter.payload)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are here."""
        return self.answer is not None and len(self.chunks) == self.answer[2]
