"""A standby waits beside a sequencer, takes over when that is gone, and stands by again when it is fenced."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.engine import standby
from connectors.engine.loop import Loop
from connectors.engine.options import EngineOptions
from connectors.engine.standby import LEAST_AFTER_S, LOOK_S, SequencerSilence, Standby
from connectors.engine.writing import WriteFailed
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S, Sign, read_signs
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from jobs.terminal.engine_option import TAKEOVER_AFTER_S
from ordering.base.errors import BrokerUnreachable, UsageError
from ordering.base.names import Topic
from tests.engine.serving import SITE, finder_of, started_job
from tests.engine.serving import no_rival as no_rival
from tests.waiting import WAIT, eventually

FORWARD = TopicPartition(str(Topic("g", "forward", SITE)), 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "LOOK_S", 0.05)
    monkeypatch.setattr(standby, "LEAST_AFTER_S", 0.0)


def signs(at_ms: int, epoch: int = 1) -> dict[str, Sign]:
    return {"g": Sign(epoch, "host", "process", at_ms)}


class TestSilence:
    """Only time between two equal answers counts, and a long time between two looks counts as a short one."""

    def test_a_sign_ends_it(self) -> None:
        silence = SequencerSilence(4.0)
        for look in range(100):
            assert not silence.is_long(signs(look // 7), look * LOOK_S)
        assert [look for look in range(100, 110) if silence.is_long(signs(14), look * LOOK_S)] == [106, 107, 108, 109]

    def test_no_answer_is_no_silence(self) -> None:
        silence = SequencerSilence(4.0)
        assert not silence.is_long(signs(1), 0.0)
        for look in range(1, 100):
            assert not silence.is_long(signs(1) if look % 2 else None, look * LOOK_S)

    def test_a_suspended_standby_looks_again(self) -> None:
        silence = SequencerSilence(4.0)
        assert not silence.is_long(signs(1), 0.0)
        assert not silence.is_long(signs(1), 3600.0)

    @given(st.lists(st.tuples(st.floats(0.0, 5.0), st.booleans(), st.booleans())))
    def test_it_is_never_called_early(self, looks: list[tuple[float, bool, bool]]) -> None:
        silence, now, at_ms, last_new = SequencerSilence(4.0), 0.0, 0, 0.0
        for elapsed, is_new, is_answered in looks:
            now += elapsed
            if is_new and is_answered:
                at_ms, last_new = at_ms + 1, now
            assert not (silence.is_long(signs(at_ms) if is_answered else None, now) and now - last_new < 4.0)


def test_the_default_is_longer_than_the_time_of_two_signs() -> None:
    assert TAKEOVER_AFTER_S > LEAST_AFTER_S >= 2 * SIGN_EVERY_S


def test_a_time_below_that_of_two_signs_is_refused(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "LEAST_AFTER_S", LEAST_AFTER_S)
    for after_s in (1.0, float("nan")):
        with pytest.raises(UsageError, match=rf"every 2 s: a standby waits for 4 s or longer, not {after_s:g} s"):
            Standby(EngineOptions(kafka, SITE, takeover_after_s=after_s), finder_of(kafka, (SITE,)))


def claims(kafka: MemoryConnection) -> int:
    with DataLog(kafka, "g", SITE) as log:
        return len(log.epochs.read(again=True).claims)


def ordered(kafka: MemoryConnection) -> int:
    with DataLog(kafka, "g", SITE) as log:
        return log.state().seqno


def send(kafka: MemoryConnection, number: int) -> None:
    kafka.topics.append(FORWARD, b"nyc/a", b"x", forward_headers(1, number))
    eventually(lambda: ordered(kafka) == number, what="an ordered message")


@pytest.mark.slow
def test_one_waits_for_the_other_in_turn(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequencer ends; the standby orders on. A new sequencer fences it; it stands by, and takes over again."""
    with ExitStack() as opened:
        with started_job(kafka, None):
            waiting = opened.enter_context(started_job(kafka, 2.5)).options.troubles
            assert waiting is not None
            send(kafka, 1)
            threading.Event().wait(3.0)
            assert claims(kafka) == 1, "the sequencer gives signs"
        send(kafka, 2)
        assert claims(kafka) == 2
        with started_job(kafka, None):
            send(kafka, 3)
            assert claims(kafka) == 3
            eventually(lambda: not waiting.unsigned_s(), what="no signs of a standby")
        send(kafka, 4)
        assert claims(kafka) == 4
        eventually(lambda: set(waiting.unsigned_s()) == {"g"}, what="its signs")


@contextmanager
def claiming_as(pid: int) -> Iterator[None]:
    """Let claims in the block be of that process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("connectors.kafka.codec.epochs.os.getpid", lambda: pid)
        yield


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this host."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_end_of_a_process_on_this_host_shows_at_once(
    kafka: MemoryConnection, other: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with claiming_as(other.pid), started_job(kafka, None):
        send(kafka, 1)
    with caplog.at_level(logging.INFO), started_job(kafka, 3600.0):
        eventually(lambda: "This process waits." in caplog.text, what="a standby that has seen the process")
        threading.Event().wait(0.3)
        assert claims(kafka) == 1
        other.kill()
        other.wait(WAIT)
        send(kafka, 2)
    assert any("has ended. This process takes over" in record.message for record in caplog.records)


def test_a_successor_that_has_given_no_sign_yet_is_let_alone(
    kafka: MemoryConnection, other: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A sequencer is replaced on purpose: its end is no reason to fence the new one."""
    with claiming_as(other.pid), started_job(kafka, None):
        send(kafka, 1)
    with caplog.at_level(logging.INFO), started_job(kafka, 3600.0):
        eventually(lambda: "This process waits." in caplog.text, what="a standby that has seen the process")
        with claiming_as(os.getppid()):
            take_over(kafka, "g", SITE)
        other.kill()
        other.wait(WAIT)
        threading.Event().wait(1.0)
        assert claims(kafka) == 2


def test_a_process_that_was_never_seen_proves_nothing(kafka: MemoryConnection, other: subprocess.Popen[bytes]) -> None:
    """Its claim has this host's name, and a pid that is not here, or is this process's own: it may be a container's."""
    other.kill()
    other.wait(WAIT)
    for pid in (other.pid, os.getpid()):
        with claiming_as(pid), started_job(kafka, None):
            eventually(lambda: ordered(kafka) >= 0, what="a start")
    before = claims(kafka)
    with started_job(kafka, 3600.0):
        threading.Event().wait(1.0)
        assert claims(kafka) == before


def test_a_sequencer_that_stood_by_takes_over_again_at_once(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempt fails and may pass. It has claimed, so it waits for nobody."""
    waits: list[Mapping[str, int]] = []
    fails, turn = threading.Event(), Loop.turn

    def turned(loop: Any, supervisor: Any) -> None:
        if fails.is_set():
            fails.clear()
            raise WriteFailed("a write was lost.")
        turn(loop, supervisor)

    def wait(*_: object) -> Mapping[str, int]:
        waits.append({})
        return waits[-1]

    monkeypatch.setattr(Standby, "wait", wait)
    monkeypatch.setattr(Loop, "turn", turned)
    with started_job(kafka, 1.0):
        send(kafka, 1)
        fails.set()
        eventually(lambda: claims(kafka) == 2, what="another takeover")
        send(kafka, 2)
    assert len(waits) == 1


def test_what_hinders_a_look_ends_no_standby(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka does not tell the signs for a while. That is told, once, and is no silence."""
    with started_job(kafka, None):
        send(kafka, 1)
    answers = iter([BrokerUnreachable("no broker answers.")] * 5)

    def asked(*what: object, **how: object) -> object:
        for error in answers:
            raise error
        return read_signs(*what, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(standby, "read_signs", asked)
    with started_job(kafka, 0.5):
        send(kafka, 2)


def test_a_standby_that_cannot_sign_takes_over(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka takes no sign of its own, as one group lacks its dead letters."""
    with started_job(kafka, None):
        send(kafka, 1)

    def fails(*_: object) -> None:
        raise BrokerUnreachable("the topic is gone.")

    monkeypatch.setattr(standby, "sign_as_standby", fails)
    with started_job(kafka, 0.5):
        send(kafka, 2)
    assert caplog.text.count("sees this process: the topic is gone.") == 1


def test_a_standby_without_groups_can_be_stopped() -> None:
    with started_job(MemoryConnection(), 0.0):
        threading.Event().wait(0.3)


def test_stopped_while_it_waits(kafka: MemoryConnection) -> None:
    with started_job(kafka, None):
        send(kafka, 1)
    with started_job(kafka, WAIT * 10):
        threading.Event().wait(0.3)
    assert claims(kafka) == 1
