"""The answers at a job's port, with a process engine on a Kafka in memory."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import parse_qsl

import pytest
from kafka.structs import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from connectors.client.api.collector import MemberCollector
from connectors.diagnosis import metrics, monitor, status
from connectors.diagnosis.broker_clocks import ClockDifference
from connectors.diagnosis.monitor import Monitor
from connectors.diagnosis.order_feed import OrderFeeds
from connectors.diagnosis.status import AgreementStatus, GroupStatus, read_status
from connectors.diagnosis.statuses import Statuses, StrayCount, read_statuses
from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.epochs import Note, encode_claim, encode_note
from connectors.kafka.groups.troubles import SEQUENCER, Troubles
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.liveness import ALIVE, Liveness
from connectors.testing.memory_group import MemoryGroup
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import BrokerUnreachable, KafkaRefused
from ordering.base.names import Topic
from tests.engine.serving import SITE, finder_of, running
from tests.papers import PAGES, doc, section, spans, tables
from tests.sequencer.test_changed_log import write_ledger
from tests.waiting import WAIT, eventually

EPOCH = TopicPartition("abcast.g.epoch.nyc", 0)


class Served:
    """A process engine and its monitor. `asked`: how often the status was read."""

    def __init__(self, kafka: MemoryConnection) -> None:
        self.kafka, self.troubles, self.asked = kafka, Troubles(), 0
        self.job = EngineJob(EngineOptions(kafka, SITE, troubles=self.troubles))
        self.job._state.finder = finder_of(kafka, (SITE,))
        self.thread = SimpleNamespace(
            name=self.job.name, is_principal=True, ready=self.job.ready, done=threading.Event()
        )
        self.jobs: list[Any] = [self.thread]
        self.feeds = OrderFeeds({SITE: kafka}, lambda _: True, payloads=False)
        self.watch(self.read)

    def watch(self, read: Callable[[], Statuses]) -> None:
        self.monitor = Monitor(SITE, {SITE: read}, lambda: self.jobs, self.troubles, self.feeds)

    def read(self) -> Statuses:
        self.asked += 1
        return read_statuses(self.kafka, SITE, raises=False, decided=self.troubles.decided)

    def ask(self, path: str) -> tuple[int, str]:
        path, _, query = path.partition("?")
        answer = self.monitor.answers()[path](dict(parse_qsl(query)))
        return answer.status, answer.body

    def figures(self) -> dict[tuple[str, ...], float]:
        """Return a scrape: the values by name and labels."""
        status, text = self.ask("/metrics")
        assert status == 200
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(each.name, *each.labels.values()): each.value for each in samples}


@pytest.fixture
def served(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    found = [topic for place in kafka.topics.partitions if (topic := Topic.parse(place.topic))]
    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", lambda *_: ["g"])
    monkeypatch.setattr("connectors.diagnosis.status.find_topics", lambda _: found)
    monkeypatch.setattr("connectors.diagnosis.status.wrong_in_logs", lambda *_: {})
    made = Served(kafka)
    yield made
    made.monitor.close(WAIT)


def send(kafka: MemoryConnection, count: int) -> None:
    producer = kafka.producer()
    for number in range(1, count + 1):
        producer.send("abcast.g.forward.nyc", key=b"nyc/alice", value=b"x", headers=forward_headers(1, number))


def test_before_a_job_runs(served: Served) -> None:
    served.jobs.clear()
    assert served.ask("/healthz") == (200, "starting\n")
    assert served.ask("/readyz") == (503, "starting, or stopping: no job runs\n")
    served.jobs.append(served.thread)
    assert served.ask("/readyz") == (503, "sequence is starting\n")
    assert served.figures()["abcast_job_ready", "sequence"] == 0


@pytest.mark.slow
def test_a_sequencer_at_work(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes ask Kafka nothing. The figures equal the status; the sequencer's end is seen from memory."""
    with running(served.kafka, served.job):
        send(served.kafka, 5)
        eventually(lambda: served.troubles.unsigned_s().get("g", 9.0) < 1.0, WAIT, "a sign of life")
        assert served.ask("/readyz") == (200, "ready\n")
        assert served.ask("/healthz") == (200, "alive\n")
        assert served.asked == 0
        eventually(lambda: read_statuses(served.kafka, SITE).rows[0].lag == 0, WAIT, "the order")
        status, text = served.ask("/api/status")
        [of_site] = json.loads(text)["sites"]
        [row] = of_site["groups"]
        assert (status, row["last_seqno"], row["sequencer"]["state"], of_site["errors"]) == (200, 5, "alive", {})
        figures = served.figures()
        assert served.asked == 1  # both have the same reading
    for name, field in (("abcast_seqno", "last_seqno"), ("abcast_senders", "senders"), ("abcast_epoch", "epoch")):
        assert figures[name, "g", SITE] == row[field]
    assert figures["abcast_forward_lag_records", "g", SITE] == 0
    assert figures["abcast_sequencer_alive", "g", SITE] == figures["abcast_group_readable", "g", SITE] == 1
    assert figures["abcast_job_ready", "sequence"] == figures["abcast_status_ok",] == 1
    monkeypatch.setattr(monitor, "SILENT_AFTER_S", 0.1)
    time.sleep(0.2)
    status, text = served.ask("/readyz")
    assert (status, re.sub(r"\d+", "…", text)) == (503, "g: its sequencer has been silent for … s\n")
    served.thread.done.set()
    assert served.ask("/readyz")[1].splitlines()[:2] == ["starting, or stopping: no job runs", "sequence has ended"]
    assert served.ask("/healthz")[0] == 503
    assert served.figures()["abcast_job_ready", "sequence"] == 0


@pytest.mark.slow
def test_a_busy_sequencer_tells_its_own_state(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DATA is not read back to its snapshot, the figures are the same, also with a ledger. A fenced sequencer's state
    counts nothing, nor does one that DATA has lost.
    """
    data = TopicPartition("abcast.g.data.nyc", 0)
    with running(served.kafka, served.job):
        send(served.kafka, 1000)
        eventually(lambda: read_statuses(served.kafka, SITE).rows[0].sequencer.engine, WAIT, "a sign of life")
        eventually(lambda: read_statuses(served.kafka, SITE).rows[0].last_seqno == 1000, WAIT, "the order")
        [from_log] = read_statuses(served.kafka, SITE).rows
        eventually(lambda: served.troubles.decided("g").unsnapped >= 1000, WAIT, "the loop's next turn")  # type: ignore[union-attr]
        read = MagicMock(side_effect=DataLog.state, autospec=True)
        monkeypatch.setattr(DataLog, "state", lambda log, *end: read(log, *end))
        [row] = served.read().rows
        assert row._replace(rate=0.0) == from_log._replace(rate=0.0)
        of_engine = served.troubles.decided("g")
        assert of_engine is not None
        ledger = write_ledger(served.kafka, tmp_path / "ledger")
        row = read_status(served.kafka, "g", SITE, {"g": 990}, ledger, decided=lambda _: of_engine)
        assert (row.other_history, row.ledger_lag) == ("", 10)
        read.assert_not_called()
        with monkeypatch.context() as wrong:
            wrong.setattr("connectors.diagnosis.status.wrong_in_logs", lambda *_: {"g": "it has retention.ms=1."})
            read_status(served.kafka, "g", SITE, decided=lambda _: of_engine)
            read.assert_called()
        records = served.kafka.topics.partitions[data]
        for claimed, lost in ((True, 0), (False, 1)):
            before, end = [*served.kafka.topics.partitions[EPOCH]], records[-1:]
            if claimed:
                value, headers = encode_claim(len(records))
                served.kafka.producer().send(EPOCH.topic, value=value, headers=headers)
            del records[len(records) - lost :]
            assert status._in_force(DataLog(served.kafka, "g", SITE), of_engine, len(records) + lost) is None
            records.extend(end[:lost])
            served.kafka.topics.partitions[EPOCH][:] = before
        with DataLog(served.kafka, "g", SITE) as log:
            looked = MagicMock(side_effect=log.records)
            monkeypatch.setattr(log, "records", looked)
            assert status._in_force(log, of_engine, len(records)) is not None
            [[(start, end), _]] = looked.call_args_list
            assert end - start <= 50, "records may have 8 MiB"
            lost = len(records) - 100
            served.kafka.topics.beginnings[data] = lost
            assert status._in_force(log, of_engine, len(records)) is None
            value, headers = encode_note(Note(lost + 1, of_engine.epoch, 900))
            served.kafka.producer().send(EPOCH.topic, value=value, headers=headers)
            assert status._in_force(log, of_engine, len(records)) is not None
    assert served.troubles.decided("g") is None, "a sequencer that has ended tells nothing"


@pytest.mark.slow
def test_strays_are_counted_now_and_then(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    count = StrayCount(
        lambda decided: read_statuses(served.kafka, SITE, raises=False, decided=decided), served.troubles.decided
    )
    with running(served.kafka, served.job):
        served.kafka.producer().send("abcast.g.data.nyc", value=b"stray")
        send(served.kafka, 1000)
        eventually(lambda: read_statuses(served.kafka, SITE).rows[0].last_seqno == 1000, WAIT, "the order")
        eventually(lambda: served.troubles.decided("g").unsnapped >= 1000, WAIT, "the loop's next turn")  # type: ignore[union-attr]
        assert served.read().rows[0].strays == 0, "it is not among the newest"
        assert [count().rows[0].strays for _ in range(2)] == [1, 1]
        served.kafka.producer().send("abcast.g.data.nyc", value=b"stray")
        assert count().rows[0].strays == 1
        monkeypatch.setattr("connectors.diagnosis.statuses.COUNT_EVERY_S", 0.0)
        assert count().rows[0].strays == 2


def test_a_job_that_ends_and_begins_again(served: Served) -> None:
    """Its thread goes on, as that of a ledger's process does."""
    served.job.ready.set()
    served.troubles.end("ledger", "the Delta table is damaged.")
    served.jobs.append(
        SimpleNamespace(name="ledger", is_principal=False, ready=served.job.ready, done=threading.Event())
    )
    assert served.ask("/readyz") == (503, "ledger has ended: the Delta table is damaged.\n")
    assert served.figures()["abcast_job_ready", "ledger"] == 0
    served.troubles.begin("ledger")
    assert served.ask("/readyz") == (200, "ready\n")
    assert served.figures()["abcast_job_ready", "ledger"] == 1


def test_a_group_that_is_left_out_is_told(served: Served) -> None:
    served.job.ready.set()
    served.troubles.expect_signs(["other"])
    served.troubles.put(SEQUENCER, {"g": "its DATA has lost records."})
    assert served.ask("/readyz") == (200, "ready\ng: not served: its DATA has lost records.\n")


def test_the_only_group_can_not_be_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka has answered, so the status is there: it says which group."""
    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", lambda *_: ["lost"])
    monkeypatch.setattr("connectors.diagnosis.statuses.read_status", refused)
    assert read_statuses(served.kafka, SITE, raises=False).errors.keys() == {"lost"}
    with pytest.raises(KafkaRefused):
        read_statuses(served.kafka, SITE)
    figures = served.figures()
    assert (figures["abcast_status_ok",], figures["abcast_group_readable", "lost", SITE]) == (1, 0)


def refused(*_: object) -> GroupStatus:
    raise KafkaRefused("no right to read.")


def test_a_kafka_that_does_not_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is a sentence; metrics of this process are there; no asker waits for another."""
    may_end = threading.Event()

    def silent() -> Statuses:
        assert may_end.wait(WAIT)
        raise BrokerUnreachable("no broker answers.")

    monkeypatch.setattr(monitor, "ASKS_FOR_S", 0.1)
    served.watch(silent)
    first = "The first reading goes on: Kafka has not answered yet."
    status, text = served.ask("/api/status")
    assert (status, json.loads(text)) == (503, {"sites": [{"site": SITE, "error": first}], "jobs": {"sequence": False}})
    may_end.set()
    monkeypatch.setattr(monitor, "ASKS_FOR_S", WAIT)
    status, text = served.ask("/api/status")
    assert (status, json.loads(text)) == (
        503,
        {"sites": [{"site": SITE, "error": "no broker answers."}], "jobs": {"sequence": False}},
    )
    figures = served.figures()
    assert figures["abcast_status_ok",] == 0
    assert not any(key[0] == "abcast_seqno" for key in figures)


@pytest.mark.slow
def test_a_reading_that_takes_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Askers get the last one with its age. Only if it is too old has it no metrics any more."""
    may_end, asked = threading.Event(), itertools.count(1)

    def slow() -> Statuses:
        assert next(asked) == 1 or may_end.wait(WAIT)
        return Statuses(())

    served.watch(slow)
    assert served.ask("/api/status")[0] == 200
    monkeypatch.setattr(monitor, "FRESH_S", 0.0)
    monkeypatch.setattr(monitor, "ASKS_FOR_S", 0.1)
    status, text = served.ask("/api/status")
    [of_site] = json.loads(text)["sites"]
    assert (status, of_site["groups"]) == (200, [])
    assert of_site["age_s"] >= 0.1
    assert served.figures()["abcast_status_ok",] == 1
    monkeypatch.setattr(monitor, "STALE_S", 0.0)
    assert served.figures()["abcast_status_ok",] == 0
    may_end.set()
    served.monitor.close(WAIT)


def test_metrics_take_a_share_of_the_cpu_at_most(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a costly status, askers share one for longer; a page's by a larger share."""

    def costly() -> Statuses:
        served.asked += 1
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        return Statuses([])

    monkeypatch.setattr(monitor, "FRESH_S", 0.0)
    monkeypatch.setattr(monitor, "CPU_SHARE", 0.001)
    monkeypatch.setattr(monitor, "SEEN_CPU_SHARE", 0.001)
    served.watch(costly)
    for _ in range(3):
        served.figures()
    served.ask("/api/status")
    assert served.asked == 1
    monkeypatch.setattr(monitor, "SEEN_CPU_SHARE", 1000.0)
    served.ask("/api/status")
    served.figures()
    assert served.asked == 2


# --- names ---


def named() -> dict[str, tuple[str, ...]]:
    """Return the labels of each metric that a scrape has, without `process_…`."""
    row = GroupStatus("g", Liveness(ALIVE), 0, 0, 0, 0, 0, 0, 0.0, 0, 0, {"sfo": 1.0}, ledger_lag=0)
    row = row._replace(agreement=AgreementStatus(1, ("nyc",), waits=True))
    statuses = {"nyc": Statuses([row], clocks=ClockDifference("broker 1", "broker 2", 0.5))}
    seen = metrics.Observed(statuses, 0.0, {"sequence": True}, {"g": 1.0}, "nyc")
    return {family.name: tuple(family.samples[0].labels) for family in metrics.JobMetrics(lambda: seen).collect()}


def named_of_members() -> dict[str, tuple[str, ...]]:
    """Return the labels of each metric that members have."""
    with MemoryGroup("g") as group:
        alice = group.member("alice")
        next(alice.deliveries(from_seqno=alice.broadcast(b"x").result(WAIT)))
        families = list(MemberCollector(alice).collect())
    assert all(family.samples for family in families)
    totals = {"counter": "_total"}
    return {f"{each.name}{totals.get(each.type, '')}": tuple(each.samples[0].labels)[:2] for each in families}


def test_the_table_of_metrics() -> None:
    """The page has each metric with its labels, and no others; a sender is none of them."""
    table = tables(section(doc("monitoring"), "## The port of a job"))[1]
    assert {spans(row[0])[0]: tuple(filter(None, row[1].split(", "))) for row in table} == named()
    assert not any("sender" in labels for labels in named().values())


def test_the_table_of_members() -> None:
    """The page has each metric of members with its labels, and no others."""
    [table] = tables(section(doc("monitoring"), "## Members"))
    assert {spans(row[0])[0]: tuple(row[1].split(", ")) for row in table} == named_of_members()


def test_no_name_goes_in_silence() -> None:
    """The changelog adds each metric, and says which was removed: its line begins with `Metrics removed:`."""
    changes = PAGES["CHANGELOG.md"]
    told = set(re.findall(r"`(abcast_[a-z_]+)`", changes))
    removed = {name for line in re.findall(r"^- Metrics removed:.*(?:\n  .*)*", changes, re.M) for name in spans(line)}
    now = set(named()) | set(named_of_members())
    assert now <= told
    assert told - removed <= now
