"""The log of a site in the ISIS agreement: its entries, which other sites read. Plain values.

An *entry* is one record: the site's promises (its state), its messages to others (letters), and the runs ordered by
then. Relays carry the log, so a letter leaves a site only within an entry that is in its log. So no promise is known to
others that a crash can still make the site forget.

A log is a *chain*: each entry names the digest of the one before it. A digest covers the entry's state and, through
that older digest, all earlier entries. If a site loses its log and begins a second one, their digests differ from where
they part, though epochs and numbers may be the same.

Invariant. A reader takes the entries of one chain only: `read_on` takes entry n + 1 if it names the digest of the taken
entry n. An entry that does not follow is left out, and the row is `is_broken` until one follows. A reader that starts
again goes on from its row. A crash may set the row back, but only to an earlier entry of the same chain.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast

from ordering.agreement.codec import decode, encode, plain_of, value_of
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

T = TypeVar("T")

_DIGEST_BYTES = 8
_NUMBER = re.compile(r"[0-9]{1,18}")

FORMAT = 2
"""The newest format of entries that this version reads. It writes the group's format (`ordering.base.formats`).

Readers pass over fields behind the known ones, and an added field has a default. If others, or the site itself after a
restart, must know the field, entries are `readable_from` a higher format."""

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
"""The kind of the letter without receivers that has all reports on the records of runs (`ReadReport`), the site's own
and the ones it has read. They are no part of the state, which older versions read."""

OVERHEARD = _NAMES[Propose]
"""The kind of letters that all sites use, although they are addressed to one: all sites read a log."""


class Range(NamedTuple):
    """The FORWARD records of one partition with `first` <= offset < `end` at their own site."""

    place: str
    first: int
    end: int


class Contents(NamedTuple):
    """The number of records that a site has read in a range, with a digest of their offsets if some have no record."""

    place: str
    first: int
    end: int
    records: int
    digest: bytes = b""


class ReadReport(NamedTuple):
    """A site's report on the runs of one of its own partitions, from `first` to below `end`.

    `holes` has the ranges without a record at some offset. Older versions send no report.
    """

    place: str
    first: int
    end: int
    holes: tuple[Contents, ...] = ()

    def of(self, part: Range) -> Contents | None:
        """Return the reported contents of a range, None if the report does not cover it."""
        if part.first < self.first or part.end > self.end:
            return None
        known = (hole for hole in self.holes if hole[:3] == part)
        return next(known, Contents(*part, part.end - part.first))

    def followed(self, behind: ReadReport) -> ReadReport:
        """Return the report joined with a later one, or the later one alone if there is a gap between them."""
        if behind.first > self.end:
            return behind
        holes = (*self.holes, *(hole for hole in behind.holes if hole.first >= self.end))
        return self._replace(end=max(self.end, behind.end), holes=holes)


class _Ranges(NamedTuple):
    ranges: tuple[Range, ...]


class OrderedRun(NamedTuple):
    """A run with its place in the agreed order: its first position is `first`, and it takes one a record.

    `absent` has the sites outside of the view in which it was ordered.
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
    """A message of the agreement to some sites. `body` is a JSON value, and in format 1 a text of JSON."""

    receivers: tuple[str, ...]
    kind: str
    body: object


class LogRow(NamedTuple):
    """The place up to which another site's log was read: the state of the reading rule, and `at`, the offset here to
    read on from.

    `digest` is the last taken entry's. `is_broken`: the next entry did not follow it. `known` is the number of the last
    entry of this site that the other is known to have read.
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
    """A step of a site: entry `number` of its log, written in `epoch`. `origin` is that of the group's ISIS views.

    `ordered` follows the runs of earlier entries without a gap. Only the site itself reads `state` and `snapshot`. The
    snapshot is large and seldom new, so most entries have none: entry `base` has the one that belongs to the state.
    `before` is the digest of the entry before. `logs`, a part of the state, tells the others how far the site has read
    their logs.

    `written` is the entry's format, and `readable_from` the first one whose readers can read it; `version` is the first
    version of abcast that can. In format 2, an entry that is no base has only the changes of its state
    (`ordering.agreement.site_state.state_of`), and no `origin`. A base has `since` and `trail` beside its state.
    `seqno` is the last one of the DATA before the entry.
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
        """Whether `seqno` is set, as in format 2."""
        return self.readable_from > FIRST.number

    @property
    def is_whole(self) -> bool:
        """Whether `state` is a whole state, and no changes."""
        return self.base == self.number or self.readable_from == FIRST.number

    @property
    def digest(self) -> bytes:
        """The digest of the chain up to this entry."""
        chain = blake2b(b"%b %d %d " % (self.before.hex().encode(), self.epoch, self.number), digest_size=_DIGEST_BYTES)
        chain.update(self.state)
        return chain.digest()

    def to_bytes(self) -> bytes:
        """Return the payload of a record."""
        return encode(self, added=6, as_text=self.readable_from > FIRST.number)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Entry:
        """Return the inverse of `to_bytes`.

        Raises LaterVersion if only later versions can read the entry, ProtocolViolation if the bytes are no entry.
        """
        return decode(cls, raw, _check_readable)


_READABLE_FROM, _FROM_VERSION = Entry._fields.index("readable_from"), Entry._fields.index("version")


def _check_readable(fields: Any) -> None:
    """Raise LaterVersion if an entry is marked for later versions only, whatever else it has."""
    try:
        needed, version = fields[_READABLE_FROM], str(fields[_FROM_VERSION])
    except (LookupError, TypeError):
        return  # not marked
    if type(needed) is int and needed > FORMAT:
        raise later(f"an entry is readable from format {needed} on, and this version of abcast reads {FORMAT}", version)


def judge(row: LogRow, record: Data) -> bool:
    """Whether a log's next record is an entry that counts, by the rule of `ordering.base.reader`.

    The record is an entry or a seal. Only its epoch and number decide; `read_on` looks at digests, too.
    """
    return record.kind == ENTRY and _accept(row, record.epoch, record.local_seqno)[1]


def _accept(row: LogRow, epoch: int, number: int | None) -> tuple[Reader, bool]:
    """Return the reader of a log after its next record, and whether that counts. `number` is None for a seal."""
    reader = Reader(row.epoch, row.number)
    verdict = reader.accept(MESSAGE, epoch, number) if number is not None else reader.accept(EPOCH, epoch, 0)
    return reader, verdict is Verdict.TAKE


def read_on(row: LogRow, epoch: int, entry: Entry | None) -> tuple[LogRow, bool]:
    """Judge a record as `judge` does, with its content: an entry counts if it follows the last one that did.

    Return the log's row after it, too. `entry` is None for a seal. An entry that does not follow makes the row
    `is_broken`.
    """
    reader, counts = _accept(row, epoch, None if entry is None else entry.number)
    if entry is None or not counts:
        return row._replace(epoch=reader.epoch, number=reader.last_seqno), False
    if entry.before != row.digest:
        return row._replace(epoch=reader.epoch, is_broken=True), False
    return row._replace(epoch=reader.epoch, number=entry.number, digest=entry.digest, is_broken=False), True


def counting(log: Iterable[Data], read_entry: Callable[[Data], Entry]) -> list[Entry]:
    """Return the entries that count among a log's entries and seals, given in their order.

    If the first record is an entry, it is known to count. Raises ProtocolViolation if an entry with the right epoch and
    number can't be read: the site's promises in it are unknown.
    """
    row, taken = LogRow("", 0, 0, 0), list[Entry]()
    for index, record in enumerate(log):
        if record.kind == EPOCH:
            row = read_on(row, record.epoch, None)[0]
            continue
        if index and not judge(row, record):
            continue
        entry = read_entry(record)
        if not index:
            row = row._replace(number=entry.number - 1, digest=entry.before)
        row, counts = read_on(row, record.epoch, entry)
        taken += [entry] if counts else []
    return taken


def absent_from(view: View) -> tuple[str, ...]:
    """Return the sites that were in a view of the group, and are not in this one."""
    return tuple(sorted({process.name for process, _ in view.rows} - {process.name for process in view.members}))


def run_of(ranges: tuple[Range, ...], of_format: int = FIRST.number) -> Run:
    """Return the run of these records, in this order."""
    if of_format == FIRST.number:
        reference = encode(_Ranges(ranges))
    else:
        reference = " ".join(f"{part.place} {part.first} {part.end}" for part in ranges).encode("ascii")
    return Run(reference, sum(part.end - part.first for part in ranges))


@functools.lru_cache(maxsize=4096)
def ranges_of(run: Run) -> tuple[Range, ...]:
    """Return the inverse of `run_of`. Raises ProtocolViolation unless the ranges have the run's length together, and
    are of different partitions.
    """
    ranges = decode(_Ranges, run.reference).ranges if run.reference.startswith(b"[") else _named(run.reference)
    is_proper = all(part.first < part.end for part in ranges) and len({part.place for part in ranges}) == len(ranges)
    if not is_proper or sum(part.end - part.first for part in ranges) != run.length:
        raise ProtocolViolation(f"{ranges} are not the {run.length} records of a run.")
    return ranges


def _named(reference: bytes) -> tuple[Range, ...]:
    """Parse the ranges of a run of format 2."""
    words = reference.decode("ascii", "replace").split(" ")
    rows = list(zip(words[::3], words[1::3], words[2::3], strict=False))
    if 3 * len(rows) != len(words) or not all(_NUMBER.fullmatch(number) for row in rows for number in row[1:]):
        raise ProtocolViolation(f"{reference!r:.80} are no ranges.")
    return tuple(Range(place, int(first), int(end)) for place, first, end in rows)


def contents_of(part: Range, read: Iterable[tuple[int, int]]) -> Contents:
    """Return the contents of a range, given the offsets of its records as (first, end) pairs in their order."""
    records, digest = 0, blake2b(digest_size=_DIGEST_BYTES)
    for first, end in _joined(read):
        records += end - first
        digest.update(b"%d-%d " % (first, end))
    return Contents(*part, records, b"" if records == part.end - part.first else digest.digest())


def _joined(read: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs with adjacent ones joined."""
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


def write_told(told: Iterable[ReadReport], of_format: int = FIRST.number) -> SiteMessage:
    """Return the reports as a letter of an entry."""
    return SiteMessage((), CONTENTS, _body(_AllTold(tuple(told)), of_format))


def read_told(letters: Iterable[SiteMessage]) -> tuple[ReadReport, ...]:
    """Return each `ReadReport` in the letters of an entry. Raises ProtocolViolation if one can't be decoded."""
    written = (letter for letter in letters if letter.kind == CONTENTS)
    return tuple(told for letter in written for told in _read_body(_AllTold, letter.body).told)


def write_letter(receivers: tuple[str, ...], message: Message, of_format: int = FIRST.number) -> SiteMessage:
    """Return a message as a letter of an entry."""
    return SiteMessage(receivers, _NAMES[type(message)], _body(message, of_format))


def read_letter(letter: SiteMessage) -> Message:
    """Return the inverse of `write_letter`. Raises ProtocolViolation."""
    kind = _KINDS.get(letter.kind)
    if kind is None:
        raise ProtocolViolation(f"{letter.kind!r:.40} is no message of the agreement between sites.")
    return cast("Message", _read_body(kind, letter.body))


def _body(value: object, of_format: int) -> object:
    return plain_of(value) if of_format > FIRST.number else encode(value).decode("ascii")


def _read_body(kind: type[T], body: object) -> T:
    return decode(kind, body.encode("utf-8", "surrogatepass")) if isinstance(body, str) else value_of(kind, body)
