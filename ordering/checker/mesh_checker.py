"""The checker of a mesh: whether every site has the messages of all others, each once and in their origin's order.

Pure and streaming, like `ordering.checker.checker`, which checks each site by itself. It reads the DATA of all sites in
any interleaving. A site's own order of its members' messages is the reference for all other sites. If an origin was not
read, the site with the latest of its messages is the reference. The cost is 16 bytes a message and site.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordering.base.errors import counted
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, LISTED_SEQNOS, LOST, Anomaly
from ordering.sequencer.links import origin_of


class Shortfall(NamedTuple):
    """The lag of a site: it lacks `missing` messages of an origin, after `after_seqno` there."""

    site: str
    origin: str
    after_seqno: int
    missing: int

    def __str__(self) -> str:
        missing = counted(self.missing, "message")
        return f"{self.site} lacks {missing} of {self.origin}, after seqno {self.after_seqno} there"


@dataclass(slots=True)
class _Row:
    """The messages of one origin at one site, in the site's order: their seqnos at the origin, and digests."""

    seqnos: array[int] = field(default_factory=lambda: array("q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))

    def numbers(self) -> NDArray[np.int64]:
        return np.array(self.seqnos, dtype=np.int64)


class MeshChecker:
    """A checker of several sites. Feed it with `data`, then ask `anomalies` and `lacking`. Not thread-safe."""

    def __init__(self, sites: Iterable[str]) -> None:
        self._readers = {site: Reader() for site in sites}
        self._rows: dict[tuple[str, str], _Row] = {}
        self._cut: set[str] = set()

    def start(self, site: str, reader: Reader) -> None:
        """Declare that the DATA log of `site` begins in the middle (retention), with `reader` as the reading state."""
        self._readers[site] = Reader(reader.epoch, reader.last_seqno)
        self._cut.add(site)

    def data(self, site: str, record: Data) -> None:
        """Take the next record of a site's DATA topic, in offset order, effective or not. A pack is its messages."""
        for each in unpacked(record):
            self._data(site, each)

    def _data(self, site: str, record: Data) -> None:
        if self._readers[site].judge(record) is not Verdict.TAKE:
            return
        if record.kind == MESSAGE:
            row = self._rows.setdefault((site, origin_of(record.sender)), _Row())
            row.seqnos.append(record.seqno if record.link is None else record.link.origin_seqno)
            row.digests.append(_digest(record))

    def anomalies(self) -> list[Anomaly]:
        """Return an anomaly for messages of other origins that a site has lost, twice, out of order, or changed."""
        return [anomaly for site, origin, row in self._copies() for anomaly in self._compare(site, origin, row)]

    def lacking(self) -> list[Shortfall]:
        """Return the lag of each site that lacks messages, which is normal while these are under way."""
        found = []
        for site, origin, row in self._copies():
            last = max(row.seqnos, default=0)
            missing = int((self._reference(origin).numbers() > last).sum())
            if missing:
                found.append(Shortfall(site, origin, last, missing))
        return found

    def _copies(self) -> list[tuple[str, str, _Row]]:
        origins = sorted({origin for _, origin in self._rows})
        return [
            (site, origin, self._rows.get((site, origin), _Row()))
            for site in self._readers
            for origin in origins
            if site != origin
        ]

    def _reference(self, origin: str) -> _Row:
        rows = [self._rows.get((site, origin), _Row()) for site in self._readers]
        return self._rows.get((origin, origin)) or max(rows, key=lambda row: max(row.seqnos, default=0))

    def _compare(self, site: str, origin: str, row: _Row) -> list[Anomaly]:
        has, reference = row.numbers(), self._reference(origin)
        wanted = reference.numbers()
        if not len(has) or not len(wanted):
            return []
        distinct, times = np.unique(has, return_counts=True)
        early = has[1:][np.diff(has) < 0]
        # Retention may have dropped the messages before it, at either site.
        first = max(has.min() if site in self._cut else 0, wanted.min() if origin in self._cut else 0)
        lost = np.setdiff1d(wanted[(wanted >= first) & (wanted <= has.max())], has)
        foreign = np.setdiff1d(has[(has >= first) & (has <= wanted.max())], wanted)
        digests = dict(zip(reference.seqnos, reference.digests, strict=True))
        other = [
            seqno for seqno, digest in zip(row.seqnos, row.digests, strict=True) if digests.get(seqno, digest) != digest
        ]
        where = f"of the messages of {origin}, DATA of {site}"
        return [
            Anomaly(name, f"{where} {what}: seqno {_listed(seqnos)} there.", tuple(map(int, seqnos[:LISTED_SEQNOS])))
            for name, what, seqnos in (
                (LOST, "lacks some, and has later ones", lost),
                (DUPLICATE, "has some more than once", distinct[times > 1]),
                (DIVERGENT, "has some that were not ordered there", foreign),
                (DIVERGENT, "has others under their numbers", np.array(other, dtype=np.int64)),
                (FIFO_VIOLATION, "has some behind later ones", early),
            )
            if len(seqnos)
        ]


def _listed(seqnos: NDArray[np.int64]) -> str:
    more = f" and {len(seqnos) - LISTED_SEQNOS} more" if len(seqnos) > LISTED_SEQNOS else ""
    return ", ".join(map(str, seqnos[:LISTED_SEQNOS].tolist())) + more


def _digest(record: Data) -> int:
    text = str(record.id).encode("utf-8") + b"\0" + record.payload
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
