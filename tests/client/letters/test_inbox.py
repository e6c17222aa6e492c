"""The inbox rule: each sender's letters in order and once, whatever repeats or gaps the log has."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.codec import codec, letter_codec
from connectors.kafka.codec.letter_codec import WrittenLetter, decode_letter, letter_headers
from ordering.base.records import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, Headers
from ordering.letters.inbox import InboxReader

Id = tuple[str, int, int]


@st.composite
def sender_logs(draw: st.DrawFn, sender: str) -> tuple[list[Id], list[Id]]:
    """Draw one sender's letters over some incarnations, and its log: some records lost, and everything sent again."""
    sent: list[Id] = []
    written: list[Id] = []
    for incarnation in sorted(draw(st.sets(st.integers(1, 5), min_size=1, max_size=3))):
        letters = [(sender, incarnation, number) for number in range(1, draw(st.integers(0, 8)) + 1)]
        sent += letters
        first_lost = 0
        for _ in range(draw(st.integers(0, 3))):
            lost = draw(st.sets(st.sampled_from(letters or [(sender, incarnation, 1)]), min_size=1))
            end = draw(st.integers(first_lost, len(letters)))
            written += [letter for letter in letters[first_lost:end] if letter not in lost]
            # It starts again at the first that was not acknowledged, or earlier.
            missing = next((n for n in range(first_lost, end) if letters[n] in lost), end)
            first_lost = draw(st.integers(0, missing))
        written += letters[first_lost:]
    return sent, written


@st.composite
def relayed(draw: st.DrawFn, log: list[Id]) -> list[Id]:
    """Draw a copy of the log by a relay that restarts, each time at some earlier record."""
    copy: list[Id] = []
    done = 0
    for _ in range(draw(st.integers(0, 3))):
        end = draw(st.integers(done, len(log)))
        copy += log[done:end]
        done = draw(st.integers(0, end))
    return copy + log[done:]


@st.composite
def merged(draw: st.DrawFn, logs: list[list[Id]]) -> list[Id]:
    """Merge the logs at random, each in its order."""
    turns = draw(st.permutations([index for index, log in enumerate(logs) for _ in log]))
    rest = [iter(log) for log in logs]
    return [next(rest[index]) for index in turns]


@st.composite
def inbox_logs(draw: st.DrawFn) -> tuple[list[list[Id]], list[Id]]:
    """Draw each sender's letters, and the receiver's log: written by the senders, copied by one or two relays."""
    senders = [draw(sender_logs(name)) for name in ("a/x", "b/y")]
    source = draw(merged([written for _, written in senders]))
    copies = [draw(relayed(source)) for _ in range(draw(st.integers(1, 2)))]
    return [sent for sent, _ in senders], draw(merged(copies))


def taken(reader: InboxReader, log: list[Id]) -> list[Id]:
    return [letter for letter in log if reader.accept(*letter)]


@given(inbox_logs())
def test_fifo_and_exactly_once(case: tuple[list[list[Id]], list[Id]]) -> None:
    sent_by_sender, log = case
    got = taken(InboxReader(), log)
    for sent, sender in zip(sent_by_sender, ("a/x", "b/y"), strict=True):
        assert [letter for letter in got if letter[0] == sender] == sent


@given(inbox_logs(), st.lists(st.integers(0, 60), max_size=3))
def test_a_restart_at_any_offset_gives_the_rest(case: tuple[list[list[Id]], list[Id]], at: list[int]) -> None:
    """Reading the prefix again makes the table again: what follows is neither lost nor repeated."""
    log = case[1]
    bounds = [0, *sorted(min(where, len(log)) for where in at), len(log)]
    got: list[Id] = []
    for start, end in pairwise(bounds):
        reader = InboxReader()
        taken(reader, log[:start])
        got += taken(reader, log[start:end])
    assert got == taken(InboxReader(), log)


@given(st.lists(st.tuples(st.sampled_from(["a/x", "b/y"]), st.integers(1, 3), st.integers(1, 5))))
def test_any_log_gives_runs_from_one(log: list[Id]) -> None:
    """Also from writers that keep no rule: per sender, incarnations grow, and in each the numbers are 1, 2, 3 …"""
    got = taken(InboxReader(), log)
    for sender in ("a/x", "b/y"):
        own = [(incarnation, number) for name, incarnation, number in got if name == sender]
        assert own == sorted(set(own))
        for incarnation in {number for number, _ in own}:
            numbers = [number for life, number in own if life == incarnation]
            assert numbers == list(range(1, len(numbers) + 1))


BOB = b"b/bob"


def test_codec_round_trip() -> None:
    application = (("k", b"\x00\xff"), ("k", b""))
    headers = letter_headers("a/alice", 7, 3, application)
    assert decode_letter(BOB, BOB, b"hi", headers) == WrittenLetter("a/alice", 7, 3, b"hi", application)


def test_what_a_relay_says_is_ignored() -> None:
    """Whatever follows the relay's mark is ignored, too."""
    text = b"2 letter 7 3 a/alice"
    for behind in (b"", b" -", b" a/abcast.g.inbox.b-0:7", b" - later", b" \xff  "):
        assert decode_letter(BOB, BOB, b"", [("abcast", text + behind)]) == WrittenLetter("a/alice", 7, 3, b"", ())


@given(st.binary(max_size=9) | st.none(), st.binary(max_size=9) | st.none(), st.data())
def test_no_bytes_make_the_decoder_raise(key: bytes | None, value: bytes | None, data: st.DataObject) -> None:
    names = st.sampled_from(["abcast", "abcast", "abcast-seqno", "other"])
    fields = st.binary(max_size=5) | st.sampled_from([b"2", b"letter", b"1", b"a/alice", b"-"])
    values = st.none() | st.lists(fields, max_size=8).map(b" ".join)
    headers = data.draw(st.lists(st.tuples(names, values), max_size=4))
    assert isinstance(decode_letter(BOB, key, value, headers), WrittenLetter | str)  # type: ignore[arg-type]  # Kafka allows null


def test_malformed_letters_have_a_reason() -> None:
    good = {"version": b"2", "kind": b"letter", "incarnation": b"7", "local_seqno": b"3", "sender": b"a/alice"}

    def reason(
        key: bytes | None = BOB, value: bytes | None = b"x", more: Headers = (), **changed: bytes
    ) -> WrittenLetter | str:
        return decode_letter(BOB, key, value, [("abcast", b" ".join({**good, **changed}.values())), *more])

    assert isinstance(reason(), WrittenLetter)
    assert reason(version=b"1") == codec.WRONG_VERSION
    assert decode_letter(BOB, BOB, b"x", []) == codec.WRONG_VERSION
    assert decode_letter(BOB, BOB, b"x", [("abcast", b"2")]) == codec.WRONG_KIND
    assert reason(kind=b"message") == codec.WRONG_KIND
    for sender in (b"", b"-", b"alice", b"a/\xff", b"a/b/c"):
        assert reason(sender=sender) == letter_codec.BAD_SENDER
    assert decode_letter(BOB, BOB, b"x", [("abcast", b"2 letter 7 3")]) == letter_codec.BAD_SENDER
    assert reason(key=b"b/eve") == letter_codec.WRONG_RECEIVER
    assert reason(key=None) == letter_codec.WRONG_RECEIVER
    for number in (b"", b"-", b"0", b"-1", b"01", b"x", b"1" * 19):
        assert reason(incarnation=number) == codec.WRONG_INCARNATION
        assert reason(local_seqno=number) == codec.WRONG_LOCAL_SEQNO
    assert reason(more=(("abcast-seqno", b"1"),)) == codec.RESERVED_HEADER
    assert reason(value=None) == codec.NO_PAYLOAD
    assert reason(value=b"x" * (MAX_PAYLOAD_BYTES + 1)) == codec.PAYLOAD_TOO_LARGE
    assert reason(more=(("abcast", b""),)) == codec.REPEATED_HEADER
    assert reason(more=(("k", b"x" * (MAX_HEADERS_BYTES + 1)),)) == codec.HEADERS_TOO_LARGE
    assert reason(more=(("a\ufffd", b""),)) == codec.WRONG_HEADER_NAME
