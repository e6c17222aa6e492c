"""A reader that lags by a few messages reads a few records, however many entries its site has written since."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.entry_codec import write_entry
from connectors.kafka.log import data_cursor, entry_marks
from connectors.kafka.log.data_log import DataLog
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.agreement.log import Entry
from ordering.base.reader import Verdict
from ordering.base.records import MESSAGE, Data, Source
from ordering.sequencer.sequencer import snapshot
from ordering.sequencer.state import SequencerState

DATA = TopicPartition("abcast.g.data.nyc", 0)


class Site:
    """The DATA of a site that agrees."""

    def __init__(self, of_format: int = 2) -> None:
        self.kafka, self.format = MemoryConnection(), of_format
        self.kafka.create("g", "nyc")
        self.seqno = self.epoch = self.number = 0

    def claim(self) -> None:
        states = take_over_groups(Claimer(self.kafka, "nyc", agreement="isis"), {"g": ["abcast.g.forward.nyc"]})
        self.epoch = states["g"].epoch
        self.state = states["g"]

    def entries(self, count: int, epoch: int = 0, seqno: int | None = None) -> None:
        for _ in range(count):
            self.number += 1
            told = self.seqno if seqno is None else seqno
            entry = Entry(0, epoch or self.epoch, self.number, base=1, before=bytes(8))
            if self.format > 1:
                entry = entry._replace(written=2, readable_from=2, version="0.2.0", seqno=told)
            self.append(write_entry(entry))

    def message(self, epoch: int = 0, seqno: int = 0) -> None:
        number = seqno or self.seqno + 1
        self.seqno = max(self.seqno, number) if not epoch else self.seqno
        source = Source("abcast.g.forward.nyc", 0, number)
        self.append(Data(MESSAGE, epoch or self.epoch, number, 0, "nyc/a", 1, number, b"%d" % number, source, (), 1))

    def append(self, data: Data) -> None:
        self.kafka.topics.append(DATA, *encode_data(data))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the records that consumers return."""
    read, poll = [0], MemoryConsumer.poll

    def counting(self: MemoryConsumer, *args: object, **more: object) -> object:
        polled = poll(self, *args, **more)  # type: ignore[arg-type]
        read[0] += sum(map(len, polled.values()))
        return polled

    with monkeypatch.context() as patched:
        patched.setattr(MemoryConsumer, "poll", counting)
        yield read


@pytest.mark.slow
@pytest.mark.parametrize("behind", [1, 5])
def test_a_member_that_is_behind_by_k_messages_reads_few_records(monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
    """The log has 30,000 entries; the reader skips all at its end."""
    site = Site()
    site.claim()
    for _ in range(10):
        site.entries(1_000)
        site.message()
    site.claim()
    site.entries(20_000)
    site.append(snapshot(site.state))  # as each hour
    with Member("g", "nyc/x", connection=site.kafka) as member, counted(monkeypatch) as read:
        found = member.deliveries(from_seqno=11 - behind, timeout=0.5)
        assert [each.payload for each in found] == [b"%d" % number for number in range(11 - behind, 11)]
    assert read[0] < 4 * entry_marks.NEAR + 1_000 * behind + 14 * entry_marks.LOOK


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_whatever_stands_there_nothing_is_missed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Replaced jobs write on, entries of format 1 lie among the others, and a torn end is written again."""
    monkeypatch.setattr(entry_marks, "NEAR", 8)
    monkeypatch.setattr(entry_marks, "LOOK", 3)
    monkeypatch.setattr(data_cursor, "_MANY", 8)
    dice = random.Random(seed)
    site = Site()
    site.claim()
    for _ in range(60):
        what = dice.random()
        if what < 0.5:
            site.format = 1 if dice.random() < 0.05 else 2
            site.entries(dice.randrange(1, 20))
        elif what < 0.85:
            site.message()
        elif what < 0.92:
            site.claim()
        elif site.epoch > 1:
            beyond = site.seqno + dice.randrange(3)
            site.entries(dice.randrange(1, 9), dice.randrange(1, site.epoch), beyond)
            site.message(site.epoch - 1, max(1, beyond))
    with DataLog(site.kafka, "g", "nyc") as data:
        end = data.end()
        state: SequencerState = data.state(end)
        log = list(data.records(0, end))
        for seqno in range(site.seqno):
            start = data.after(seqno)
            reader = start.reader
            taken = [
                stored.data.seqno
                for stored in log[start.offset :]
                if reader.accept(stored.data.kind, stored.data.epoch, stored.data.seqno) is Verdict.TAKE
            ]
            assert taken == list(range(seqno + 1, site.seqno + 1))
            assert start.quiet is None or start.quiet == (state.seqno, end, state.epoch)
    if site.seqno:
        with Member("g", "nyc/x", connection=site.kafka) as member:
            found = [each.seqno for each in member.deliveries(from_seqno=1, timeout=0.3)]
            assert found == list(range(1, site.seqno + 1))
