"""An operator hands a group over to the standby that waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.engine import standby
from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.engine.takeovers import Takeovers
from connectors.kafka.codec.epochs import (
    HANDOVER_MS,
    Claim,
    Handover,
    Note,
    decode,
    encode_handover,
    seconds_to_yield,
    this_process,
)
from connectors.kafka.groups.group_choice import GroupChoice
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.standby_sign import StandbySign, read_standbys, sign_as_standby
from connectors.takeover import handover
from connectors.takeover.handover import HandoverFailed, PlannedTakeover, hand_over
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError, Fenced, UsageError
from tests.engine.serving import SITE, finder_of, started_job
from tests.engine.serving import no_rival as no_rival
from tests.waiting import WAIT, eventually

TOPIC = f"abcast.g.epoch.{SITE}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "LOOK_S", 0.05)
    monkeypatch.setattr(handover, "FIND_S", 3.0)


def epochs(kafka: MemoryConnection) -> Epochs:
    with DataLog(kafka, "g", SITE) as log:
        return log.epochs.read()


def stands_by(kafka: MemoryConnection) -> bool:
    return bool(read_standbys(kafka.metadata_client(), ["g"], SITE))


@pytest.mark.slow
def test_a_standby_takes_over_and_the_other_ends(kafka: MemoryConnection) -> None:
    first = EngineJob(EngineOptions(kafka, SITE))
    first._state.finder = finder_of(kafka, (SITE,))
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(first.run)
        eventually(first.ready.is_set, what="a job that is ready")
        with started_job(kafka, 3600.0):
            eventually(lambda: stands_by(kafka), what="a standby")
            [done] = hand_over(kafka, ["g"], SITE, "a new version")
            known = epochs(kafka)
            assert done == PlannedTakeover("g", 4, known.claims[-1].who), (
                "behind the first claim, its note, and the request"
            )
            assert [claim.is_planned for claim in known.claims] == [False, True]
            assert [act.why for act in known.acts] == ["a new version"]
            with pytest.raises(Fenced, match=r"handed over to process \d+ on host .*, epoch 4, by request"):
                ended.result(WAIT)


@pytest.mark.slow
def test_a_repeated_request_does_not_hand_back(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second tells of the handover, even if a standby waits again. Later it is a request of its own."""
    with started_job(kafka, 3600.0):
        eventually(lambda: stands_by(kafka), what="a standby")
        take_over(kafka, "g", SITE)
        done = hand_over(kafka, ["g"], SITE)
        before = epochs(kafka).below
        assert hand_over(kafka, ["g"], SITE, sleep=Frozen(kafka)) == done
        assert epochs(kafka).below == before
        monkeypatch.setattr(handover, "AGAIN_S", 0.0)
        monkeypatch.setattr(handover, "FIND_S", 0.0)
        with pytest.raises(UsageError, match="no standby waits"):
            hand_over(kafka, ["g"], SITE)


@pytest.mark.slow
def test_a_standby_whose_clock_was_set_back_follows(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns
    take_over(kafka, "g", SITE)
    with started_job(kafka, 3600.0):
        eventually(lambda: stands_by(kafka), what="a standby")
        monkeypatch.setattr("time.time_ns", lambda: now_ns() - 3_600 * 10**9)
        hand_over(kafka, ["g"], SITE)


@pytest.mark.slow
def test_all_groups_of_a_standby_are_handed_over(kafka: MemoryConnection) -> None:
    """A standby takes over all that it serves. A part of them is a request for all, but not for other processes'."""
    for group in ("h", "other"):
        kafka.create(group, SITE)
    for group in ("g", "h", "other"):
        take_over(kafka, group, SITE)
    with started_job(kafka, 3600.0, GroupChoice.parse("g,h")):
        eventually(lambda: stands_by(kafka), what="a standby")
        done = hand_over(kafka, ["g"], SITE, beside=["g", "h", "other"])
        assert {each.group for each in done} == {"g", "h"}
        for group in ("g", "h"):
            with DataLog(kafka, group, SITE) as log:
                assert [claim.is_planned for claim in log.epochs.read().claims] == [False, True]


@pytest.mark.slow
def test_a_takeover_that_has_begun_lets_a_newer_sequencer_alone(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process claims between the request and the standby's own claim."""
    begin = Takeovers.begin

    def late(takeovers: Takeovers, topics: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        take_over(kafka, "g", SITE)
        return begin(takeovers, topics)

    take_over(kafka, "g", SITE)
    with started_job(kafka, 3600.0) as job:
        eventually(lambda: stands_by(kafka), what="a standby")
        monkeypatch.setattr(Takeovers, "begin", late)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(hand_over, kafka, ["g"], SITE)
            eventually(lambda: "It stands by." in caplog.text, what="a standby that is fenced")
            eventually(lambda: not job.has_claimed(), what="one that waits")
            assert [claim.is_planned for claim in epochs(kafka).claims] == [False, True], "by the same process here"
            asked.result(WAIT)


@pytest.mark.slow
def test_without_a_standby_nothing_is_written(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that signs no more is none."""
    monkeypatch.setattr(handover, "FIND_S", 0.3)
    take_over(kafka, "g", SITE)
    before = epochs(kafka).below
    for _ in range(2):
        with pytest.raises(UsageError, match=r"no standby waits at site nyc for g: start one"):
            hand_over(kafka, ["g"], SITE)
        assert epochs(kafka).below == before
        sign_as_standby(kafka.metadata_client(), ["g"], SITE, 0)


def test_a_group_without_a_sequencer_is_refused(kafka: MemoryConnection) -> None:
    with pytest.raises(UsageError, match="none of the groups g ever had a sequencer"):
        hand_over(kafka, ["g"], SITE)


class Frozen:
    """A standby that signs, and does nothing else."""

    def __init__(self, kafka: MemoryConnection) -> None:
        self.kafka = kafka

    def __call__(self, _: float) -> None:
        sign_as_standby(self.kafka.metadata_client(), ["g"], SITE, 0)


@pytest.mark.slow
def test_a_request_that_nobody_follows_has_no_effect_later(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "FOLLOW_S", 0.5)
    monkeypatch.setattr(standby, "REQUEST_S", 0.0)  # it is old
    take_over(kafka, "g", SITE)
    with pytest.raises(HandoverFailed, match=r"has not taken over g within 0.5 s: look at its log"):
        hand_over(kafka, ["g"], SITE, sleep=Frozen(kafka))
    assert epochs(kafka).handover is not None
    with started_job(kafka, 3600.0):
        eventually(lambda: stands_by(kafka), what="a standby")
        assert not standby.is_asked(epochs(kafka), 0)
    assert len(epochs(kafka).claims) == 1


def test_another_takeover_is_told(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby has ended, and another process starts."""
    take_over(kafka, "g", SITE)
    asked = iter(range(100))

    def sleep(seconds: float) -> None:
        if epochs(kafka).handover is None:
            Frozen(kafka)(seconds)
        elif next(asked) == 2:
            with monkeypatch.context() as other:
                other.setattr("connectors.kafka.codec.epochs.os.getpid", lambda: 1)
                take_over(kafka, "g", SITE)

    with pytest.raises(HandoverFailed, match=r"process 1 on host .* has taken group g over"):
        hand_over(kafka, ["g"], SITE, sleep=sleep)
    assert not epochs(kafka).claims[-1].is_planned


def test_a_request_is_for_one_process_one_epoch_and_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    host, pid = this_process()
    now_ms = 1_000_000
    monkeypatch.setattr("time.time_ns", lambda: now_ms * 1_000_000)
    known = Epochs(SITE, claims=[Claim(7, 0, "a", 1)])

    def follows(request: Handover, since_ms: int = 0) -> bool:
        known.handover = request
        return standby.is_asked(known, since_ms)

    request = Handover(7, host, pid, now_ms - 9_000)
    assert follows(request)
    assert not follows(request, since_ms=now_ms - 8_000), "an earlier process had the pid"
    for other in (
        {"epoch": 6},
        {"host": "b"},
        {"pid": pid + 1},
        {"signed_ms": now_ms - 11_000},
        {"signed_ms": 1 << 60},
    ):
        assert not follows(request._replace(**other))


def test_planned_takeovers_are_no_feud() -> None:
    known = Epochs(SITE)
    for number, host in enumerate("abababab"):
        known.apply(Handover(known.newest_epoch, host, 5, 0, number * 1000), 2 * number)
        known.apply(Claim(2 * number + 2, 0, host, 5, number * 1000 + HANDOVER_MS), 2 * number + 1)
    assert all(claim.is_planned for claim in known.claims)
    assert seconds_to_yield(known.claims, "a", known.claims[-1].at_ms) is None
    late = known.handover
    assert late is not None
    assert not late.leads_to(Claim(9, 0, late.host, 5, late.at_ms + HANDOVER_MS + 1), late.epoch)
    unplanned = [claim._replace(is_planned=False) for claim in known.claims]
    assert seconds_to_yield(unplanned, "a", unplanned[-1].at_ms) is not None


def test_an_earlier_version_reads_a_note_that_tells_nothing() -> None:
    value, headers = encode_handover(Handover(7, "a", 5, 3))
    assert decode(TOPIC, 4, value, headers, 9) == Handover(7, "a", 5, 3, 9)
    assert Note(*map(int, value.split()[:3])) == Note(0, 0, 0)


def test_a_sign_of_a_later_version_is_read() -> None:
    sign = StandbySign("a", 1, 2, 3)
    committed = sign.encode()
    assert StandbySign.decode(committed._replace(metadata=f"{committed.metadata} more")) == sign
    for text in ("", "a 1 2", "a x y z"):
        assert StandbySign.decode(committed._replace(metadata=text)) is None


def test_a_reason_that_is_too_long_is_refused_before_anything_is_written(kafka: MemoryConnection) -> None:
    take_over(kafka, "g", SITE)
    with pytest.raises(UsageError, match="--why has 501 characters"):
        hand_over(kafka, ["g"], SITE, "x" * 501, sleep=Frozen(kafka))
    assert epochs(kafka).handover is None
