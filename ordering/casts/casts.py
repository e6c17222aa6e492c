"""Casts: messages that go straight from a member to the members, in FIFO or causal order, with no seqno.

Source: Group Communication (docs/sources.md): FIFO, causal, total, synchronous.

A total message goes through the sequencer; a cast goes from the sender's partition to every member. The three orders
meet in each member, in `ordering.casts.causal`.

What holds between two messages m1 and m2, if the sender of m2 had *sent or delivered* m1 before it sent m2: does
every member deliver m1 first?

| m1 → m2        | m2 fifo             | m2 causal | m2 total |
| -------------- | ------------------- | --------- | -------- |
| **m1 fifo**    | if of one sender    | yes       | yes      |
| **m1 causal**  | if of one sender    | yes       | yes      |
| **m1 total**   | no                  | yes       | yes      |

* *Casts of one sender* have one numbering, 1, 2, 3 …, fifo and causal alike: so they are delivered as they were sent.
* *m2 causal.* It carries the vector of the casts (`clock`) and the highest seqno (`after`) that its sender had
  delivered, and waits for them. What the sender has broadcast itself has no seqno yet: so a causal cast is not sent
  before its sender has delivered its own broadcasts (`ordering.casts.outgoing`).
* *m2 total.* It carries the vector (`Depends`), and the whole total order waits with it. A total m1 has the lower
  seqno: of another sender, since m2 is numbered after m1 was delivered somewhere; of the same one, by go-back-N.
* *m2 fifo* carries nothing but its number. So no chain of causes leads through a fifo message, other than along the
  casts of its sender: that is what makes it cheap.

By transitivity the rest follows: a chain of causal and total messages is delivered in its order everywhere.

*Synchronous* (the source's last kind): a total message whose sender takes its own delivery for the moment of sending.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ordering.base.records import MESSAGE, Headers
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import message_bytes

FIFO = "fifo"
CAUSAL = "causal"
TOTAL = "total"
ORDERS = (FIFO, CAUSAL, TOTAL)

NO_VIEW = 0
"""The view of a cast whose sender is in none: fifo only, numbered on its own (`ordering.casts.fifo`)."""


class Cast(NamedTuple):
    """A message in FIFO or causal order. `local_seqno` counts the casts of a life, apart from its broadcasts.

    `view` is the one in which it was sent. With order `causal`, `clock` says what its sender had delivered of each
    member of that view (`ordering.casts.clocks`; its own entry is `local_seqno`), and `after` is the highest seqno that
    it had delivered.
    """

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes = b""
    order: str = FIFO
    view: int = NO_VIEW
    after: int = 0
    clock: str = ""
    headers: Headers = ()
    written_at_ms: int = 0
    """When the broker of its site, or a relay's, had it; 0 before. Nothing is decided by it."""

    @property
    def life(self) -> MemberIncarnation:
        """Who sent it."""
        return MemberIncarnation(self.sender, self.incarnation)


def size_of(cast: Cast) -> int:
    """Bytes of its payload and headers."""
    return message_bytes(cast.payload, cast.headers)


class Depends(NamedTuple):
    """What a total message depends on: the casts that its sender had delivered or sent, as the clock of a view.

    The clock is written as it is. A message without it depends on no more than its sender's last one.
    """

    view: int
    clock: str


class Settled(NamedTuple):
    """A life that is over with a view, and how many of its casts were delivered."""

    life: MemberIncarnation
    local_seqno: int


class OrderedRecord(NamedTuple):
    """An effective DATA record, as `ordering.base.reader` takes it. `view`, `lives` (in order) and
    `is_in_flush` are those of a view, `payload` is that of settings.

    As a delivery, a view says what is `settled` with it.

    `depends` stands on messages and on FLUSH_OK of members that send casts. `record` is the caller's, for him alone.
    """

    seqno: int
    kind: str = MESSAGE
    sender: str = ""
    incarnation: int = 0
    local_seqno: int = 0
    depends: Depends | None = None
    view: int = NO_VIEW
    lives: tuple[MemberIncarnation, ...] = ()
    settled: tuple[Settled, ...] = ()
    is_in_flush: bool = False
    payload: bytes = b""
    record: object = None

    @property
    def life(self) -> MemberIncarnation:
        """Who sent it."""
        return MemberIncarnation(self.sender, self.incarnation)


class CastVerdict(Enum):
    """What a receiver makes of one record. The numbers are those of the source's rules."""

    ACCEPT = "accept"
    """(1) and (2): it is delivered, and perhaps others that were held."""
    HOLD = "hold"
    """(3) or (4): it waits in the hold-back queue."""
    DISCARD = "discard"
    """(5): a duplicate."""
    OVER = "over"
    """It is of a life, or of a view, that is over: no receiver will deliver it any more."""
    FULL = "full"
    """It would wait, but the hold-back queue is full. Nothing has changed: read it again when there is room."""
    MALFORMED = "malformed"
    """Its clock can't be read. All find that, so all pass it over: it is dropped, and its number is taken."""


class CastStep(NamedTuple):
    """What one record leads to: deliveries in their order, and what no receiver delivers any more (over, malformed)."""

    verdict: CastVerdict
    deliveries: tuple[Cast | OrderedRecord, ...] = ()
    dropped: tuple[Cast, ...] = ()
