"""A consumer on kafka-python reads the same as with the library's own fetcher, and more."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaConnectionError, KafkaError, SaslAuthenticationFailedError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.transport.fetcher import PartitionRecords, QuickFetcher

_PLACE = TopicPartition("t", 3)
_GZIP, _TRANSACTIONAL = 1, True
Written = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

_bytes = st.one_of(st.none(), st.binary(max_size=200), st.just(b"x" * 20_000))
_records = st.tuples(
    st.integers(0, 1 << 40), _bytes, _bytes, st.lists(st.tuples(st.text(max_size=70), _bytes), max_size=3)
)


def _batch(records: list[Written], base_offset: int = 0, compression: int = 0, **of_producer: Any) -> bytes:
    given = {"is_transactional": False, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, **of_producer}
    batch = DefaultRecordBatchBuilder(2, compression, batch_size=1 << 30, **given)
    for number, (timestamp, *what) in enumerate(records):
        batch.append(number, timestamp, *what)
    return base_offset.to_bytes(8, "big") + bytes(batch.build())[8:]  # which its checksum does not cover


def _read_names(headers: Any) -> Any:
    """Read names, each up to its first zero byte."""
    return [(name.partition("\0")[0], value) for name, value in headers]


def _read(read: Any, text: bytes, from_offset: int = 0, **options: Any) -> Any:
    return read(from_offset, _PLACE, MemoryRecords(text), **options)


@given(st.lists(_records, min_size=1, max_size=70), st.sampled_from([0, _GZIP]), st.integers(0, 1 << 40))
def test_the_same_as_the_library_reads(records: list[Written], compression: int, base: int) -> None:
    text = _batch(records, base, compression) + _batch(records[:1], base + len(records))
    for skipped in (0, len(records) - 1):
        here, there = (_read(each, text, base + skipped) for each in (PartitionRecords, Fetcher.PartitionRecords))
        while there:
            expected = [
                PlainRecord("t", 3, each.offset, each.timestamp, each.key, each.value, _read_names(each.headers))
                for each in there.take(7)
            ]
            assert here.take(7) == expected
            assert (here.next_fetch_offset, here.leader_epoch) == (there.next_fetch_offset, there.leader_epoch)
        assert not here


def test_names_that_are_not_utf_8() -> None:
    """A client in C or Go has written such names: the records beside them are read all the same."""
    named = _batch([(1, b"a", b"x", [("one", b"\xff")]), (1, None, b"z", [("RAW", None)])])
    read = _read(PartitionRecords, named.replace(b"RAW", b"r\xff\xfe"), check_crcs=False).take()
    assert [record.headers for record in read] == [[("one", b"\xff")], [("r\ufffd\ufffd", None)]]


def test_a_name_ends_before_its_first_zero_byte() -> None:
    """librdkafka reads it so, too."""
    named = _batch([(1, b"a", b"x", [("one\0two", b"1"), ("\0", b"2")])])
    [record] = _read(PartitionRecords, named).take()
    assert record.headers == [("one", b"1"), ("", b"2")]


def test_the_brokers_time_is_that_of_the_batch() -> None:
    """With LogAppendTime a batch has one time for all records."""
    stamped = bytearray(_batch([(1000, None, b"x", []), (5000, None, b"y", [])]))
    stamped[22] |= 8  # the attribute LogAppendTime
    assert [each.timestamp for each in _read(PartitionRecords, bytes(stamped), check_crcs=False).take()] == [5000, 5000]


@pytest.mark.parametrize("at", [61, 64, 65, -1], ids=["length", "offset", "key", "end"])
@pytest.mark.parametrize("checks", [True, False])
def test_a_batch_that_is_broken(at: int, checks: bool) -> None:
    broken = bytearray(_batch([(1, b"key", b"value", [("name", b"header")])]))
    broken[at] ^= 0x40
    if checks or at in (61, 65):
        with pytest.raises(CorruptRecordError):
            _read(PartitionRecords, bytes(broken), check_crcs=checks).take()


def test_what_was_read_before_a_broken_batch_is_kept() -> None:
    one, other = _batch([(1, b"a", b"x", [])]), bytearray(_batch([(1, b"b", b"y", [])], 1))
    other[-1] ^= 1
    read = _read(PartitionRecords, one + bytes(other))
    assert [record.key for record in read.take()] == [b"a"]
    with pytest.raises(CorruptRecordError, match="at offset 1"):
        read.take()
    assert not read  # so it is fetched again, from where it was broken
    assert read.next_fetch_offset == 1


def test_a_consumer_goes_on_behind_an_error() -> None:
    """A fetch that failed once may succeed again: no poll waits for the rest of the broken one."""
    broken = bytearray(_batch([(1, b"a", b"x", [])]))
    broken[-1] ^= 1
    read = _read(PartitionRecords, bytes(broken))
    with pytest.raises(CorruptRecordError):
        read.take()
    assert (bool(read), read.next_fetch_offset) == (False, 0)


def test_who_has_brought_something_is_asked_last() -> None:
    """The library goes by the amount that was read of a partition."""
    read = _read(PartitionRecords, _batch([(1, b"a", b"x", [])]))
    assert read.bytes_read == 0
    read.take()
    assert read.bytes_read > 0


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_aborted_transactions_and_their_marks(isolation: IsolationLevel) -> None:
    """Marks are never returned, and aborted records only on request: as with the library's fetcher."""
    ours: dict[str, Any] = {"is_transactional": True, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    abort = bytearray(_batch([(1, b"\0\0\0\0", b"\0\0\0\0\0\0", [])], 1, **ours))
    abort[22] |= 32  # the attribute of a mark
    text = _batch([(1, b"a", b"x", [])], 0, **ours) + bytes(abort) + _batch([(1, b"b", b"y", [])], 2, **ours)
    aborted = [type("Aborted", (), {"first_offset": 0, "producer_id": 7})()]
    options: dict[str, Any] = {"isolation_level": isolation, "aborted_transactions": aborted, "check_crcs": False}
    here, there = (_read(each, text, **options).take() for each in (PartitionRecords, Fetcher.PartitionRecords))
    assert [each.key for each in here] == [each.key for each in there]
    assert [each.key for each in here] == [b"b"] if isolation is IsolationLevel.READ_COMMITTED else [b"a", b"b"]


def test_a_batch_whose_last_records_were_compacted_away() -> None:
    """A consumer that asked again at the offset of the lost records would get the same batch for ever."""
    compacted = bytearray(_batch([(1, b"a", b"x", [])], 5))
    compacted[26] = 9  # the last one's offset, behind the batch's own
    read = _read(PartitionRecords, bytes(compacted), check_crcs=False)
    assert [record.offset for record in read.take()] == [5]
    assert read.next_fetch_offset == 15


def test_what_a_client_before_0_11_wrote() -> None:
    old = LegacyRecordBatchBuilder(1, 0, 9999)
    old.append(0, timestamp=5, key=b"a", value=b"x")
    assert _read(PartitionRecords, bytes(old.build())).take() == [PlainRecord("t", 3, 0, 5, b"a", b"x", [])]


def test_records_that_came_meanwhile_are_not_slept_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch may complete after the look for its records, but before the look for requests under way."""
    monkeypatch.setattr(Fetcher, "fetch_records", lambda *_: ({}, True))
    fetcher = object.__new__(QuickFetcher)
    fetcher._completed_fetches = deque()
    assert fetcher.fetch_records() == ({}, True)
    fetcher._completed_fetches.append("a fetch")
    assert fetcher.fetch_records() == ({}, False)


@pytest.mark.parametrize("failure", [SaslAuthenticationFailedError(), KafkaConnectionError()])
def test_a_broker_without_metadata_costs_no_offsets(failure: KafkaError) -> None:
    """A partition has another leader, and the broker that is asked for it fails. The other offsets are there."""

    async def fails() -> None:
        raise failure

    fetcher: Any = QuickFetcher.__new__(QuickFetcher)
    fetcher._manager = SimpleNamespace(cluster=SimpleNamespace(request_update=fails))
    found = {_PLACE: 7}, {TopicPartition("t", 4)}
    with mock.patch.object(Fetcher, "_send_list_offsets_requests", return_value=found):
        assert asyncio.run(fetcher._send_list_offsets_requests({})) == found
