"""Mutations of the care for logs that are cut, made anew or purged: each breaks a rule on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.same_log import LedgerRow
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.topics.purge import Purged, delete_below
from connectors.kafka.transport import Producer
from connectors.takeover import takeover
from ordering.base.records import EPOCH, Data
from ordering.checker.anomalies import DIVERGENT, GAP, LOST
from ordering.sequencer.state import SequencerState
from tests.simulator.cuts import FALSE_ALARM, GIVEN_AGAIN, SILENT
from tests.simulator.mutation import Mutation
from tests.world.group import WRONG_STATE
from tests.world.group_mutations import CountlessReader


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


def any_snapshot(records: Sequence[StoredRecord], index: int, _epochs: Epochs) -> bool:
    """Every snapshot is taken for one in force, also one behind a higher seal."""
    return records[index].data.kind == EPOCH and bool(records[index].data.payload)


def by_its_time(data: DataLog, row: LedgerRow, _: SequencerState) -> bool:
    """A row may be of this log if it is not older than the claim of its epoch."""
    return all(claim.at_ms <= row.at_ms for claim in data.epochs.read().claims if claim.epoch == row.epoch)


def without_a_seal(data: DataLog, producer: Producer, record: Data) -> int:
    """The opening snapshot is the first record of an epoch."""
    return _true_append_data(data, producer, record) if record.payload else data.end()


def as_it_was(state: SequencerState, records: Iterable[Data]) -> SequencerState:
    """The state from before the claim."""
    for _ in records:
        pass
    return state


_TAKEOVER = "connectors.takeover.takeover"
_true_append_data = takeover._append_data
_true_read = SameLogConsumer.read
_LOG = "connectors.kafka.log.same_log_consumer.SameLogConsumer"
CUTS = (
    Mutation("compares-nothing", "A reader compares no record", (SILENT, LOST), ((f"{_LOG}._doubt", nothing),)),
    Mutation(
        "looks-at-no-end",
        "A reader does not look at the ends of logs",
        (SILENT, LOST),
        ((f"{_LOG}._look_at_ends", nothing),),
    ),
    Mutation(
        "begins-with-nothing",
        "A reader does not know the record before its first one",
        (SILENT, LOST),
        ((f"{_LOG}.read", from_there_on),),
    ),
    Mutation(
        "doubts-all",
        "The world takes a damaged log for whole, so a reader that doubts it is wrong",
        FALSE_ALARM,
        (("tests.simulator.cuts.Cuts.damaged", nothing),),
    ),
    Mutation(
        "no-ledger",
        "A starting job does not compare DATA with the ledger",
        GIVEN_AGAIN,
        (("connectors.takeover.survey._check_ledger", nothing),),
        from_seed=5_061,
    ),
    Mutation(
        "ledger-by-time",
        "A starting job takes a ledger that is older than the claim for another group's",
        GIVEN_AGAIN,
        (("connectors.kafka.log.same_log._may_be_of", by_its_time),),
        from_seed=700_297,
    ),
    Mutation(
        "no-watchdog",
        "A running sequencer does not check its logs",
        LOST,
        (
            ("connectors.takeover.watchdog.Watchdog.look", nothing),
            ("connectors.engine.writing.WrittenBatch.note_ends", nothing),
        ),
        from_seed=210,
    ),
    Mutation(
        "snapshot-behind-a-hole",
        "A starting job believes a snapshot that counts records which DATA lost before it",
        (LOST, SILENT, GAP),
        (("connectors.kafka.log.log_state._is_contradicted", lambda *_: False),),
        from_seed=431,
    ),
    Mutation(
        "recreated-unread",
        "A job does not look whether FORWARD was recreated before it read as far as DATA",
        LOST,
        (("connectors.takeover.group_maintenance.GroupMaintenance._recreated", lambda *_: {}),),
        from_seed=700_885,
    ),
    Mutation(
        "count-unread",
        "Readers count one seqno for a record of a later kind that takes several",
        (GAP, LOST, SILENT),
        (("connectors.kafka.log.data_cursor.data_count", lambda _: 1),),
        needs=("later",),
    ),
    Mutation(
        "count-not-absorbed",
        "A successor counts one seqno for a record that takes several",
        (SILENT, LOST),
        (("ordering.sequencer.sequencer.Reader", CountlessReader),),
        needs=("later",),
    ),
)
RETENTION = (
    Mutation(
        "no-seal",
        "A new sequencer does not seal the old one's epoch",
        (WRONG_STATE, DIVERGENT),
        (
            (f"{_TAKEOVER}._append_data", without_a_seal),
            ("connectors.kafka.log.log_state._is_contradicted", lambda *_: False),
        ),
    ),
    Mutation(
        "no-read-back",
        "A new sequencer does not read the records before its seal",
        (WRONG_STATE, DIVERGENT),
        ((f"{_TAKEOVER}.absorb", as_it_was),),
    ),
    Mutation(
        "snapshot-purged",
        "A purge deletes the newest snapshot, too",
        WRONG_STATE,
        (("connectors.kafka.topics.data_purge.delete_below", with_the_snapshot),),
    ),
    Mutation(
        "any-snapshot",
        "A purge keeps a snapshot that is not in force",
        (DIVERGENT, WRONG_STATE),
        (("connectors.kafka.log.log_state._is_snapshot_in_force", any_snapshot),),
    ),
)
