"""Records of a cast topic: casts, and records that every reader skips with a reason."""

from __future__ import annotations

import pytest

from connectors.kafka.codec import cast_codec, codec
from connectors.kafka.codec.cast_codec import cast_headers, decode_cast
from ordering.base.records import MAX_PAYLOAD_BYTES
from ordering.casts.casts import CAUSAL, Cast

KEY = b"s/a"


@pytest.mark.parametrize(
    "cast",
    [
        Cast("s/a", 7, 1, b"m", headers=(("h", b"v"),)),
        Cast("s/a", 7, 2, b"", view=3),
        Cast("s/a", 7, 3, b"m", CAUSAL, 3, 12, "+1,4=2"),
        Cast("s/a", 7, 3, b"m", CAUSAL, 3, 0, "0"),
    ],
)
def test_a_cast_comes_back_as_it_was(cast: Cast) -> None:
    assert decode_cast(KEY, cast.payload, cast_headers(cast)) == cast


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, codec.WRONG_VERSION),
        (b"", codec.WRONG_VERSION),
        (b"1 fifo 7 1", codec.WRONG_VERSION),
        (b"2 total 7 1", cast_codec.WRONG_ORDER),
        (b"2 fifo 0 1", codec.WRONG_INCARNATION),
        (b"2 fifo 7 -1", codec.WRONG_LOCAL_SEQNO),
        (b"2 fifo 7 99999999999999999999", codec.WRONG_LOCAL_SEQNO),
        (b"2 fifo 7 \xc2\xb2", codec.WRONG_LOCAL_SEQNO),
        (b"2 fifo 900000000000000000 1", codec.FUTURE_INCARNATION),
        (b"2 causal 7 1 - 1 0", cast_codec.WRONG_VIEW),
        (b"2 fifo 7 1 x", cast_codec.WRONG_VIEW),
        (b"2 causal 7 1 3 x 0", cast_codec.WRONG_CLOCK),
        (b"2 causal 7 1 3", cast_codec.WRONG_CLOCK),
        (b"2 causal 7 1 3 - 0", cast_codec.WRONG_CLOCK),
        (b"2 causal 7 1 3 1 \xff", cast_codec.WRONG_CLOCK),
        (b"2 causal 7 1 3 1 " + b"0" * (MAX_PAYLOAD_BYTES + 1), codec.LINE_TOO_LARGE),
    ],
)
def test_what_is_no_cast_has_a_reason(text: bytes | None, reason: str) -> None:
    assert decode_cast(KEY, b"m", [("abcast", text)], 1_700_000_000_000) == reason  # type: ignore[list-item]


def test_a_name_that_is_not_utf_8() -> None:
    """Kafka's clients read different names there."""
    assert decode_cast(KEY, b"m", [("abcast", b"2 fifo 7 1"), ("a\ufffd", b"")]) == codec.WRONG_HEADER_NAME


@pytest.mark.parametrize("key", [None, b"", b"a", b"\xff/a", b"s/a/b"])
def test_a_key_that_is_no_address(key: bytes | None) -> None:
    assert decode_cast(key, b"m", [("abcast", b"2 fifo 7 1")]) == codec.NO_SENDER


def test_nobody_speaks_for_members_of_another_site() -> None:
    """The topic of a site has casts of its members only."""
    headers = [("abcast", b"2 fifo 7 1")]
    assert isinstance(decode_cast(KEY, b"m", headers, site="s"), Cast)
    assert decode_cast(KEY, b"m", headers, site="other") == codec.WRONG_SITE


def test_null_values_are_allowed_where_kafka_allows_them() -> None:
    """A header's value may be null; a payload may not."""
    headers: list[tuple[str, bytes]] = [("abcast", b"2 fifo 7 1"), ("h", None)]  # type: ignore[list-item]
    found = decode_cast(KEY, b"m", headers)
    assert isinstance(found, Cast)
    assert found.headers == (("h", b""),)
    assert decode_cast(KEY, None, headers) == codec.NO_PAYLOAD
