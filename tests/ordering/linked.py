"""A random FORWARD log of a site of a mesh: its own members' records, and the copies of two neighbours' relays.

The neighbours' DATA have all that DATA can have: takeovers, leftovers of a fenced sequencer behind the seal, holes that
an interrupted write left and its retry filled, repeats. Their relays begin sessions anywhere, also where the site must
refuse them, run side by side, and die.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace

from connectors.relay.link_start import link_start
from ordering.base.names import TICK_NAME, Topic, relay_of
from ordering.base.records import (
    HEARTBEAT,
    JOIN,
    LEAVE,
    LINK_START,
    MESSAGE,
    REFUSED,
    REMOTE_VIEW,
    VIEW,
    Data,
    Forward,
    Headers,
    Link,
    Malformed,
    Source,
)
from ordering.sequencer.links import carry_each, origin_of
from ordering.sequencer.sequencer import absorb, seal
from ordering.sequencer.state import SequencerState

SITE = "s"
FAR, LAX = "far", "lax"
VIEW_OF_FAR = {"members": [[f"{FAR}/a", 1]], "joined": [], "left": [], "suspected": [], "flush": 0}
MALFORMED = "a reason"


class LinkedLog:
    """A log for each seed. `records` is sorted by source."""

    def __init__(self, seed: int, records: int = 120, malformed: float = 0.04) -> None:
        self.random = random.Random(seed)
        self._malformed = malformed
        self.data = {LAX: list(self._data_of(LAX, iter(()), records // 3))}
        self.data[FAR] = list(self._data_of(FAR, iter(self.effective(LAX)), records // 2))
        self.records: list[Forward | Malformed] = sorted(
            itertools.chain(self._own(records // 3), *(self._relayed(site, records) for site in self.data)),
            key=lambda record: record.source,
        )

    def _headers(self) -> Headers:
        return (("trace", b"\xff"),) if self.random.random() < 0.3 else ()

    def _data_of(self, site: str, others: Iterator[Data], count: int) -> Iterator[Data]:
        """Yield the DATA of a neighbour, in its order. `others`: DATA of lax; the neighbour orders some of them."""
        dice, epoch, seqno, local = self.random, 1, 0, 0
        yield seal(epoch)
        while seqno < count:
            batch: list[Data] = []
            for _ in range(dice.randint(1, 5)):
                seqno, local = seqno + 1, local + 1
                batch.append(self._decided(site, epoch, seqno, local, others))
            if dice.random() < 0.2:  # cut off in the middle, and done again
                yield from (record for record in batch if dice.random() < 0.6)
            yield from batch
            if dice.random() < 0.2:
                yield from batch[dice.randrange(len(batch)) :]
            if dice.random() < 0.2:
                epoch += 1
                yield seal(epoch)
                for ahead in range(dice.randint(0, 2)):  # of numbers that count only in the epoch that has them
                    source = Source(str(Topic("g", "forward", site)), 0, 10_000 + seqno)
                    yield Data(MESSAGE, epoch - 1, seqno + 1 + ahead, 0, f"{site}/fenced", 1, 1, b"fenced", source)

    def _decided(self, site: str, epoch: int, seqno: int, local: int, others: Iterator[Data]) -> Data:
        what = self.random.choices((MESSAGE, "linked", REFUSED, VIEW), (6, 4, 1, 1))[0]
        source = Source(str(Topic("g", "forward", site)), 0, seqno)
        if what == VIEW:
            payload = json.dumps({**VIEW_OF_FAR, "members": [[f"{site}/a", 1]]}).encode()
            return Data(VIEW, epoch, seqno, seqno, payload=payload)
        if what == "linked" and (of_lax := next(others, None)) is not None:
            source = Source(str(Topic("g", "relayed", site, LAX)), 0, seqno)
            link = Link(0, of_lax.epoch, of_lax.seqno, of_lax.seqno)
            return replace(of_lax, epoch=epoch, seqno=seqno, source=source, link=link)
        kind = REFUSED if what == REFUSED else MESSAGE
        sender = f"{site}/{self.random.choice('ab')}"
        return Data(kind, epoch, seqno, 0, sender, 1, local, f"{sender} {local}".encode(), source, self._headers())

    def _own(self, count: int) -> Iterator[Forward | Malformed]:
        dice, local = self.random, dict.fromkeys("xyz", 0)
        for offset in range(count):
            source = Source(str(Topic("g", "forward", SITE)), 0, offset)
            name = dice.choice("xyz")
            kind = dice.choices((MESSAGE, HEARTBEAT, JOIN, LEAVE), (20, 3, 1, 1))[0]
            local[name] += kind != HEARTBEAT
            number = max(1, local[name] - (dice.random() < 0.05))
            payload = f"{name} {number}".encode() if kind == MESSAGE else b""
            if dice.random() < self._malformed:
                yield Malformed(source, MALFORMED)
                continue
            message_id = (f"{SITE}/{name}", 1, number)
            yield Forward(*message_id, payload, source, self._headers(), kind, 1_000 + 100 * offset)

    def _relayed(self, neighbour: str, count: int) -> Iterator[Forward | Malformed]:
        """Yield the records of one or two relays at a time."""
        topic = str(Topic("g", "relayed", SITE, neighbour))
        relays: list[Iterator[Forward]] = []
        for offset in range(count):
            source = Source(topic, 0, offset)
            if self.random.random() < self._malformed:
                yield Malformed(source, MALFORMED)
                continue
            if not relays or self.random.random() < 0.04:
                relays = [*relays[-1:], self._session(neighbour, offset, is_first=offset < 2)]
            record = next(self.random.choice(relays), None)
            if record is None:
                relays = []
                record = self._word(neighbour, HEARTBEAT)
            yield replace(record, source=source, timestamp_ms=1_000 + 100 * offset)

    def _session(self, neighbour: str, session: int, *, is_first: bool) -> Iterator[Forward]:
        data, dice = self.data[neighbour], self.random
        begin = 0 if is_first or dice.random() < 0.3 else dice.randrange(len(data))
        state = absorb(SequencerState("g"), data[:begin])
        start = link_start(state, neighbour, lambda _: True)
        yield replace(self._word(neighbour, LINK_START), payload=start.to_json() if dice.random() < 0.95 else b"{}")
        carried = (
            (record, said)
            for record in data[begin:]
            for said in carry_each(record, neighbour, session, lambda origin: origin != SITE)
        )
        for record, said in carried:
            headers = record.headers if said.kind == MESSAGE else ()
            message_id = (said.sender, said.incarnation, said.local_seqno)
            yield Forward(*message_id, said.payload, Source("", 0, 0), headers, said.kind, link=said.link)
            if dice.random() < 0.1:
                yield self._word(neighbour, dice.choice((HEARTBEAT, HEARTBEAT, LEAVE)))
            if dice.random() < 0.05:
                yield replace(self._word(neighbour, HEARTBEAT), sender=f"{neighbour}/{TICK_NAME}")
            if dice.random() < 0.05:
                view = json.dumps({"members": [[f"{neighbour}/a", 1]]}).encode()
                yield replace(self._word(neighbour, REMOTE_VIEW), local_seqno=dice.randint(1, 9), payload=view)

    def _word(self, neighbour: str, kind: str) -> Forward:
        return Forward(relay_of(neighbour), 1, 1, b"", Source("", 0, 0), kind=kind)

    def effective(self, site: str) -> list[Data]:
        """Return a neighbour's own messages that count there, in their order."""
        numbered: dict[int, Data] = {}
        state = SequencerState("g")
        for record in self.data[site]:
            after = absorb(state, [record])
            if after.seqno > state.seqno and record.kind == MESSAGE and origin_of(record.sender) == site:
                numbered[record.seqno] = record
            state = after
        return list(numbered.values())
