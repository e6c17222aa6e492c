"""ISIS messages as datagrams: several in one, each datagram checked as a whole.

    header    `AI`, version, CRC-32 of the rest, digest of the hostfile, the sender's id, incarnation and suspicion
              timeout in ms
    message   kind, length, body

The four messages that every run needs are packed by hand; the rest, which is rare, is compressed JSON. A message longer
than a datagram goes in parts, each in a message of its own. A receiver that lacks a part gets all again, since an
unanswered message is repeated. A body decodes to a message or raises MalformedDatagram, whatever it is: numbers are
unsigned, and counts are bounded by the length.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple, cast

from ordering.agreement.codec import decode, encode
from ordering.agreement.formation import Hello
from ordering.agreement.history import Ask, MissedDeliveries
from ordering.agreement.hold_back import Key, Run
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
from ordering.base.records import MAX_NUMBER

MAX_DATAGRAM_BYTES = 60_000
"""The largest datagram; a message that does not fit is sent in parts."""

PACKED_BYTES = 8_192
"""The size up to which messages are packed together; one message may be larger."""

MAX_PAYLOAD_BYTES = 32_000
"""The largest message of an application."""

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The largest body after decompression."""

MAX_PARTS = MAX_BODY_BYTES // MAX_DATAGRAM_BYTES + 1
"""The most parts of one message."""

MAX_UNFINISHED = 4
"""The most incomplete messages kept of one sender. It repeats three at most: its promise, its proposal of the next
view, and the present view for a process that lacks it.
"""

Packet = Message | Ask | MissedDeliveries


class Part(NamedTuple):
    """A part of a message; the digest identifies the message."""

    digest: bytes
    place: int
    parts: int
    piece: bytes


_MAGIC, _VERSION = b"AI", 3
_HEADER = struct.Struct("!2sBI")
_ORIGIN = struct.Struct("!8sHQI")
_MESSAGE = struct.Struct("!BI")
_SEND, _RUN = struct.Struct("!QQH"), struct.Struct("!QII")
_PROPOSE, _FINALS, _KNOWN = struct.Struct("!QHQH"), struct.Struct("!QQH"), struct.Struct("!QQH")
_PART = struct.Struct("!8sHH")
_KINDS: tuple[type[Any], ...] = (
    Send,
    Propose,
    Finals,
    Known,
    Beat,
    Hello,
    Join,
    Prepare,
    BallotPromise,
    Refuse,
    Accept,
    BallotAccepted,
    DecidedView,
    Ask,
    MissedDeliveries,
    Hears,
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS, start=1)}
_IN_PARTS = len(_KINDS) + 1


class MalformedDatagram(Exception):
    """A datagram that is not of this version and this group. The text says why, in a few fixed words."""


class Datagram(NamedTuple):
    """A received datagram: the sender's id, incarnation and suspicion timeout, and its messages."""

    sender: int
    incarnation: int
    suspect_after_ms: int
    messages: tuple[Packet | Part, ...]


def encode_message(message: Packet) -> Iterator[bytes]:
    """Encode a message, in several pieces if it has many runs."""
    if isinstance(message, Send):
        for part in _split(message):
            yield _framed(1, b"".join(_send_parts(part)))
        return
    if isinstance(message, Propose):
        view, sender, first, numbers = message
        body = struct.pack(f"!QHQH{len(numbers)}Q", view, sender, first, len(numbers), *numbers)
    elif isinstance(message, Finals):
        flat = [number for key in message.keys for number in key]
        body = struct.pack(f"!QQH{'QH' * len(message.keys)}", message.view, message.first, len(message.keys), *flat)
    elif isinstance(message, Known):
        view, finals, delivered = message
        body = struct.pack(f"!QQH{len(finals)}Q", view, delivered, len(finals), *finals)
    else:
        body = zlib.compress(encode(message), 1)
    yield _framed(_NUMBER_OF[type(message)], body)


def pack(
    group: bytes,
    sender: int,
    incarnation: int,
    messages: Iterable[bytes],
    suspect_after_ms: int = 0,
    largest: int = MAX_DATAGRAM_BYTES,
) -> Iterator[bytes]:
    """Pack encoded messages into datagrams, none of them above the `largest`."""
    origin = _ORIGIN.pack(group, sender, incarnation, suspect_after_ms)
    parts, size = [origin], len(origin)
    for message in (each for whole in messages for each in _in_parts(whole, largest - _HEADER.size - _ORIGIN.size)):
        if size + len(message) > min(PACKED_BYTES, largest - _HEADER.size) and len(parts) > 1:
            yield _checked(parts)
            parts, size = [origin], len(origin)
        parts.append(message)
        size += len(message)
    if len(parts) > 1:
        yield _checked(parts)


def _in_parts(message: bytes, limit: int) -> Iterator[bytes]:
    if len(message) <= limit:
        yield message
        return
    limit -= _MESSAGE.size + _PART.size
    name, count = _name_of(message), -(-len(message) // limit)
    for index in range(count):
        piece = message[index * limit : (index + 1) * limit]
        yield _framed(_IN_PARTS, _PART.pack(name, index, count) + piece)


def _name_of(message: bytes) -> bytes:
    return blake2b(message, digest_size=8).digest()


class DatagramAssembly:
    """Assembles messages from parts. It keeps the last `MAX_UNFINISHED` incomplete messages of each sender."""

    def __init__(self) -> None:
        self._pieces: dict[int, dict[bytes, dict[int, bytes]]] = {}

    def take(self, sender: int, part: Part) -> tuple[Packet, ...]:
        """Add a part; return its message if that is complete now. Raises MalformedDatagram."""
        if not part.place < part.parts <= MAX_PARTS:
            raise MalformedDatagram("too large")
        unfinished = self._pieces.setdefault(sender, {})
        pieces = unfinished.pop(part.digest, {})
        pieces[part.place] = part.piece
        if len(pieces) < part.parts:
            unfinished[part.digest] = pieces
            if len(unfinished) > MAX_UNFINISHED:
                del unfinished[next(iter(unfinished))]  # the one that got no part for the longest time
            return ()
        whole = b"".join(pieces[index] for index in sorted(pieces))
        if _name_of(whole) != part.digest:
            raise MalformedDatagram("damaged")
        messages = _read_all(whole, 0)
        if any(isinstance(message, Part) for message in messages):
            raise MalformedDatagram("not a message")
        return cast("tuple[Packet, ...]", messages)


def _read_all(raw: bytes, position: int) -> tuple[Packet | Part, ...]:
    try:
        return tuple(_messages(raw, position))
    except (struct.error, ProtocolViolation, zlib.error, IndexError) as error:
        raise MalformedDatagram("not a message") from error


def unpack(group: bytes, raw: bytes) -> Datagram:
    """Invert `pack`. Raises MalformedDatagram for anything else."""
    if len(raw) < _HEADER.size + _ORIGIN.size:
        raise MalformedDatagram("too short")
    magic, version, check = _HEADER.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION:
        raise MalformedDatagram("not of this version")
    if zlib.crc32(memoryview(raw)[_HEADER.size :]) != check:
        raise MalformedDatagram("damaged")
    their_group, sender, incarnation, suspect_after_ms = _ORIGIN.unpack_from(raw, _HEADER.size)
    if their_group != group:
        raise MalformedDatagram("of another hostfile")
    return Datagram(sender, incarnation, suspect_after_ms, _read_all(raw, _HEADER.size + _ORIGIN.size))


def _counted(*numbers: int) -> None:
    """Raise MalformedDatagram for numbers that no correct process reaches: numbers computed from them would not fit."""
    if max(numbers) > MAX_NUMBER:
        raise MalformedDatagram("not a message")


def _messages(raw: bytes, position: int) -> Iterator[Packet | Part]:
    while position < len(raw):
        kind, length = _MESSAGE.unpack_from(raw, position)
        position += _MESSAGE.size
        if position + length > len(raw):
            raise MalformedDatagram("cut off")
        body = raw[position : position + length]
        position += length
        if kind == 1:
            yield _read_send(body)
        elif kind == 2:
            view, sender, first, count = _PROPOSE.unpack_from(body)
            numbers = struct.unpack_from(f"!{count}Q", body, _PROPOSE.size)
            _counted(view, first, *numbers)
            yield Propose(view, sender, first, numbers)
        elif kind == 3:
            view, first, count = _FINALS.unpack_from(body)
            flat = struct.unpack_from("!" + "QH" * count, body, _FINALS.size)
            _counted(view, first, *flat)
            yield Finals(view, first, tuple(map(Key._make, zip(flat[::2], flat[1::2], strict=True))))
        elif kind == 4:
            view, delivered, count = _KNOWN.unpack_from(body)
            finals = struct.unpack_from(f"!{count}Q", body, _KNOWN.size)
            _counted(view, delivered, *finals)
            yield Known(view, finals, delivered)
        elif kind == _IN_PARTS:
            name, place, parts = _PART.unpack_from(body)
            yield Part(name, place, parts, body[_PART.size :])
        else:
            yield _read_rare(kind, body)


def _read_rare(kind: int, body: bytes) -> Packet:
    if not 4 < kind <= len(_KINDS):
        raise MalformedDatagram("of an unknown kind")
    opened = zlib.decompressobj()
    plain = opened.decompress(body, MAX_BODY_BYTES)
    if not opened.eof:
        raise MalformedDatagram("too large")
    message: Packet = decode(_KINDS[kind - 1], plain)
    return message


def _read_send(body: bytes) -> Send:
    view, first, count = _SEND.unpack_from(body)
    _counted(view, first)
    position, runs, numbers = _SEND.size, [], []
    for _ in range(count):
        number, length, size = _RUN.unpack_from(body, position)
        position += _RUN.size
        if position + size > len(body):
            raise MalformedDatagram("cut off")
        runs.append(Run(body[position : position + size], length))
        numbers.append(number)
        position += size
    _counted(0, *numbers)
    return Send(view, first, tuple(runs), tuple(numbers))


def _send_parts(message: Send) -> Iterator[bytes]:
    yield _SEND.pack(message.view, message.first, len(message.runs))
    for (reference, length), number in zip(message.runs, message.numbers, strict=True):
        yield _RUN.pack(number, length, len(reference))
        yield reference


def _split(message: Send) -> Iterator[Send]:
    """Yield the message in parts that fit into a datagram."""
    start, size = 0, 0
    limit = PACKED_BYTES - _HEADER.size - _ORIGIN.size - _MESSAGE.size - _SEND.size
    for index, run in enumerate(message.runs):
        needed = _RUN.size + len(run.reference)
        if index > start and size + needed > limit:
            yield _part(message, start, index)
            start, size = index, 0
        size += needed
    yield _part(message, start, len(message.runs))


def _part(message: Send, start: int, end: int) -> Send:
    return Send(message.view, message.first + start, message.runs[start:end], message.numbers[start:end])


def _framed(kind: int, body: bytes) -> bytes:
    return _MESSAGE.pack(kind, len(body)) + body


def _checked(parts: list[bytes]) -> bytes:
    rest = b"".join(parts)
    return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(rest)) + rest
