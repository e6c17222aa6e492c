"""The purge of letters that have arrived, from the copies of other sites' inboxes on their way.

Invariant. Each deleted letter is in the inbox itself: a record there was made from it, or from a later one
(`connectors.relay.marks`), and a relay carries a partition in its order. On a way of several relays this is checked
step by step, from the last relay back. So a relay that starts goes on behind the deleted letters, and a relay that runs
is past them. A relay on another way, by a new sites' file, begins behind them and misses nothing. The newest record of
each relay that fills the copy stays, as it tells where that relay goes on. No other process reads a copy.

After a crash at any point, the next purge deletes the rest. An inbox that its operator has deleted and made anew does
not get these letters again.

Three kinds of copies are left alone: those in a Kafka that several sites share, since each site has a relay that reads
them; a copy that is the inbox itself, as its site has the same Kafka by another address; and a copy that was made anew,
until marks tell of it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import closing

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.connection.sites import Sites
from connectors.kafka.topics.letter_purge import MAX_RECORDS, SETTLED_S, relayed_from
from connectors.kafka.topics.purge import Purged, delete_below, older
from connectors.kafka.transport import Consumer
from connectors.relay.marks import is_anew, last_copy
from ordering.base.errors import BrokerUnreachable, HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import Source

_logger = logging.getLogger(__name__)


def purge_copies(
    sites: Sites, site: str, group: str, *, dry_run: bool = False, settled_s: float = SETTLED_S
) -> list[Purged]:
    """Delete letters from the copies in the site's Kafka that are older than `settled_s` and have arrived.

    If a Kafka on the way does not answer, or another purge runs there, the letters on that way are left for the next
    time. With `dry_run`, nothing is deleted. Raises BrokerUnreachable for the site's own Kafka; KafkaRefused for a
    right that is missing here or on the way; AbcastError if Kafka refuses.
    """
    here, done = sites.connection(site), list[Purged]()
    for other in sites.copied_inboxes(site):
        topic = str(Topic(group, "inbox", other))
        with closing(here.metadata_client()) as metadata:
            metadata.partitions_of(topic, "READ")
            places = [TopicPartition(topic, number) for number in sorted(metadata.partitions_of(topic, "DELETE"))]
        if not places:
            continue
        with closing(here.consumer()) as consumer, here.admin() as admin:
            below = {place: _below(sites, site, consumer, place, settled_s) for place in places}
            done += delete_below(here, consumer, admin, below, dry_run=dry_run)
    return done


def _below(sites: Sites, site: str, consumer: Consumer, place: TopicPartition, settled_s: float) -> int:
    """Return the offset below which a partition may be deleted: its beginning if nothing may, or that is not known."""
    here = sites.connection(site)
    with here.reachable():
        beginning = int(consumer.beginning_offsets([place])[place])
        settled = older(consumer, place, settled_s)[place]
    below = min(settled, beginning + MAX_RECORDS)
    if below <= beginning:
        return beginning
    try:  # from here on records have to be read
        if _is_the_inbox(sites, site, place):
            return beginning
        below = min(below, _arrived(sites, site, place))
        return min([below, *_newest_of_relays(here, consumer, place, beginning, below)])
    except (BrokerUnreachable, HistoryUnavailable) as error:
        _logger.warning("no letters of %s-%d are deleted: %s", place.topic, place.partition, error)
        return beginning


def _is_the_inbox(sites: Sites, site: str, place: TopicPartition) -> bool:
    """Whether the copy's site has the same Kafka, by another address."""
    return sites.connection(_site_of(place)).cluster_id() == sites.connection(site).cluster_id()


def _site_of(place: TopicPartition) -> str:
    return Topic.of(place.topic).site


def _arrived(sites: Sites, site: str, place: TopicPartition) -> int:
    """Return the offset below which all of the site's copy is in the inbox itself.

    Raises BrokerUnreachable; HistoryUnavailable if the copy was made anew, and the marks are of the former one.
    """
    if sites.shares_kafka(site, _site_of(place)):
        return sys.maxsize  # this is the inbox
    hop = sites.next_hop(site, _site_of(place))
    if hop is None:
        return 0
    below = _arrived(sites, hop, place)
    if sites.shares_kafka(site, hop):
        return below
    name, number = place.topic, place.partition
    source = Source(f"{site}/{name}", number, 0)
    copy = last_copy(sites.connection(hop), name, number, source, below)
    here = sites.connection(site)
    with closing(here.consumer()) as consumer:
        if is_anew(here, consumer, place, copy):
            raise HistoryUnavailable(f"the copy at {site} was recreated: {hop} has letters of the former one.")
    return copy.made_from + 1 if copy is not None else 0


def _newest_of_relays(
    here: Connection, consumer: Consumer, place: TopicPartition, beginning: int, below: int
) -> list[int]:
    """Return the offset of the newest record in this range from each relay that fills the copy."""
    records = read_range(here, consumer, place, beginning, below)
    newest = {mark: record.offset for record in records if (mark := relayed_from(record))}
    return list(newest.values())
