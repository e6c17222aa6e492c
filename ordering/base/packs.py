"""Packs: several messages of one sender in the value of one record of the kind `messages`.

Layout of the value. All lengths come before the payloads, so they make the offsets of an Arrow array, and the
payloads need no copy (`connectors.kafka.codec.pack_arrow`).

| bytes | content |
| --- | --- |
| 1 | the version of the layout, 1 |
| 4 × COUNT | the length of each payload in bytes, a big-endian u32 |
| the rest | the payloads, one directly after the other |

COUNT, 1 to MAX_PACK_MESSAGES, is in the header of the record. The whole value has at most MAX_PACK_BYTES. A longer
message goes alone. The n-th message of a pack has the n-th local seqno from the record's one on, and in DATA the n-th
seqno. Each message has the application's headers of the record. Some readers copy them for each: so the headers, times
COUNT, have at most MAX_PACK_HEADERS_BYTES.

Readers take a pack as its messages. One that begins in the middle of a pack goes on with the next message of it.

A sender writes packs of two messages or more into FORWARD, in a group of format 3. A sequencer takes the messages of a
pack behind the sender's received row, all or none: it cuts the pack there (`rest_of`), and makes one record of DATA.

Invariant: a value that `fault` passes is split into COUNT payloads that use each byte of it once. Any other value is
refused before anything is allocated for it: the work is bounded by the length of the value, whatever COUNT says. A
crash can't tear a pack, since it is one record of Kafka.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ordering.base.errors import ProtocolViolation
from ordering.base.records import MESSAGE, MESSAGES, Data, Forward, Headers, headers_bytes

LAYOUT = 1
"""The version of the layout, the first byte."""
MAX_PACK_MESSAGES = 1_000
"""The most messages in a pack."""
MAX_PACK_BYTES = 65_536
"""Largest value of a pack, in bytes."""
MAX_PACK_HEADERS_BYTES = 1_000_000
"""Largest total of the application's headers of a pack's messages, in bytes."""

# Reasons to refuse a pack, in the order of the checks.
WRONG_COUNT = f"COUNT of a pack is missing or not a number from 1 to {MAX_PACK_MESSAGES}"
PACK_TOO_LARGE = f"the pack is over {MAX_PACK_BYTES} bytes"
WRONG_LAYOUT = f"the pack does not begin with the version of its layout, {LAYOUT}"
WRONG_LENGTHS = "the lengths in the pack do not add up to its payloads"
PACK_HEADERS_TOO_LARGE = f"the headers of the pack, times its messages, are over {MAX_PACK_HEADERS_BYTES} bytes"
NO_PACKS = "the group takes no packs: they begin with format 3 (abcast topics upgrade), and sites that agree take none"

_LENGTH = 4


def size_of_pack(payload_bytes: int, count: int) -> int:
    """Return the bytes of a pack of `count` messages with so many bytes of payload together."""
    return 1 + _LENGTH * count + payload_bytes


def is_full(count: int, payload_bytes: int, headers: Headers = ()) -> bool:
    """Whether messages with these headers fill a pack: one more, as large as they are on average, would not fit."""
    return (
        count >= (most_messages(headers) if headers else MAX_PACK_MESSAGES)
        or size_of_pack(payload_bytes + payload_bytes // count, count + 1) > MAX_PACK_BYTES
    )


def most_messages(headers: Headers) -> int:
    """Return how many messages with these headers a pack may have at most."""
    return min(MAX_PACK_MESSAGES, MAX_PACK_HEADERS_BYTES // max(1, headers_bytes(headers)))


def parts(sizes: Sequence[int], headers: Headers = ()) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each pack of successive messages with payloads of these sizes, in bytes.

    `headers`: the application's, of each. A pack is as large as the limits allow. A message that fits into none is a
    part of its own.
    """
    most = most_messages(headers)
    ends = list(accumulate(map(_LENGTH.__add__, sizes), initial=0))
    begin = 0
    while begin < len(sizes):
        fits = bisect_right(ends, ends[begin] + MAX_PACK_BYTES - 1, begin + 1) - 1
        end = max(begin + 1, min(fits, begin + most))
        yield begin, end
        begin = end


def encode_pack(payloads: Sequence[bytes]) -> bytes:
    """Return the value of the pack with these payloads. Raises ProtocolViolation if it breaks a limit."""
    if not 0 < len(payloads) <= MAX_PACK_MESSAGES:
        raise ProtocolViolation(f"{WRONG_COUNT}: {len(payloads)}.")
    if size_of_pack(sum(map(len, payloads)), len(payloads)) > MAX_PACK_BYTES:
        raise ProtocolViolation(f"{PACK_TOO_LARGE}.")
    lengths = struct.pack(f">B{len(payloads)}I", LAYOUT, *map(len, payloads))
    return b"".join((lengths, *payloads))


def fault(value: bytes, count: int) -> str:
    """Return the reason why the value is no pack of `count` messages; "" if it is one."""
    if not 0 < count <= MAX_PACK_MESSAGES:
        return WRONG_COUNT
    if len(value) > MAX_PACK_BYTES:
        return PACK_TOO_LARGE
    if value[:1] != bytes([LAYOUT]):
        return WRONG_LAYOUT
    if len(value) < size_of_pack(0, count) or size_of_pack(_sum_of_lengths(value, count), count) != len(value):
        return WRONG_LENGTHS
    return ""


def offsets(value: bytes, count: int) -> list[int]:
    """Return where each payload of the pack begins in its value, and where the last one ends: COUNT + 1 numbers.

    Raises ProtocolViolation if the value is no pack of `count` messages.
    """
    if reason := fault(value, count):
        raise ProtocolViolation(f"{reason}.")
    return list(accumulate(_lengths(value, count), initial=size_of_pack(0, count)))


def decode_pack(value: bytes, count: int) -> list[bytes]:
    """Return the payloads of the pack, in order. Raises as `offsets`."""
    return [value[begin:end] for begin, end in pairwise(offsets(value, count))]


def rest_of(record: Forward, taken: int) -> Forward:
    """Return the record with its last `taken` messages only. Raises as `offsets`."""
    if taken == record.count:
        return record
    payload = encode_pack(decode_pack(record.payload, record.count)[-taken:])
    local_seqno = record.last_local_seqno - taken + 1
    return replace(record, local_seqno=local_seqno, payload=payload, count=taken)


def unpacked(record: Data) -> Iterator[Data]:
    """Yield the messages of a pack, each as a record of its own; any other record as it is.

    The reading rule takes the same messages from these as from the pack: all or the rest of it, if they follow the last
    seqno, none otherwise. Raises as `offsets` for a pack that no sequencer writes.
    """
    if record.kind != MESSAGES:
        yield record
        return
    for n, payload in enumerate(decode_pack(record.payload, record.count)):
        seqno, local_seqno = record.seqno + n, record.local_seqno + n
        yield replace(record, kind=MESSAGE, seqno=seqno, local_seqno=local_seqno, payload=payload, count=1)


def _sum_of_lengths(value: bytes, count: int) -> int:
    lengths = value[1 : size_of_pack(0, count)]
    if lengths == lengths[:_LENGTH] * count:  # often, and this takes a fifth of the time
        return count * int.from_bytes(lengths[:_LENGTH], "big")
    return sum(_lengths(value, count))


def _lengths(value: bytes, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}I", value, 1)
