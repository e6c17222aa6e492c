"""The durable part of a group at a site: forward partitions, DATA and EPOCH, in `tests.simulator.kafka`.

`SimulatedLog` is the real `connectors.kafka.log.data_log.DataLog` on top of it: `state` and `after` are its own code.
Each state that it rebuilds is compared with what the reading rule alone makes of the log from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from connectors.kafka.codec.epochs import Claim, Note
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import EpochLog, Epochs
from connectors.kafka.log.stored_record import StoredRecord
from ordering.base.errors import HistoryUnavailable
from ordering.base.formats import FORMATS
from ordering.base.names import Topic
from ordering.base.reader import Reader, Seal, Verdict, with_seal
from ordering.base.records import FORGET, Data, Forward, Malformed, Partition, Source
from ordering.membership.forgetting import from_payload
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.state import SequencerState
from tests.simulator.kafka import Kafka, Log

GROUP = "g"
SITE = "s"
FORWARD_TOPIC = str(Topic(GROUP, "forward", SITE))


class Known(NamedTuple):
    """The state that a prefix of DATA tells, read record by record from its beginning, without any snapshot."""

    epoch: int
    seqno: int
    received: Mapping[str, ReceivedRow]
    seals: tuple[Seal, ...]

    @classmethod
    def of(cls, state: SequencerState) -> Known:
        return cls(state.epoch, state.seqno, state.received, state.seals).in_short()

    def in_short(self) -> Known:
        """Drop the seals of epochs without a decision, which a ledger does not know."""
        epochs = {seal.first_seqno: seal.epoch for seal in sorted(self.seals)}
        return self._replace(seals=tuple(sorted(Seal(epoch, first) for first, epoch in epochs.items())))


class Broker:
    """The durable part of a group. It never crashes; its users do."""

    def __init__(self, partitions: int, site: str = SITE) -> None:
        self.kafka = Kafka()
        self.forward: list[Log] = []
        self._data = self.kafka.log(str(Topic(GROUP, "data", site)))
        self.claims: list[Claim] = []
        self.notes: list[Note] = []
        self.known: list[Known] = [Known(0, 0, {}, ())]
        """By the end of the prefix."""
        self.wrong_states: list[str] = []
        """States that `DataLog.state` made of a prefix and that are not `known`."""
        self.upgraded_after = partitions - 1
        """The group is given the newest format behind the claim of that epoch."""
        for _ in range(partitions):
            self.add_partition()

    @property
    def data(self) -> list[Data]:
        """Return all DATA that ever was, purged or not."""
        return self._data.records

    @property
    def beginning(self) -> int:
        """The first DATA that was not deleted."""
        return self._data.beginning

    @beginning.setter
    def beginning(self, offset: int) -> None:
        self._data.beginning = offset

    @property
    def purged(self) -> dict[Partition, int]:
        """The offset below which each partition of FORWARD was purged (`connectors.kafka.topics.purge`)."""
        return {place: log.beginning for place, log in self.kafka.logs.items() if place.topic == FORWARD_TOPIC}

    def add_partition(self) -> None:
        """Add a partition of FORWARD."""
        self.forward.append(self.kafka.log(FORWARD_TOPIC, len(self.forward)))

    def next_source(self, partition: int) -> Source:
        return Source(FORWARD_TOPIC, partition, self.forward[partition].end)

    def append_message(self, partition: int, sender: str, incarnation: int, local_seqno: int, payload: bytes) -> Source:
        source = self.next_source(partition)
        self.forward[partition].append(Forward(sender, incarnation, local_seqno, payload, source))
        return source

    def append_malformed(self, partition: int, reason: str) -> Source:
        source = self.next_source(partition)
        self.forward[partition].append(Malformed(source, reason))
        return source

    def append_data(self, record: Data) -> int:
        """Append to DATA; return the offset."""
        epoch, seqno, received, seals = self.known[-1]
        verdict = Reader(epoch, seqno).judge(record)
        if verdict is Verdict.CONTROL and record.epoch > epoch:
            seals = with_seal(seals, Seal(record.epoch, seqno + 1))
        elif verdict is Verdict.TAKE:
            seqno = record.seqno + record.count - 1
            if record.sender:
                received = {**received, record.sender: ReceivedRow(record.incarnation, record.local_seqno)}
            if record.kind == FORGET:
                gone = {row.sender: row[1:] for row in from_payload(record.payload) or ()}
                received = {sender: row for sender, row in received.items() if gone.get(sender) != row}
        self.known.append(Known(max(epoch, record.epoch), seqno, received, seals))
        self.data.append(record)
        return len(self.data) - 1

    def format_of(self, epoch: int) -> int:
        """Return the format that a takeover finds."""
        return FORMATS[0 if epoch <= self.upgraded_after else -1].number

    def newest_epoch(self) -> int:
        return max((claim.epoch for claim in self.claims), default=0)

    def append_claim(self, floor: int) -> int:
        """Append to EPOCH; return the epoch claimed."""
        self.claims.append(Claim(len(self.claims) + 1, floor))
        return len(self.claims)


class SimulatedLog(DataLog):
    """The real reading code of the DATA log, on the simulated broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = Topic(GROUP, "data", SITE)
        self.epochs = SimulatedEpochs(self)

    def beginning(self) -> int:
        return self.broker.beginning

    def end(self, reached: int = 0) -> int:
        return len(self.broker.data)

    def records(self, start: int, end: int) -> Iterator[StoredRecord]:
        if start < min(end, self.beginning()):
            raise HistoryUnavailable(f"retention has dropped offset {start}.")  # as Kafka's consumer does
        for offset in range(start, min(end, len(self.broker.data))):
            yield StoredRecord(offset, offset, self.broker.data[offset])

    def state(self, end: int | None = None) -> SequencerState:
        end = self.end() if end is None else end
        state = super().state(end)
        known = self.broker.known[end].in_short()
        if Known.of(state) != known:
            self.broker.wrong_states.append(f"the state below offset {end} is {Known.of(state)}, and not {known}.")
        return state


class SimulatedEpochs(EpochLog):
    """EPOCH of the simulated broker: claims and notes. No relay fills the log, and its home never moves."""

    def __init__(self, log: SimulatedLog) -> None:
        self.log = log

    def read(self, *, again: bool = False) -> Epochs:
        del again  # its EPOCH only grows
        return Epochs(SITE, list(self.log.broker.claims), list(self.log.broker.notes))

    def bases_where(self, is_low: Callable[[SequencerState], bool]) -> Iterator[SequencerState]:
        return iter(())
