"""A log with packs is the log of their messages, for all that reads it record by record."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.log.same_log import LedgerRow
from ordering.base.errors import ProtocolViolation
from ordering.base.packs import encode_pack, unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, MESSAGES, Data, Source
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, GAP
from ordering.checker.checker import Checker
from ordering.checker.mesh_checker import MeshChecker
from ordering.sequencer.links import carry_each
from ordering.sequencer.packing import pack_of
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.ledger.ledger_of import decided
from tests.packed import packed, without_source

SOURCE = Source("abcast.g.forward.nyc", 0, 7)
SEEDS = range(20)


def message(seqno: int, local_seqno: int = 0, payload: bytes = b"") -> Data:
    return Data(MESSAGE, 1, seqno, 0, "nyc/a", 5, local_seqno or seqno, payload or b"m%d" % seqno, SOURCE, (), 9)


def log_of(seed: int) -> tuple[list[Data], list[Data]]:
    """Return a log, and the same with packs."""
    dice = random.Random(seed)
    log = decided(linked=True)
    last = max(record.seqno for record in log)
    local_seqnos = dict.fromkeys(("nyc/x", "nyc/y"), 0)
    for seqno in range(last + 1, last + 40):
        sender = dice.choice(["nyc/x", "nyc/x", "nyc/x", "nyc/y"])
        local_seqnos[sender] += 1
        source = Source("abcast.g.forward.nyc", 0, 10_000 + seqno)
        sent = Data(
            MESSAGE, log[-1].epoch, seqno, log[-1].view, sender, 5, local_seqnos[sender], b"m%d" % seqno, source
        )
        log.append(sent)
    return log, packed(log, dice)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pack_is_its_messages(seed: int) -> None:
    log, with_packs = log_of(seed)
    assert any(record.kind == MESSAGES and record.count > 1 for record in with_packs)
    assert len(with_packs) < len(log)
    read = [decode_data(*encode_data(record)) for record in with_packs]
    assert read == with_packs
    found = [each for record in read for each in unpacked(record)]
    assert list(map(without_source, found)) == list(map(without_source, log))
    assert [each.payload for each in found] == [each.payload for each in log]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_successor_has_the_same_state(seed: int) -> None:
    log, with_packs = log_of(seed)
    plain, read = (absorb(SequencerState("g"), records) for records in (log, with_packs))
    assert read.counted
    assert not plain.counted
    assert replace(read, counted=False) == plain


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rule_takes_a_pack_as_its_messages(seed: int) -> None:
    """Repeats, holes, packs that overlap: of each record the rule takes the messages behind the last seqno, or none."""
    dice = random.Random(seed)
    whole, each = Reader(), Reader()
    for _ in range(200):
        first, count, epoch = whole.last_seqno + dice.randint(-4, 3), dice.randint(1, 5), 1 + (dice.random() < 0.02)
        pack = replace(pack_of([message(n) for n in range(max(1, first), max(1, first) + count)]), epoch=epoch)
        before = whole.last_seqno
        verdict = whole.judge(pack)
        taken = [one.seqno for one in unpacked(pack) if each.judge(one) is Verdict.TAKE]
        assert (verdict is Verdict.TAKE) == bool(taken)
        assert taken == list(range(before + 1, whole.last_seqno + 1))
        assert (each.epoch, each.last_seqno) == (whole.epoch, whole.last_seqno)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("carried", [set(), {"nyc", "lax"}])
def test_each_message_crosses_a_link_alone(seed: int, carried: set[str]) -> None:
    said, wanted = (
        [each for record in records for each in carry_each(record, "nyc", 11, carried.__contains__)]
        for records in reversed(log_of(seed))
    )
    assert said == wanted


class TestChecker:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_finds_nothing(self, seed: int) -> None:
        log, with_packs = log_of(seed)
        mesh = MeshChecker(["nyc", "sfo"])
        checker = Checker()
        for site, records in (("nyc", with_packs), ("sfo", log)):
            for record in records:
                checker.data(site, record)
                mesh.data(site, record)
        for record in log:
            if record.seqno:
                checker.ledger(record.seqno, record.id, record.payload, kind=record.kind)
            if record.kind == MESSAGE:
                checker.delivery("nyc/bob", record.seqno, record.id, record.payload)
        assert checker.finish() == []
        assert mesh.anomalies() == []

    @pytest.mark.parametrize(
        ("records", "found"),
        [
            ([message(1), pack_of([message(2), message(3)])], []),
            ([message(1), pack_of([message(2), message(3, payload=b"other")])], [DIVERGENT]),
            ([message(1), pack_of([message(2, 1), message(3, 2)])], [DUPLICATE, DIVERGENT]),
            ([message(1), pack_of([message(3), message(4)])], [GAP]),
            ([pack_of([message(1, 2), message(2, 3)])], [DIVERGENT, FIFO_VIOLATION]),
        ],
    )
    def test_names_what_is_broken_in_a_pack(self, records: list[Data], found: list[str]) -> None:
        checker = Checker()
        for seqno in (1, 2, 3):
            checker.data("sfo", message(seqno))
        for record in records:
            checker.data("nyc", record)
        assert {anomaly.name for anomaly in checker.finish()} == set(found)


def test_a_row_of_the_ledger_is_one_of_the_pack() -> None:
    pack = pack_of([message(4), message(5), message(6)])
    for seqno, local_seqno, is_its in ((4, 4, True), (6, 6, True), (5, 4, False), (3, 3, False), (7, 7, False)):
        assert LedgerRow(seqno, 1, "nyc/a", 5, local_seqno, 9, 5, 9).is_of(pack) is is_its
    later = replace(pack, kind="later")
    assert LedgerRow(6, 1, "nyc/a", 5, 4, 9, 5, 9).is_of(later)


def test_a_pack_that_no_sequencer_writes_is_an_error() -> None:
    bad = replace(message(1), kind=MESSAGES, payload=encode_pack([b"a", b"b"]), count=3)
    with pytest.raises(ProtocolViolation, match="do not add up"):
        list(unpacked(bad))
    with pytest.raises(ProtocolViolation, match="do not add up"):
        Checker().data("nyc", bad)
