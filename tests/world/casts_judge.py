"""The judge of messages in all orders. It knows nothing of clocks.

It notes, for each message, all that happened before it was sent: what its application had sent or been given, and what
had happened before that. It compares that with what others were given before it. Sets of messages are numbers: bit n is
message n, whose payload is n.

A reader that begins with a view has everything of the views before. What that is, others tell, who were there before.
So its deliveries wait in `Seen.early` until somebody knows. If nobody goes on into the view, others may
lack all messages so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import CAUSAL, FIFO, NO_VIEW, TOTAL, Cast, OrderedRecord
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, LOST, VIEW_VIOLATION
from ordering.membership.membership import MemberIncarnation

NOBODY = "nobody"
"""The reader of a view that nobody goes on into."""
Blame = Callable[[str, str], None]


@dataclass
class Message:
    """A message: what happened before it."""

    order: str
    sender: str
    past: int
    process: object
    """The process that has to see to it: that of its sender, or of a later start under the name."""
    may_lack: bool = False
    """Whether others may lack it: its sender counts casts wrongly, or was put out of the view with it."""


@dataclass
class Seen:
    """The deliveries of one reader: of a hub, or of an application."""

    who: str
    given: int | None = 0
    """None until somebody tells the deliveries before the first view."""
    first: int = NO_VIEW
    """The first view, while `given` is None."""
    early: list[Cast | OrderedRecord] = field(default_factory=list)
    lines: list[Cast | OrderedRecord] = field(default_factory=list)
    happened: int = 0
    """The messages before its next one."""
    happened_to_casts: int = 0
    """The same for its next fifo message: its own casts, and what happened before those."""
    begins: dict[tuple[bool, str], int] = field(default_factory=dict)
    """The first message that it was given, by whether it was a total one, and by sender."""
    life: MemberIncarnation | None = None
    """The incarnation of its member."""
    is_out: bool = False
    """Whether a view came without its member: others need not agree with it any more."""
    is_lax: bool = False
    """Whether it may lack messages: it began without a view, or its process counts casts wrongly."""
    view: int = NO_VIEW
    """The last view that it is in."""


class Judge:
    """The judge of one history."""

    def __init__(self, blame: Blame, tell: Callable[[str], None]) -> None:
        self.blame, self.tell = blame, tell
        self.messages: list[Message] = []
        self.before: dict[int, tuple[str, int]] = {1: (NOBODY, 0)}
        """By view: a reader that was there before, and its deliveries before the view."""
        self.settled: dict[int, object] = {}
        self.readers: list[Seen] = []
        """The readers of the history, in the order of their starts."""
        self.doubtful = 0
        """The messages that `may_lack`."""

    def sends(self, seen: Seen, sender: str, order: str, process: object) -> bytes:
        """Note that an application sends a message; return its payload."""
        number, past = len(self.messages), seen.happened_to_casts if order == FIFO else seen.happened
        self.messages.append(Message(order, sender, past, process))
        seen.happened |= past | 1 << number
        if order != TOTAL:
            seen.happened_to_casts |= past | 1 << number
        return b"%d" % number

    def is_taken_back(self, seen: Seen, payload: bytes) -> None:
        """Forget a message that was not accepted after all: it depends on nothing, and nothing on it."""
        bit = 1 << int(payload)
        seen.happened &= ~bit
        seen.happened_to_casts &= ~bit
        self.may_lack(int(payload))

    def may_lack(self, number: int) -> None:
        """Let others lack a message."""
        self.messages[number].may_lack = True
        self.doubtful |= 1 << number

    def gives(self, seen: Seen, record: Cast | OrderedRecord) -> None:
        """Judge a delivery."""
        if seen.is_out:
            return
        if not isinstance(record, Cast) and record.kind == VIEW and seen.given is None:
            seen.first = seen.first or record.view
            self._look(seen)
        if seen.given is None:
            seen.early.append(record)
            return
        if isinstance(record, Cast) or record.kind == MESSAGE:
            seen.lines.append(record)
            self._message(seen, int(payload_of(record)), record)
        elif record.kind == VIEW:
            seen.lines.append(record)
            self._view(seen, record)

    def look(self, seen: Seen, others: Iterable[Seen]) -> None:
        """Judge the waiting deliveries once another reader tells those before. If none can any more, there are none."""
        if seen.given is not None or not seen.first:
            return
        may_tell = (each.given is not None and each.view < seen.first for each in others)
        if seen.first not in self.before and not any(may_tell):
            for number in range(len(self.messages)):
                self.may_lack(number)
            self.before[seen.first] = NOBODY, 0
        self._look(seen)

    def _look(self, seen: Seen) -> None:
        known = self.before.get(seen.first)
        if known is not None:
            self.go_on(seen, known[1])

    def go_on(self, seen: Seen, given: int) -> None:
        """Let a reader go on from so much."""
        seen.given, waiting = given, seen.early
        seen.happened |= given
        for number in bits(given):
            seen.happened |= self.messages[number].past
        seen.early = []
        for record in waiting:
            self.gives(seen, record)

    def _message(self, seen: Seen, number: int, record: Cast | OrderedRecord) -> None:
        assert seen.given is not None
        bit, message = 1 << number, self.messages[number]
        self.tell(f"{seen.who} is given {self.name(number)}")
        if isinstance(record, Cast) and record.view == NO_VIEW and not seen.is_lax:
            self.may_lack(number)  # a sender that is out of the view has cast it again: views do not separate it
        if isinstance(record, Cast) and record.order != message.order:
            self.blame(CAUSAL_VIOLATION, f"{seen.who} is given {self.name(number)} in {record.order} order")
        if seen.given & bit & ~self.doubtful:
            self.blame(DUPLICATE, f"{seen.who} is given {self.name(number)} twice")
        lacks = self._of(seen, message.past, *self.kind(number)) & ~seen.given & ~self.doubtful
        if lacks and not message.may_lack:
            first = next(bits(lacks))
            of_casts = TOTAL not in (self.messages[first].order, message.order)
            is_one = of_casts and self.messages[first].sender == message.sender
            self.blame(
                FIFO_VIOLATION if is_one else CAUSAL_VIOLATION,
                f"{seen.who} is given {self.name(number)} before {self.name(first)}",
            )
        seen.given |= bit
        seen.happened |= bit | message.past
        seen.begins.setdefault(self.kind(number), number)

    def _of(self, seen: Seen, messages: int, is_total: bool, sender: str) -> int:
        """Return the messages that a reader may not lack: if it is lax, the sender's own, from its first on.

        A reader without a view begins anywhere among casts, and waits for no other sender's.
        """
        if not seen.is_lax:
            return messages
        begin = seen.begins.get((is_total, sender), len(self.messages))
        return sum(1 << n for n in bits(messages >> begin << begin) if self.kind(n) == (is_total, sender))

    def kind(self, number: int) -> tuple[bool, str]:
        """Return whether a message is in total order, and its sender."""
        message = self.messages[number]
        return message.order == TOTAL, message.sender

    def _view(self, seen: Seen, record: OrderedRecord) -> None:
        assert seen.given is not None
        self.tell(f"{seen.who} is in view {record.view}")
        if seen.life not in record.members and (record.members or not seen.is_lax):  # without a flush it has none
            seen.is_out = True
        if seen.is_lax or seen.is_out:
            return
        seen.view = record.view
        who, before = self.before.setdefault(record.view, (seen.who, seen.given))
        if other := (before ^ seen.given) & ~self.doubtful:
            which = self.name(next(bits(other)))
            self.blame(VIEW_VIOLATION, f"before view {record.view}, one of {who} and {seen.who} has {which}")
        is_known = self.before[record.view][0] != NOBODY
        if record.settled and is_known and self.settled.setdefault(record.view, record.settled) != record.settled:
            self.blame(VIEW_VIOLATION, f"{seen.who} takes {record.settled} for settled with view {record.view}")

    def end(self, readers: list[Seen], living: Callable[[object], bool]) -> None:
        """Judge the end: all that go on have the same, and all that a living process has sent."""
        everything = 0
        for seen in readers:
            everything |= seen.given or 0
        for number, message in enumerate(self.messages):
            if living(message.process):
                everything |= 1 << number
        for seen in readers:
            if seen.given is None or seen.is_out:
                continue
            wanted = everything
            if seen.is_lax:
                wanted = 0
                for kind in seen.begins:
                    wanted |= self._of(seen, everything, *kind)
            if lacks := wanted & ~seen.given & ~self.doubtful:
                self.blame(LOST, f"{seen.who} is never given {self.name(next(bits(lacks)))}")

    def name(self, number: int) -> str:
        """Return a message's name for people."""
        message = self.messages[number]
        return f"message {number} ({message.order}, of {message.sender})"


def payload_of(record: Cast | OrderedRecord) -> bytes:
    """Return a message's payload."""
    return record.payload if isinstance(record, Cast) else record.record.value  # type: ignore[attr-defined]


def bits(number: int) -> Iterator[int]:
    """Yield the places of the ones in a number, lowest first."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


ORDERS = (FIFO, CAUSAL, CAUSAL, TOTAL)
"""The orders to choose from."""
