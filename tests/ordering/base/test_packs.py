"""A pack gives the payloads that were packed; any other value is refused by a reason, at no cost."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.codec.pack_arrow import payloads_in
from ordering.base.errors import ProtocolViolation
from ordering.base.packs import (
    MAX_PACK_BYTES,
    MAX_PACK_MESSAGES,
    PACK_TOO_LARGE,
    WRONG_COUNT,
    WRONG_LAYOUT,
    WRONG_LENGTHS,
    decode_pack,
    encode_pack,
    fault,
    size_of_pack,
)

PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


@given(PAYLOADS)
def test_what_was_packed_is_what_is_read(payloads: list[bytes]) -> None:
    value = encode_pack(payloads)
    assert len(value) == size_of_pack(sum(map(len, payloads)), len(payloads))
    assert fault(value, len(payloads)) == ""
    assert decode_pack(value, len(payloads)) == payloads
    assert payloads_in(value, len(payloads)).to_pylist() == payloads


def test_the_layout() -> None:
    assert encode_pack([b"buy", b"", b"sell"]) == b"\x01\0\0\0\x03\0\0\0\0\0\0\0\x04buysell"


def test_arrow_copies_no_payload() -> None:
    value = encode_pack([b"a" * 100, b"b" * 200])
    payloads = payloads_in(value, 2)
    payloads.validate(full=True)
    assert payloads.buffers()[2].to_pybytes() == value
    assert payloads.buffers()[2].is_mutable is False
    import pyarrow as pa

    assert payloads.buffers()[2].address == pa.py_buffer(value).address


def test_the_largest() -> None:
    assert len(decode_pack(encode_pack([b""] * MAX_PACK_MESSAGES), MAX_PACK_MESSAGES)) == MAX_PACK_MESSAGES
    full = MAX_PACK_BYTES - size_of_pack(0, 1)
    assert decode_pack(encode_pack([b"x" * full]), 1) == [b"x" * full]
    for payloads, reason in (
        ([], WRONG_COUNT),
        ([b""] * (MAX_PACK_MESSAGES + 1), WRONG_COUNT),
        ([b"x" * (full + 1)], PACK_TOO_LARGE),
    ):
        with pytest.raises(ProtocolViolation, match=reason):
            encode_pack(payloads)


@pytest.mark.parametrize(
    ("value", "count", "reason"),
    [
        (b"\x01", 0, WRONG_COUNT),
        (b"\x01", -1, WRONG_COUNT),
        (encode_pack([b"a"]), MAX_PACK_MESSAGES + 1, WRONG_COUNT),
        (b"\x01" + bytes(MAX_PACK_BYTES), 1, PACK_TOO_LARGE),
        (b"", 1, WRONG_LAYOUT),
        (b"\x02\0\0\0\0", 1, WRONG_LAYOUT),
        (b"\x01", MAX_PACK_MESSAGES, WRONG_LENGTHS),
        (b"\x01\0\0\0", 1, WRONG_LENGTHS),
        (b"\x01\xff\xff\xff\xff", 1, WRONG_LENGTHS),
        (b"\x01\xff\xff\xff\xff\xff\xff\xff\xff", 2, WRONG_LENGTHS),
        (b"\x01\0\0\0\0\0", 1, WRONG_LENGTHS),
    ],
)
def test_hostile_values(value: bytes, count: int, reason: str) -> None:
    assert fault(value, count) == reason
    for read in (decode_pack, payloads_in):
        with pytest.raises(ProtocolViolation, match=reason):
            read(value, count)


@given(PAYLOADS, st.data())
def test_a_cut_or_longer_pack_is_refused(payloads: list[bytes], data: st.DataObject) -> None:
    value = encode_pack(payloads)
    end = data.draw(st.integers(1, len(value) - 1))
    assert fault(value[:end], len(payloads)) == WRONG_LENGTHS
    assert fault(value + b"x", len(payloads)) == WRONG_LENGTHS


@given(st.binary(max_size=200), st.integers(-5, 10**6))
def test_any_bytes_are_read_whole_or_refused(value: bytes, count: int) -> None:
    if fault(b"\x01" + value, count):
        with pytest.raises(ProtocolViolation):
            decode_pack(b"\x01" + value, count)
    else:
        read = decode_pack(b"\x01" + value, count)
        assert len(read) == count
        assert encode_pack(read) == b"\x01" + value


def test_a_refusal_allocates_next_to_nothing() -> None:
    hostile = b"\x01" + b"\xff" * (MAX_PACK_BYTES - 1)
    tracemalloc.start()
    for value, count in ((hostile, MAX_PACK_MESSAGES), (hostile, 999_999), (b"\x01", 999_999)):
        assert fault(value, count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_PACK_BYTES
