"""The state of a sequencer, and its bytes in a snapshot and in Spark's state store.

Invariant. Equal states give equal bytes. Fields of a later version are kept, and written into the next snapshot. Bytes
that only later versions can read raise LaterVersion.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ordering.base.canonical import UNREADABLE, canonical_json, inflated
from ordering.base.errors import LaterVersion, ProtocolViolation
from ordering.base.formats import ADDITIONS, FIRST, later
from ordering.base.reader import Lost, Seal
from ordering.base.records import MAX_RECORD_BYTES, Partition, named_partitions, parsed_partitions
from ordering.membership.log_time import Age
from ordering.membership.membership import NO_MEMBERS, NOTHING_ACCEPTED, Membership, ReceivedRow, with_unknown
from ordering.sequencer.links import LinkRow

SNAPSHOTS = {4: "0.1.0", 5: "0.2.0"}
"""The snapshot formats that this version reads, each with the first version of abcast that reads it.

A snapshot names its own format, and the lowest format whose readers can read it. Readers keep fields that they do not
know, and write them into their own snapshots. So a later version may add a field only if it stays true while older
versions leave it as it is; otherwise it raises the lowest readable format. Rows (of senders, seals, links …) do not
grow. In a group of format 1, snapshots have format 4, since its readers stop at any further field."""
READABLE_FROM = 5
"""The lowest snapshot format whose readers can read the snapshots that this version writes."""

MAX_INFLATED_BYTES = 32 * MAX_RECORD_BYTES
"""Largest size of an inflated snapshot, in bytes. JSON with a row a sender shrinks to a third or a tenth. A snapshot
that inflates to more was made to fill the memory of its readers."""


@dataclass(frozen=True, slots=True)
class SequencerState:
    """The state of a sequencer for one group; O(senders + takeovers), no payloads.

    `positions` has, for each partition, the first offset that is not considered yet; in a state that DATA tells, the
    offset from which a successor reads. `decided` has the first offset behind all sources of DATA records. It may lie
    beyond `positions`: a successor reads the records between the two a second time.
    `seals` has (epoch, first seqno) of every takeover that has decided something, and of the last one. `unsnapped`
    counts the FORWARD records considered since the last snapshot, and `duplicates` all records dropped as repeats, as
    too early, or in a flush, except records that a takeover has read again.
    In a mesh, `links` has the link rows by neighbour and `origins` the origin rows by site; `own_seqno` is the seqno of
    the last message of the site's own members (`ordering.sequencer.links`).
    `latest_ms` is the newest broker timestamp of a considered FORWARD record, and `snapshot_ms` its value at the last
    snapshot (0: unknown); both serve groups of format 1. In other groups `aged` has the age of the last snapshot by
    each partition's clock. `format` is the group's (`ordering.base.formats`). `counted`: whether a record ever took
    several seqnos. `lost` has the seqnos that restores have passed over, which are never given again. `unknown` has the
    other fields of a later version's snapshot, as JSON values.
    """

    group: str
    epoch: int = 0
    seqno: int = 0
    view: int = 0
    received: Mapping[str, ReceivedRow] = field(default_factory=dict)
    positions: Mapping[Partition, int] = field(default_factory=dict)
    seals: tuple[Seal, ...] = ()
    duplicates: int = 0
    unsnapped: int = 0
    membership: Membership = NO_MEMBERS
    decided: Mapping[Partition, int] = field(default_factory=dict)
    own_seqno: int = 0
    links: Mapping[str, LinkRow] = field(default_factory=dict)
    origins: Mapping[str, int] = field(default_factory=dict)
    latest_ms: int = 0
    snapshot_ms: int = 0
    format: int = FIRST.number
    counted: bool = False
    lost: tuple[Lost, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)
    aged: Mapping[Partition, Age] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return gzip'd JSON for a snapshot's payload and Spark's state store: equal states give equal bytes.

        In a group of format 1 it lacks the fields that its readers would stop at.
        """
        body: dict[str, Any] = {
            "format": min(SNAPSHOTS),
            "group": self.group,
            "epoch": self.epoch,
            "seqno": self.seqno,
            "view": self.view,
            "received": self.received,
            "positions": named_partitions(self.positions),
            "seals": self.seals,
            "duplicates": self.duplicates,
            "unsnapped": self.unsnapped,
            "decided": named_partitions(self.decided),
            "own_seqno": self.own_seqno,
            "links": self.links,
            "origins": self.origins,
        }
        if self.latest_ms:
            body |= {"latest_ms": self.latest_ms, "snapshot_ms": self.snapshot_ms}
        if self.membership != NO_MEMBERS:
            body["membership"] = self.membership.to_json(later=self.format >= ADDITIONS.number)
        if self.format >= ADDITIONS.number:
            written = max(SNAPSHOTS)
            says = {"format": written, "readable_from": READABLE_FROM, "version": SNAPSHOTS[READABLE_FROM]}
            body = {**self.unknown, **body, **says, "group_format": self.format}
            body |= {"counted": True} if self.counted else {}
            body |= {"lost": self.lost} if self.lost else {}
            body |= {"aged": {str(partition): age for partition, age in self.aged.items()}} if self.aged else {}
        return gzip.compress(canonical_json(body), compresslevel=1, mtime=0)

    @classmethod
    def from_bytes(cls, raw: bytes) -> SequencerState:
        """Return the inverse of `to_bytes`.

        Raises LaterVersion for a snapshot that only later versions read, ProtocolViolation for any other bytes.
        """
        try:
            body: dict[str, Any] = json.loads(inflated(raw, MAX_INFLATED_BYTES))
            _check_readable(body.pop("format"), body.pop("readable_from", None), body.pop("version", ""))
            if "membership" in body:
                body["membership"] = Membership.from_json(body["membership"])
            body["positions"] = parsed_partitions(body["positions"])
            body["decided"] = parsed_partitions(body["decided"])
            body["received"] = {sender: ReceivedRow(row[0], row[1]) for sender, row in body["received"].items()}
            body["seals"] = tuple(Seal(*row[:2]) for row in body["seals"])
            body["lost"] = tuple(Lost(*row[:2]) for row in body.get("lost", ()))
            body["links"] = {neighbour: LinkRow(*row[:3]) for neighbour, row in body["links"].items()}
            body["format"] = body.pop("group_format", FIRST.number)
            if "aged" in body:
                body["aged"] = {Partition.parse(name): Age(*age[:2]) for name, age in body["aged"].items()}
            return cls(**with_unknown(cls, body))
        except LaterVersion:
            raise
        except UNREADABLE as error:
            raise ProtocolViolation(f"not a snapshot that this version can read: {error}") from error

    def ordered(self, sender: str) -> ReceivedRow:
        """Return a sender's newest incarnation and its highest ordered local seqno."""
        return self.received.get(sender, NOTHING_ACCEPTED)

    def is_over(self, sender: str, incarnation: int) -> bool:
        """Whether nothing more of this incarnation will be ordered, although no later one has begun."""
        row = self.received.get(sender)
        if row is None:
            return incarnation <= self.membership.incarnation_floor
        return row.incarnation == incarnation and self.membership.incarnations_over.get(sender) == incarnation

    @property
    def keeps_ages(self) -> bool:
        """Whether snapshots have `aged`: readers of format 1 would stop at it."""
        return self.format >= ADDITIONS.number


def _check_readable(written: int, readable_from: int | None, version: str) -> None:
    """Raise LaterVersion, or ValueError, unless this version reads a snapshot with these three fields."""
    needed = written if readable_from is None else readable_from
    if needed > max(SNAPSHOTS):
        raise later(
            f"a snapshot is readable from format {needed} on, and this version of abcast reads up to {max(SNAPSHOTS)}",
            str(version),
        )
    if written < min(SNAPSHOTS):
        raise ValueError(f"it is of format {written}, and those before {min(SNAPSHOTS)} were never released")
