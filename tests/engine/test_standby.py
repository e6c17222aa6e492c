"""A standby waits beside a sequencer, takes over when that is gone, and stands by again when it is fenced."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.engine import standby
from connectors.engine.group_supervisor import GroupSupervisor
from connectors.engine.loop import Loop
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.standby import LOOK_S, SIGNS, Seen, SequencerSilence, Standby, Turn
from connectors.engine.takeovers import Takeovers
from connectors.engine.writing import WriteFailed
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.epochs import Claim
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.log.beats import Beats
from connectors.kafka.log.data_log import DataLog, consumer_of_logs
from connectors.kafka.log.sign_of_life import (
    BEAT_S,
    SIGN_EVERY_S,
    SILENT_AFTER_S,
    Sign,
    SignsOfLife,
    commit_sign,
    read_signs,
)
from connectors.kafka.log.standby_sign import read_standbys, sign_as_standby
from connectors.takeover import groups
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from jobs.terminal.engine_option import TAKEOVER_AFTER_S
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced, HistoryUnavailable, UsageError
from ordering.base.names import Topic
from tests.engine.serving import SITE, finder_of, started_job
from tests.engine.serving import no_rival as no_rival
from tests.waiting import WAIT, eventually

FORWARD = TopicPartition(str(Topic("g", "forward", SITE)), 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "LOOK_S", 0.05)
    monkeypatch.setattr(standby, "SIGNS", 0)


def signed(at_ms: int) -> Seen:
    return Seen({"g": Sign(1, "host", "process", at_ms)})


class TestSilence:
    """Only time between two equal answers counts, and a long time between two looks counts as a short one."""

    def test_a_sign_ends_it(self) -> None:
        silence = SequencerSilence(4.0)
        for look in range(100):
            assert not silence.is_long(signed(look // 7), look * LOOK_S)
        assert [look for look in range(100, 116) if silence.is_long(signed(14), look * LOOK_S)] == [114, 115]

    def test_a_claim_ends_it(self) -> None:
        silence, seen = SequencerSilence(4.0), signed(1)
        for look in range(16):
            assert not silence.is_long(seen, look * LOOK_S)
        assert silence.is_long(seen, 4.0)
        assert not silence.is_long(seen._replace(claim=Claim(2, 0)), 4.0 + LOOK_S)

    @pytest.mark.parametrize(("every_s", "silent_s"), [(0.5, 2.0), (2.0, 6.0)])
    def test_a_sequencer_may_miss_two_signs(
        self, every_s: float, silent_s: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The default suits the sequencer's own time between signs, and that of earlier versions."""
        monkeypatch.setattr(standby, "SIGNS", SIGNS)
        silence, seen = SequencerSilence(TAKEOVER_AFTER_S), signed(1)._replace(every_s=every_s)
        found = next(look for look in range(100) if silence.is_long(seen, look * LOOK_S))
        assert found * LOOK_S == silent_s

    def test_a_claim_that_can_not_be_read_now_and_then_ends_none(self) -> None:
        silence, seen = SequencerSilence(4.0), signed(1)._replace(claim=Claim(2, 0))
        looks = [seen._replace(claim=None) if look % 4 == 3 else seen for look in range(17)]
        assert [look for look in range(17) if silence.is_long(looks[look], look * LOOK_S)] == [16]

    def test_no_answer_is_no_silence(self) -> None:
        silence = SequencerSilence(4.0)
        assert not silence.is_long(signed(1), 0.0)
        for look in range(1, 100):
            assert not silence.is_long(signed(1) if look % 2 else Seen(), look * LOOK_S)

    def test_a_suspended_standby_looks_again(self) -> None:
        silence = SequencerSilence(4.0)
        assert not silence.is_long(signed(1), 0.0)
        assert not silence.is_long(signed(1), 3600.0)

    def test_a_pause_counts_not(self) -> None:
        silence = SequencerSilence(4.0)
        assert not silence.is_long(signed(1), 0.0)
        for look in range(1, 100):
            silence.go_on(None)
            assert not silence.is_long(signed(1), look * LOOK_S)

    def test_a_pause_ends_with_an_answer(self) -> None:
        """The time behind the answer counts."""
        silence = SequencerSilence(0.5)
        assert not silence.is_long(signed(1), 0.0)
        silence.go_on(100.0)
        assert not silence.is_long(signed(1), 100.25)
        assert silence.is_long(signed(1), 100.5)

    def test_a_slow_look_takes_nothing_off_the_second_half(self) -> None:
        """In that half, a process that has claimed gives its signs."""
        silence = SequencerSilence(2.0)
        looks = [now for now in (0.0, 0.9, 1.9, 2.8, 2.9) if not silence.is_long(signed(1), now)]
        assert looks == [0.0, 0.9, 1.9, 2.8]

    def test_the_time_left_leads_to_each_half(self) -> None:
        silence, now, waits = SequencerSilence(4.0), 0.0, []
        assert silence.left_s() == float("inf")
        while not silence.is_long(signed(1), now):
            waits.append(silence.left_s())
            now += min(0.75, waits[-1])
        assert (waits, now) == ([2.0, 1.25, 0.5, 2.0, 1.25, 0.5], 4.0)
        silence.is_long(Seen(), now)
        assert silence.left_s() == float("inf")

    @given(st.lists(st.tuples(st.floats(0.0, 5.0), st.booleans(), st.booleans())))
    def test_it_is_never_called_early(self, looks: list[tuple[float, bool, bool]]) -> None:
        silence, now, at_ms, last_new = SequencerSilence(4.0), 0.0, 0, 0.0
        for elapsed, is_new, is_answered in looks:
            now += elapsed
            if is_new and is_answered:
                at_ms, last_new = at_ms + 1, now
            assert not (silence.is_long(signed(at_ms) if is_answered else Seen(), now) and now - last_new < 4.0)


def test_a_time_that_is_none_is_refused(kafka: MemoryConnection) -> None:
    for after_s in (-1.0, float("nan")):
        with pytest.raises(UsageError, match=rf"--takeover-after-s is a number of seconds, not {after_s:g}"):
            Standby(EngineOptions(kafka, SITE, takeover_after_s=after_s), finder_of(kafka, (SITE,)))


@pytest.mark.slow
def test_a_standby_without_a_sequencer_claims_at_once(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There was none ever, or the last sign is of this host, and old."""
    for number in (1, 2):
        with started_job(kafka, 3600.0):
            send(kafka, number)
            eventually(lambda: read_signs(kafka, ["g"], SITE).of_groups, what="a sign")
        monkeypatch.setattr("connectors.kafka.log.sign_of_life.SILENT_AFTER_S", 0.0)
    assert claims(kafka) == 2
    assert caplog.text.count("there is no sequencer. This process takes over.") == 2
    with DataLog(kafka, "g", SITE) as log:
        other = Sign(log.epochs.read().newest_epoch, "another", "process", 1)
    commit_sign(kafka.metadata_client(), "g", SITE, other)
    with started_job(kafka, 3600.0):
        threading.Event().wait(0.5)
        assert claims(kafka) == 2, "clocks of hosts differ"


@pytest.mark.slow
def test_one_that_is_fenced_does_not(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one is a sequencer, even if its sign is old: all processes may have paused."""
    with started_job(kafka, 3600.0):
        send(kafka, 1)
        eventually(lambda: read_signs(kafka, ["g"], SITE).of_groups, what="a sign")
        monkeypatch.setattr("connectors.kafka.log.sign_of_life.SILENT_AFTER_S", 0.0)
        take_over(kafka, "g", SITE)
        eventually(lambda: "It stands by." in caplog.text, what="a standby again")
        threading.Event().wait(0.5)
        assert claims(kafka) == 2


@pytest.mark.slow
def test_a_process_that_is_here_is_let_alone(
    kafka: MemoryConnection, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka was away, so its last sign is old, and its next one is on its way."""
    with claiming_as(other.pid), started_job(kafka, None):
        send(kafka, 1)
        eventually(lambda: read_signs(kafka, ["g"], SITE).of_groups, what="a sign")
    monkeypatch.setattr("connectors.kafka.log.sign_of_life.SILENT_AFTER_S", 0.0)
    monkeypatch.setattr("connectors.kafka.log.liveness.SILENT_AFTER_S", 0.0)
    with started_job(kafka, 3600.0):
        threading.Event().wait(0.5)
        assert claims(kafka) == 1


@pytest.mark.slow
def test_a_sequencer_of_another_group_without_a_sign_is_let_alone(kafka: MemoryConnection) -> None:
    """The first group was never claimed. The second was a moment ago, on another host."""
    kafka.create("h", SITE)
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr("connectors.kafka.codec.epochs.this_host", lambda: "another")
        take_over(kafka, "h", SITE)
    with started_job(kafka, 3600.0):
        threading.Event().wait(0.5)
        assert claims(kafka) == 0


def test_beats_repeat_a_sign_for_a_while(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of one group tells that the next one comes soon. A sequencer that gives signs no more falls silent."""
    kafka.create("h", SITE)

    def seen() -> Mapping[str, Sign]:
        return read_signs(kafka, ["g", "h"], SITE).of_groups

    beats, maintained = Beats(kafka, SITE), SignsOfLife(kafka, SITE, "process", beats=True)
    beats.beat(0.0)
    assert not seen()
    maintained.give({"g": 1, "h": 2}, {}, 0.0, {"g": 5, "h": 6})
    assert {group: sign.every_s for group, sign in seen().items()} == {"g": BEAT_S, "h": SIGN_EVERY_S}
    assert maintained.last is not None
    beats.repeat(*maintained.last, 0.0)
    clock = itertools.count(seen()["h"].at_ms + 1)
    monkeypatch.setattr("time.time_ns", lambda: next(clock) * 1_000_000)
    for now, is_beaten in ((0.5, True), (SILENT_AFTER_S, True), (SILENT_AFTER_S + 0.1, False)):
        before = seen()
        beats.beat(now)
        assert seen()["h"] == before["h"]
        assert (seen()["g"] != before["g"]) == is_beaten
        assert seen()["g"]._replace(at_ms=0) == before["g"]._replace(at_ms=0)
    beats.repeat(*maintained.last, 20.0)
    beats.drop("g")
    before = seen()
    beats.beat(20.0)
    assert seen() == before


@pytest.mark.slow
def test_beats_that_end_during_the_first_one_leave_no_connection(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, closed = threading.Event(), threading.Event(), threading.Event()
    connect = kafka.metadata_client

    def slow() -> Any:
        begun.set()
        assert goes_on.wait(WAIT)
        client = connect()
        monkeypatch.setattr(client, "close", closed.set)
        return client

    beats = Beats(kafka, SITE)
    beats.repeat("g", Sign(1, "host", "process", 1), time.monotonic())
    monkeypatch.setattr(type(kafka), "metadata_client", lambda _: slow())
    beats.start()
    assert begun.wait(WAIT)
    beats.close()
    goes_on.set()
    assert closed.wait(WAIT)


@pytest.mark.slow
def test_a_loop_that_hangs_gives_no_signs(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its supervisor and its beats have threads of their own."""
    goes_on, hangs, turn = threading.Event(), threading.Event(), Loop.turn

    def turned(loop: Any, supervisor: Any) -> None:
        if hangs.is_set():
            assert goes_on.wait(WAIT)
        turn(loop, supervisor)

    def signs() -> Mapping[str, Sign]:
        return read_signs(kafka, ["g"], SITE).of_groups

    def is_silent() -> bool:
        before = signs()
        threading.Event().wait(5 * BEAT_S)
        return signs() == before

    monkeypatch.setattr(Loop, "turn", turned)
    monkeypatch.setattr("connectors.engine.group_supervisor.SILENT_AFTER_S", 1.0)
    with started_job(kafka, None):
        send(kafka, 1)
        eventually(signs, what="a sign")
        assert not is_silent(), "an idle loop turns"
        hangs.set()
        eventually(is_silent, what="silence")
        assert caplog.text.count("the loop hangs") == 1
        hangs.clear()
        goes_on.set()
        eventually(lambda: not is_silent(), what="signs again")


def test_signs_of_earlier_versions_come_every_two_seconds(kafka: MemoryConnection) -> None:
    maintained = SignsOfLife(kafka, SITE, "spark")
    maintained.give({"g": 1}, {}, 0.0, {"g": 5})
    assert read_signs(kafka, ["g"], SITE).of_groups["g"].every_s == SIGN_EVERY_S


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("why", ["there is no sequencer", "no sign of a sequencer", "has ended"])
def test_of_two_standbys_one_takes_over(
    kafka: MemoryConnection,
    other: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    """Another process claims between the decision and the claim, whatever the reason for the decision."""
    begin, rivals = Takeovers.begin, iter([os.getppid()])

    def late(takeovers: Takeovers, topics: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        for rival in rivals:
            with claiming_as(rival):
                take_over(kafka, "g", SITE)
        return begin(takeovers, topics)

    if why != "there is no sequencer":
        with claiming_as(other.pid):
            take_over(kafka, "g", SITE)
    before = claims(kafka)
    monkeypatch.setattr(Takeovers, "begin", late)
    with caplog.at_level(logging.INFO), started_job(kafka, 2.0 if why == "no sign of a sequencer" else 3600.0):
        if why == "has ended":
            eventually(lambda: "This process waits." in caplog.text, what="a standby that has seen the process")
            other.kill()
            other.wait(WAIT)
        eventually(lambda: "It stands by." in caplog.text, what="a standby that is fenced")
        assert claims(kafka) == before + 1
    assert why in caplog.text


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_standby_that_lost_the_race_stands_by_beside_a_broken_group(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, *, is_suspended: bool
) -> None:
    """The other group is broken. Its answer comes first, or an earlier attempt has suspended it."""
    kafka.create("broken", SITE)
    take_over(kafka, "broken", SITE)
    kafka.drop(Topic("broken", "data", SITE))
    take_over(kafka, "g", SITE)
    asks = Takeovers.results

    def broken_first(takeovers: Takeovers, timeout_s: float) -> Any:
        found = asks(takeovers, timeout_s)
        while takeovers.is_running:
            found.errors.update(asks(takeovers, timeout_s).errors)
        return found._replace(errors=dict(sorted(found.errors.items())))

    monkeypatch.setattr(Takeovers, "results", broken_first)
    state = JobState(finder_of(kafka, (SITE,)), SuspendedGroups("sequence"), {"g": 0})
    if is_suspended:
        state.suspended.suspend("broken", HistoryUnavailable("its snapshots are gone."))
    options = EngineOptions(kafka, SITE, takeover_after_s=1.0)
    with closing(GroupSupervisor(options, state)) as standby, pytest.raises(Fenced):
        standby.take_all()
    assert "g" not in state.suspended


def test_a_standby_keeps_a_group_that_it_has_claimed(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process serves g. The takeover of the group `claimed` fails behind its claim."""
    kafka.create("claimed", SITE)
    take_over(kafka, "g", SITE)

    def no_answer(_: object) -> object:
        raise BrokerUnreachable("the broker is away.")

    monkeypatch.setattr("connectors.takeover.takeover.snapshot", no_answer)
    state = JobState(finder_of(kafka, (SITE,)), SuspendedGroups("sequence"), {"g": 0})
    with closing(GroupSupervisor(EngineOptions(kafka, SITE, takeover_after_s=1.0), state)) as standby:
        assert not standby.take_all().states
    assert state.epochs == {"g": 0, "claimed": 1}
    assert "g" in state.suspended
    assert "claimed" in state.suspended


@pytest.mark.slow
def test_a_standby_that_has_yielded_in_a_feud_waits_again(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rival may have given signs since. A second silence ends the feud."""
    with started_job(kafka, None):
        send(kafka, 1)

    monkeypatch.setattr("connectors.engine.job.seconds_for_rival", lambda *_: 0.1)
    with started_job(kafka, 0.5):
        send(kafka, 2)
    assert caplog.text.count("no sign of a sequencer for a while. This process takes over.") == 2
    assert claims(kafka) == 2


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_sequencer_that_stood_by_takes_over_again_at_once(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempt fails and may pass. It has claimed, so it waits for nobody."""
    waits: list[Turn] = []
    fails, turn = threading.Event(), Loop.turn

    def turned(loop: Any, supervisor: Any) -> None:
        if fails.is_set():
            fails.clear()
            raise WriteFailed("a write was lost.")
        turn(loop, supervisor)

    def wait(*_: object) -> Turn:
        waits.append(Turn())
        return waits[-1]

    monkeypatch.setattr(Standby, "wait", wait)
    monkeypatch.setattr(Loop, "turn", turned)
    with started_job(kafka, 1.0):
        send(kafka, 1)
        fails.set()
        eventually(lambda: claims(kafka) == 2, what="another takeover")
        send(kafka, 2)
    assert len(waits) == 1


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_standby_that_cannot_sign_takes_over(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka takes no sign of its own."""
    with started_job(kafka, None):
        send(kafka, 1)

    def fails(*_: object) -> None:
        raise BrokerUnreachable("the topic is gone.")

    monkeypatch.setattr(standby, "sign_as_standby", fails)
    with started_job(kafka, 0.5):
        send(kafka, 2)
    assert caplog.text.count("sees this process: the topic is gone.") == 1


def test_a_group_without_dead_letters_hides_no_standby(kafka: MemoryConnection) -> None:
    kafka.create("h", SITE)
    kafka.topics.delete(str(Topic("h", "dead-letter", SITE)))
    metadata = kafka.metadata_client()
    sign = sign_as_standby(metadata, ["h", "g"], SITE, 0)
    assert read_standbys(metadata, ["h", "g"], SITE) == {"g": sign}


@pytest.mark.slow
def test_a_busy_machine_may_take_its_time_to_answer(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby whose connections took more than half a second never took over."""

    def late(connection: MemoryConnection) -> Any:
        time.sleep(2 * groups._ANSWER_S)
        return consumer_of_logs(connection)

    monkeypatch.setattr("connectors.kafka.groups.side_by_side.consumer_of_logs", late)
    assert groups.epochs_of_groups(kafka, ["g"], SITE).keys() == {"g"}


def test_a_standby_that_may_not_read_epoch_keeps_its_connections_and_signs(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator can ask it to take over."""
    take_over(kafka, "g", SITE)
    kafka.topics.forbidden.add(str(Topic("g", "epoch", SITE)))
    connect, connected = MemoryConnection.metadata_client, list[object]()

    def counted(connection: MemoryConnection) -> Any:
        connected.append(None)
        return connect(connection)

    monkeypatch.setattr(MemoryConnection, "metadata_client", counted)
    finder = finder_of(kafka, (SITE,))
    with closing(standby._Lookout(kafka, SITE)) as lookout:
        assert [lookout.look(finder).claim for _ in range(3)] == [None] * 3
    assert len(connected) == 1
    assert read_standbys(kafka.metadata_client(), ["g"], SITE).keys() == {"g"}


def test_a_later_look_adds_no_claim_to_the_known_ones(kafka: MemoryConnection) -> None:
    """A takeover would regard that claim as one that it replaces."""
    take_over(kafka, "g", SITE)
    finder = finder_of(kafka, (SITE,))
    with closing(standby._Lookout(kafka, SITE)) as lookout:
        lookout.look(finder)
        known = Turn(lookout.epochs(finder))
        before = known.replaced["g"]
        take_over(kafka, "g", SITE)
        claim = lookout.look(finder).claim
        assert claim is not None
        assert claim.epoch > before == known.replaced["g"]


@pytest.mark.slow
def test_a_long_reading_of_epoch_is_no_part_of_the_second_half(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another standby may have claimed by then, and its signs need the time."""
    read_at: list[float] = []

    def slowly(lookout: Any, finder: Any) -> Any:
        time.sleep(1.0)
        read_at.append(time.monotonic())
        return epochs(lookout, finder)

    epochs = standby._Lookout.epochs
    monkeypatch.setattr(standby, "_SPREAD_MS", 1)
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr("connectors.kafka.codec.epochs.this_host", lambda: "another")
        with started_job(kafka, None):
            send(kafka, 1)
            eventually(lambda: read_signs(kafka, ["g"], SITE).of_groups, what="a sign")
    waiting = Standby(EngineOptions(kafka, SITE, takeover_after_s=1.0), finder_of(kafka, (SITE,)))
    waiting._starts = False  # it knows of a sequencer
    monkeypatch.setattr(standby._Lookout, "epochs", slowly)
    assert waiting.wait(threading.Event()).replaced
    assert time.monotonic() - read_at[0] > 0.4


@pytest.mark.slow
def test_a_standby_without_groups_can_be_stopped() -> None:
    with started_job(MemoryConnection(), 0.0):
        threading.Event().wait(0.3)


@pytest.mark.slow
def test_stopped_while_it_waits(kafka: MemoryConnection) -> None:
    with started_job(kafka, None):
        send(kafka, 1)
    with started_job(kafka, WAIT * 10):
        threading.Event().wait(0.3)
    assert claims(kafka) == 1
