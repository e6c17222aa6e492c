"""The claim of a running sequencer, in an EPOCH that has changed since its last look."""

from __future__ import annotations

import socket

import pytest

from connectors.kafka.log.data_log import DataLog
from connectors.takeover.fencing import ClaimLost, check_is_claimed
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection

EPOCH = "abcast.g.epoch.nyc"


@pytest.fixture
def kafka() -> MemoryConnection:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    return kafka


def test_a_retention_takes_no_claim_from_a_running_sequencer(kafka: MemoryConnection) -> None:
    """`known` still has all records. A start refuses such a topic."""
    epoch = take_over(kafka, "g", "nyc").epoch
    with DataLog(kafka, "g", "nyc") as log:
        log.epochs.read()
        kafka.topics.drop(EPOCH, log.epochs.known.below)
        log.epochs.read(again=True)
        check_is_claimed(log, epoch)


def test_a_topic_made_anew_has_no_claim(kafka: MemoryConnection) -> None:
    epoch = take_over(kafka, "g", "nyc").epoch
    with DataLog(kafka, "g", "nyc") as log:
        log.epochs.read()
        kafka.topics.make_anew([EPOCH])
        log.epochs.read(again=True)
        with pytest.raises(ClaimLost):
            check_is_claimed(log, epoch)


def test_a_host_that_is_renamed_keeps_its_claims(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = take_over(kafka, "g", "nyc").epoch
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    with DataLog(kafka, "g", "nyc") as log:
        log.epochs.read()
        check_is_claimed(log, epoch)
