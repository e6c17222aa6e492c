"""Mutations of the care for logs that are cut or made anew: each breaks a rule on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.same_log import LedgerRow
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.takeover import takeover
from connectors.takeover.survey import Survey
from connectors.takeover.takeover import Takeover
from ordering.checker.anomalies import DIVERGENT, GAP, LOST
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world.cuts import GIVEN_AGAIN
from tests.world.cuts_readers import FALSE_ALARM, SILENT
from tests.world.group import WRONG_STATE
from tests.world.group_readers import CountlessReader


def from_there_on(log: SameLogConsumer, positions: Mapping[Any, int]) -> None:
    """Compare nothing with the log in which a reader begins."""
    _true_read(log, positions)
    log._begun = set()
    for place, offset in positions.items():
        log._consumer.seek(place, offset)


def nothing(*_: object) -> None:
    """Do nothing."""


def as_surveyed_first(_: Takeover, found: Survey, __: object) -> Survey:
    """Go on from the first survey, whatever others have written to EPOCH since."""
    return found


def by_its_time(data: DataLog, row: LedgerRow, _: SequencerState) -> bool:
    """A row may be of this log if it is not older than the claim of its epoch."""
    return all(claim.at_ms <= row.at_ms for claim in data.epochs.read().claims if claim.epoch == row.epoch)


_TAKEOVER = "connectors.takeover.takeover"
_true_append_data = takeover._append_data
_true_read = SameLogConsumer.read
_LOG = "connectors.kafka.log.same_log_consumer.SameLogConsumer"
MUTATIONS = (
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
        (("tests.world.cuts.CutsWorld.note_damage", nothing),),
    ),
    Mutation(
        "no-ledger",
        "A starting job does not compare DATA with the ledger",
        GIVEN_AGAIN,
        (("connectors.takeover.survey._check_ledger", nothing),),
    ),
    Mutation(
        "ledger-by-time",
        "A starting job takes a ledger that is older than the claim for another group's",
        GIVEN_AGAIN,
        (("connectors.kafka.log.same_log._may_be_of", by_its_time),),
    ),
    Mutation(
        "stale-survey",
        "A takeover does not look at what others wrote to EPOCH before its claim",
        GIVEN_AGAIN,
        (("connectors.takeover.takeover.Takeover._survey_again", as_surveyed_first),),
    ),
    Mutation(
        "no-second-look",
        "A takeover does not ask again behind its seal what others know",
        GIVEN_AGAIN,
        (("connectors.takeover.takeover.check_sealed", nothing),),
    ),
    Mutation(
        "no-watchdog",
        "A running sequencer does not check its logs",
        (DIVERGENT, LOST, WRONG_STATE),
        (
            ("connectors.takeover.watchdog.Watchdog.look", nothing),
            ("connectors.engine.writing.WrittenBatch.note_ends", nothing),
        ),
    ),
    Mutation(
        "snapshot-behind-a-hole",
        "A starting job believes a snapshot that counts records which DATA lost before it",
        (GAP, LOST, SILENT, WRONG_STATE),
        (("connectors.kafka.log.log_state._is_contradicted", lambda *_: False),),
    ),
    Mutation(
        "recreated-unread",
        "A job does not look whether FORWARD was recreated before it read as far as DATA",
        LOST,
        (("connectors.takeover.group_maintenance.GroupMaintenance._recreated", lambda *_: {}),),
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
        (SILENT, LOST, WRONG_STATE),
        (("ordering.sequencer.sequencer.Reader", CountlessReader),),
        needs=("later",),
    ),
)
