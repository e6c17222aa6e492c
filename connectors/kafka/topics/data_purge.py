"""Delete old DATA that the ledger has: everything below a snapshot from which everybody can start.

The snapshot is in force, is older than the records to be kept, and counts nothing that the ledger lacks. It stays, and
so does everything after it. So a sequencer, a member or a relay that starts finds the state in DATA, and readers of
older messages find them in the ledger.

Invariant: DATA always has a snapshot that every reader knows to be in force. A claim with a lower
floor may arrive during the purge; after that, the claims alone no longer prove that the snapshot is in force. So a note
that proves it is written to EPOCH before the first record is deleted. A crash in between leaves a true note, and DATA
as it was.

Where sites agree, DATA also has their logs. Then nothing is deleted from the first entry on that another site has not
noted as read, or that a start of this site reads (`connectors.kafka.log.entries.needed_from`). Both limits only move
forward, so a crash between any two steps leaves whatever is needed.

Copies, which no sequencer has claimed, and records that a relay may still have to copy are left alone. No retention of
Kafka's can do this: it drops the last snapshot, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from connectors.kafka.codec.epochs import Note, encode_note
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import needed_from
from connectors.kafka.log.log_state import Snapshot, snapshot_below
from connectors.kafka.topics.purge import Purged, delete_below
from connectors.kafka.topics.topics import check_relayed_is_seen, find_topics
from ordering.base.names import BY_RELAYS
from ordering.sequencer.state import SequencerState

Lacking = Callable[[str, SequencerState], str]
"""Returns why another site still needs a group's DATA up to a state; "" if none does."""

_logger = logging.getLogger(__name__)


def purge_data(
    connection: Connection,
    group: str,
    site: str,
    *,
    kept_s: float,
    in_ledger: int,
    lacking: Lacking,
    dry_run: bool = False,
) -> list[Purged]:
    """Delete records older than `kept_s` seconds, counted back from the newest record, below a snapshot (`deletable`).

    Returns [] if nothing can be deleted; the log says why DATA is left alone. `in_ledger`: the ledger's last seqno.
    With `dry_run`, nothing is written or deleted. Raises BrokerUnreachable, TopicMissing, HistoryUnavailable;
    KafkaRefused for a missing right; AbcastError if Kafka refuses.
    """
    with closing(connection.metadata_client()) as metadata:  # hidden topics would look like a group without other sites
        check_relayed_is_seen(metadata, group, site)
    with DataLog(connection, group, site) as data:
        why = _reason_against(data)
        snapshot = None if why else deletable(data, _older(data, kept_s), in_ledger)
        if snapshot is None or (why := lacking(group, snapshot.state)):
            if why:
                _logger.warning("no DATA of group %s is deleted: %s", group, why)
            return []
        if not dry_run and (note := missing_note(data, snapshot)) is not None:
            append(connection, data.epochs.topic, (None, *encode_note(note)))
        with closing(connection.consumer()) as consumer, connection.admin() as admin:
            return delete_below(connection, consumer, admin, {data.partition: snapshot.offset}, dry_run=dry_run)


def _reason_against(data: DataLog) -> str:
    is_copy = data.epochs.read().newest_claim is None and data.is_copy()
    return f"{data.topic} is the copy of another site's." if is_copy else ""


def _older(data: DataLog, kept_s: float) -> int:
    """Return the offset below which every record is older than `kept_s`, and no agreeing site needs one."""
    claim, older = data.epochs.read().newest_claim, data.offset_before_the_end(kept_s)
    return min(older, needed_from(data, data.end())) if claim is not None and claim.agreement else older


def lacking_unknown_sites(connection: Connection) -> Lacking:
    """Return a `Lacking` for a caller that knows no other sites: topics that relays fill show that there are some."""

    def lacking(group: str, _: SequencerState) -> str:
        is_linked = any(topic.group == group and topic.role in BY_RELAYS for topic in find_topics(connection))
        return "it has other sites, which may lack something of it: give --sites." if is_linked else ""

    return lacking


def deletable(data: DataLog, older: int, in_ledger: int) -> Snapshot | None:
    """Return the snapshot below which DATA can be deleted: below `older`, counting at most the ledger's records.

    None if there is none, or if nothing lies below it.
    """
    if in_ledger <= 0:
        return None
    found = snapshot_below(data, older, in_ledger)
    return found if found is not None and found.offset > data.beginning() else None


def missing_note(data: DataLog, snapshot: Snapshot) -> Note | None:
    """Return the note that EPOCH needs before a deletion below the snapshot; None if it has that note."""
    needed = Note(snapshot.offset + 1, snapshot.state.epoch, snapshot.state.seqno)
    return None if needed in data.epochs.read().notes else needed
