"""The buffer between the thread that reads casts and the thread that takes them."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from connectors.client.tail import cast_buffer
from connectors.client.tail.cast_buffer import CastBuffer, Found
from ordering.casts.casts import Cast

ONE, OTHER, NEW = TopicPartition("casts", 0), TopicPartition("casts", 1), TopicPartition("new", 0)


def cast(place: TopicPartition, offset: int) -> Found:
    return Found(place, offset, Cast("s/a", 1, offset + 1, b"m"))


def test_casts_from_before_a_return_are_dropped_until_the_reader_is_back() -> None:
    """Waiting casts are dropped, and casts that the reader's thread was just reading."""
    buffer = CastBuffer({ONE: 3, OTHER: 5})
    buffer.add([cast(ONE, 3), cast(OTHER, 5)])
    buffer.again({ONE: 1})
    buffer.add([cast(ONE, 4), cast(OTHER, 6)])
    assert buffer.take() == [cast(OTHER, 5), cast(OTHER, 6)]
    assert (buffer.go_back(), buffer.go_back()) == ({ONE: 1}, {})
    buffer.add([cast(ONE, 1)])
    assert buffer.next == {ONE: 1, OTHER: 7}
    assert buffer.take() == [cast(ONE, 1)]
    assert buffer.next == {ONE: 2, OTHER: 7}


def test_a_new_partition_is_next_from_its_beginning() -> None:
    buffer = CastBuffer({ONE: 3})
    buffer.begin([NEW])
    assert buffer.take() == []
    assert buffer.next == {ONE: 3, NEW: 0}


@pytest.mark.parametrize("count", [1, 2])
def test_a_buffer_over_its_limit_is_full_until_it_is_taken(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(cast_buffer, "BUFFERED", 1)
    buffer = CastBuffer({})
    buffer.add([cast(ONE, offset) for offset in range(count)])
    assert buffer.is_full == (count > 1)
    assert len(buffer.take()) == count
    assert [buffer.is_full, buffer.has_news] == [False, False]


def test_the_error_of_the_reader_is_raised() -> None:
    buffer = CastBuffer({})
    buffer.fail(ValueError("gone"))
    assert buffer.has_news
    with pytest.raises(ValueError, match="gone"):
        buffer.take()


def test_all_is_taken_once_the_end_was_reached_and_what_was_added_before_it_was_taken() -> None:
    buffer = CastBuffer({ONE: 0})
    buffer.add([cast(ONE, 0)])
    buffer.reach_end(buffer.asked)
    assert (buffer.take(), buffer.has_taken_all) == ([cast(ONE, 0)], False)  # no end was asked for
    buffer.ask_for_end()
    assert (buffer.take(), buffer.has_taken_all) == ([], False)
    buffer.add([cast(ONE, 1)])
    buffer.reach_end(buffer.asked)
    assert not buffer.has_taken_all
    assert (buffer.take(), buffer.has_taken_all) == ([cast(ONE, 1)], True)
    buffer.add([cast(ONE, 2)])  # it came later than the request
    assert buffer.has_taken_all


def test_an_end_that_was_reached_for_an_earlier_request_does_not_count() -> None:
    buffer = CastBuffer({ONE: 0})
    buffer.ask_for_end()
    earlier = buffer.asked
    buffer.ask_for_end()
    buffer.reach_end(earlier)
    assert (buffer.take(), buffer.has_taken_all) == ([], False)


def test_after_a_return_the_end_has_to_be_reached_again() -> None:
    buffer = CastBuffer({ONE: 0})
    buffer.ask_for_end()
    buffer.add([cast(ONE, 0), cast(ONE, 1)])
    buffer.reach_end(buffer.asked)
    buffer.take()
    buffer.again({ONE: 0})
    assert not buffer.has_taken_all
    buffer.reach_end(buffer.asked)  # the reader's thread has not gone back yet
    assert (buffer.take(), buffer.has_taken_all) == ([], False)
    buffer.go_back()
    buffer.add([cast(ONE, 0), cast(ONE, 1)])
    buffer.reach_end(buffer.asked)
    assert (len(buffer.take()), buffer.has_taken_all) == (2, True)
