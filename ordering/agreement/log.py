"""What a site of the ISIS agreement writes into its log, and other sites read there: entries. Plain values.

An *entry* is one record: what the site has promised (its state), what it says to others (letters), and what is ordered
by then. A letter leaves a site only as part of an entry that stands in its log, since what relays carry is the log. So
there is no moment at which a promise is known to others and may still be forgotten.

A log is a *chain*: each entry names the digest of the one before it. A digest covers the entry's state and, by that
name, all before it. So two logs of one site, the second one begun when the first one was lost, differ in each digest
from where they part, though their epochs and numbers may be the same.

Invariant. A reader takes the entries of one chain only: `read_on` takes entry n + 1 if it names the digest of entry n
that was taken. What does not follow is left out, and the row says so from then on (`is_broken`), until something
follows. A reader that starts again goes on from its row, which a crash may set back, but to an earlier entry of the
same chain.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple, cast

from ordering.agreement.codec import decode, encode
from ordering.agreement.formation import ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.messages import (
    Accept,
    BallotAccepted,
    BallotPromise,
    Beat,
    DecidedView,
    Hears,
    Join,
    Message,
    Prepare,
    Refuse,
)
from ordering.agreement.state import Finals, Known, Propose, Send
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST, later
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, EPOCH, MESSAGE, Data

_DIGEST_BYTES = 8
_NUMBER = re.compile(r"[0-9]{1,18}")

FORMAT = 2
"""Of entries, as this version reads them. They are written as the group has it (`ordering.base.formats`).

What stands behind the fields that a reader knows is passed over, and an added field has a default: if
others, or the site itself after a restart, must know it, entries are `readable_from` a higher format."""

_KINDS = {
    "send": Send,
    "propose": Propose,
    "finals": Finals,
    "known": Known,
    "beat": Beat,
    "join": Join,
    "hears": Hears,
    "prepare": Prepare,
    "promise": BallotPromise,
    "refuse": Refuse,
    "accept": Accept,
    "accepted": BallotAccepted,
    "decided": DecidedView,
}
"""The kinds of letters by their names in an entry."""

_NAMES = {kind: name for name, kind in _KINDS.items()}


CONTENTS = "contents"
"""The kind of the letter to nobody that has all that the site was told of runs (`ReadReport`), and says of its own. It
is no part of the state, which older versions read."""

OVERHEARD = _NAMES[Propose]
"""The kind of letters that sites take note of though they are for others: a log is read by all."""


class Range(NamedTuple):
    """FORWARD records of one partition: those with `first` <= offset < `end` at their own site."""

    place: str
    first: int
    end: int


class Contents(NamedTuple):
    """Of a range, how many records a site has read there; and at which offsets, as a digest, if not at all of them."""

    place: str
    first: int
    end: int
    records: int
    digest: bytes = b""


class ReadReport(NamedTuple):
    """What a site has said of the runs of a partition of its own, from `first` on and below `end`: those of which it
    has not read a record at each offset. Older versions say nothing.
    """

    place: str
    first: int
    end: int
    holes: tuple[Contents, ...] = ()

    def of(self, part: Range) -> Contents | None:
        """What was said of it, None if nothing was."""
        if part.first < self.first or part.end > self.end:
            return None
        known = (hole for hole in self.holes if hole[:3] == part)
        return next(known, Contents(*part, part.end - part.first))

    def followed(self, behind: ReadReport) -> ReadReport:
        """It, and what was said later."""
        if behind.first > self.end:
            return behind
        holes = (*self.holes, *(hole for hole in behind.holes if hole.first >= self.end))
        return self._replace(end=max(self.end, behind.end), holes=holes)


class _Ranges(NamedTuple):
    ranges: tuple[Range, ...]


class OrderedRun(NamedTuple):
    """A run in its place of the agreed order: its first position is `first`, and it takes one a record.

    `absent` are the sites that were not in the view in which it was ordered.
    """

    first: int
    sender: ProcessIncarnation
    run: Run
    absent: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The position of its last record."""
        return self.first + self.run.length - 1


class SiteMessage(NamedTuple):
    """A message of the agreement to some sites."""

    receivers: tuple[str, ...]
    kind: str
    body: str


class LogRow(NamedTuple):
    """How far another site's log was read: the state of the reading rule, and where to read on here.

    `digest` is that of the last entry that was taken. `is_broken`: what came next does not follow it. `known` is how
    far that site was heard to have read this site's log.
    """

    site: str
    epoch: int
    number: int
    at: int
    digest: bytes = b""
    is_broken: bool = False
    known: int = 0


class OwnEntry(NamedTuple):
    """An entry of the site's own: its number and digest."""

    number: int
    digest: bytes


class Entry(NamedTuple):
    """One step of a site: the `number`th of its log, in that epoch. `origin` is the group's of ISIS views.

    `ordered` follows what earlier entries of the log have, without a gap. `state` and `snapshot` are the site's own
    business. The snapshot is large and seldom new, so most entries have none: `base` is the entry whose snapshot is
    part of the state. `before` is the digest of the entry before it, and `logs` how far the site has read the others'
    logs: it is part of the state, and stands here for those others.

    It says as which format it was `written`, and from which one on it is readable; `version` is the first of abcast
    that reads that. In format 2, an entry that is no base has only what its state changes of the one before it
    (`isis_site_state.state_of`), and no `origin`. A base has apart what its state has of entries (`since`, `trail`).
    `seqno` is the last one of the DATA before it.
    """

    origin: int
    epoch: int
    number: int
    letters: tuple[SiteMessage, ...] = ()
    ordered: tuple[OrderedRun, ...] = ()
    state: bytes = b""
    base: int = 0
    snapshot: bytes = b""
    before: bytes = b""
    logs: tuple[LogRow, ...] = ()
    written: int = FIRST.number
    readable_from: int = FIRST.number
    version: str = ""
    seqno: int = 0
    since: tuple[OrderedRun, ...] = ()
    trail: tuple[OwnEntry, ...] = ()

    @property
    def has_seqno(self) -> bool:
        """Whether it tells a seqno."""
        return self.readable_from > FIRST.number

    @property
    def is_whole(self) -> bool:
        """Whether its state is one by itself."""
        return self.base == self.number or self.readable_from == FIRST.number

    @property
    def digest(self) -> bytes:
        """Of the chain up to this entry."""
        chain = blake2b(b"%b %d %d " % (self.before.hex().encode(), self.epoch, self.number), digest_size=_DIGEST_BYTES)
        chain.update(self.state)
        return chain.digest()

    def to_bytes(self) -> bytes:
        """As the payload of a record."""
        return encode(self, added=6, as_text=self.readable_from > FIRST.number)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Entry:
        """Inverse of `to_bytes`. Raises LaterVersion for what can't be read, ProtocolViolation for anything else."""
        _check_readable(raw)
        return decode(cls, raw)


def _check_readable(raw: bytes) -> None:
    """Raise LaterVersion if an entry says that it is for later versions only, whatever else it has."""
    try:
        fields = json.loads(raw)
        needed, version = fields[Entry._fields.index("readable_from")], str(fields[Entry._fields.index("version")])
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # it says nothing
    if type(needed) is int and needed > FORMAT:
        raise later(f"an entry is readable from format {needed} on, and this version of abcast reads {FORMAT}", version)


def judge(row: LogRow, record: Data) -> tuple[LogRow, bool]:
    """The row behind the next record of a log, an entry or a seal; and whether it is an entry that counts.

    By its number and epoch, that is, as `ordering.base.reader` has it: what the entry says is not looked at.
    """
    reader = Reader(row.epoch, row.number)
    kind, number = (MESSAGE, record.local_seqno) if record.kind == ENTRY else (EPOCH, 0)
    verdict = reader.accept(kind, record.epoch, number)
    return row._replace(epoch=reader.epoch, number=reader.last_seqno), verdict is Verdict.TAKE


def read_on(row: LogRow, epoch: int, entry: Entry | None) -> tuple[LogRow, bool]:
    """`judge` for a record that was read: an entry counts if it follows the last one that did."""
    bare = Data(EPOCH, epoch) if entry is None else Data(ENTRY, epoch, local_seqno=entry.number)
    behind, counts = judge(row, bare)
    if entry is None or not counts:
        return behind, False
    if entry.before != row.digest:
        return row._replace(epoch=behind.epoch, is_broken=True), False
    return behind._replace(digest=entry.digest, is_broken=False), True


def counting(log: Iterable[Data], read_entry: Callable[[Data], Entry]) -> list[Entry]:
    """The entries that count, of a log's entries and seals in their order: `read_on` for who reads all of them.

    If the first one is an entry, it is known to count. Raises ProtocolViolation if one that has its epoch and number
    can't be read: what the site has promised with it is not known.
    """
    row, taken = LogRow("", 0, 0, 0), list[Entry]()
    for index, record in enumerate(log):
        if record.kind == EPOCH:
            row = read_on(row, record.epoch, None)[0]
            continue
        if index and not judge(row, record)[1]:
            continue
        entry = read_entry(record)
        if not index:
            row = row._replace(number=entry.number - 1, digest=entry.before)
        row, counts = read_on(row, record.epoch, entry)
        taken += [entry] if counts else []
    return taken


def absent_from(view: View) -> tuple[str, ...]:
    """The sites that have been in the group's views, and are not in this one."""
    return tuple(sorted({life.name for life, _ in view.rows} - {life.name for life in view.members}))


def run_of(ranges: tuple[Range, ...], of_format: int = FIRST.number) -> Run:
    """What is agreed on as one: these records, in this order."""
    if of_format == FIRST.number:
        reference = encode(_Ranges(ranges))
    else:
        reference = " ".join(f"{part.place} {part.first} {part.end}" for part in ranges).encode("ascii")
    return Run(reference, sum(part.end - part.first for part in ranges))


@functools.lru_cache(maxsize=4096)
def ranges_of(run: Run) -> tuple[Range, ...]:
    """Inverse of `run_of`. Raises ProtocolViolation if it is not so many records, of different partitions."""
    ranges = decode(_Ranges, run.reference).ranges if run.reference.startswith(b"[") else _named(run.reference)
    is_proper = all(part.first < part.end for part in ranges) and len({part.place for part in ranges}) == len(ranges)
    if not is_proper or sum(part.end - part.first for part in ranges) != run.length:
        raise ProtocolViolation(f"{ranges} are not the {run.length} records of a run.")
    return ranges


def _named(reference: bytes) -> tuple[Range, ...]:
    """The ranges of a run of format 2."""
    words = reference.decode("ascii", "replace").split(" ")
    rows = list(zip(words[::3], words[1::3], words[2::3], strict=False))
    if 3 * len(rows) != len(words) or not all(_NUMBER.fullmatch(number) for row in rows for number in row[1:]):
        raise ProtocolViolation(f"{reference!r:.80} are no ranges.")
    return tuple(Range(place, int(first), int(end)) for place, first, end in rows)


def contents_of(part: Range, read: Iterable[tuple[int, int]]) -> Contents:
    """What a site has read of a range: `read` are the offsets of records, from one to below another, in their order."""
    records, digest = 0, blake2b(digest_size=_DIGEST_BYTES)
    for first, end in _joined(read):
        records += end - first
        digest.update(b"%d-%d " % (first, end))
    return Contents(*part, records, b"" if records == part.end - part.first else digest.digest())


def _joined(read: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those that follow each other as one."""
    begin = behind = -1
    for first, end in read:
        if first != behind:
            if behind > begin:
                yield begin, behind
            begin = first
        behind = end
    if behind > begin:
        yield begin, behind


class _AllTold(NamedTuple):
    told: tuple[ReadReport, ...]


def write_told(told: Iterable[ReadReport]) -> SiteMessage:
    """As it stands in an entry."""
    return SiteMessage((), CONTENTS, encode(_AllTold(tuple(told))).decode("ascii"))


def read_told(letters: Iterable[SiteMessage]) -> tuple[ReadReport, ...]:
    """What the letters of an entry tell of runs. Raises ProtocolViolation."""
    written = (letter for letter in letters if letter.kind == CONTENTS)
    return tuple(told for letter in written for told in decode(_AllTold, letter.body.encode("utf-8")).told)


def write_letter(receivers: tuple[str, ...], message: Message, of_format: int = FIRST.number) -> SiteMessage:
    """A message as it stands in an entry."""
    body = encode(message, as_text=of_format > FIRST.number)
    return SiteMessage(receivers, _NAMES[type(message)], body.decode("ascii"))


def read_letter(letter: SiteMessage) -> Message:
    """Inverse of `write_letter`. Raises ProtocolViolation."""
    kind = _KINDS.get(letter.kind)
    if kind is None:
        raise ProtocolViolation(f"{letter.kind!r:.40} is no message of the agreement between sites.")
    return cast("Message", decode(kind, letter.body.encode("utf-8")))
