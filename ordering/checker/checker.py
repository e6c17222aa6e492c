"""The checker, which compares all records and logs of one group and names every broken promise.

Source: docs/limits.md and the README, "What is promised".

Pure and streaming. It reads several named sources, in any interleaving:

* DATA logs, one a site: every record in offset order. Repeats and records of fenced sequencers are normal;
  `ordering.base.reader.Reader` judges them, the same rule by which members read.
* ledger rows, in any order.
* delivery logs, one a member, in the order of delivery; they may start anywhere.
* messages sent: ids with a receipt, and optionally the last seqno that the sender had delivered before.

The checker does not decide which source is right: the first that names a seqno is the reference for the others.

Memory. Per seqno 8 bytes of digest, shared by all sources, and one bit for each ledger and delivery log. So a million
messages cost 8 MB and 0.14 MB a source, whatever their size; the rest is O(senders × incarnations + control records).
With `causal=True` 8 bytes more for each message and source, and 8 for every send. Two messages are taken for the same
if 64 bits of their digest agree (32 where one source tells the id only).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.names import is_relay
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data, MessageId
from ordering.checker.anomalies import (
    ANOMALIES,
    CAUSAL_VIOLATION,
    DIVERGENT,
    DUPLICATE,
    FIFO_VIOLATION,
    GAP,
    LOST,
    NONMONOTONIC_DELIVER,
    VIEW_VIOLATION,
    Anomaly,
    AnomalyCount,
)
from ordering.checker.fifo_checker import FifoChecker
from ordering.checker.view_checker import ViewChecker, ViewRuns

_PAGE = 1 << 16
_BIT_PAGE = 1 << 13
_ID_BITS = 0xFFFF_FFFF << 32


class Checker:
    """A checker of one group. Feed it with `data`, `ledger`, `delivery` and `sent`, then ask `finish` once.

    Not thread-safe.

    With `causal`, it also checks each message sent with a known context (`after_seqno`) or payload.
    """

    def __init__(self, *, causal: bool = False) -> None:
        self._causal = causal
        self._digests = _Digests()
        self._logs: dict[str, _Log] = {}
        self._controls: set[int] = set()  # seqnos of records that applications do not see
        self._ledgers: dict[str, _Seqnos] = {}
        self._deliveries: dict[str, _Deliveries] = {}
        self._sent: dict[tuple[str, int], _Sent] = {}
        self._findings: dict[tuple[str, str], AnomalyCount] = {}
        self._linked: set[str] = set()  # senders at other sites of a mesh

    def start(self, site: str, reader: Reader) -> None:
        """Declare that the DATA log of `site` begins in the middle (retention), with `reader` as the reading state."""
        complete = reader.last_seqno == 0
        self._logs[site] = _Log(
            reader, FifoChecker(complete=complete, causal=self._causal), ViewChecker(complete=complete)
        )

    def data(self, site: str, record: Data) -> None:
        """Take the next record of a site's DATA topic, in offset order, effective or not. A pack is its messages."""
        for each in unpacked(record):
            self._data(site, each)

    def _data(self, site: str, record: Data) -> None:
        if site not in self._logs:
            self.start(site, Reader())
        log = self._logs[site]
        epoch_before = log.reader.epoch
        verdict = log.reader.judge(record)
        if log.reader.epoch > epoch_before:
            log.furthest = 0  # records that were ahead were never decided: the new epoch numbers from the gap on
        if verdict is Verdict.TAKE:
            self._compare(f"DATA of {site}", record.seqno, record.id, record.payload)
            if broken := log.views.next(record):
                self._find(VIEW_VIOLATION, f"DATA of {site} {broken}", record.seqno)
            if record.kind != MESSAGE:
                self._controls.update(range(record.seqno, record.seqno + record.count))
            if record.link is not None:
                self._linked.add(record.sender)
            # A control record takes a local seqno like a message. A relay's local seqnos are ids of views elsewhere.
            if record.sender and not is_relay(record.sender):
                self._order(f"DATA of {site}", log.senders, record.seqno, record.id)
        elif verdict is Verdict.DUPLICATE and self._digests.differs(record.seqno, record.id, record.payload):
            self._find(
                DIVERGENT, f"DATA of {site} repeats a number of the same epoch with another message", record.seqno
            )
        elif verdict is Verdict.AHEAD:
            log.furthest = max(log.furthest, record.seqno)

    def ledger(
        self,
        seqno: int,
        message: MessageId,
        payload: bytes | None = None,
        *,
        kind: str = MESSAGE,
        source: str = "ledger",
    ) -> None:
        """Take a row of the ledger `source`, in any order. Rows of kinds without a seqno are passed over."""
        if kind in WITHOUT_SEQNO:
            return
        if kind != MESSAGE:
            self._controls.add(seqno)
        if self._ledgers.setdefault(source, _Seqnos()).add(seqno):
            self._find(DUPLICATE, f"{source} has the row more than once", seqno)
        self._compare(source, seqno, message, payload)

    def delivery(
        self, member: str, seqno: int, message: MessageId, payload: bytes | None = None, view_id: int | None = None
    ) -> None:
        """Take the next delivery of `member`. One log may have several starts of a member, one after the other."""
        log = self._deliveries.get(member)
        if log is None:
            log = self._deliveries[member] = _Deliveries(
                seqno - 1, FifoChecker(complete=seqno == 1, causal=self._causal)
            )
        where = f"deliveries of {member}"
        self._compare(where, seqno, message, payload)
        if log.seqnos.add(seqno):
            self._find(DUPLICATE, f"{where} have the seqno more than once", seqno)
        elif seqno <= log.last:
            self._find(NONMONOTONIC_DELIVER, f"{where} have the seqno after a higher one", seqno)
        else:
            if seqno != log.last + 1:
                log.senders.skip()
            log.last = seqno
            if view_id is not None:
                log.views.add(seqno, view_id)
            self._order(where, log.senders, seqno, message)

    def sent(self, message: MessageId, after_seqno: int | None = None, payload: bytes | None = None) -> None:
        """Take a message with a receipt. Its sender had delivered everything up to `after_seqno` before.

        With `payload` (and `causal`), the message that was ordered under this id must have that payload.
        """
        sent = self._sent.setdefault((message.sender, message.incarnation), _Sent())
        if payload is not None:
            sent.digests[message.local_seqno] = _payload_digest(payload)
        if message.local_seqno == sent.upto + 1:
            sent.upto += 1
            if self._causal:
                sent.after.append(after_seqno or 0)
        else:
            sent.others[message.local_seqno] = after_seqno or 0

    def last_seqno(self, site: str) -> int:
        """Return the last seqno of the DATA log of `site`."""
        return self._logs[site].reader.last_seqno if site in self._logs else 0

    def finish(self) -> list[Anomaly]:
        """Return all anomalies, in the order of `ANOMALIES`, then of the sources."""
        for site, log in self._logs.items():
            self._find(
                GAP, f"DATA of {site} goes on after a missing seqno", log.reader.last_seqno + 1, log.furthest - 1
            )
        for source, rows in self._ledgers.items():
            for first, last in rows.missing(1):
                self._find(GAP, f"{source} lacks the row", first, last)
        controls = sorted(self._controls)
        for member, deliveries in self._deliveries.items():
            for first, last in without(controls, deliveries.seqnos.missing(deliveries.seqnos.lowest)):
                self._find(GAP, f"deliveries of {member} lack the seqno", first, last)
        self._find_lost()
        self._find_views()
        if self._causal:
            self._find_causal()
            self._find_exchanged()
        found = sorted(self._findings.values(), key=lambda finding: ANOMALIES.index(finding.name))
        return [finding.anomaly() for finding in found]

    def _compare(self, source: str, seqno: int, message: MessageId, payload: bytes | None) -> None:
        if self._digests.differs(seqno, message, payload):
            self._find(DIVERGENT, f"{source} has another message than an earlier source", seqno)

    def _order(self, source: str, senders: FifoChecker, seqno: int, message: MessageId) -> None:
        # Control records of a sender at another site of a mesh do not come here, so its numbers have gaps.
        # `ordering.checker.mesh_checker` finds missing messages.
        broken = senders.next(seqno, message, has_gaps=message.sender in self._linked)
        if broken == DUPLICATE:
            self._find(DUPLICATE, f"{source} has a message id twice", seqno)
        elif broken:
            self._find(FIFO_VIOLATION, f"{source} breaks the sender's order", seqno)

    def _all_senders(self) -> list[FifoChecker]:
        return [log.senders for log in self._logs.values()] + [log.senders for log in self._deliveries.values()]

    def _find_lost(self) -> None:
        everywhere = self._all_senders()
        for (sender, incarnation), sent in self._sent.items():
            orders = [order for senders in everywhere if (order := senders.orders.get((sender, incarnation)))]
            highest = max((order.highest for order in orders), default=0)
            # A hole in one source is filled by another that has the message; without any source all are missing.
            holes = set.intersection(*(order.missing(highest) for order in orders)) if orders else set()
            unordered = {local for local in sent.others if local > highest or local in holes}
            unordered.update(local for local in holes if local <= sent.upto)
            what = f"{sender}, incarnation {incarnation}, has receipts for messages that were never ordered"
            for local in sorted(unordered):
                self._find(LOST, what, local, local)
            self._find(LOST, what, highest + 1, sent.upto)

    def _find_views(self) -> None:
        """Compare the views of all sources with the first one's."""
        views = {f"DATA of {site}": log.views.runs for site, log in self._logs.items()}
        views |= {f"deliveries of {member}": log.views for member, log in self._deliveries.items()}
        (reference, runs), *others = [*views.items()] or [("", ViewRuns())]
        for source, other in others:
            for seqno in runs.differences(other):
                self._find(VIEW_VIOLATION, f"{source} and {reference} have it in different views", seqno)

    def _find_causal(self) -> None:
        for senders in self._all_senders():
            for (sender, incarnation), order in senders.orders.items():
                sent = self._sent.get((sender, incarnation))
                if sent is None:
                    continue
                length = min(len(order.seqnos), len(sent.after))
                seqnos = np.array(order.seqnos[:length], dtype=np.int64)
                early = np.flatnonzero((seqnos > 0) & (seqnos <= np.array(sent.after[:length], dtype=np.int64)))
                for row in early.tolist():
                    self._find(
                        CAUSAL_VIOLATION, f"{sender} had delivered a higher seqno before it sent", int(seqnos[row])
                    )

    def _find_exchanged(self) -> None:
        """Find receipts under whose id another message was ordered."""
        for senders in self._all_senders():
            for (sender, incarnation), order in senders.orders.items():
                sent = self._sent.get((sender, incarnation))
                for local, digest in sent.digests.items() if sent is not None else ():
                    seqno = order.seqnos[local - 1] if local <= len(order.seqnos) else 0
                    if seqno and self._digests.payload(seqno) not in (0, digest):
                        what = (
                            f"{sender}, incarnation {incarnation}, has receipts for ids that others were ordered under"
                        )
                        self._find(LOST, what, local)

    def _find(self, name: str, detail: str, first: int, last: int | None = None) -> None:
        """Note the seqnos `first` … `last` (default: `first` alone; none if `last` is lower)."""
        last = first if last is None else last
        if first <= last:
            self._findings.setdefault((name, detail), AnomalyCount(name, detail)).add(first, last)


def without(numbers: Sequence[int], runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the runs (first, last) without the sorted `numbers`."""
    for first, last in runs:
        for number in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]:
            if first < number:
                yield first, number - 1
            first = number + 1
        if first <= last:
            yield first, last


@dataclass(slots=True)
class _Log:
    """A DATA log: the reading state, its senders, and the highest seqno that is ahead in the epoch in force."""

    reader: Reader
    senders: FifoChecker
    views: ViewChecker
    furthest: int = 0


@dataclass(slots=True)
class _Deliveries:
    last: int
    senders: FifoChecker
    seqnos: _Seqnos = field(default_factory=lambda: _Seqnos())
    views: ViewRuns = field(default_factory=ViewRuns)


@dataclass(slots=True)
class _Sent:
    """The messages sent by an incarnation: 1 … `upto` with their contexts in `after`, `others` out of turn, digests."""

    upto: int = 0
    after: array[int] = field(default_factory=lambda: array("q"))
    others: dict[int, int] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)


class _Digests:
    """The digest of each seqno, 64 bits: 32 of the message id, 32 of the payload (0: not known yet)."""

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}

    def differs(self, seqno: int, message: MessageId, payload: bytes | None) -> bool:
        """Whether the seqno is known to have another message. Otherwise the digest is remembered."""
        digest = int.from_bytes(blake2b(str(message).encode("utf-8"), digest_size=4).digest(), "big") << 32 or 1 << 32
        if payload is not None:
            digest |= _payload_digest(payload)
        number, index = divmod(seqno, _PAGE)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = array("Q", bytes(8 * _PAGE))
        known = page[index]
        comparable = _ID_BITS if payload is None or not known & ~_ID_BITS else _ID_BITS | 0xFFFF_FFFF
        if known and (known ^ digest) & comparable:
            return True
        page[index] = known | digest
        return False

    def payload(self, seqno: int) -> int:
        """Return the digest of a seqno's payload, 0 if it is not known."""
        number, index = divmod(seqno, _PAGE)
        page = self._pages.get(number)
        return page[index] & ~_ID_BITS if page is not None else 0


def _payload_digest(payload: bytes) -> int:
    return int.from_bytes(blake2b(payload, digest_size=4).digest(), "big") or 1


class _Seqnos:
    """A set of seqnos, one bit each."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self.lowest = 0

    def add(self, seqno: int) -> bool:
        """Add a seqno; return whether the set had it before."""
        number, index = divmod(seqno, _BIT_PAGE)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(_BIT_PAGE // 8)
            if len(self._pages) == 1:
                self.lowest = seqno
        self.lowest = min(self.lowest, seqno)
        bit = 1 << (index & 7)
        if page[index >> 3] & bit:
            return True
        page[index >> 3] |= bit
        return False

    def missing(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield the runs (first, last) of missing seqnos, from `first` to the highest."""
        expected = first
        for number in sorted(self._pages):
            page = np.frombuffer(self._pages[number], dtype=np.uint8)
            there = np.flatnonzero(np.unpackbits(page, bitorder="little")) + number * _BIT_PAGE
            ends = np.flatnonzero(np.diff(there) > 1)  # rows of `there` after which a run of missing ones begins
            if len(there) and int(there[0]) > expected:
                yield expected, int(there[0]) - 1
            for row in ends.tolist():
                if int(there[row + 1]) > expected:
                    yield max(expected, int(there[row]) + 1), int(there[row + 1]) - 1
            if len(there):
                expected = max(expected, int(there[-1]) + 1)
