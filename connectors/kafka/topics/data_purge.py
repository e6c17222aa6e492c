"""Deleting DATA of long ago, as far as the ledger has it: all below a snapshot from which everybody can start.

The snapshot is in force, is older than what is to be kept, and counts nothing that the ledger lacks. It stays, and with
it all that follows. So a sequencer, a member or a relay that starts finds the state in DATA, and who wants older
messages finds them in the ledger.

Invariant: DATA always holds a snapshot that every reader knows to be in force. A claim may be on its way whose floor is
below the snapshot; once it is there, claims alone no longer tell that the snapshot counts. So EPOCH has a note, which
does, before the first record is deleted. A crash in between leaves a note that is true, and DATA as it was.

Where sites agree, their logs stand in DATA. All below an entry goes that every other site of the group has read, as its
own log has told, and below which no start of the site reads (`connectors.kafka.log.entries.needed_from`). Both only
move on, so a crash between any two steps leaves what is needed.

Left alone are copies, which no sequencer has claimed, and what a relay may still have to carry. No retention of Kafka's
does all this: it takes the last snapshot, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from connectors.kafka.codec.epochs import Note, encode_note
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.data_log import DataLog, Snapshot
from connectors.kafka.log.entries import needed_from
from connectors.kafka.topics.purge import Purged, delete_below
from connectors.kafka.topics.topics import check_relayed_is_seen, find_topics
from ordering.base.names import BY_RELAYS
from ordering.sequencer.sequencer import SequencerState

Lacking = Callable[[str, SequencerState], str]
"""Why a group's DATA up to a state is still needed here, or an empty text: another site lacks something of it."""

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
    """Delete what is older than so many seconds, counted back from the newest record. `in_ledger`: its last seqno.

    Raises BrokerUnreachable, TopicMissing, HistoryUnavailable; KafkaRefused for a right that is missing.
    """
    with closing(connection.metadata_client()) as metadata:  # what is hidden would pass for a group without other sites
        check_relayed_is_seen(metadata, group, site)
    with DataLog(connection, group, site) as data:
        why = _left_alone(data)
        snapshot = None if why else deletable(data, _older(data, kept_s), in_ledger)
        if snapshot is None or (why := lacking(group, snapshot.state)):
            if why:
                _logger.warning("DATA of group %s is left alone: %s", group, why)
            return []
        if not dry_run and (note := missing_note(data, snapshot)) is not None:
            append(connection, data.claims_topic, (None, *encode_note(note)))
        with closing(connection.consumer()) as consumer, connection.admin() as admin:
            return delete_below(connection, consumer, admin, {data.partition: snapshot.offset}, dry_run=dry_run)


def _left_alone(data: DataLog) -> str:
    is_copy = data.newest_claim() is None and data.is_copy()
    return f"{data.topic} is the copy of another site's." if is_copy else ""


def _older(data: DataLog, kept_s: float) -> int:
    """Below which offset all is older, and needed by no site that agrees with others."""
    claim, older = data.newest_claim(), data.offset_before_the_end(kept_s)
    return min(older, needed_from(data, data.end())) if claim is not None and claim.agreement else older


def lacking_unknown_sites(connection: Connection) -> Lacking:
    """For who knows of no other sites: what relays have brought tells that there are some."""

    def lacking(group: str, _: SequencerState) -> str:
        is_linked = any(topic.group == group and topic.role in BY_RELAYS for topic in find_topics(connection))
        return "it has other sites, which may lack something of it: give --sites." if is_linked else ""

    return lacking


def deletable(data: DataLog, older: int, in_ledger: int) -> Snapshot | None:
    """The snapshot below which DATA can go: it stands below offset `older` and counts what the ledger has at most."""
    if in_ledger <= 0:
        return None
    found = data.snapshot_below(older, in_ledger)
    return found if found is not None and found.offset > data.beginning() else None


def missing_note(data: DataLog, snapshot: Snapshot) -> Note | None:
    """What EPOCH has to say before anything below the snapshot is deleted; None if a note says as much."""
    needed = Note(snapshot.offset + 1, snapshot.state.epoch, snapshot.state.seqno)
    return None if needed in data.notes() else needed
