"""What a relay between the sites of a mesh makes of DATA: FORWARD that the neighbour's sequencer takes."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from connectors import codec
from connectors.relaying import relay_news
from connectors.sites import Direction
from ordering.records import FLUSH_OK, REMOTE_VIEW, VIEW, Data, Forward, Source
from ordering.sequencer import seal
from tests.spark.kafka_rows import data, source_frame

pytestmark = pytest.mark.spark

SOURCE = Source("abcast.g.forward.sfo", 0, 0)
MEMBERS = b'{"members":[["sfo/bob",7]],"joined":["sfo/bob"],"left":[],"suspected":[],"flush":0}'


def test_messages_and_views_are_news(spark: SparkSession) -> None:
    """In their order, the views in the name of the relay; nothing goes back, and remote views stay where they are."""
    records = [
        seal(4),
        Data(VIEW, 4, 1, 9, payload=MEMBERS),
        Data("message", 4, 2, 9, "sfo/bob", 7, 1, b"hello", SOURCE, (("trace", b"1"),)),
        Data("message", 4, 3, 9, "nyc/alice", 5, 1, b"known", SOURCE, (("abcast-visited", b"nyc"),)),
        Data("message", 4, 4, 9, "fra/eve", 5, 1, b"afar", SOURCE, (("abcast-visited", b"fra"),)),
        Data(FLUSH_OK, 4, 5, 9, "sfo/bob", 7, 2, b"1", SOURCE),
        Data(REMOTE_VIEW, 4, 6, 9, "nyc/abcast.relay", 2, 3, b'{"members":[]}', SOURCE, (("abcast-visited", b"nyc"),)),
        Data(REMOTE_VIEW, 4, 7, 9, payload=b'{"site":"nyc","members":[],"silent":true}'),
    ]
    rows = source_frame(spark, [data(record, offset, site="sfo") for offset, record in enumerate(records)])
    found = []
    for offset, row in enumerate(relay_news(rows, Direction("sfo", "nyc"), ["lax", "nyc"]).collect()):
        assert (row["topic"], row["partition"]) == ("abcast.g.relayed-sfo.nyc", 0)
        headers = [(header["key"], bytes(header["value"])) for header in row["headers"]]
        key, value = bytes(row["key"]), bytes(row["value"])
        read = codec.decode_forward(Source(row["topic"], 0, offset), key, value, headers)
        assert isinstance(read, Forward)
        assert dict(headers)["abcast-relayed-from"].startswith(b"sfo/abcast.g.data.sfo-0:")
        found.append((read.kind, *read.id, read.payload, read.headers))
    assert found == [
        (REMOTE_VIEW, "sfo/abcast.relay", 4, 9, MEMBERS, (("abcast-visited", b"sfo"),)),
        ("message", "sfo/bob", 7, 1, b"hello", (("abcast-visited", b"sfo,lax"), ("trace", b"1"))),
        ("message", "fra/eve", 5, 1, b"afar", (("abcast-visited", b"fra,sfo,lax"),)),
    ]
