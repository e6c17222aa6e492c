"""A group whose logs lose their ends, their beginnings, or all they have, while it goes on: one seed, one history.

It runs what ships on a Kafka in memory (`connectors.testing.memory_kafka`): takeovers, maintenance, the watchdog, the
process engine's intake, the cursor of members and deliverers. Members send until they see their messages. The end of
DATA or of FORWARD is cut; either is made anew, or the whole group is; retention takes beginnings; transactions leave
marks; the broker's clock jumps; a job of a later version writes records that take several seqnos. Then an operator
does what errors say. What must hold:

* no reader goes on in silence: all records that it gets, from its beginning on, are the same in the present log, or it
  raises (HistoryChanged, HistoryUnavailable), and gets no more;
* a start that knows that DATA went further, or that a ledger has more, is refused;
* no reader raises without a reason;
* at last all waiting messages are ordered, once, and each reader has all.

Not here: a reader that had a lost record last and looks again only after a purge of that offset: nothing is left to
compare. It begins anew, as after HistoryUnavailable.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.same_log import LedgerRow
from connectors.kafka.topics.data_purge import purge_data
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable
from ordering.base.names import ROLES, Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data, Partition
from ordering.checker.anomalies import DUPLICATE, FIFO_VIOLATION, GAP, LOST, Anomaly
from tests.simulator.mutation import NONE, Mutation
from tests.world.clock import Clock
from tests.world.jobs import Job

GROUP, SITE = "g", "s"
DATA, FORWARD = (Partition(str(Topic(GROUP, role, SITE)), 0) for role in ("data", "forward"))
ACTIONS = 120
LONG_S = 10.0
"""Longer than anybody goes without a look whether its log is the same."""
ROUNDS = 12

SILENT = "went on in silence"
FALSE_ALARM = "false alarm"
GIVEN_AGAIN = "given again"


class Told(NamedTuple):
    """A record as a reader is given it."""

    seqno: int
    sender: str
    incarnation: int
    local_seqno: int


@dataclass
class Log:
    """A reader's or a member's log. `is_told`: the reason of its end."""

    cursor: DataCursor
    given: list[Told] = field(default_factory=list)
    is_told: str = ""
    damage: int = 0
    """Number of damages of DATA before it began, without one that EPOCH told it of."""


@dataclass
class Sender:
    """A member: what it has sent and not seen yet."""

    address: str
    incarnation: int
    log: Log
    last: int = 0
    pending: list[int] = field(default_factory=list)


class Cuts:
    """The world of a seed; it is its own ledger."""

    def __init__(self, seed: int, later: float) -> None:
        """`later`: the share of batches with a record of a later kind."""
        self.dice = random.Random(seed)
        self.later, self.later_dice = later, random.Random(f"later {seed}")
        self.clock = Clock()
        self.connection = MemoryConnection()
        self.topics = self.connection.topics
        self.topics.changed, self.topics.longest_poll_s = self.clock.condition(), math.inf
        self.topics.clock = lambda: self.clock.now_s
        self.connection.create(GROUP, SITE)
        self.job: Job | None = None
        self.readers: list[Log] = []
        self.senders: list[Sender] = []
        self.lives = self.damage = 0
        self.is_damaged = False
        """Whether DATA has lost anything since the group was made."""
        self.has_ledger = self.dice.random() < 0.5
        self.ledger: Log | None = None
        self.rows: list[LedgerRow] = []
        self.anomalies: list[Anomaly] = []
        self.seen: set[str] = set()
        self.story: list[str] = []

    # What ships asks a ledger.

    def last_seqno(self, _: str) -> int:
        return self.rows[-1].seqno if self.rows else 0

    def row(self, _: str, seqno: int) -> LedgerRow | None:
        return next((row for row in reversed(self.rows) if row.seqno <= seqno), None)

    # What happens.

    def run(self, steps: int = ACTIONS) -> list[Anomaly]:
        acts = self.acts()
        weights = [weight for weight, _ in acts]
        self.start()
        for act in self.dice.choices([act for _, act in acts], weights, k=steps):
            self.tell(act.__name__)
            act()
            if self.anomalies:
                return self.anomalies
        self.tell("all faults end")
        self.end()
        return self.anomalies

    def acts(self) -> list[tuple[float, Callable[[], None]]]:
        """Return all that may happen, each with its weight."""
        return [
            (20, self.send),
            (8, self.resend),
            (25, self.decide),
            (8, self.look),
            (6, self.start),
            (3, self.kill),
            (25, self.read),
            (5, self.read_ledger),
            (5, self.begin_to_read),
            (8, self.wait),
            (1.5, self.truncate),
            (0.5, self.make_anew),
            (2, self.drop),
            (3, self.mark),
            (2, self.jump),
        ]

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.clock.steady_s:>8.1f} s  {what}")

    def note_error(self, who: str, error: AbcastError) -> None:
        self.tell(f"    {who} ends: {type(error).__name__}: {error}")
        self.seen.add(f"{who}: {type(error).__name__}")

    def blame(self, name: str, detail: str) -> None:
        self.tell(f"{name}: {detail}")
        self.anomalies.append(Anomaly(name, detail, ()))

    def effective(self) -> dict[int, tuple[Data, int, int]]:
        """Return DATA's decisions by their last seqno, with offset and time, dropped ones included."""
        reader, found = Reader(), dict[int, tuple[Data, int, int]]()
        for record in self.topics.partitions[TopicPartition(*DATA)]:
            data = decode_data(record.key, record.value, record.headers)
            if reader.judge(data) is Verdict.TAKE:
                found[data.seqno + data.count - 1] = data, record.offset, record.timestamp
        return found

    def follow(self, after: int | None = None) -> Log | None:
        """Begin to read behind a seqno; None for the newest."""
        with DataLog(self.connection, GROUP, SITE) as data, suppress(HistoryUnavailable):
            start = data.after(data.state().seqno if after is None else after, or_end=after is None)
            known_lost = start.offset > data.end()  # by EPOCH
            cursor = DataCursor(self.connection.consumer(), TopicPartition(*DATA), start)
            log = Log(cursor, damage=self.damage - known_lost)
            self.take(log)
            return log
        return None

    def take(self, log: Log) -> list[Told]:
        """Take the next record, which must be in the log."""
        if log.is_told:
            return []
        try:
            given = [Told(each.seqno, each.sender, each.incarnation, each.local_seqno) for each in log.cursor.poll(0.0)]
        except (HistoryChanged, HistoryUnavailable) as error:
            log.is_told = type(error).__name__
            self.note_error("a reader", error)
            if isinstance(error, HistoryChanged) and log.damage == self.damage:
                self.blame(FALSE_ALARM, f"DATA is whole, and yet: {error}")
            return []
        log.given += given
        for told in given:
            self.tell(f"    a reader is given {told}")
        if given:
            self.see_that_it_stands(log)
        return given

    def see_that_it_stands(self, log: Log) -> None:
        if (told := self.lost_of(log)) is not None:
            there = self.effective().get(told.seqno)
            self.blame(SILENT, f"a reader that had {told} goes on with {log.given[-1]}; DATA has {there}.")

    def lost_of(self, log: Log) -> Told | None:
        """Return the first record that the reader was given and DATA, dropped records included, does not have."""
        there = self.effective()
        for told in log.given:
            if told.seqno not in there or told != Told(told.seqno, *there[told.seqno][0].id):
                return told
        return None

    def begin_to_read(self) -> None:
        after = self.dice.choice([None, 0, self.dice.randint(0, max(self.effective(), default=0))])
        if (log := self.follow(after)) is not None:
            self.readers.append(log)

    def read(self) -> None:
        logs = [*self.readers, *(sender.log for sender in self.senders)]
        for log in self.dice.sample(logs, min(2, len(logs))):
            self.take(log)
        for sender in list(self.senders):
            self.acknowledge(sender)

    def acknowledge(self, sender: Sender) -> None:
        """Forget own messages that it has read. If its log has changed, it begins a new incarnation."""
        own = {told.local_seqno for told in sender.log.given if told[1:3] == (sender.address, sender.incarnation)}
        sender.pending = [number for number in sender.pending if number not in own]
        if sender.log.is_told and (log := self.follow()) is not None:
            self.lives += 1
            sender.log, sender.incarnation, sender.last = log, self.lives, len(sender.pending)
            sender.pending = list(range(1, sender.last + 1))

    def read_ledger(self) -> None:
        """Commit the rows that it reads. When it is told, an operator begins another ledger."""
        if not self.has_ledger:
            return
        if self.ledger is None or self.ledger.is_told:
            self.ledger, self.rows = self.follow(0), []
        if self.ledger is not None:
            there = self.effective()
            for told in self.take(self.ledger):
                if told.seqno in there:
                    data, offset, at_ms = there[told.seqno]
                    self.rows.append(LedgerRow(told.seqno, data.epoch, *data.id, offset, at_ms, data.forwarded_at_ms))

    def send(self) -> None:
        if len(self.senders) < 3 and self.dice.random() < 0.3 and (log := self.follow()) is not None:
            self.lives += 1
            self.senders.append(Sender(f"{SITE}/{'abc'[len(self.senders)]}", self.lives, log))
        if self.senders:
            sender = self.dice.choice(self.senders)
            sender.last += 1
            sender.pending.append(sender.last)
            self.write(sender, [sender.last])

    def resend(self) -> None:
        for sender in self.senders:
            self.write(sender, sender.pending)

    def write(self, sender: Sender, numbers: list[int]) -> None:
        for number in numbers:
            headers = forward_headers(sender.incarnation, number)
            self.topics.append(TopicPartition(*FORWARD), sender.address.encode(), b"", headers)

    def start(self) -> None:
        if self.job is not None:
            return
        known = list(self.rows) if self.has_ledger else []
        try:
            options = EngineOptions(self.connection, SITE, ledger=self if self.has_ledger else None)
            self.job = Job(options, self.clock)
        except AbcastError as error:
            self.note_error("a start", error)
            if isinstance(error, HistoryChanged) and not self.is_damaged:
                self.blame(FALSE_ALARM, f"DATA is whole, and yet: {error}")
            return
        there = self.effective()
        if any(row.seqno not in there or not row.is_of(there[row.seqno][0]) for row in known):
            self.blame(GIVEN_AGAIN, f"a sequencer has started, and the ledger has {known[-1]}.")

    def kill(self) -> None:
        if self.job is not None:
            self.job.close()
        self.job = None

    def decide(self) -> None:
        if self.job is None:
            return
        try:
            cut = self.dice.choice([None, None, None, None, 0, 1, 3])
            is_later = self.later_dice.random() < self.later
            if not self.job.decide(cut, self.later_dice.choice((1, 2, 3, 7)) if is_later else 0):
                self.kill()
        except AbcastError as error:
            self.note_error("a batch", error)
            self.kill()

    def look(self) -> None:
        if self.job is None:
            return
        try:
            self.job.look()
        except AbcastError as error:
            self.note_error("a job", error)
            self.kill()

    def wait(self) -> None:
        self.clock.sleep(self.dice.choice([0.1, 1.0, LONG_S]))

    def jump(self) -> None:
        self.topics.ahead_ms = self.dice.choice([0, self.dice.randint(-86_400_000, 86_400_000)])

    def mark(self) -> None:
        """Write a transaction's mark, as a stranger's producer may."""
        self.topics.mark(TopicPartition(*FORWARD))

    def drop(self) -> None:
        """Retention of FORWARD, or a purge of DATA."""
        if self.dice.random() < 0.4:
            self.purge()
            return
        place = TopicPartition(*FORWARD)
        begins, end = self.topics.beginnings.get(place, 0), len(self.topics.partitions[place])
        self.topics.drop(place.topic, self.dice.randint(begins, end), place.partition)

    def purge(self) -> None:
        known = self.last_seqno(GROUP) if self.has_ledger else max(self.effective(), default=0)
        age = self.dice.choice([0.0, 1.0, LONG_S])
        with suppress(AbcastError):
            purge_data(self.connection, GROUP, SITE, kept_s=age, in_ledger=known, lacking=lambda *_: "")
        self.end_the_incomparable()

    def end_the_incomparable(self) -> None:
        """End the readers of a lost record whose offset, the last that they read, was purged."""
        begins = self.topics.beginnings.get(TopicPartition(*DATA), 0)
        ledger = [self.ledger] if self.ledger is not None else []
        for log in [*self.readers, *(sender.log for sender in self.senders), *ledger]:
            if not log.is_told and log.cursor.position == begins and self.lost_of(log) is not None:
                log.is_told = "incomparable"
                self.seen.add(log.is_told)

    def truncate(self) -> None:
        """The newest records, mostly few, of one log."""
        topic = self.dice.choice([DATA, DATA, FORWARD]).topic
        end = len(self.topics.partitions[TopicPartition(topic, 0)])
        self.damaged(topic)
        begins = self.topics.beginnings.get(TopicPartition(topic, 0), 0)
        self.topics.truncate(topic, max(begins, end - self.dice.choice([1, 2, 5, 20])))

    def make_anew(self) -> None:
        topic = self.dice.choice([DATA, FORWARD]).topic
        if self.dice.random() < 0.5:
            self.make_group_anew()
        else:
            self.damaged(topic)
            self.topics.make_anew([topic])

    def make_group_anew(self) -> None:
        """Make the group anew as the errors say: all its topics, and another ledger. A running sequencer has
        stopped before.
        """
        self.kill()
        self.damaged(DATA.topic)
        self.topics.make_anew(str(Topic(GROUP, role, SITE)) for role in ROLES)
        self.is_damaged, self.ledger, self.rows = False, None, []

    def damaged(self, topic: str) -> None:
        self.clock.sleep(5)  # a power failure takes its time
        if topic == DATA.topic:
            self.tell("    DATA is damaged")
            self.damage += 1
            self.is_damaged = True

    # The end.

    def end(self) -> None:
        for _ in range(ROUNDS):
            self.clock.sleep(LONG_S)
            self.look()
            self.start()
            if self.job is None:
                self.make_group_anew()
                self.start()
            self.resend()
            self.decide_for_good()
            for log in [*self.readers, *(sender.log for sender in self.senders)]:
                self.take(log)
            for sender in self.senders:
                self.acknowledge(sender)
        self.judge()

    def decide_for_good(self) -> None:
        if self.job is not None:
            with suppress(AbcastError):
                if self.job.decide(None):
                    return
            self.kill()

    def judge(self) -> None:
        there = self.effective()
        lives: dict[tuple[str, int], int] = {}
        for data, _, _ in there.values():
            if data.kind != MESSAGE:
                continue
            if data.local_seqno <= lives.get(data.id[:2], 0):
                again = data.local_seqno == lives[data.id[:2]]
                self.blame(DUPLICATE if again else FIFO_VIOLATION, f"{data.id} comes late.")
            lives[data.id[:2]] = data.local_seqno
        for sender in self.senders:
            if sender.pending:
                self.blame(LOST, f"{sender.address} waits for {sender.pending}: {sorted(self.seen)}")
        for log in self.readers:
            if not log.is_told and log.given and log.given[-1].seqno != max(there, default=0):
                self.blame(GAP, f"a reader has {log.given[-1]}, and the log {max(there, default=0)}.")


@contextmanager
def playing(seed: int, *, has_later: bool = True) -> Iterator[Cuts]:
    """A world in which a history can be played. `has_later`: a job may write records of a later kind."""
    world = Cuts(seed, random.Random(f"has later {seed}").choice((0.0, 0.0, 0.1, 0.6)) if has_later else 0.0)
    with world.clock.installed():
        yield world
        world.kill()


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with mutation.broken(), playing(seed, has_later=mutation.has("later")) as world:
        return world.run()


def explain(seed: int, mutation: Mutation, _: str) -> str:
    """Return the history, event by event."""
    with mutation.broken(), playing(seed, has_later=mutation.has("later")) as world:
        world.run()
    return "\n".join(world.story)
