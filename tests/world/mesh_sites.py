"""The sites of a world of a mesh: the facts about their logs, and their members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.transport import PlainRecord
from connectors.takeover.rows import Output, decoded
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import (
    EPOCH,
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    LEAVE,
    MESSAGE,
    START_FLUSH,
    STRAY,
    Data,
    Forward,
    Malformed,
    Source,
)
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import EventReader, ViewChange
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.world.jobs import Job
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka, parsed, partition

GROUP = "g"


class MeshSite:
    """A site: its Kafka, its sequencers and members, and the age of its sites' file."""

    def __init__(self, kafka: WorldKafka, name: str, partitions: int, version: int) -> None:
        self.kafka, self.name, self.version = kafka, name, version
        self.connection = WorldConnection.to(kafka, name)
        self.connection.create(GROUP, name, partitions)
        self.jobs: list[Job] = []
        self.zombies: list[Job] = []
        """The jobs that never look whether another one has taken over."""
        self.leftovers: list[list[Output]] = []
        """Records of killed jobs that may still get into DATA."""
        self.senders: list[Sender] = []
        self._data: list[Data] = []
        self._told = [(0, SequencerState(GROUP))]

    @property
    def data(self) -> list[Data]:
        """DATA, dropped records included, with a stray in each place of a marker."""
        log = self.kafka.topics.partitions[partition("data", self.name)]
        self._data += [decode_data(each.key, each.value, each.headers) for each in log[len(self._data) :]]
        return self._data

    def tells(self, end: int | None = None) -> SequencerState:
        """Return the state that DATA below `end` tells, from its beginning, without any snapshot."""
        end = len(self.data) if end is None else end
        known_end, known = next(row for row in reversed(self._told) if row[0] <= end)
        rest = (each for each in self.data[known_end:end] if each.kind != STRAY)
        state = absorb(known, (replace(each, payload=b"") if each.kind == EPOCH else each for each in rest))
        if end > self._told[-1][0]:
            self._told.append((end, state))
        return state

    def effective(self) -> list[Data]:
        """Return all DATA that the reading rule ever took, packs as their messages: the ledger has it."""
        reader = Reader()
        taken = (each for each in self.data if each.kind != STRAY and reader.judge(each) is Verdict.TAKE)
        return [each for record in taken for each in unpacked(record)]

    def rows(self) -> list[Data]:
        """Return the ledger's rows: one for each seqno."""
        return [
            replace(each, seqno=seqno, count=1)
            for each in self.effective()
            for seqno in range(each.seqno, each.seqno + each.count)
        ]

    def inputs(self) -> Iterator[tuple[TopicPartition, list[PlainRecord]]]:
        """Yield the partitions that a sequencer reads, each with its kept records."""
        for place, log in sorted(self.kafka.topics.partitions.items()):
            topic = parsed(place.topic)
            if topic is not None and (topic.role == "forward" or (topic.role == "relayed" and topic.neighbour)):
                kept = log[self.kafka.topics.beginnings.get(place, 0) :]
                yield place, [each for each in kept if (place, each.offset) not in self.kafka.topics.marks]

    def forward(self) -> list[Forward | Malformed]:
        """Return the kept records of all inputs, in the order of a batch."""
        return [
            decoded(Source(place.topic, place.partition, each.offset), each)
            for place, records in self.inputs()
            for each in records
        ]


def state_of(job: Job) -> SequencerState:
    """Return a sequencer's state, after all that it has decided."""
    return job.loop._groups[GROUP].machine.pipeline.state


def decisions(state: SequencerState) -> tuple[object, ...]:
    """Return the part of a state that DATA decides, whatever snapshots it has, and whatever FORWARD has besides."""
    return (
        state.epoch,
        state.seqno,
        state.view,
        state.received,
        state.seals,
        state.own_seqno,
        state.origins,
        replace(state.membership.without_time(), horizon={}),
    )


class Sender:
    """A member's name through all its incarnations: it sends again, answers flushes, and is taken for dead.

    With `joins`, each incarnation begins with a JOIN.
    """

    def __init__(self, site: MeshSite, name: str, *, joins: bool) -> None:
        self.site, self.address, self.joins = site, f"{site.name}/{name}", joins
        topic = partition("forward", site.name).topic
        self.place = TopicPartition(topic, sum(name.encode()) % len(site.kafka.topics.numbers(topic)))
        self.incarnation = 0
        self.pending: list[tuple[int, str, bytes]] = []
        """Sent, and not seen in DATA."""
        self.last = self.offset = 0
        self.reader, self.events = Reader(), EventReader()
        self.is_in = self.is_quiet = self.is_leaving = self.is_paused = False
        self._begin_life([])

    def _begin_life(self, payloads: list[bytes]) -> None:
        self.incarnation, self.last, self.pending, self.is_in, self.is_quiet = self.incarnation + 1, 0, [], False, False
        if self.joins:
            self._put(JOIN)
        for payload in payloads:
            self._put(MESSAGE, payload)

    def _put(self, kind: str, payload: bytes = b"") -> None:
        self.last += 1
        self.pending.append((self.last, kind, payload))

    def broadcast(self, payload: bytes) -> bool:
        """Take a message; return whether the member may send now."""
        if self.is_quiet or self.is_leaving or self.is_paused:
            return False
        self._put(MESSAGE, payload)
        return True

    def leave(self) -> None:
        if self.is_in and not self.is_leaving:
            self.is_leaving = True
            self._put(LEAVE)

    def crash(self) -> None:
        """Start again without a memory of the sent messages."""
        self._begin_life([])

    def send(self, lost: set[int] | None = None) -> None:
        """Send the whole table again, but for the numbers that get lost."""
        if self.is_paused:
            return
        for local_seqno, kind, payload in self.pending:
            if local_seqno not in (lost or ()):
                self._append(local_seqno, kind, payload)
        self.beat()

    def beat(self) -> None:
        if self.joins and not self.is_paused and not (self.is_leaving and not self.is_in):
            self._append(1, HEARTBEAT, b"")

    def _append(self, local_seqno: int, kind: str, payload: bytes) -> None:
        if self.place not in self.site.kafka.topics.away:  # it is sent again
            with suppress(TooLarge):
                headers = forward_headers(self.incarnation, local_seqno, kind=kind)
                self.site.kafka.topics.append(self.place, self.address.encode(), payload, headers)

    def read(self, count: int = 1 << 30) -> None:
        if self.is_paused:
            return
        for record in self.site.data[self.offset : self.offset + count]:
            self.offset += 1
            if record.kind != STRAY and self.reader.judge(record) is Verdict.TAKE:
                self._take(record)

    def _take(self, record: Data) -> None:
        if (record.sender, record.incarnation) == (self.address, self.incarnation):
            self.pending = [entry for entry in self.pending if entry[0] > record.last_local_seqno]
        if not self.joins:
            return
        event = self.events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
        if isinstance(event, ViewChange):
            self._take_view(event)
        if self.is_in and record.kind == START_FLUSH:
            self.is_quiet = True
            if not self.is_leaving:
                self._put(FLUSH_OK, b"%d" % record.seqno)
        elif not self.events.is_blocked:
            self.is_quiet = False

    def _take_view(self, view: ViewChange) -> None:
        was_in, self.is_in = self.is_in, MemberIncarnation(self.address, self.incarnation) in view.incarnations
        if self.is_in and not was_in:
            self.is_quiet = self.events.is_blocked
        if was_in and not self.is_in and not self.is_leaving:
            self._come_again()

    def _come_again(self) -> None:
        """Come again after a suspicion: messages of the old incarnation are sent again in the next one."""
        if self.site.tells(self.offset).is_over(self.address, self.incarnation):
            self._begin_life([payload for _, kind, payload in self.pending if kind == MESSAGE])
        else:
            self._put(JOIN)
