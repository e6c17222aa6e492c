"""A pass of the ledger, against the reading rule on random logs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from connectors.ledger.one_pass import BESIDE, Follower, Followers, effective_rows
from connectors.ledger.process.rows import LEDGER_ARROW
from connectors.ledger.row import GROUP
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import NEWEST, Format
from ordering.base.packs import MAX_PACK_MESSAGES, encode_pack, unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, MESSAGE, MESSAGES, STRAY, STRAY_EPOCH, VIEW, Data, Headers, Source
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState

NUMBERS = ("offset", "count", "format")
SCHEMA = pa.schema([*LEDGER_ARROW, *((name, pa.int64() if name in NUMBERS else pa.string()) for name in BESIDE)])
EPOCH_IN_FORCE = 5
LATER = Format(NEWEST.number + 7, "9.8.7")
LOGS = 120


class Log(NamedTuple):
    """A batch of a group's DATA, and the next record expected before it."""

    group: str
    next: tuple[int, int, int]
    records: list[tuple[int, Data]]

    @property
    def follower(self) -> Follower:
        """A follower before the batch."""
        offset, seqno, epoch = self.next
        return Follower(offset, Reader(epoch, seqno - 1))

    def rows(self) -> list[dict[str, Any]]:
        """Return the records as Spark gives them to Python; `tests/spark` compares what becomes of both."""
        return [self._row(offset, record) for offset, record in self.records]

    def _row(self, offset: int, record: Data) -> dict[str, Any]:
        has_sender = record.source is not None
        return {
            GROUP: self.group,
            "seqno": record.seqno or None,
            "epoch": record.epoch,
            "kind": record.kind,
            "sender": record.sender if has_sender else None,
            "local_seqno": record.local_seqno if has_sender else None,
            "payload": record.payload,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
            "data_offset": offset,
            "topic": f"abcast.{self.group}.data.nyc",
            "offset": offset,
            "count": record.count,
            "format": record.format.number,
        }


def random_log(number: int) -> Log:
    """Return a log, mostly of the next record each; nearly every other log has some other records."""
    rng = random.Random(number)
    group, first = f"g{number}", (rng.randrange(50), rng.randrange(1, 50), EPOCH_IN_FORCE)
    offset, seqno, epoch = first
    disturbs = rng.choice((0.0, 0.05, 0.3))
    records: list[tuple[int, Data]] = []
    for _ in range(rng.randrange(1, 14)):
        record = several(rng, seqno, epoch)
        if rng.random() < disturbs:
            if rng.random() < 0.25:
                offset += rng.randrange(1, 3)
            else:
                epoch += rng.random() < 0.2
                odd = several(rng, max(1, seqno + rng.choice((-2, -1, 1, 2))), epoch)
                stale = rng.choice((message(seqno, epoch=epoch - 1), replace(seal(EPOCH_IN_FORCE - 1), format=LATER)))
                view = Data(VIEW, epoch, seqno, 3, payload=b'{"members": []}')
                record = rng.choice((odd, odd, stale, view, seal(epoch), snapshot_at(seqno - 1, epoch, group)))
        elif rng.random() < 0.15:
            record = rng.choice((snapshot_at(seqno - 1, epoch, group), Data(ENTRY, epoch, local_seqno=seqno)))
        records.append((offset, record))
        offset += 1
        seqno = max(seqno, record.seqno + record.count)
    return Log(group, first, records)


def message(seqno: int, *, epoch: int = 1, headers: Headers = ()) -> Data:
    source = Source("abcast.g.forward.nyc", 3, 100 + seqno)
    return Data(MESSAGE, epoch, seqno, 2, "nyc/alice", 9, seqno, b"m%d" % seqno, source, headers, 1_700_000_000_000)


def several(rng: random.Random, seqno: int, epoch: int) -> Data:
    """Return a message, a pack, or a record of a later version that takes several numbers; some have headers."""
    headers = (("h", b"%d" % seqno), ("null", b"")) if rng.random() < 0.3 else ()
    first = message(seqno, epoch=epoch, headers=headers)
    payloads = [b"x" * rng.randrange(4) for _ in range(rng.randrange(1, 5))]
    pack = replace(first, kind=MESSAGES, payload=encode_pack(payloads), count=len(payloads))
    later = replace(first, kind="later", count=rng.randrange(1, 4))
    return rng.choice((first, first, pack, pack, later))


def snapshot_at(seqno: int, epoch: int, group: str) -> Data:
    return snapshot(SequencerState(group, epoch=epoch, seqno=max(0, seqno)))


LedgerRow = tuple[int, int, str, int, bytes | None, tuple[tuple[str, bytes], ...], int]


def by_the_rule(log: Log, *, passes: bool) -> tuple[list[LedgerRow], bool]:
    """Return the rows of the ledger, record by record, and whether all records were judged.

    `passes`: go on behind views and holes.
    """
    offset, seqno, epoch = log.next
    reader, rows = Reader(epoch, seqno - 1), list[LedgerRow]()
    for at, record in log.records:
        if not passes and (at != offset or record.kind == VIEW):
            return rows, False
        offset = at + 1
        for each in unpacked(record):
            last = reader.last_seqno
            if reader.judge(each) is Verdict.TAKE:
                rows += [
                    (
                        n,
                        each.epoch,
                        each.kind,
                        each.local_seqno,
                        each.payload if n == last + 1 else None,
                        each.headers,
                        at,
                    )
                    for n in range(last + 1, reader.last_seqno + 1)
                ]
    return rows, True


def columns_of(*logs: Log) -> pa.Table:
    return pa.Table.from_pylist([row for log in logs for row in log.rows()], SCHEMA)


def passed(columns: pa.Table, followers: Followers, batch: int) -> tuple[dict[str, list[LedgerRow]], Followers]:
    """Return the rows that a pass gives, by group, and the followers of the groups, which it reports once."""
    reports: list[dict[str, Follower]] = []
    given = list(effective_rows(columns.to_batches(max_chunksize=batch), followers=followers, report=reports.extend))
    rows: dict[str, list[LedgerRow]] = {}
    names = ("seqno", "epoch", "kind", "local_seqno", "payload", "headers", "data_offset")
    for row in pa.Table.from_batches(given).to_pylist():
        row["headers"] = tuple((each["key"], each["value"]) for each in row["headers"])
        row["local_seqno"] = row["local_seqno"] or 0
        rows.setdefault(row["group_name"], []).append(tuple(row[name] for name in names))
    [report] = reports
    return rows, report


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_only_what_the_reading_rule_takes(batch: int) -> None:
    """A pass up to a record for the driver; then a look, and a pass over all. Each is the rule, record by record."""
    logs = [random_log(number) for number in range(LOGS)]
    columns = columns_of(*logs)
    followers = {log.group: log.follower for log in logs}
    rows, met = passed(columns, followers, batch)
    whole = 0
    for log in logs:
        wanted, is_whole = by_the_rule(log, passes=False)
        assert (rows.get(log.group, []), not met[log.group].is_over) == (wanted, is_whole), log
        assert met[log.group].reader.last_seqno == (wanted[-1][0] if wanted else log.next[1] - 1)
        whole += is_whole
    assert LOGS / 4 < whole < LOGS, "both kinds of logs are tried"
    _, looked = passed(columns, {group: each.looking() for group, each in followers.items()}, batch)
    writing = {group: each.behind_look(looked[group]) for group, each in followers.items()}
    rows, met = passed(columns, writing, batch)
    for log in logs:
        wanted, _ = by_the_rule(log, passes=True)
        assert rows.get(log.group, []) == wanted
        assert [seqno for seqno, *_ in wanted] == list(range(log.next[1], log.next[1] + len(wanted)))
        assert [row[:1] for row in wanted if row[2] == VIEW] == [(seqno,) for _, seqno in looked[log.group].views]
        ends = [(each.offset, each.reader, each.is_over) for each in (met[log.group], looked[log.group])]
        assert ends[0] == ends[1] == (log.records[-1][0] + 1, ends[0][1], False)


@pytest.mark.parametrize(
    ("told", "ends"),
    [
        (replace(seal(EPOCH_IN_FORCE), format=LATER), True),
        (replace(seal(EPOCH_IN_FORCE - 1), format=LATER), False),
        (replace(message(2, epoch=EPOCH_IN_FORCE), format=LATER), False),
        (Data(STRAY, STRAY_EPOCH, format=LATER), False),
    ],
)
def test_a_format_counts_in_a_seal_in_force_only(told: Data, ends: bool) -> None:
    """Readers of DATA pass over a format anywhere else."""
    first, last = (message(seqno, epoch=EPOCH_IN_FORCE) for seqno in (1, 2 if told.kind != MESSAGE else 3))
    log = Log("g", (0, 1, EPOCH_IN_FORCE - 2), list(enumerate((first, told, last))))
    for batch in (1, 3):
        _, met = passed(columns_of(log), {"g": log.follower.looking()}, batch)
        assert (met["g"].later, met["g"].is_over) == (LATER.number if ends else 0, ends)
        assert met["g"].reader.last_seqno == (1 if ends else last.seqno)


def test_a_hole_that_no_look_has_met() -> None:
    """DATA loses a record after the look: nothing behind it is written."""
    log = Log("g", (0, 1, 1), list(enumerate(map(message, range(1, 6)))))
    _, looked = passed(columns_of(log), {"g": log.follower.looking()}, 10)
    for kept in (log.records[:2] + log.records[3:], log.records[2:]):
        rows, met = passed(columns_of(log._replace(records=kept)), {"g": log.follower.behind_look(looked["g"])}, 10)
        assert [seqno for seqno, *_ in rows.get("g", [])] == [1, 2][: len(kept) - 2] * (kept[0][0] == 0)
        assert met["g"].is_over


def test_the_error_of_a_pack_names_its_group() -> None:
    """`connectors.spark.query_failure` finds the group in it, and the job leaves out no other."""
    pack = replace(message(1), kind=MESSAGES, payload=b"\x02", count=2)
    log = Log("g", (0, 1, 1), [(0, pack)])
    with pytest.raises(ProtocolViolation, match=r"^group g: a pack of DATA can't be read: abcast\.g\.data\.nyc 0: "):
        passed(columns_of(log), {"g": log.follower}, 1)


def test_packs_become_rows_in_parts() -> None:
    """However many messages the packs of a batch have, a record batch has a bounded number."""
    payloads = [b"%d" % n for n in range(MAX_PACK_MESSAGES)]
    pack = replace(message(1), kind=MESSAGES, payload=encode_pack(payloads), count=MAX_PACK_MESSAGES)
    packs = [(at, replace(pack, seqno=1 + at * MAX_PACK_MESSAGES)) for at in range(45)]
    log = Log("g", (0, 1, 1), packs)
    [batch] = columns_of(log).combine_chunks().to_batches()
    given = list(effective_rows([batch], followers={"g": log.follower}, report=lambda _: None))
    assert sum(map(len, given)) == 45 * MAX_PACK_MESSAGES
    assert max(map(len, given)) <= 20_000 + MAX_PACK_MESSAGES
    assert pa.Table.from_batches(given)["payload"].to_pylist() == payloads * 45


@pytest.mark.slow
def test_headers_count_for_each_message_of_a_pack() -> None:
    """Each row of a pack has the pack's headers: large ones make a record batch end sooner."""
    pack = replace(
        message(1, headers=(("large", b"x" * 50_000),)), kind=MESSAGES, payload=encode_pack([b""] * 20), count=20
    )
    log = Log("g", (0, 1, 1), [(at, replace(pack, seqno=1 + at * 20)) for at in range(130)])
    [batch] = columns_of(log).combine_chunks().to_batches()
    given = list(effective_rows([batch], followers={"g": log.follower}, report=lambda _: None))
    assert sum(map(len, given)) == 130 * 20
    assert max(each.nbytes for each in given) < 40_000_000
