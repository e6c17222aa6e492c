"""`abcast site add` writes from a ledger the records that a relay would have brought, from the new site's
position on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, decode_forward, encode_data, forward_headers
from connectors.kafka.codec.headers import first_fields
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.ledger.history import read_rows
from connectors.ledger.state import state_from_ledger
from connectors.relay.bootstrap import _hub_records, _write_session, bootstrap
from connectors.relay.link_start import link_start
from connectors.relay.promotion import first_difference
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import BrokerUnreachable
from ordering.base.formats import PACKS
from ordering.base.names import Topic, relay_of
from ordering.base.reader import epoch_of
from ordering.base.records import (
    EPOCH,
    HEARTBEAT,
    JOIN,
    LINK_START,
    MESSAGE,
    REMOTE_VIEW,
    SKIP,
    VIEW,
    Data,
    Partition,
    Source,
)
from ordering.sequencer.links import carry
from ordering.sequencer.sequencer import absorb, seal, step
from ordering.sequencer.state import SequencerState
from tests.ledger.ledger_of import decided, effective, write_ledger

WAY = Direction("nyc", "sfo")
CHAIN = frozenset([frozenset(["nyc", "sfo"]), frozenset(["nyc", "lax"])])


@pytest.mark.parametrize("linked", [False, True])
def test_the_ledger_tells_the_rows_of_links(tmp_path: Path, linked: bool) -> None:
    """A sequencer that starts from the ledger knows each site's last message, and its neighbours know what they
    lack.
    """
    log = decided(linked=linked)
    for end in (1, 2, 20, len(log)):
        known, told = absorb(SequencerState("g"), log[:end]), effective(log[:end])
        state = state_from_ledger(write_ledger(tmp_path / f"{end}", told), "g") if told else SequencerState("g")
        assert state
        assert (state.seqno, state.own_seqno, state.origins) == (known.seqno, known.own_seqno, known.origins)
        assert state.received == known.received


def test_a_hubs_copy_is_the_data_of_its_home(tmp_path: Path) -> None:
    """The copy has the views, and messages of other sites, too."""
    log = effective(decided(linked=False))
    assert {record.kind for record in log} >= {VIEW, JOIN, MESSAGE}
    ledger = write_ledger(tmp_path / "ledger", log)
    written = [
        (key, decode_data(key, value, headers))
        for key, value, headers in _hub_records("g", "nyc", read_rows(ledger, "g", 1), 0)
    ]
    assert [record for _, record in written if record.kind != EPOCH] == log
    keys = [key for key, record in written if record.kind != EPOCH]
    assert keys == [record.sender.encode() if record.source else None for record in log]


def test_a_hubs_copy_keeps_its_format(tmp_path: Path) -> None:
    """The relay has brought the format and a counted record. The ledger tells neither."""
    log = decided(linked=False)
    ledger, kafka = write_ledger(tmp_path / "ledger", effective(log)), MemoryConnection()
    kafka.create("g", "sfo")
    sites = Sites("hub", "nyc", "micro-batch", {"nyc": MemoryConnection(), "sfo": kafka}, frozenset())
    with DataLog(kafka, "g", "sfo") as copy:
        for record in log[:20]:
            is_seal = record.kind == EPOCH and not record.payload
            kafka.topics.append(copy.partition, *encode_data(replace(record, format=PACKS) if is_seal else record))
        known, source = copy.state(), Source("abcast.g.forward.nyc", 0, 10**6)
        counted = Data("later", known.epoch, known.seqno + 1, known.view, "nyc/x", 9, 1, b"", source, count=2)
        kafka.topics.append(copy.partition, *encode_data(counted))
        before = copy.state()
        assert (before.format, before.counted) == (PACKS.number, True)
        bootstrap(sites, "g", ledger, WAY)
        after = copy.state()
    assert after.seqno > before.seqno
    assert (after.format, after.counted) == (PACKS.number, True)


@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True])
def test_a_hubs_copy_is_cut_off_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool) -> None:
    """The copy is cut off after each record: the records there tell their seqnos and epochs as the whole copy does."""
    log = decided(linked=False)
    ledger = write_ledger(tmp_path / "ledger", effective(log))
    whole = absorb(SequencerState("g"), log)
    ends = {"nyc": MemoryConnection(), "sfo": MemoryConnection()}
    ends["sfo"].create("g", "sfo")
    sites = Sites("hub", "nyc", "micro-batch", dict(ends), frozenset([frozenset(ends)]))
    send, left = MemoryProducer.send, [0]

    def cut_off(self: MemoryProducer, *args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 and not is_written:
            raise KafkaTimeoutError
        sent = send(self, *args, **options)
        if left[0] < 0:
            raise KafkaTimeoutError
        return sent

    def reached() -> SequencerState:
        with DataLog(ends["sfo"], "g", "sfo") as copy:
            return copy.state()

    monkeypatch.setattr(MemoryProducer, "send", cut_off)
    tries = 0
    while True:
        left[0] = 3
        try:
            bootstrap(sites, "g", ledger, WAY)
            break
        except (KafkaTimeoutError, BrokerUnreachable):
            tries += 1
            known = reached()
            assert known.seqno
            assert first_difference(known, whole) is None
            last = max(1, known.seqno)
            assert epoch_of(known.seals, last) == epoch_of(whole.seals, last)
    assert tries > len(effective(log)) // 4
    known = reached()
    assert (known.seqno, known.received) == (whole.seqno, whole.received)


class There:
    """The new site of a mesh: its topic for what nyc brings, and its state."""

    def __init__(self) -> None:
        self.kafka = MemoryConnection()
        ends = {"nyc": MemoryConnection(), "lax": MemoryConnection(), "sfo": self.kafka}
        self.sites = Sites("mesh", None, "micro-batch", ends, CHAIN)
        self.topic = str(Topic("g", "relayed", "sfo", "nyc"))
        self.log = self.kafka.topics.partitions[TopicPartition(self.topic, 0)] = []
        self.state = absorb(SequencerState("g"), [seal(1)])
        self.messages: list[tuple[str, bytes, object]] = []
        self.others: list[str] = []

    def order(self) -> int:
        """Order the records that are there; return the number of new messages."""
        begin = self.state.positions.get(Partition(self.topic, 0), 0)
        records = []
        for at in self.log[begin:]:
            records.append(decode_forward(Source(self.topic, 0, at.offset), at.key, at.value, at.headers, at.timestamp))
        self.state, outputs = step(self.state, records)
        new = [record for record in outputs if isinstance(record, Data)]
        assert len(new) == len(outputs), "no dead letter"
        self.others += [record.kind for record in new if record.kind != MESSAGE]
        messages = [(record.sender, record.payload, record.headers) for record in new if record.kind == MESSAGE]
        self.messages += messages
        return len(messages)

    def relay(self, log: Sequence[Data], begin: int, end: int) -> None:
        """Run a session of the relay, as `connectors.relay.mesh` begins it."""
        start = link_start(
            absorb(SequencerState("g"), log[:begin]), "nyc", lambda origin: self.sites.carries(WAY, origin)
        )
        producer, relay, session = self.kafka.producer(), relay_of("nyc"), len(self.log)
        headers = forward_headers(1, 1, kind=LINK_START)
        producer.send(self.topic, start.to_json(), relay.encode(), headers, 0)
        for record in log[begin:end]:
            said = carry(record, "nyc", session, lambda origin: self.sites.carries(WAY, origin))
            application = record.headers if said.kind == MESSAGE else ()
            headers = forward_headers(said.incarnation, said.local_seqno, application, said.kind, said.link)
            producer.send(self.topic, said.payload, said.sender.encode(), headers, 0)
        self.order()

    def bootstrap(self, ledger: Path) -> int:
        """Write the session; return the number of records."""
        before = len(self.log)
        told: list[int] = []
        _write_session(self.sites, WAY, ledger, "g", self.state.origins, told.append, told.append)
        assert set(told[1:]) <= {1}
        assert len(told) == len(self.log) - before, "the beginning, and each row"
        return len(self.log) - before


@pytest.mark.parametrize("relayed", [0, 1, 2, 8, 20, 30, 45, 1000])
def test_a_mesh_site_gets_all_that_it_lacks(tmp_path: Path, relayed: int) -> None:
    """The site gets each message once, however far a relay had come, across takeovers whose records have no seqno."""
    log = decided(linked=True)
    ledger = write_ledger(tmp_path / "ledger", effective(log))
    there = There()
    there.relay(log, 0, relayed)
    for _ in range(2):
        there.bootstrap(ledger)
        there.order()
    wanted = [(record.sender, record.payload, record.headers) for record in log if record.kind == MESSAGE]
    assert there.messages == wanted
    own = [record.seqno for record in log if record.kind == MESSAGE and record.link is None]
    assert there.state.origins == {"nyc": own[-1], "lax": 15}
    # The relay goes on after that.
    there.relay(log, len(log), len(log))
    assert there.messages == wanted


def test_a_session_begins_before_what_is_lacking(tmp_path: Path) -> None:
    """Only the beginning, and each row from there on, are written, in the form of a relay."""
    log = decided(linked=True)
    rows = effective(log)
    ledger = write_ledger(tmp_path / "ledger", rows)
    there = There()
    there.relay(log, 0, 30)
    lacking = next(
        at for at, record in enumerate(rows) if record.kind == MESSAGE and not _is_there(there.state, record)
    )
    assert there.bootstrap(ledger) == 1 + len(rows) - lacking
    kinds = [first_fields(record.headers, 2)[1].decode() for record in there.log[-(len(rows) - lacking) :]]
    told = {MESSAGE: MESSAGE, VIEW: REMOTE_VIEW}
    assert kinds == [told.get(record.kind, SKIP) for record in rows[lacking:]]
    assert HEARTBEAT not in kinds
    assert there.order() == sum(record.kind == MESSAGE for record in rows[lacking:])
    assert there.bootstrap(ledger) == 1, "there is nothing left to write"


def _is_there(state: SequencerState, record: Data) -> bool:
    origin = record.sender.partition("/")[0]
    number = record.link.origin_seqno if record.link else record.seqno
    return number <= state.origins.get(origin, 0)
