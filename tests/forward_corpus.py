"""FORWARD records as any producer may write them, and what becomes of them: `(name, key, value, headers, reason)`.

`reason` is the dead letter's, None for a good record. The codec and Spark's columns run this one corpus. The
topic is `abcast.orders.forward.nyc`, or what the relay from sfo fills there: as in a hub, and as in a mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from connectors.kafka.codec import codec
from connectors.kafka.codec.codec import WRONG_LOCAL_SEQNOS
from connectors.kafka.codec.dead_letter_codec import DEAD_LETTER_HEADER
from connectors.kafka.codec.headers import DEPENDS_HEADER
from connectors.kafka.codec.plain_record import UNREAD_HEADER
from ordering.base.packs import (
    MAX_PACK_BYTES,
    MAX_PACK_HEADERS_BYTES,
    MAX_PACK_MESSAGES,
    NO_PACKS,
    PACK_HEADERS_TOO_LARGE,
    PACK_TOO_LARGE,
    WRONG_COUNT,
    WRONG_LAYOUT,
    WRONG_LENGTHS,
    encode_pack,
)
from ordering.base.records import CLOCK_AHEAD_MS, INCARNATIONS_A_MS, MAX_HEADERS_BYTES, MAX_NUMBER, MAX_PAYLOAD_BYTES

TOPIC = "abcast.orders.forward.nyc"
RELAYED = "abcast.orders.relayed-sfo.nyc"
TIMESTAMP_MS = 1_700_000_000_123

RawHeaders = Sequence[tuple[str, bytes]]
PACK = encode_pack([b"buy 100", b"", b"sell 50"])


class Case(NamedTuple):
    """A record, and the reason of its dead letter (or None)."""

    name: str
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    reason: str | None
    topic: str = TOPIC
    timestamp_ms: int = TIMESTAMP_MS

    @property
    def reason_without_packs(self) -> str | None:
        """The reason in a new group, which takes no packs."""
        is_pack = any((value or b"").startswith(b"2 messages ") for _, value in self.headers)
        return self.reason or (NO_PACKS if is_pack else None)


ALICE = b"nyc/alice"
GOOD: RawHeaders = (("abcast", b"2 message 1 1"),)


def _says(text: str | bytes) -> RawHeaders:
    return [("abcast", text.encode() if isinstance(text, str) else text)]


def _kind(kind: str) -> RawHeaders:
    return _says(f"2 {kind} 1 1")


def _number_cases(name: str, before: bytes, behind: bytes, reason: str) -> list[Case]:
    wrong = {
        "is empty": b"",
        "is 0": b"0",
        "is negative": b"-1",
        "is a dash": b"-",
        "has a plus": b"+1",
        "has a leading zero": b"01",
        "has two blanks before it": b" 1",
        "has a tab before it": b"\t1",
        "has a line end behind it": b"1\n",
        "has a zero byte behind it": b"1\0",
        "has an underscore": b"1_0",
        "has a comma": b"1,000",
        "is a fraction": b"1.0",
        "is hexadecimal": b"0x1",
        "has an exponent": b"1e3",
        "has a suffix": b"1L",
        "is a word": b"one",
        "has digits that are not ASCII": "\N{ARABIC-INDIC DIGIT ONE}".encode(),
        "has a wide blank before it": "\N{NO-BREAK SPACE}1".encode(),
        "is not UTF-8": b"\xff",
        "has 19 digits": b"1" + b"0" * 18,
        "overflows 64 bits": b"9" * 40,
        "is enormous": b"9" * 5000,
    }
    missing = Case(f"{name} is missing", ALICE, b"x", _says(before.rstrip()), reason)
    return [
        missing,
        *(Case(f"{name} {what}", ALICE, b"x", _says(before + text + behind), reason) for what, text in wrong.items()),
    ]


BOB = b"sfo/bob"
RELAY = b"sfo/abcast.relay"
VIEW = b'{"members":[["sfo/bob",7],["sfo/carol",9]],"joined":["sfo/carol"],"left":[],"suspected":[],"flush":0}'
MARK = "sfo/abcast.orders.forward.sfo-0:7"


def _asked(
    name: str, reason: str | None, sender: bytes = BOB, kind: str = "message", value: bytes | None = b"x"
) -> Case:
    """Return a record that the relay to a hub's home brings."""
    return Case(f"relayed, {name}", sender, value, _says(f"2 {kind} 1 1 {MARK} -"), reason, RELAYED)


def _told(name: str, reason: str | None, kind: str, value: bytes | None) -> Case:
    """Return a mesh relay's own record."""
    return Case(f"told, {name}", RELAY, value, _kind(kind), reason, RELAYED)


def _linked(
    name: str,
    reason: str | None,
    sender: bytes = BOB,
    kind: str = "message",
    value: bytes | None = b"x",
    link: bytes = b"17.4.9.3",
    more: RawHeaders = (),
) -> Case:
    """Return a record that a link of a mesh brings."""
    headers = [*_says(f"2 {kind} 1 1 - ".encode() + link), *more]
    return Case(f"linked, {name}", sender, value, headers, reason, RELAYED)


def _link_cases() -> list[Case]:
    wrong = {
        "is empty": b"",
        "is a word": b"none",
        "has three numbers": b"17.4.9",
        "has five numbers": b"17.4.9.3.1",
        "has two dots": b"17.4..9.3",
        "has a blank before it": b" 17.4.9.3",
        "has a line end behind it": b"17.4.9.3\n",
        "has blanks": b"17 4 9 3",
        "has tabs": b"17\t4\t9\t3",
        "has commas": b"17,4,9,3",
        "has a leading zero": b"17.4.09.3",
        "has a plus": b"17.4.+9.3",
        "is negative": b"17.4.9.-3",
        "has a word": b"17.4.nine.3",
        "has 19 digits": b"17.4.9.1000000000000000000",
        "has digits that are not ASCII": "17.4.\N{ARABIC-INDIC DIGIT NINE}.3".encode(),
        "is not UTF-8": b"17.4.9.\xff",
        "has a zero byte": b"17.4.9.3\0",
    }
    return [_linked(f"what the link says {what}", codec.WRONG_LINK, link=link) for what, link in wrong.items()]


HIGHEST = (TIMESTAMP_MS + CLOCK_AHEAD_MS) * INCARNATIONS_A_MS
"""The highest incarnation that a record may have, by its timestamp."""


def _of(incarnation: int) -> RawHeaders:
    return _says(f"2 message {incarnation} 1")


def _pack_cases() -> list[Case]:
    said = {
        "is one number": b"7",
        "has no first number": b"-9",
        "has no last number": b"7-",
        "is a pack of one": b"7-7",
        "with half a character": b"7-9\xf0",
        "with half a character first": b"\xc3-9",
        "with a hyphen in a character": b"7\xc3-9",
        "goes backwards": b"9-7",
        "begins at 0": b"0-2",
        "has a leading zero": b"7-09",
        "has three numbers": b"7-9-11",
        "has a blank": b"7 -9",
        "has 19 digits": b"1-1000000000000000000",
        "is missing": b"",
    }
    wrong = {
        "a message too few": (b"7-10", PACK, WRONG_LENGTHS),
        "a message too many": (b"7-8", PACK, WRONG_LENGTHS),
        "more than it can have": (b"1-999999999999999999", PACK, WRONG_COUNT),
        "no value": (b"7-9", b"", WRONG_LAYOUT),
        "another layout": (b"7-9", b"\2" + PACK[1:], WRONG_LAYOUT),
        "a length beyond all": (b"7-9", PACK[:1] + b"\xff" * 4 + PACK[5:], WRONG_LENGTHS),
        "cut lengths": (b"7-9", PACK[:9], WRONG_LENGTHS),
        "a byte behind it": (b"7-9", PACK + b"x", WRONG_LENGTHS),
        "a byte over the limit": (b"7-8", encode_pack([b"x" * (MAX_PACK_BYTES - 9), b""]) + b"x", PACK_TOO_LARGE),
    }
    full = encode_pack([b"x" * (MAX_PACK_BYTES - 9), b""]), encode_pack([b""] * MAX_PACK_MESSAGES)
    good = (b"7-9", PACK), (b"7-8", full[0]), (b"1-%d" % MAX_PACK_MESSAGES, full[1])
    return [
        *(
            Case(f"a pack, {numbers!r}", ALICE, value, _says(b"2 messages 1 " + numbers), None)
            for numbers, value in good
        ),
        Case("a pack, with headers", ALICE, PACK, [*_says("2 messages 1 7-9"), ("trace", b"7")], None),
        *(
            Case(
                f"a pack of {MAX_PACK_MESSAGES}, with {name!r} of {size} bytes",
                ALICE,
                full[1],
                [*_says(f"2 messages 1 1-{MAX_PACK_MESSAGES}"), (name, bytes(size - len(name)))],
                PACK_HEADERS_TOO_LARGE if size > most else None,
            )
            for name in ("trace", DEPENDS_HEADER)
            for most in [MAX_PACK_HEADERS_BYTES // MAX_PACK_MESSAGES]
            for size in (most, most + 1)
        ),
        Case("a pack, with a field more", ALICE, PACK, _says("2 messages 1 7-9 later"), None),
        Case("a pack, null", ALICE, None, _says("2 messages 1 7-9"), codec.NO_PAYLOAD),
        Case("a pack of another site", BOB, PACK, _says("2 messages 1 7-9"), codec.WRONG_SITE),
        Case("a pack, relayed", BOB, PACK, _says(f"2 messages 1 7-9 {MARK} -"), None, RELAYED),
        Case("a pack, by a link", BOB, PACK, _says("2 messages 1 7-9 - 17.4.9.3"), codec.WRONG_LINK, RELAYED),
        *(
            Case(f"local seqnos of a pack, {what}", ALICE, PACK, _says(b"2 messages 1 " + text), WRONG_LOCAL_SEQNOS)
            for what, text in said.items()
        ),
        *(
            Case(f"a pack, {what}", ALICE, value, _says(b"2 messages 1 " + numbers), reason)
            for what, (numbers, value, reason) in wrong.items()
        ),
    ]


CORPUS: tuple[Case, ...] = (
    Case("good", ALICE, b"buy 100", GOOD, None),
    Case("empty payload", ALICE, b"", GOOD, None),
    Case("what it depends on", ALICE, b"x", [*GOOD, ("n", b"v"), ("abcast-depends", b"3 1,2")], None),
    Case("an answer that depends", ALICE, b"1", [*_kind("flush-ok"), ("abcast-depends", b"3 1,2")], None),
    Case("another name like that", ALICE, b"x", [*GOOD, ("abcast-depend", b"3 1,2")], codec.RESERVED_HEADER),
    *(
        Case(f"kind {kind}", ALICE, b"", _kind(kind), None)
        for kind in ("join", "leave", "heartbeat", "settings", "forget", "start-flush", "flush-ok", "stop-flush")
    ),
    Case("a view from outside", ALICE, b"x", _kind("view"), codec.WRONG_KIND),
    Case("payload of zero bytes and wild bytes", ALICE, b"\0\xff\n\r", GOOD, None),
    Case("largest payload", ALICE, b"x" * MAX_PAYLOAD_BYTES, GOOD, None),
    Case("the largest local seqno", ALICE, b"x", _says(b"2 message 1 " + b"9" * 18), None),
    Case("the largest incarnation, of a time that is not known", ALICE, b"x", _of(MAX_NUMBER), None, TOPIC, 0),
    Case("an incarnation of less than a day ahead", ALICE, b"x", _of(HIGHEST), None),
    Case("an incarnation of more than a day ahead", ALICE, b"x", _of(HIGHEST + 1), codec.FUTURE_INCARNATION),
    Case("the largest incarnation", ALICE, b"x", _of(MAX_NUMBER), codec.FUTURE_INCARNATION),
    Case("an incarnation ahead, of a time beyond all", ALICE, b"x", _of(MAX_NUMBER), None, TOPIC, 250_000_000_000_000),
    Case("application headers", ALICE, b"x", [*GOOD, ("trace", b"\xff\0"), ("trace", b"2"), ("", b"")], None),
    Case("application headers in front of ours", ALICE, b"x", [("a", b"1"), *GOOD, ("b", b"2")], None),
    Case("an application header of null", ALICE, b"x", [*GOOD, ("a", None)], None),  # type: ignore[list-item]  # Kafka
    Case("an application header with ours in it", ALICE, b"x", [*GOOD, ("not-abcast", b"9")], None),
    Case("a field more", ALICE, b"x", _says("2 message 1 1 later"), None),
    Case("an empty field more", ALICE, b"x", _says("2 message 1 1 "), None),
    Case("many fields more", ALICE, b"x", _says("2 message 1 1 - 17.4.9.3  7 8 9"), None),
    Case("fields more that are not UTF-8", ALICE, b"x", _says(b"2 message 1 1 \xff \0 \n"), None),
    Case("fields as a relay has them, from a member", ALICE, b"x", _says(f"2 message 1 1 {MARK} -"), None),
    Case("fields as a link has them, from a member", ALICE, b"x", _says("2 message 1 1 - 17.4.9.3"), None),
    Case("application header like ours in capitals", ALICE, b"x", [*GOOD, ("Abcast", b"9")], None),
    Case("longest address", b"nyc/" + b"n" * 128, b"x", GOOD, None),
    Case("our header twice, the same", ALICE, b"x", [*GOOD, *GOOD], codec.REPEATED_HEADER),
    Case("our header twice, another", ALICE, b"x", [*GOOD, *_says("2 message 1 2")], codec.REPEATED_HEADER),
    Case("our header twice, once null", ALICE, b"x", [*GOOD, ("abcast", None)], codec.REPEATED_HEADER),  # type: ignore[list-item]  # Kafka
    Case("a header of the first version", ALICE, b"x", [*GOOD, ("abcast-seqno", b"7")], codec.RESERVED_HEADER),
    Case("a header of a dead letter", ALICE, b"x", [*GOOD, (DEAD_LETTER_HEADER, b"")], codec.RESERVED_HEADER),
    Case("a header nobody knows", ALICE, b"x", [*GOOD, ("abcaster", b"red")], codec.RESERVED_HEADER),
    Case(
        "a name that is not UTF-8, brought by a link",
        b"lax/eve",
        b"x",
        [*_says("2 message 1 1 - 17.4.9.3"), ("\ufffd", b"1")],
        None,
        RELAYED,
    ),
    Case("a name that is not UTF-8", ALICE, b"x", [*GOOD, ("\ufffd", b"1")], codec.WRONG_HEADER_NAME),
    Case("not UTF-8 within", ALICE, b"x", [("a", b"1"), ("a\ufffdb", b"1"), *GOOD], codec.WRONG_HEADER_NAME),
    Case("largest headers", ALICE, b"x", [*GOOD, ("h", b"x" * (MAX_HEADERS_BYTES - 1))], None),
    Case("not read", None, None, [(UNREAD_HEADER, b"")], codec.UNREAD),
    Case("our header with a long rest", ALICE, b"x", _says("2 message 1 1 " + "n" * MAX_PAYLOAD_BYTES), None),
    Case("headers too large", ALICE, b"x", [*GOOD, ("h", b"x" * MAX_HEADERS_BYTES)], codec.HEADERS_TOO_LARGE),
    Case(
        "too many headers of nothing",
        ALICE,
        b"x",
        [*GOOD, *[("", b"")] * (MAX_HEADERS_BYTES + 1)],
        codec.HEADERS_TOO_LARGE,
    ),
    Case(
        "what it depends on is too large",
        ALICE,
        b"x",
        [*GOOD, (DEPENDS_HEADER, b"x" * MAX_PAYLOAD_BYTES)],
        codec.HEADERS_TOO_LARGE,
    ),
    Case("no headers", ALICE, b"x", (), codec.WRONG_VERSION),
    Case("our header is null", ALICE, b"x", [("abcast", None)], codec.WRONG_VERSION),  # type: ignore[list-item]  # Kafka
    *(
        Case(f"our header: {what}", ALICE, b"x", _says(text), codec.WRONG_VERSION)
        for what, text in {
            "empty": b"",
            "a blank": b" ",
            "the first version": b"1 message 1 1",
            "a later version": b"3 message 1 1",
            "version 22": b"22 message 1 1",
            "version 02": b"02 message 1 1",
            "no version": b"message 1 1",
            "a blank in front": b" 2 message 1 1",
            "a tab in front": b"\t2 message 1 1",
            "tabs for blanks": b"2\tmessage\t1\t1",
            "line ends for blanks": b"2\nmessage\n1\n1",
            "wide blanks": "2\N{NO-BREAK SPACE}message 1 1".encode(),
            "another script's version": "\N{ARABIC-INDIC DIGIT TWO} message 1 1".encode(),
            "a byte order mark": b"\xef\xbb\xbf2 message 1 1",
            "not UTF-8": b"\xff",
            "UTF-16": "2 message 1 1".encode("utf-16-le"),
        }.items()
    ),
    Case("no kind", ALICE, b"x", _says("2"), codec.WRONG_KIND),
    Case("an empty kind", ALICE, b"x", _says("2  1 1"), codec.WRONG_KIND),
    Case("two blanks before the kind", ALICE, b"x", _says("2  message 1 1"), codec.WRONG_KIND),
    Case("a kind with a tab behind it", ALICE, b"x", _says("2 message\t 1 1"), codec.WRONG_KIND),
    Case("a kind that is not UTF-8", ALICE, b"x", _says(b"2 \xff 1 1"), codec.WRONG_KIND),
    Case("an unknown kind", ALICE, b"x", _kind("gossip"), codec.WRONG_KIND),
    Case("the sequencer's kind", ALICE, b"x", _kind("epoch"), codec.WRONG_KIND),
    Case("a kind in capitals", ALICE, b"x", _kind("Message"), codec.WRONG_KIND),
    Case("no key", None, b"x", GOOD, codec.NO_SENDER),
    Case("neither a key nor a value", None, None, GOOD, codec.NO_SENDER),
    Case("nothing at all", None, None, (), codec.WRONG_VERSION),
    Case("an empty key", b"", b"x", GOOD, codec.NO_SENDER),
    Case("a key in UTF-8", "nyc/zoë".encode(), b"x", GOOD, codec.NO_SENDER),
    Case("a key that is not UTF-8", b"nyc/\xff", b"x", GOOD, codec.NO_SENDER),
    *_number_cases("INCARNATION", b"2 message ", b" 1", codec.WRONG_INCARNATION),
    *_number_cases("LOCAL_SEQNO", b"2 message 1 ", b"", codec.WRONG_LOCAL_SEQNO),
    Case("another site", b"sfo/bob", b"x", GOOD, codec.WRONG_SITE),
    Case("a site that begins like ours", b"nyc2/bob", b"x", GOOD, codec.WRONG_SITE),
    Case("no site", b"alice", b"x", GOOD, codec.WRONG_SITE),
    *_pack_cases(),
    _asked("from the neighbour", None),
    Case(
        "relayed, with an application header",
        BOB,
        b"x",
        [*_says(f"2 message 1 1 {MARK} -"), ("a", b"1")],
        None,
        RELAYED,
    ),
    Case("relayed, without a mark", BOB, b"x", GOOD, None, RELAYED),
    Case("relayed, with one field of two", BOB, b"x", _says(f"2 message 1 1 {MARK}"), None, RELAYED),
    Case("relayed, with its time", BOB, b"x", _says(f"2 message 1 1 {MARK} - {TIMESTAMP_MS}"), None, RELAYED),
    Case("relayed, with a field more", BOB, b"x", _says(f"2 message 1 1 {MARK} - later"), None, RELAYED),
    Case("relayed, an empty field for the link", BOB, b"x", _says("2 message 1 1 - "), codec.WRONG_LINK, RELAYED),
    Case("relayed, fields lack", BOB, b"x", _says(f"2 message - - {MARK} -"), codec.WRONG_INCARNATION, RELAYED),
    Case("relayed, our header twice", BOB, b"x", [*GOOD, *GOOD], codec.REPEATED_HEADER, RELAYED),
    *(_asked(f"kind {kind}", None, kind=kind) for kind in ("join", "leave", "heartbeat", "settings", "start-flush")),
    Case(
        "relayed, an incarnation of more than a day ahead",
        BOB,
        b"x",
        _says(f"2 message {HIGHEST + 1} 1 {MARK} -"),
        codec.FUTURE_INCARNATION,
        RELAYED,
    ),
    _asked("a sender of a third site", codec.WRONG_SITE, b"lax/carol"),
    _asked("a sender of a site that begins like the neighbour", codec.WRONG_SITE, b"sfo2/carol"),
    _asked("a sender of this site", codec.WRONG_SITE, ALICE),
    _asked("a sender without a site", codec.WRONG_SITE, b"bob"),
    _asked("a skip", codec.WRONG_LINK, RELAY, "skip", b""),
    _asked("a member's skip", codec.WRONG_LINK, kind="skip", value=b""),
    _told("a view of its site", None, "remote-view", VIEW),
    _told("a view that is none", None, "remote-view", b"[\xff"),
    _told("a view of a third site", None, "remote-view", b'{"members":[["lax/dan",1]]}'),
    _told("a heartbeat", None, "heartbeat", b""),
    _told("a farewell", None, "leave", b""),
    _told("the beginning of a session", None, "link-start", b'{"epoch":4,"origins":{},"seqno":8}'),
    _told("a beginning that is none", None, "link-start", b"[\xff"),
    _asked("a beginning told by a member", codec.NOT_THE_RELAY, kind="link-start"),
    _asked("a beginning told from afar", codec.WRONG_SITE, b"lax/abcast.relay", "link-start"),
    _told("a message", codec.NOT_THE_RELAY, "message", b"x"),
    _told("it joins", codec.NOT_THE_RELAY, "join", b""),
    *(
        _asked(f"{kind} by a member in the relay's name", codec.NOT_THE_RELAY, RELAY, kind, b"{}")
        for kind in ("message", "join", "heartbeat", "leave", "remote-view", "link-start")
    ),
    _asked("a view told by a member", codec.NOT_THE_RELAY, BOB, "remote-view", VIEW),
    _asked("a view told from afar", codec.WRONG_SITE, b"lax/abcast.relay", "remote-view", b'{"members":[]}'),
    _asked("a heartbeat from afar", codec.WRONG_SITE, b"lax/abcast.relay", "heartbeat", b""),
    _told("no view at all", codec.NO_PAYLOAD, "remote-view", None),
    _linked("from the neighbour", None),
    _linked("with application headers", None, more=[("trace", b"1"), ("trace", b"\xff")]),
    _linked("from afar", None, b"lax/carol"),
    _linked("of a site that begins like this one", None, b"nyc2/carol"),
    _linked("the first numbers", None, link=b"0.0.0.0"),
    _linked("the largest numbers", None, link=b"%d.%d.%d.%d" % (MAX_NUMBER, MAX_NUMBER, MAX_NUMBER, MAX_NUMBER)),
    _linked("no payload", codec.NO_PAYLOAD, value=None),
    _linked("a field more", None, link=b"17.4.9.3 later"),
    _linked("a blank behind it", None, link=b"17.4.9.3 "),
    Case(
        "linked, an incarnation of more than a day ahead",
        BOB,
        b"x",
        _says(b"2 message " + b"9" * 18 + b" 1 - 17.4.9.3"),
        None,
        RELAYED,
    ),
    Case("linked, a mark, too", BOB, b"x", _says(f"2 message 1 1 {MARK} 17.4.9.3"), None, RELAYED),
    _linked("our header twice", codec.REPEATED_HEADER, more=GOOD),
    _linked("a header that nobody knows", codec.RESERVED_HEADER, more=[("abcast-mine", b"sfo")]),
    _linked("a sender of this site", codec.WRONG_SITE, ALICE),
    _linked("a sender without a site", codec.WRONG_SITE, b"bob"),
    _linked("a message of the relay", codec.NOT_THE_RELAY, RELAY),
    _linked("a message of a relay afar", codec.NOT_THE_RELAY, b"lax/abcast.relay"),
    _linked("a skip", None, RELAY, "skip", b""),
    _linked("a member's skip", codec.NOT_THE_RELAY, BOB, "skip", b""),
    Case("linked, a copied skip", RELAY, b"", _says(f"2 skip 1 1 {MARK} 17.4.9.0"), codec.NOT_THE_RELAY, RELAYED),
    _linked("a skip from afar", codec.NOT_THE_RELAY, b"lax/abcast.relay", "skip", b""),
    _linked("this site's skip", codec.WRONG_SITE, b"nyc/abcast.relay", "skip", b""),
    _linked("a view of its site", None, RELAY, "remote-view", VIEW),
    _linked("a view told by a member", codec.NOT_THE_RELAY, BOB, "remote-view", VIEW),
    *(
        _linked(f"kind {kind} of {sender.decode()}", codec.WRONG_LINK, sender, kind, b"")
        for kind, sender in (
            ("heartbeat", RELAY),
            ("leave", RELAY),
            ("link-start", RELAY),
            ("join", BOB),
            ("leave", BOB),
        )
    ),
    *_link_cases(),
    Case("a remote view that no relay brought", ALICE, VIEW, _kind("remote-view"), codec.NOT_THE_RELAY),
    Case(
        "a member with a relay's name",
        b"nyc/abcast.relay",
        b"x",
        GOOD,
        codec.NOT_THE_RELAY,
    ),
    *(
        Case(f"{name} writes {kind}", f"nyc/{name}".encode(), b"{}", _kind(kind), reason)
        for name, kind, reason in (
            ("abcast.tick", "heartbeat", None),
            ("abcast.admin", "settings", None),
            ("abcast.admin", "forget", None),
            ("abcasts", "message", None),
            ("abcast.tick", "message", codec.RESERVED_NAME),
            ("abcast.tick", "settings", codec.RESERVED_NAME),
            ("abcast.admin", "message", codec.RESERVED_NAME),
            ("abcast.admin", "leave", codec.RESERVED_NAME),
            ("abcast.", "join", codec.RESERVED_NAME),
            ("abcast.relays", "heartbeat", codec.RESERVED_NAME),
            ("abcast.x/abcast.tick", "heartbeat", codec.RESERVED_NAME),
        )
    ),
    _asked("a message of ticks", codec.RESERVED_NAME, b"sfo/abcast.tick"),
    _asked("a tick", None, b"sfo/abcast.tick", "heartbeat", b""),
    _asked("settings", None, b"sfo/abcast.admin", "settings", b"{}"),
    _linked("a message of an operator", codec.RESERVED_NAME, b"lax/abcast.admin"),
    Case("a skip that no relay brought", ALICE, b"", _kind("skip"), codec.WRONG_LINK),
    Case("a beginning that no relay brought", ALICE, b"{}", _kind("link-start"), codec.NOT_THE_RELAY),
    Case("null payload", ALICE, None, GOOD, codec.NO_PAYLOAD),
    Case("payload too large", ALICE, b"x" * (MAX_PAYLOAD_BYTES + 1), GOOD, codec.PAYLOAD_TOO_LARGE),
    Case("two reasons: the first in the list counts", b"nyc/bob", None, _says("1"), codec.WRONG_VERSION),
)
"""An address that only `ordering.sequencer.sequencer` refuses (`nyc/`, `nyc/a/b`) would be good here: it is a dead
letter one step later."""
