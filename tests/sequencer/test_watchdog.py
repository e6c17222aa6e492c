"""The watchdog barks if decided records do not count, and only then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from connectors.kafka.log.stored_record import StoredRecord
from connectors.takeover.watchdog import BEHIND_S, LOOK_RECORDS, LOOK_S, NotCounting, Watchdog
from ordering.base.errors import BrokerUnreachable
from ordering.base.records import Data
from ordering.sequencer.sequencer import absorb, seal
from ordering.sequencer.state import SequencerState

GROUP = "g"


class Log:
    """A DATA topic in memory, as far as a watchdog reads it."""

    topic = "abcast.g.data.nyc"

    def __init__(self) -> None:
        self.data: list[Data] = [seal(1)]
        self.records_read = 0
        self.states_read = 0
        self.ends_asked = 0
        self.signed: int | None = None
        self.told_end: int | None = None

    def write(self, *seqnos: int, epoch: int = 1) -> None:
        self.data += [
            Data("message", epoch, seqno, sender="nyc/a", incarnation=1, local_seqno=seqno, payload=b"x")
            for seqno in seqnos
        ]

    def end(self) -> int:
        self.ends_asked += 1
        return len(self.data) if self.told_end is None else self.told_end

    def signed_end(self, _: str) -> int:
        return len(self.data) if self.signed is None else self.signed

    def beginning(self) -> int:
        return 0

    def records(self, start: int, end: int) -> Iterator[StoredRecord]:
        for offset in range(start, end):
            self.records_read += 1
            yield StoredRecord(offset, 0, self.data[offset])

    def state(self, end: int) -> SequencerState:
        self.states_read += 1
        return absorb(SequencerState(GROUP), self.data[:end])


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def watchdog(log: Log) -> Watchdog:
    watchdog = Watchdog(lambda _: cast("Any", log), log.signed_end)
    watchdog.watch(GROUP, epoch=1, seqno=0, offset=1)
    return watchdog


def watch(watchdog: Watchdog, seconds: float = 3 * BEHIND_S, start: float = 0.0) -> None:
    now = start
    while now < start + seconds:
        watchdog.look(now)
        now += 1


def test_what_counts_is_read_once_and_no_more(watchdog: Watchdog, log: Log) -> None:
    log.write(1, 2, 3)
    watchdog.decided([GROUP], 3)
    watch(watchdog)
    assert log.records_read == 3
    watch(watchdog, start=100)
    assert (log.records_read, log.states_read) == (3, 0)


@pytest.mark.slow
def test_of_much_only_the_end_is_read(watchdog: Watchdog, log: Log) -> None:
    for upto in range(1000, 100_000, 1000):
        log.write(*range(upto - 999, upto + 1))
        watchdog.decided([GROUP], 1000)
        watch(watchdog, 1, start=upto)
    assert log.records_read == 99 * LOOK_RECORDS
    assert log.states_read == 0


def test_a_hole_is_told_after_a_while(watchdog: Watchdog, log: Log) -> None:
    """Half of the records went to another partition, say."""
    log.write(1, 3, 5)
    watchdog.decided([GROUP], 3)
    watch(watchdog, BEHIND_S)
    with pytest.raises(NotCounting, match="last 2 seqnos given in g do not count"):
        watch(watchdog, start=BEHIND_S)


def test_a_hole_in_a_group_beside_a_busy_one() -> None:
    """The busy one always has records in DATA whose batch is not finished: more than the other lacks."""
    logs = {"busy": Log(), "quiet": Log()}
    watchdog = Watchdog(lambda group: cast("Any", logs[group]), lambda group: len(logs[group].data))
    for group in logs:
        watchdog.watch(group, epoch=1, seqno=0, offset=1)
    logs["busy"].write(*range(1, 11))
    logs["quiet"].write(1, 3)
    watchdog.decided(["quiet"], 3)

    def go_on() -> None:
        for second in range(60):
            logs["busy"].write(*range(10 * second + 11, 10 * second + 21))
            watchdog.decided(["busy"], 10)
            watchdog.look(second)

    with pytest.raises(NotCounting, match="last 2 seqnos given in quiet do not count"):
        go_on()


def test_records_that_nobody_wrote_are_missed(watchdog: Watchdog, log: Log) -> None:
    watchdog.decided([GROUP], 5)
    with pytest.raises(NotCounting):
        watch(watchdog)


def test_an_epoch_in_force_that_nobody_claimed_is_told(watchdog: Watchdog, log: Log) -> None:
    log.data.append(seal(1000))
    log.write(1, 2)
    watchdog.decided([GROUP], 2)
    with pytest.raises(NotCounting, match="last 2 seqnos"):
        watch(watchdog)


def test_a_topic_made_anew_is_told(watchdog: Watchdog, log: Log) -> None:
    log.write(*range(1, 11))
    watchdog.decided([GROUP], 10)
    watch(watchdog)
    log.data = []
    log.write(11, 12)
    watchdog.decided([GROUP], 2)
    with pytest.raises(NotCounting, match="seqnos given in g"):
        watch(watchdog, start=100)


def test_it_does_not_bark_without_cause(watchdog: Watchdog, log: Log) -> None:
    """Leftovers of a fenced sequencer hide our records at the log's end; the watchdog then asks the whole state."""
    log.write(1, 2, 3)
    log.write(*range(1, 200), epoch=0)
    watchdog.decided([GROUP], 3)
    watch(watchdog)
    assert log.states_read == 1
    log.write(4)
    watchdog.decided([GROUP], 1)
    watch(watchdog, start=100)
    assert log.states_read == 1


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_what_was_read_and_is_lost_before_a_sign_tells_of_it_is_missed(
    watchdog: Watchdog, log: Log, taken: int
) -> None:
    log.write(1, 2, 3)
    log.signed = 1
    watchdog.decided([GROUP], 3)
    watch(watchdog, LOOK_S)
    del log.data[-taken:]
    with pytest.raises(NotCounting, match=f"last {taken} seqnos given in g do not count"):
        watch(watchdog, start=LOOK_S)


def test_it_looks_no_more_when_a_sign_has_told_of_all(watchdog: Watchdog, log: Log) -> None:
    log.write(1, 2, 3)
    log.signed = 3
    watchdog.decided([GROUP], 3)
    watch(watchdog)
    asked, log.signed = log.ends_asked, 4
    assert asked > 2
    watch(watchdog, start=100)
    assert (log.ends_asked, log.records_read, log.states_read) == (asked + 1, 3, 0)


@pytest.mark.parametrize("seconds", [LOOK_S, BEHIND_S])
def test_an_end_that_is_too_low_for_a_while_is_no_alarm(watchdog: Watchdog, log: Log, seconds: float) -> None:
    """An older answer, or a leader whose high-water mark lags."""
    log.write(1, 2, 3)
    log.signed = 1
    watchdog.decided([GROUP], 3)
    watch(watchdog, LOOK_S)
    log.told_end = 2
    watch(watchdog, seconds, start=LOOK_S)
    log.told_end = None
    watch(watchdog, start=100)
    log.write(4)
    watchdog.decided([GROUP], 1)
    watch(watchdog, start=200)
    assert log.states_read <= 1


def test_a_group_of_which_nothing_is_told_is_no_alarm(log: Log) -> None:
    @contextmanager
    def trouble_of(_: str) -> Iterator[None]:
        with contextlib.suppress(BrokerUnreachable):
            yield

    is_away = True

    def of_group(_: str) -> Any:
        if is_away:
            raise BrokerUnreachable
        return log

    watchdog = Watchdog(of_group, log.signed_end, trouble_of)
    watchdog.watch(GROUP, epoch=1, seqno=0, offset=1)
    log.write(1, 2)
    watchdog.decided([GROUP], 3)
    watch(watchdog)
    is_away = False
    with pytest.raises(NotCounting, match="last 1 seqnos"):
        watch(watchdog, start=100)
