"""Guests of a world: features that others have of their own, and that a seed's dice let in beside the world's own.

* `hostile`: a stranger writes malformed records to FORWARD, or records that no client may write.
* `ledger`: a writer as it ships keeps a ledger, dies now and then, and has all of DATA at the end.
* `day`: nothing happens for a day.
* `forget`: after such a day an operator has senders forgotten.
* `counts`: jobs are of a later version, and write records that take several seqnos.
* `limits`: topics take no large records for a while, as the power `limit` has it.
* `closed`: the group is closed, from the start.
* `format`: the group was begun in the first format; an operator upgrades it, or nobody does.
* `purge`, `two`: an operator purges DATA; a job goes on for a while when another one has taken over.
* `own clock`: the clock of a job jumps; `clock`, `marker`: powers of Kafka.

Their dice are their own. So a history without guests is the same as one that never heard of them. A world
lets them act between two of its own actions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.log.data_log import DataLog
from connectors.takeover import survey
from ordering.base.errors import BrokerUnreachable
from ordering.base.formats import FIRST, Format
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, MAX_NUMBER
from ordering.checker.anomalies import DIVERGENT, Anomaly
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import NONE, Mutation
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka, partition
from tests.world.ledgers import GROUP, LedgerWriter, Table

FORMAT = "connectors.takeover.survey._format"
DAY_MS = 25 * 3_600_000
OFTEN = 0.05
"""Probability at each action that a stranger writes, or the ledger's writer works."""
SELDOM = 0.005
"""Probability at each action that a day passes."""
SHARE = 0.2
"""Probability that a history has a guest."""
COUNTS = (1, 1, 2, 3, 7)
"""The seqnos of a record of a later version."""
MALFORMED: tuple[tuple[bytes | None, list[tuple[str, bytes]]], ...] = (
    (b"nobody", []),
    (b"\xff", [("abcast", b"\xff")]),
    (b"%s/nobody", []),
    (b"%s/nobody", [("abcast", b"9 message 1 1")]),
    (b"%s/nobody", [("abcast", b"2 message 0 1")]),
    (b"%s/nobody", [("abcast", b"2 message 1")]),
    (b"%s/nobody", [("abcast", b"2 message 1 99999999999999999999")]),
    (b"%s/nobody", [("abcast", b"2 message 1 1"), ("abcast", b"2 message 1 2")]),
    (b"%s/nobody", [("abcast", b"2 view 1 1")]),
    (b"%s/nobody", [("abcast", b"2 epoch 1 1")]),
    (b"elsewhere/nobody", [("abcast", b"2 message 1 1")]),
    (None, [("abcast", b"2 message 1 1")]),
)
"""Keys and headers of records that no sequencer may order."""


def format_of(data: DataLog, state: SequencerState, upgraded_at: int) -> int:
    """Return the format that a takeover finds, if the group has that of new groups from that claim on."""
    epochs = data.epochs.read()
    is_new = len(epochs.claims) + 1 >= upgraded_at
    newest: Format = vars(survey)["NEW_GROUPS"]
    return max(state.format, epochs.format, (newest if is_new else FIRST).number)


class Guests:
    """The guests of a history."""

    def __init__(self, seed: int, may_come: Sequence[str], mutation: Mutation = NONE) -> None:
        """`may_come`: the names of guests. A broken rule has the guests that it needs, and no others."""
        self.dice = random.Random(f"guests {seed}")
        drawn = [name for name in may_come if self.dice.random() < SHARE]
        self.names = frozenset(drawn if mutation is NONE else {*may_come} & {*mutation.needs})
        self._upgraded_at = self.dice.choice((2, 3, 5, MAX_NUMBER))
        """The claim from which on the group has the newest format."""
        self.table = Table()
        self._writer: LedgerWriter | None = None

    def has(self, name: str) -> bool:
        """Whether a guest has come."""
        return name in self.names

    def powers(self, powers: Sequence[str]) -> tuple[str, ...]:
        """Return the powers of a Kafka."""
        return (*powers, "limit") if self.has("limits") else tuple(powers)

    # Strangers

    def write_malformed(self, kafka: WorldKafka, site: str) -> None:
        """Let a stranger write to FORWARD, perhaps."""
        if not self.has("hostile") or self.dice.random() > OFTEN:
            return
        place = self.dice.choice(kafka.places(("forward",)))
        key, headers = self.dice.choice(MALFORMED)
        if not kafka.log(*place).is_away:
            with suppress(TooLarge):
                key = key and key.replace(b"%s", site.encode())
                kafka.topics.append(kafka.log(*place).place, key, b"malformed", list(headers))

    # Time

    def lets_a_day_pass(self) -> bool:
        """Whether nothing happens for a day now."""
        return (self.has("day") or self.has("forget")) and self.dice.random() < SELDOM

    # Later versions

    def later(self) -> int:
        """Return the seqnos of a record of a later kind that a job writes with its next batch; 0: it writes none."""
        return self.dice.choice(COUNTS) if self.has("counts") and self.dice.random() < 0.3 else 0

    def patches(self) -> dict[str, Any]:
        """Return the functions of a takeover that differ in an earlier format."""
        return {FORMAT: lambda data, state: format_of(data, state, self._upgraded_at)} if self.has("format") else {}

    # A ledger

    def keep_ledger(self, connection: WorldConnection, group: str = GROUP) -> None:
        """Let the ledger's writer work, or die, perhaps."""
        if not self.has("ledger") or self.dice.random() > 2 * OFTEN:
            return
        self._writer = self._writer or LedgerWriter(connection, connection.site, self.table, group)
        with suppress(BrokerUnreachable):
            if self.dice.random() < OFTEN:
                self._writer.crash()
            self._writer.read(self.dice.randint(1, 30))
            if self.dice.random() < 0.7:
                self._writer.commit()

    def check_ledger(self, connection: WorldConnection, group: str = GROUP) -> list[Anomaly]:
        """Let the writer catch up; return how the ledger differs from DATA, dropped records included."""
        if not self.has("ledger"):
            return []
        writer = self._writer or LedgerWriter(connection, connection.site, self.table, group)
        writer.crash()
        writer.read(1 << 30)
        writer.commit()
        rows = [(row.seqno, row.id, row.kind, row.payload) for row in self.table.rows]
        reader, wanted = Reader(), []
        for each in connection.topics.partitions[partition("data", connection.site, group=group)]:
            data = decode_data(each.key, each.value, each.headers)
            if data.kind != ENTRY and reader.judge(data) is Verdict.TAKE:
                wanted += [
                    (seqno, record.id, record.kind, record.payload)
                    for record in unpacked(data)
                    for seqno in range(record.seqno, record.seqno + record.count)
                ]
        wrong = [pair for pair in zip(rows, wanted, strict=False) if pair[0] != pair[1]][:1]
        if rows == wanted:
            return []
        return [Anomaly(DIVERGENT, f"the ledger has {len(rows)} rows, and DATA {len(wanted)}: {wrong}", ())]
