"""The headers that an application may give."""

from __future__ import annotations

import pytest

from connectors.kafka.codec.headers import check_application_headers
from ordering.base.errors import UsageError
from ordering.base.records import MAX_HEADERS_BYTES


@pytest.mark.parametrize("name", ["abcast", "abcast-mine", "abcasts"])
def test_our_own_names_are_refused_at_the_client(name: str) -> None:
    with pytest.raises(UsageError, match="abcast's own"):
        check_application_headers([(name, b"")])


def test_a_name_that_kafka_does_not_take_is_refused_at_the_client() -> None:
    """Otherwise the sending thread would fail with it."""
    for name in ("a\ud800", "\ufffd"):
        with pytest.raises(UsageError, match="surrogates"):
            check_application_headers([(name, b"")])


def test_a_name_of_which_only_a_part_is_read_is_refused_at_the_client() -> None:
    with pytest.raises(UsageError, match="zero byte"):
        check_application_headers([("a\0b", b"")])


def test_names_count_in_bytes() -> None:
    half = "\N{LATIN SMALL LETTER E WITH ACUTE}" * (MAX_HEADERS_BYTES // 2)
    assert check_application_headers([(half, b"")])
    with pytest.raises(UsageError, match="65538 bytes"):
        check_application_headers([(half, b"12")])
