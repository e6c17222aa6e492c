"""Entries of a site's log (`ordering.agreement.log`) as records of DATA."""

from __future__ import annotations

import gzip

from ordering.agreement.log import Entry, ranges_of
from ordering.base.canonical import deflated, inflated, inflated_first
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST
from ordering.base.records import ENTRY, MAX_RECORD_BYTES, Data
from ordering.sequencer.state import MAX_INFLATED_BYTES

_DEFLATED = b"\x02"
"""The first byte of an entry that is not gzip'd."""
_WORDS = (
    b"abcast..forward. \n"
    b'["hears","[1,[[\\"","join","prepare","promise","refuse","accept","accepted","decided","beat","[1]"'
    b'[,1,,[[["\x02"],"propose","[1,0,,[,]]"],[["\x02","\x03"],"propose","[1,2,,[]]"],[["\x03"],"finals","[1,,[[,2],[,1]]]"],'
    b'[["\x02","\x04"],"send","[1,,[[\\"~\x01\x03-0  \\",6]],[]]"],[["\x02"],"propose","[1,0,,[]]"],'
    b'[["\x02","\x04"],"finals","[1,,[[,2]]]"],[["\x02","\x04"],"known","[1,[,,],]"],'
    b'[[],"contents","[[[\\"\x01\x03-0\\",,,[]]]]"]],[[,["\x04",0],["~\x01\x04-0  ",6],[]],'
    b'[,["\x02",0],["~\x01\x02-0  ",4],[]],[,["\x03",0],["~\x01\x03-0  ",5],[]]],"~",,"~","=",'
    b'[["\x02",1,,,"=",false,],["\x03",1,,,"=",false,],["\x04",1,,,"=",false,]],2,2,"0.2.0",]'
)
"""Text that most entries have in common. It is part of the format: another dictionary could read no entry."""
_MAX_NAMES = 31
_ROOM_BYTES = 1024
"""An upper bound for a record's parts other than its value."""


def write_entry(entry: Entry) -> Data:
    """Encode an entry as DATA. Raises ProtocolViolation if it is larger than a record may be."""
    if entry.readable_from == FIRST.number:
        payload = gzip.compress(entry.to_bytes(), compresslevel=1, mtime=0)
    else:
        behind = b"" if entry.is_whole else entry.state
        bare = entry if entry.is_whole else entry._replace(state=b"")
        payload = _DEFLATED + deflated(_with_names_once(bare), _WORDS) + behind
    if len(payload) > MAX_RECORD_BYTES - _ROOM_BYTES:
        raise ProtocolViolation(
            f"this site's state of the agreement takes {len(payload)} bytes, too many for a record: the group has too "
            "many senders."
        )
    return Data(ENTRY, entry.epoch, local_seqno=entry.number, payload=payload)


def _with_names_once(entry: Entry) -> bytes:
    """Encode an entry with its names first, and each name's use replaced by a byte that JSON does not have."""
    plain = entry.to_bytes()
    topics = {ranges_of(ordered.run)[0].place.partition(".forward.")[0] + ".forward." for ordered in entry.ordered[:1]}
    names = sorted(topics) + sorted({name for name, *_ in entry.logs} | {each.sender.name for each in entry.ordered})
    names = names[:_MAX_NAMES] if all(name.isascii() and name.isprintable() for name in names) else []
    for mark, name in enumerate(names, 1):
        plain = plain.replace(name.encode("ascii"), bytes((mark,)))
    return " ".join(names).encode("ascii") + b"\n" + plain


def _with_names(raw: bytes) -> bytes:
    """Invert `_with_names_once`. Raises ValueError for a result that is too long."""
    names, _, plain = raw.partition(b"\n")
    for mark, name in enumerate(names.split(b" "), 1):
        if len(plain) + plain.count(mark) * len(name) > MAX_INFLATED_BYTES:
            raise ValueError(f"over {MAX_INFLATED_BYTES} bytes")
        plain = plain.replace(bytes((mark,)), name)
    return plain


def _decoded(payload: bytes) -> Entry:
    if not payload.startswith(_DEFLATED):
        return Entry.from_bytes(inflated(payload, MAX_INFLATED_BYTES))
    plain, state = inflated_first(payload[len(_DEFLATED) :], MAX_INFLATED_BYTES, _WORDS)
    entry = Entry.from_bytes(_with_names(plain))
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
