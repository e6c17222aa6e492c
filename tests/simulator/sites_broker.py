"""A site's Kafka in memory, and its sequencer: DATA, EPOCH, its own forward partitions, and a topic for each neighbour.

`broker` and `sequencers` have the processes; here are the topics of a mesh, and views at the end of a batch.
"""

from __future__ import annotations

import random
from dataclasses import replace

from connectors.kafka.codec.codec import decode_forward, forward_headers
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import EPOCH, MESSAGE, Data, DeadLetter, Forward, Link, Malformed, Partition, Source
from ordering.sequencer import sequencer
from ordering.sequencer.sequencer import absorb, end_batch
from ordering.sequencer.state import SequencerState
from tests.simulator.broker import GROUP, Broker, SimulatedLog
from tests.simulator.columns import step_by_columns
from tests.simulator.dice import Dice
from tests.simulator.rules import Rules
from tests.simulator.sequencers import Batch, Sequencer


class SiteBroker(Broker):
    """The durable part of a site."""

    def __init__(self, site: str, partitions: int, *, coded: bool = False) -> None:
        super().__init__(0, site)
        self.site = site
        self.coded = coded
        """Whether each FORWARD record goes through `connectors.kafka.codec.codec`, as it does in Kafka."""
        self.places: dict[tuple[str, int], int] = {}
        self.topics: list[tuple[str, int]] = []
        self.told: list[tuple[int, SequencerState]] = [(0, SequencerState(GROUP))]
        """Some prefixes of DATA, and what they tell without a look at any snapshot."""
        for partition in range(partitions):
            self.place(str(Topic(GROUP, "forward", site)), partition)

    def place(self, topic: str, partition: int = 0) -> int:
        """The index of a partition in `forward`; made if it is not there."""
        if (topic, partition) not in self.places:
            self.places[topic, partition] = len(self.topics)
            self.topics.append((topic, partition))
            self.forward.append(self.kafka.log(topic, partition))
        return self.places[topic, partition]

    def relayed(self, neighbour: str) -> int:
        """The partition that the relay from a neighbour fills."""
        return self.place(str(Topic(GROUP, "relayed", self.site, neighbour)))

    def next_source(self, partition: int) -> Source:
        return Source(*self.topics[partition], self.forward[partition].end)

    def append(
        self,
        place: int,
        sender: str,
        incarnation: int,
        local_seqno: int,
        *,
        payload: bytes = b"",
        kind: str = MESSAGE,
        at_ms: int = 0,
        link: Link | None = None,
    ) -> int:
        """Append a FORWARD record; return its offset."""
        source = self.next_source(place)
        record: Forward | Malformed
        if self.coded:
            headers = forward_headers(incarnation, local_seqno, kind=kind, link=link)
            record = decode_forward(source, sender.encode("ascii"), payload, headers, at_ms)
        else:
            record = Forward(
                sender, incarnation, local_seqno, payload, source, kind=kind, timestamp_ms=at_ms, link=link
            )
        self.forward[place].append(record)
        return source.offset

    def append_data(self, record: Data) -> int:
        self.data.append(record)
        return len(self.data) - 1

    def drop_beginning(self, offset: int) -> None:
        """Retention."""
        self._data.drop(offset)

    def kept(self, place: int, start: int = 0) -> list[Forward | Malformed]:
        """The records of a partition from an offset on."""
        log = self.forward[place]
        return [record for _, record in log.read(max(start, log.beginning))]

    def effective(self) -> list[Data]:
        """Return all DATA that the reading rule ever took: the ledger has it."""
        reader = Reader()
        return [record for record in self.data if reader.judge(record) is Verdict.TAKE]

    def rows(self) -> list[Data]:
        """Return the ledger's rows: one for each seqno."""
        return [
            replace(record, seqno=seqno, count=1)
            for record in self.effective()
            for seqno in range(record.seqno, record.seqno + record.count)
        ]

    def tells(self, end: int) -> SequencerState:
        """Return the state that DATA below `end` tells, from its beginning, without any snapshot."""
        known_end, known = next(row for row in reversed(self.told) if row[0] <= end)
        rest = (replace(record, payload=b"") if record.kind == EPOCH else record for record in self.data[known_end:end])
        state = absorb(known, rest)
        if end > self.told[-1][0]:
            self.told.append((end, state))
        return state


class SiteLog(SimulatedLog):
    """The real `DataLog` on a site's DATA. What it rebuilds is compared with what DATA tells."""

    broker: SiteBroker

    def __init__(self, broker: SiteBroker) -> None:
        super().__init__(broker)
        self.topic = Topic(GROUP, "data", broker.site)

    def state(self, end: int | None = None) -> SequencerState:
        end = self.end() if end is None else end
        state = DataLog.state(self, end)
        told = self.broker.tells(end)
        if decisions(state) != decisions(told):
            self.broker.wrong_states.append(
                f"{self.broker.site} below offset {end}: {decisions(state)}, but DATA tells {decisions(told)}"
            )
        return state


class LogWithLedger(SiteLog):
    """A sequencer's base of a takeover: DATA, and the ledger for its lost part."""

    def state(self, end: int | None = None) -> SequencerState:
        end = self.end() if end is None else end
        try:
            return super().state(end)
        except HistoryUnavailable:
            return replace(self.broker.tells(end), positions={}, decided={}, links={})


def decisions(state: SequencerState) -> tuple[object, ...]:
    """Return the part of a state that DATA decides, whatever snapshots it has."""
    return (
        state.epoch,
        state.seqno,
        state.view,
        state.received,
        state.seals,
        state.own_seqno,
        state.origins,
        state.membership.without_time(),
    )


class SiteSequencer(Sequencer):
    """A sequencer process at a site."""

    broker: SiteBroker

    def __init__(
        self, broker: SiteBroker, rules: Rules, dice: Dice, *, zombie: bool, batch_rows: int, later: int = 0
    ) -> None:
        super().__init__(broker, rules, dice, zombie=zombie, batch_rows=batch_rows, later=later)
        self.log = LogWithLedger(broker)

    def _plan(self) -> list[Forward | Malformed]:
        assert self.state is not None
        rows: list[Forward | Malformed] = []
        for place, (topic, partition) in enumerate(self.broker.topics):
            rows += self.broker.kept(place, self.state.positions.get(Partition(topic, partition), 0))[: self.batch_rows]
        return rows

    def _decide(self, begun: SequencerState, opening: tuple[Data, ...]) -> None:
        assert self.pipeline is not None
        self.dice = Dice((self.dice.number * 1103515245 + 12345) & 0xFFFF_FFFF)
        self.rows.sort(key=lambda record: record.source)
        later = random.Random(self.dice.number)
        cut = self.dice.below(len(self.rows) + 1)
        state, outputs = begun, list[Data | DeadLetter](opening)
        for rows in (self.rows[:cut], self.rows[cut:]):
            state, decided = self._step(state, rows)
            outputs += decided
            if later.randrange(100) < self.later:
                state, decided = self._write_later(state, later.choice((1, 1, 2, 3, 7)))
                outputs += decided
        state, closing = end_batch(state)
        outputs += closing
        data = [record for record in outputs if isinstance(record, Data)]
        self.in_flight.append(Batch(data, [record for record in outputs if isinstance(record, DeadLetter)]))
        self.pipeline = self.pipeline.decided(state)

    def _step(
        self, state: SequencerState, rows: list[Forward | Malformed]
    ) -> tuple[SequencerState, list[Data | DeadLetter]]:
        """By rows mostly: columns are slow on the few rows of a simulated batch."""
        if not rows:
            return state, []
        by_columns = self.rules.columns and self.dice.chance(15)
        after, outputs = (step_by_columns if by_columns else sequencer.step)(state, rows)
        return after, list(outputs)
