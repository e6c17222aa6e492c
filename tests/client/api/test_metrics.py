"""`Member.metrics`, and the collector for an application's registry."""

from __future__ import annotations

import threading
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from connectors.client.api.collector import MemberCollector
from connectors.client.api.member import Member
from connectors.client.values.member_metrics import BOUNDS_S, SendingFigures
from connectors.testing.memory_group import MemoryGroup
from connectors.testing.memory_kafka import MemoryConnection
from tests.waiting import WAIT, eventually


def test_a_member_at_work() -> None:
    """Each awaited message is measured; a taken one is delivered, the rest is behind."""
    with MemoryGroup("g") as group:
        alice, bob = group.member("alice"), group.member("bob")
        nothing = alice.metrics()
        assert (nothing.pending, nothing.order_seconds.measured, nothing.resends) == (0, 0, 0)
        assert nothing.delivered_seqno is nothing.behind is None
        before = threading.active_count()
        for number in range(10):
            alice.broadcast(b"%d" % number).result(WAIT)
        sent = alice.metrics()
        assert (sent.pending, sent.order_seconds.measured) == (0, 10)
        assert 0 < sent.order_seconds.sum_s < 10 * WAIT
        stream = bob.deliveries()
        assert [next(stream).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        read = bob.metrics()
        assert read.delivered_seqno == 3  # the fourth is in hand
        stream.taken()
        assert bob.metrics().delivered_seqno == 4
        eventually(lambda: bob.metrics().behind == 6, WAIT, "the end of the log")
        assert [next(stream).payload for _ in range(6)][-1] == b"9"
        stream.taken()
        assert bob.metrics()[3:] == (10, 0)
        assert threading.active_count() <= before + 2  # the stream's own


def test_a_busy_member_measures_a_sample() -> None:
    with MemoryGroup("g") as group:
        alice = group.member("alice")
        alice.broadcast_many([b"x"] * 100).result(WAIT)
        for _ in range(1000):
            receipt = alice.broadcast(b"x")
        receipt.result(WAIT)
        figures = alice.metrics()
    assert figures.pending == 0
    assert 2 <= figures.order_seconds.measured <= 1001


def test_without_a_sequencer(kafka: MemoryConnection) -> None:
    """Messages are pending, and sent again."""
    alice = Member("g", "nyc/alice", connection=kafka, resend_after_s=0.05)
    for _ in range(3):
        alice.broadcast(b"x")
    eventually(lambda: alice.metrics().resends >= 2, WAIT, "resends")
    assert (alice.metrics().pending, alice.metrics().order_seconds.measured) == (3, 0)
    with pytest.raises(Exception, match="not ordered"):
        alice.close(timeout=0)


def test_a_member_that_only_joins_measures_nothing() -> None:
    with MemoryGroup("g") as group:
        alice = group.member("alice")
        alice.connect(timeout=WAIT)
        assert alice.metrics().order_seconds.measured == 0


def test_behind_counts_from_a_seqno_of_the_applications_choice() -> None:
    with MemoryGroup("g") as group:
        alice, bob = group.member("alice"), group.member("bob")
        last = [alice.broadcast(b"x").result(WAIT) for _ in range(10)][-1]
        stream = bob.deliveries(last - 2)
        next(stream)
        assert bob.metrics().behind == 3


def test_buckets() -> None:
    """A bound belongs to its bucket; the last bucket has the rest."""
    figures = SendingFigures()
    for took_s in (0.0, 0.3, 3600.0):
        figures.note(time.monotonic() - took_s)
    counted = figures.order_seconds
    by_bound = dict(zip((*BOUNDS_S, float("inf")), counted.counts, strict=True))
    assert [bound for bound, count in by_bound.items() if count] == [0.001, 0.5, float("inf")]
    assert counted.measured == 3
    assert 3600.3 <= counted.sum_s < 3601


def test_an_applications_registry() -> None:
    """Members of a group are one series; a second collector is refused; no sender is a label."""
    with MemoryGroup("g") as group:
        alice, bob = group.member("alice"), group.member("bob")
        registry = CollectorRegistry()
        registry.register(MemberCollector(alice, bob))
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            registry.register(MemberCollector(bob))
        for member in (alice, bob, bob):
            seqno = member.broadcast(b"x").result(WAIT)
        for member, count in ((alice, 3), (bob, 2)):
            stream = member.deliveries()
            for _ in range(count):
                next(stream)
            stream.taken()
        text = generate_latest(registry).decode()
    assert "alice" not in text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = [{name: value for name, value in sample.labels.items() if name != "le"} for sample in samples]
    assert labels == [{"group": "g", "site": "local"}] * len(samples)
    values = {sample.name: sample.value for sample in samples}  # of buckets the last, which has all
    assert values["abcast_member_order_seconds_bucket"] == values["abcast_member_order_seconds_count"] == 3
    assert values["abcast_member_delivered_seqno"] == seqno - 1
    assert values["abcast_member_behind_records"] == 1
    assert values["abcast_member_pending"] == values["abcast_member_resends_total"] == 0
