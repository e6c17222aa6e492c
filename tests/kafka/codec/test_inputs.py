"""Inputs of a site that agrees: the partitions that it reads, and copies as the records that they were made from."""

from __future__ import annotations

import pytest

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.inputs import Input, Neighbours, of_log, original
from connectors.kafka.transport import PlainRecord
from ordering.base.names import Topic
from ordering.base.records import ENTRY, EPOCH, STRAY, Data

FORWARD = "abcast.g.forward.sfo"


def copy(header: str, *more: tuple[str, bytes]) -> PlainRecord:
    """Return a record of a relay's topic."""
    return PlainRecord("abcast.g.relayed-sfo.nyc", 1, 7, 99, b"sfo/bob", b"x", [("abcast", header.encode()), *more])


def test_which_partitions_are_read() -> None:
    neighbours = Neighbours("nyc", ("lax", "nyc", "sfo"), frozenset({"lax"}))
    read = {
        Topic("g", "forward", "nyc"): Input("nyc", "abcast.g.forward.nyc-2"),
        Topic("g", "forward", "lax"): Input("lax", "abcast.g.forward.lax-2"),
        Topic("g", "data", "lax"): Input("lax", ""),
        Topic("g", "relayed", "nyc", "sfo"): Input("sfo", "abcast.g.forward.sfo-2", is_copy=True),
        Topic("g", "entries", "nyc", "sfo"): Input("sfo", "", is_copy=True),
    }
    for topic, source in read.items():
        assert neighbours.input(topic, 2) == source
    for topic in (
        *(
            Topic("g", "data", "nyc"),
            Topic("g", "forward", "sfo"),
            Topic("g", "data", "sfo"),
            Topic("g", "inbox", "nyc"),
        ),
        *(
            Topic("g", "relayed", "nyc", "lax"),
            Topic("g", "relayed", "nyc", "fra"),
            Topic("g", "entries", "lax", "sfo"),
        ),
    ):
        assert neighbours.input(topic, 0) is None


def test_a_copy_is_read_as_the_record_at_home() -> None:
    read = original(copy(f"2 message 5 8 sfo/{FORWARD}-1:40 - 1700 more", ("k", b"v")), "sfo", f"{FORWARD}-1")
    assert read == PlainRecord(FORWARD, 1, 40, 1700, b"sfo/bob", b"x", [("abcast", b"2 message 5 8"), ("k", b"v")])


@pytest.mark.parametrize(
    "header",
    [
        *("", "2 message 5 8", f"2 message 5 8 sfo/{FORWARD}-1:40 -", f"2 message 5 8 sfo/{FORWARD}-1:40 - x"),
        *("2 message 5 8 - - 1700", f"2 message 5 8 lax/{FORWARD}-1:40 - 1700", f"2 message 5 8 sfo/{FORWARD}-2:4 - 1"),
    ],
)
def test_what_is_no_copy(header: str) -> None:
    assert original(copy(header), "sfo", f"{FORWARD}-1") is None


@pytest.mark.parametrize("record", [Data(ENTRY, 4, local_seqno=17, payload=b"e"), Data(EPOCH, 4)])
def test_a_copy_of_a_log_is_read_as_what_stands_there(record: Data) -> None:
    key, value, [(name, header), *_] = encode_data(record)
    fields = header.split(b" ")
    fields[7] = b"sfo/abcast.g.data.sfo-0:9"
    raw = PlainRecord("abcast.g.entries-sfo.nyc", 0, 7, 99, key, value, [(name, b" ".join(fields))])
    assert of_log(raw, is_copy=True) == record
    assert of_log(raw, is_copy=False).kind == STRAY
    assert of_log(raw._replace(headers=[]), is_copy=True).kind == STRAY
