"""Every error abcast raises on purpose, in one tree.

Two questions matter to the code that catches one: was it the caller's mistake, and does trying again help?
`retriable` answers the second; the class answers the first. The message always says what to do next.
"""

from __future__ import annotations


def in_short(error: BaseException) -> str:
    """What the system says of a file or a name, without the number and the path that it puts around it."""
    return str(getattr(error, "strerror", None) or error)


def counted(count: int, noun: str, plural: str = "") -> str:
    """So many of them, in words: `1 message`, `2 messages`. `plural`: unless it is the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


class AbcastError(Exception):
    """Base of all errors raised on purpose. `retriable`: the same call may succeed later, unchanged."""

    retriable = False
    is_failure = True
    """Whether something went wrong; else a job just begins anew."""
    was_told = False
    """Whether the application has heard of it: one error may end many receipts, and is news once."""


class UsageError(AbcastError):
    """The caller asked for something that can't be: a bad name, a bad option, a call in the wrong state."""


class EnvironmentProblem(AbcastError):
    """The machine lacks something: Java, disk space, a free port, the network."""


class BrokerUnreachable(AbcastError):
    """No Kafka broker answered in time."""

    retriable = True


class StoreUnreachable(AbcastError):
    """The object store of the tables did not answer in time."""

    retriable = True


class KafkaRefused(AbcastError):
    """Kafka is there, and says no: the login is wrong, its certificate is not trusted, or the user lacks a right."""


class TopicMissing(AbcastError):
    """A topic that the group needs does not exist (yet)."""

    retriable = True


class ForwardTableFull(AbcastError):
    """The sender's forward table stayed full for the whole timeout: DATA does not come back fast enough."""

    retriable = True


class NotOrderedInTime(AbcastError):
    """A broadcast was accepted, but its own DATA was not seen within the timeout. It may still be ordered."""

    retriable = True


class LetterTableFull(AbcastError):
    """The table of letters that Kafka has not acknowledged stayed full for the whole timeout."""

    retriable = True


class NotWrittenInTime(AbcastError):
    """A letter was accepted, but Kafka did not acknowledge it within the timeout. It may still be written."""

    retriable = True


class Blocked(AbcastError):
    """A flush is in hand, and did not end within the timeout: no member may send."""

    retriable = True


class FlushFailed(AbcastError):
    """A flush was refused, or ended before all members were quiet, or before its requester ended it."""

    retriable = True


class Excluded(AbcastError):
    """The group has taken this member for dead. It joins again by itself, as a new member.

    `broadcast` raises it meanwhile, and has not taken the message. A receipt raises it if the message may be lost.
    """

    retriable = True


class Superseded(AbcastError):
    """Another process sends under this member's name: with a higher incarnation, or with the same."""


class Fenced(AbcastError):
    """A sequencer with a newer epoch has taken over the group; this one must leave it, and stop if it has no other."""


class HistoryUnavailable(AbcastError):
    """Kafka's retention has dropped records that are needed, and no ledger was given to read them from."""


class PositionLost(AbcastError):
    """Kafka has forgotten how far a member's name had delivered. It does not begin at the first message unless told to.

    `deliveries(from_seqno=n, remember=True)` says where to go on; for letters, `inbox(from_beginning=True)`.
    """


class StateUnavailable(AbcastError):
    """No member has the application's state, although the group has a history: a state made of nothing would be wrong.

    `connect(state=True, or_history=True)` makes it from the history, `connect(from_seqno=n)` goes on from one's own.
    """


class NoSnapshot(HistoryUnavailable):
    """What retention has left of DATA does not tell its state; it will when a sequencer has started."""

    retriable = True


class ProtocolViolation(AbcastError):
    """What was read from the log breaks a rule that no correct writer breaks (a bug, or a foreign writer)."""


class LaterVersion(ProtocolViolation):
    """What was read is of a later version of abcast, and can't be passed over. It says which version to install."""


class HistoryChanged(ProtocolViolation):
    """A log is not the one that it was: it was made anew, or has lost its end. What was read stands there no more.

    Nobody goes on by itself: what comes may be other messages under numbers that were given before.
    """


class Disagreement(ProtocolViolation):
    """Of sites that agree: what one has promised or ordered is not what another one knows of it. It must not go on."""
