"""Entries of a site's log (`ordering.agreement.log`) as records of DATA."""

from __future__ import annotations

import gzip

from ordering.agreement.log import Entry
from ordering.base.canonical import deflated, inflated, inflated_first
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST, later
from ordering.base.records import ENTRY, MAX_RECORD_BYTES, Data
from ordering.sequencer.state import MAX_INFLATED_BYTES

_GZIP, _DEFLATED = b"\x1f", b"\x02"
"""The first byte of a payload in format 1 (gzip'd JSON), and in format 2 (deflated JSON behind this byte)."""
_LAST_FORM = b"\x1e"
"""Later versions number their forms up to this one. Another byte is none of an entry's."""
_WORDS = (
    b'["hears","join","prepare","promise","refuse","accept","accepted","decided","beat",[1]'
    b'[0,1,,[[["a"],"propose",[1,2,,[,]]],[["a","b"],"send",[1,,[["~abcast.a.forward.b-0  ",6]],[]]],'
    b'[["a"],"propose",[1,1,,[]]],[["a"],"propose",[1,0,,[]]],[["a","b"],"finals",[1,,[[,0],[,2],[,1]]]],'
    b'[["a","b"],"known",[1,[,,],]],[[],"contents",[[["abcast.a.forward.b-0",,,[]]]]]],'
    b'[[,["a",0],["~abcast.a.forward.a-0  ",1],[]],[,["b",0],["~abcast.a.forward.b-0  ",1],[]]],'
    b'"~",,"~","=",[["a",1,,,"=",false,],["b",1,,,"=",false,]],2,2,"0.2.0",]'
)
"""An entry without most names and numbers: the dictionary of `_DEFLATED`. Another dictionary takes another first byte,
by which older versions learn that they can't read the entry."""
_ROOM_BYTES = 1024
"""An upper bound for a record's parts other than its value."""


def write_entry(entry: Entry) -> Data:
    """Encode an entry as DATA. Raises ProtocolViolation if it is larger than a record may be."""
    if entry.readable_from == FIRST.number:
        payload = gzip.compress(entry.to_bytes(), compresslevel=1, mtime=0)
    else:
        behind = b"" if entry.is_whole else entry.state
        bare = entry if entry.is_whole else entry._replace(state=b"")
        payload = _DEFLATED + deflated(bare.to_bytes(), _WORDS) + behind
    if len(payload) > MAX_RECORD_BYTES - _ROOM_BYTES:
        raise ProtocolViolation(
            f"this site's state of the agreement takes {len(payload)} bytes, too many for a record: the group has too "
            "many senders."
        )
    return Data(ENTRY, entry.epoch, local_seqno=entry.number, payload=payload)


def _decoded(payload: bytes) -> Entry:
    form = payload[:1]
    if form == _GZIP:
        return Entry.from_bytes(inflated(payload, MAX_INFLATED_BYTES))
    if _DEFLATED < form <= _LAST_FORM:
        raise later(f"an entry begins with {form!r}, which this version of abcast does not know")
    if form != _DEFLATED:
        raise ValueError(f"it begins with {form!r}")
    plain, state = inflated_first(payload[len(_DEFLATED) :], MAX_INFLATED_BYTES, _WORDS)
    entry = Entry.from_bytes(plain)
    return entry._replace(state=state) if state else entry


def read_entry(record: Data) -> Entry:
    """Invert `write_entry`. Raises ProtocolViolation, LaterVersion."""
    try:
        entry = _decoded(record.payload)
    except ValueError as error:
        raise ProtocolViolation(f"not an entry: {error}") from error
    if (entry.epoch, entry.number) != (record.epoch, record.local_seqno):
        raise ProtocolViolation(f"entry {entry.number} of epoch {entry.epoch} is in {record}.")
    return entry
