"""Every error abcast raises on purpose, in one tree.

The code that catches one asks two questions. Was it the caller's mistake? The class answers. Does trying again help?
`retriable` answers. If a user can mend it, the message says how.
"""

from __future__ import annotations


def in_short(error: BaseException) -> str:
    """Return the operating system's message without the error number and the path; the text of any other error."""
    return str(getattr(error, "strerror", None) or error)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 message`, `2 messages`. `plural`: given where the noun takes no plain s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


class AbcastError(Exception):
    """Base of all errors raised on purpose. `retriable`: the same call may succeed later, unchanged."""

    retriable = False
    is_failure = True
    """Whether something went wrong. If not, the job that raised the error starts again at once, without a warning."""
    was_told = False
    """Whether the application was told of this error. One error may end many receipts, and is reported once."""


class UsageError(AbcastError):
    """A mistake of the caller: a bad name, a bad option, a call in the wrong state."""


class EnvironmentProblem(AbcastError):
    """A problem of the machine: no Java, a full disk, a port in use, no network."""


class BrokerUnreachable(AbcastError):
    """No Kafka broker answered in time, or a partition has no leader."""

    retriable = True


class StoreUnreachable(AbcastError):
    """The object store of the tables did not answer in time, or has too much to do."""

    retriable = True


class KafkaRefused(AbcastError):
    """Kafka answered with a refusal: a wrong login, an untrusted certificate, a right that the user lacks, or a record
    that is too large for its topic.
    """


class TopicMissing(AbcastError):
    """A topic that the group needs does not exist (yet)."""

    retriable = True


class ForwardTableFull(AbcastError):
    """The sender's forward table stayed full for the whole timeout, or for a cast, the queue of casts to Kafka did."""

    retriable = True


class NotOrderedInTime(AbcastError):
    """A broadcast was accepted, but its own DATA was not seen within the timeout. It may still be ordered."""

    retriable = True


class LetterTableFull(AbcastError):
    """The table of letters that Kafka has not acknowledged stayed full for the whole timeout."""

    retriable = True


class NotWrittenInTime(AbcastError):
    """A letter, or a message in fifo or causal order, was accepted, but not written within the timeout.

    It may still be written.
    """

    retriable = True


class Blocked(AbcastError):
    """A member may not send yet: a flush, its first view, or its earlier casts took longer than the timeout."""

    retriable = True


class FlushFailed(AbcastError):
    """A flush that this member wanted did not come about, or ended before the member ended it.

    It was refused, the member's last one is not over yet, or not all members were quiet within the timeout.
    """

    retriable = True


class Excluded(AbcastError):
    """The group has taken this member for dead. The member joins again by itself, in a new incarnation.

    Until then `broadcast` raises this error and does not take the message. A receipt raises it if its message may be
    lost.
    """

    retriable = True


class Superseded(AbcastError):
    """Another process sends under this member's name, or the member's outbox can't be matched with DATA any more."""


class Fenced(AbcastError):
    """A sequencer with a newer epoch takes over the group. This one must leave it, and stop if it has no other."""


class HistoryUnavailable(AbcastError):
    """Records that are needed are gone, and no ledger that this call may read has them.

    Retention has dropped the records, or a copy or a note of them is damaged.
    """


class OvertakenByRetention(HistoryUnavailable):
    """Retention, or a purge, has dropped records while they were read. The same call begins with the remaining ones."""

    retriable = True


class PositionLost(AbcastError):
    """A member's position in Kafka is gone, or its seqno is not known. Only the application can choose a new one.

    `deliveries(from_seqno=n, remember=True)` goes on at `n`; for letters, `inbox(from_beginning=True)` starts over.
    """


class StateUnavailable(AbcastError):
    """No member has the application's state, although the group has a history: an empty state would be wrong.

    `connect(state=True, or_history=True)` builds it from the history; `connect(from_seqno=n)` goes on from the caller's
    own state.
    """


class NoSnapshot(HistoryUnavailable):
    """Retention has dropped the part of DATA that the state depends on. A running sequencer's snapshot mends that."""

    retriable = True


class ProtocolViolation(AbcastError):
    """The log breaks a rule that every correct writer keeps: a bug, or a foreign writer."""


class LaterVersion(ProtocolViolation):
    """A record of a later version that this one must not pass over. The message says which version to install."""


class CastMissing(ProtocolViolation):
    """A message depends on a cast that is in no log: its sender's client has a fault, or the log has lost the cast.

    Nothing behind that message can be delivered here. A new start goes on.
    """


class HistoryChanged(ProtocolViolation):
    """A log was replaced, or has lost its end: it no longer has the records that were read from it.

    No reader goes on by itself: the next records may be other messages under seqnos that were used before.
    """


class HistoryRestored(HistoryChanged):
    """The group was restored from a ledger that lacks seqnos that the caller has: these messages are lost.

    They are `first` to `last`. No other message gets these seqnos. The restored history goes on behind `behind`.
    """

    def __init__(self, sentence: str, first: int, last: int, behind: int) -> None:
        super().__init__(sentence, first, last, behind)
        self.first, self.last, self.behind = first, last, behind

    def __str__(self) -> str:
        return str(self.args[0])


class Disagreement(ProtocolViolation):
    """Sites that agree contradict each other: one's log or order differs from another's record of it.

    The site that finds this stops.
    """
