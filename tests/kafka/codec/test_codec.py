"""The row codec: the shared corpus, and round trips."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.kafka.codec import codec
from ordering.base.kinds import DECIDED_KINDS
from ordering.base.packs import PACK_TOO_LARGE, WRONG_COUNT, WRONG_LAYOUT, WRONG_LENGTHS, encode_pack
from ordering.base.reader import Reader, Verdict
from ordering.base.records import (
    ENTRY,
    EPOCH,
    MAX_NUMBER,
    MESSAGES,
    STRAY,
    STRAY_EPOCH,
    Data,
    Forward,
    Headers,
    Link,
    Malformed,
    Partition,
    Source,
)
from tests import data_corpus
from tests.forward_corpus import CORPUS, RELAYED, TOPIC, Case

SOURCE = Source(TOPIC, 3, 17)

numbers = st.integers(1, MAX_NUMBER)
fields_of_data = st.none() | st.lists(
    st.sampled_from([b"2", b"message", b"epoch", b"view", b"-", b"0", b"1", b"t-0:1", b"1.2.3.4", b"\xff", b""]),
    max_size=11,
).map(b" ".join)
application_headers = st.lists(
    st.tuples(
        st.text(max_size=8).filter(
            lambda name: not name.startswith("abcast") and "\ufffd" not in name
        ),  # it is refused
        st.binary(max_size=8),
    ),
    max_size=3,
).map(tuple)
data_records = st.builds(
    Data,
    kind=st.just("message"),
    epoch=numbers,
    seqno=numbers,
    view=st.integers(0, 10**6),
    sender=st.just("nyc/alice"),
    incarnation=numbers,
    local_seqno=numbers,
    payload=st.binary(max_size=40),
    source=st.builds(Source, st.just(TOPIC), st.integers(0, 999), st.integers(0, 10**12)),
    headers=application_headers,
    link=st.none() | st.builds(Link, *[st.integers(0, MAX_NUMBER)] * 4),
)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_a_record_of_the_corpus(case: Case) -> None:
    source = SOURCE._replace(topic=case.topic)
    decoded = codec.decode_forward(source, case.key, case.value, case.headers, case.timestamp_ms)
    if case.reason is not None:
        assert decoded == Malformed(source, case.reason)
    else:
        assert isinstance(decoded, Forward)
        application = tuple(h for h in case.headers if h[0] != "abcast")
        assert (decoded.sender.encode(), decoded.payload, decoded.headers) == (case.key, case.value, application)
        _, kind, incarnation, local_seqno, *behind = dict(case.headers)["abcast"].split(b" ")
        assert (decoded.kind.encode(), decoded.incarnation, decoded.local_seqno) == (
            *(kind, int(incarnation)),
            int(local_seqno.split(b"-")[0]),
        )
        link = behind[1] if case.topic == RELAYED and len(behind) > 1 else b"-"
        assert (str(decoded.link) if decoded.link else "-") == link.decode()


def test_the_corpus_has_every_reason() -> None:
    reasons = {
        value
        for name, value in vars(codec).items()
        if name.isupper() and isinstance(value, str) and " " in value and not name.endswith("PATTERN")
    }
    of_letters_and_casts = {codec.LINE_TOO_LARGE}
    of_packs = {WRONG_COUNT, PACK_TOO_LARGE, WRONG_LAYOUT, WRONG_LENGTHS}
    assert {case.reason for case in CORPUS} - {None} == (reasons | of_packs) - of_letters_and_casts
    assert len({case.name for case in CORPUS}) == len(CORPUS)


@given(st.lists(st.binary(max_size=9), min_size=2, max_size=9), st.integers(1, MAX_NUMBER - 9), application_headers)
def test_packs_round_trip(payloads: list[bytes], local_seqno: int, application: Headers) -> None:
    value, count = encode_pack(payloads), len(payloads)
    headers = codec.pack_headers(7, local_seqno, count, application)
    decoded = codec.decode_forward(SOURCE, b"nyc/alice", value, headers, 1)
    assert decoded == Forward("nyc/alice", 7, local_seqno, value, SOURCE, application, MESSAGES, 1, None, count)


@given(incarnation=numbers, local_seqno=numbers, payload=st.binary(max_size=50), application=application_headers)
def test_forward_round_trip(incarnation: int, local_seqno: int, payload: bytes, application: Headers) -> None:
    headers = codec.forward_headers(incarnation, local_seqno, application)
    decoded = codec.decode_forward(SOURCE, b"nyc/alice", payload, headers)
    assert decoded == Forward("nyc/alice", incarnation, local_seqno, payload, SOURCE, application)


@given(st.binary(max_size=20) | st.none(), st.binary(max_size=20) | st.none(), st.data())
def test_no_bytes_make_the_decoder_raise(key: bytes | None, value: bytes | None, data: st.DataObject) -> None:
    names = st.sampled_from(["abcast"] * 5 + ["abcast-seqno", "other"])
    fields = st.binary(max_size=5) | st.sampled_from([b"2", b"message", b"1", b"-", b"17.4.9.3", b""])
    values = st.lists(fields, max_size=8).map(b" ".join)
    headers = data.draw(st.lists(st.tuples(names, values), max_size=3))
    for topic in (TOPIC, RELAYED):
        source = SOURCE._replace(topic=topic)
        assert isinstance(codec.decode_forward(source, key, value, headers), Forward | Malformed)


@given(data_records)
def test_data_round_trip(record: Data) -> None:
    key, value, headers = codec.encode_data(record)
    assert key == b"nyc/alice"
    assert codec.decode_data(key, value, headers) == record


records_without_a_sender = st.one_of(
    st.builds(
        Data, st.sampled_from(DECIDED_KINDS), numbers, numbers, st.integers(0, 99), payload=st.binary(max_size=20)
    ),
    st.builds(Data, st.just(EPOCH), numbers, payload=st.binary(max_size=20)),
    st.builds(Data, st.just(ENTRY), numbers, local_seqno=numbers, payload=st.binary(max_size=20)),
)


@given(records_without_a_sender)
def test_what_a_sequencer_or_a_site_writes_round_trip(record: Data) -> None:
    key, value, headers = codec.encode_data(record)
    assert key is None
    assert codec.decode_data(key, value, headers) == record


@given(data_records)
def test_data_has_all_that_is_abcasts_in_its_first_header(record: Data) -> None:
    _, _, ((name, text), *application) = codec.encode_data(record)
    fields = text.decode("ascii").split(" ")
    assert (name, tuple(application)) == ("abcast", record.headers)
    assert fields[:4] == ["2", record.kind, str(record.incarnation), str(record.local_seqno)]
    assert fields[4:7] == [str(record.seqno), str(record.epoch), str(record.view)]
    assert fields[7:9] == [str(record.source), str(record.forwarded_at_ms)]
    assert fields[9:] == ([] if record.link is None else [".".join(map(str, record.link))])


@pytest.mark.parametrize("more", [b" -", b" - later", b" - \xff  "])
def test_fields_of_data_that_nobody_knows_yet_are_ignored(more: bytes) -> None:
    record = Data("message", 1, 1, 0, "sfo/bob", 1, 1, b"x", SOURCE)
    key, value, [(name, text)] = codec.encode_data(record)
    assert codec.decode_data(key, value, [(name, text + more)]) == record


@pytest.mark.parametrize("case", data_corpus.CASES, ids=lambda case: case.name)
def test_what_is_data_and_what_is_a_stray(case: data_corpus.Case) -> None:
    """The cursor asks for the fields, all others for the whole record. Nothing raises."""
    record = codec.decode_data(case.key, b"x", case.headers)
    assert bool(codec.data_fields(case.key, case.headers)) is case.is_data
    if not case.is_data:
        assert record == Data(STRAY, STRAY_EPOCH)
        assert Reader(epoch=3, last_seqno=4).accept(record.kind, record.epoch, record.seqno) is Verdict.STALE
    else:
        assert record.kind != STRAY


@given(st.none() | st.binary(max_size=12), st.lists(st.tuples(st.sampled_from(["abcast", "x"]), fields_of_data)))
def test_no_record_in_data_raises(key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    record = codec.decode_data(key, None, headers)
    assert (record.kind == STRAY) is not bool(codec.data_fields(key, headers))


def _numbers_of_a_message(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> tuple[int, ...]:
    fields = codec.data_fields(key, headers)
    return codec.data_numbers(fields) if fields[1:2] == [b"message"] and len(fields) < 11 else ()


def _numbers_of_a_pack(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> tuple[int, ...]:
    fields = codec.data_fields(key, headers)
    count = codec.data_count(fields)
    is_pack = fields[1:2] == [b"messages"] and fields[10:] == [b"%d" % count]
    return (*codec.data_numbers(fields), count) if is_pack else ()


def _check_texts(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> None:
    """Check `message_texts` against `message_numbers` and LINK."""
    texts, numbers = codec.message_texts(key, headers), codec.message_numbers(key, headers)
    link = codec.decode_data(key, b"", headers).link if numbers else None
    last = None if link is None else b"%d" % link.origin_seqno
    assert texts == ((*(b"%d" % number for number in numbers), last) if numbers else ())


@pytest.mark.parametrize("case", data_corpus.CASES, ids=lambda case: case.name)
def test_the_numbers_of_a_message_are_those_of_its_fields(case: data_corpus.Case) -> None:
    assert codec.message_numbers(case.key, case.headers) == _numbers_of_a_message(case.key, case.headers)
    _check_texts(case.key, case.headers)
    assert codec.pack_numbers(case.key, case.headers) == _numbers_of_a_pack(case.key, case.headers)


@given(st.sampled_from([None, b"sfo/bob", b"bob"]), st.lists(st.tuples(st.just("abcast"), fields_of_data), max_size=2))
def test_the_numbers_of_any_record(key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    assert codec.message_numbers(key, headers) == _numbers_of_a_message(key, headers)
    _check_texts(key, headers)
    assert codec.pack_numbers(key, headers) == _numbers_of_a_pack(key, headers)


@given(
    st.sampled_from([None, b"sfo/bob", b"bob"]),
    st.sampled_from([b"messages", b"message", b"view"]),
    st.sampled_from([b"-", b"1.2.3.4", b"1.2", b""]),
    st.sampled_from([b"", b" 0", b" 1", b" 2", b" 02", b" 999999", b" 1000000", b" 2 -", b" 2 ", b" -"]),
)
def test_the_numbers_of_a_pack_are_those_of_its_fields(
    key: bytes | None, kind: bytes, link: bytes, more: bytes
) -> None:
    headers = [("abcast", b"2 " + kind + b" 5 6 7 1 0 a-0:3 9 " + link + more)]
    assert codec.pack_numbers(key, headers) == _numbers_of_a_pack(key, headers)


def test_a_partition_is_kafkas_own_and_its_text_can_be_parsed() -> None:
    """Topics' names have dashes, too. The sequencer's state is looked up by a consumer's partition."""
    partition = Source("abcast.g.relayed-far.nyc", 12, 17).topic_partition
    assert str(partition) == "abcast.g.relayed-far.nyc-12"
    assert Partition.parse(str(partition)) == partition
    assert {partition: 1}[TopicPartition("abcast.g.relayed-far.nyc", 12)] == 1
    for text in ("", "12", "topic-x"):
        with pytest.raises(ValueError, match=r"not a partition|invalid literal"):
            Partition.parse(text)
