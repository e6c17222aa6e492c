"""Mutations of the care for logs that are cut, made anew or purged: each breaks a rule on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.kafka.topics.purge import Purged, delete_below
from ordering.checker.anomalies import DIVERGENT, GAP, LOST
from tests.simulator.cuts import FALSE_ALARM, GIVEN_AGAIN, SILENT
from tests.simulator.mutation import Mutation
from tests.simulator.mutations import CountlessReader, any_snapshot
from tests.simulator.world import WRONG_STATE


def from_there_on(log: SameLogConsumer, positions: Mapping[Any, int]) -> None:
    """Compare nothing with the log in which a reader begins."""
    _true_read(log, positions)
    log._begun = set()
    for place, offset in positions.items():
        log._consumer.seek(place, offset)


def nothing(*_: object) -> None:
    """Do nothing."""


def with_the_snapshot(
    connection: Connection, consumer: Any, admin: Any, below: Mapping[TopicPartition, int], *, dry_run: bool
) -> list[Purged]:
    """The newest snapshot goes, too."""
    return delete_below(connection, consumer, admin, {place: at + 1 for place, at in below.items()}, dry_run=dry_run)


_true_read = SameLogConsumer.read
_LOG = "connectors.kafka.log.same_log_consumer.SameLogConsumer"
CUTS = (
    Mutation("compares-nothing", "a reader compares no record", (SILENT, LOST), ((f"{_LOG}._doubt", nothing),)),
    Mutation("looks-at-no-end", "a reader asks for no ends", (SILENT, LOST), ((f"{_LOG}._look_at_ends", nothing),)),
    Mutation(
        "begins-with-nothing",
        "a reader does not know the record before its first one",
        (SILENT, LOST),
        ((f"{_LOG}.read", from_there_on),),
    ),
    Mutation(
        "doubts-all", "a whole log is taken for another", FALSE_ALARM, (("tests.simulator.cuts.Cuts.damaged", nothing),)
    ),
    Mutation(
        "no-ledger",
        "a start does not compare DATA with the ledger",
        GIVEN_AGAIN,
        (("connectors.takeover.survey._check_ledger", nothing),),
        from_seed=5_061,
    ),
    Mutation(
        "no-watchdog",
        "a running sequencer does not look at its logs",
        LOST,
        (("connectors.takeover.watchdog.Watchdog.look", nothing),),
        from_seed=210,
    ),
    Mutation(
        "count-unread",
        "readers take one seqno for a record of a later kind that takes several",
        (GAP, LOST, SILENT),
        (("connectors.kafka.log.data_cursor.data_count", lambda _: 1),),
        needs=("later",),
    ),
    Mutation(
        "count-not-absorbed",
        "a successor takes one seqno for such a record",
        (SILENT, LOST),
        (("ordering.sequencer.sequencer.Reader", CountlessReader),),
        needs=("later",),
    ),
)
RETENTION = (
    Mutation(
        "snapshot-purged",
        "a purge takes the newest snapshot, too",
        WRONG_STATE,
        (("connectors.kafka.topics.data_purge.delete_below", with_the_snapshot),),
    ),
    Mutation(
        "any-snapshot",
        "a purge keeps a snapshot that is not in force",
        (DIVERGENT, WRONG_STATE),
        (("connectors.kafka.log.log_state._is_snapshot_in_force", any_snapshot),),
    ),
)
