"""A sequencer's sign of life: it tells an idle group from one whose sequencer is gone.

An idle sequencer writes nothing. So every SIGN_EVERY_S each sequencer commits offsets under the consumer group
`abcast.sequencer.SITE`. For a group's EPOCH topic the offset is the epoch; its metadata name the host, the engine and
the time. For FORWARD partitions it is the sequencer's progress, so that any Kafka tool shows its lag. For DATA it is
the log's end: a start that finds less knows of a loss (`connectors.kafka.log.same_log`). Kafka keeps only the newest
offsets: signs cost no record. `abcast status` reads them, and so do errors that say why a message waits.

One group has a sign every BEAT_S (`connectors.kafka.log.beats`). The metadata of its DATA offset say so, in ms. Other
groups, and earlier versions, have none there.

A sign also reports what other jobs of the process don't do for the group, for example that the ledger has ended. A
group that the sequencer goes on without gets a sign with epoch 0 and the reason; it counts as no sign of its sequencer.

While logs are whole, no promise depends on a sign. A sequencer gives one right after it has seen that no newer one has
claimed its groups, so a fenced one gives none. A sign that can't be written is skipped. One partition that Kafka
refuses costs no other its offset. After a crash the last sign stays, and ages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing, nullcontext, suppress
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.codec.epochs import this_host
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from ordering.base.errors import BrokerUnreachable, KafkaRefused
from ordering.base.names import Topic

SIGN_EVERY_S = 2.0
BEAT_S = 0.5
SILENT_AFTER_S = 10.0
"""A sequencer without a sign for so long is taken to be gone."""
_ASK_S = 3.0
_MAX_TROUBLE = 250
"""Characters of a trouble: Kafka takes 4,096 bytes of metadata."""

_MOST_DIGITS = 18
_logger = logging.getLogger(__name__)


class Sign(NamedTuple):
    """The newest sign of a group's sequencer. `at_ms` is its time by the clock of `host`.

    `trouble`: what the process does not do for the group. With epoch 0, the sequencer goes on without the group.
    `every_s`: the time to the next sign.
    """

    epoch: int
    host: str
    engine: str
    at_ms: int
    trouble: str = ""
    every_s: float = SIGN_EVERY_S

    def encode(self) -> OffsetAndMetadata:
        """Return the offset to commit."""
        trouble = f" {quote(self.trouble[:_MAX_TROUBLE])}" if self.trouble else ""
        return OffsetAndMetadata(self.epoch, f"{self.host} {self.engine} {self.at_ms}{trouble}", -1)

    @classmethod
    def decode(cls, committed: OffsetAndMetadata | None) -> Sign | None:
        """Invert `encode`; None for anything else. Later versions may add fields at the end."""
        if committed is None:
            return None
        try:
            host, engine, at_ms, *more = (committed.metadata or "").split()
            if len(at_ms) > _MOST_DIGITS:
                return None
            return cls(int(committed.offset), host, engine, int(at_ms), unquote(more[0]) if more else "")
        except ValueError:
            return None

    @property
    def is_new(self) -> bool:
        """Whether the sign is recent, as far as clocks agree."""
        return abs(time.time() - self.at_ms / 1000) < SILENT_AFTER_S

    @property
    def is_of_this_host(self) -> bool:
        """Whether its time is by this machine's clock."""
        return self.host == this_host()


class SignsOfLife:
    """Gives the signs of this process. Not thread-safe; close it."""

    def __init__(self, connection: Connection, site: str, engine: str, *, beats: bool = False) -> None:
        """`beats`: the sign of `last` is repeated."""
        self._site = site
        self._engine = engine
        self._beats = beats
        self.last: tuple[str, Sign] | None = None
        """A group, and its last sign that Kafka has taken."""
        self._next = float("-inf")
        self._metadata = connection.metadata_client()
        self._has_warned = False

    def is_due(self, now: float) -> bool:
        """Whether it is time to sign. `now`: seconds of a monotonic clock."""
        return now >= self._next

    def give(
        self,
        epochs: Mapping[str, int],
        considered: Mapping[TopicPartition, int],
        now: float,
        ends: Mapping[str, int] = MappingProxyType({}),
        trouble_of: Callable[[str], str] = lambda _: "",
        suspended: Mapping[str, str] = MappingProxyType({}),
    ) -> Set[str] | None:
        """Sign for these groups with their epochs, if it is time to; return the ones whose sign Kafka has taken.

        `considered`: the first offset not considered yet of FORWARD partitions. `ends`: the end of each group's DATA.
        `suspended`: groups that the sequencer goes on without, and why. If nothing was written, returns None: a failure
        is logged once, and raises nothing.
        """
        if not self.is_due(now) or not (epochs or suspended):
            return None
        self._next = now + SIGN_EVERY_S
        at = this_host(), self._engine, time.time_ns() // 1_000_000
        signs = {
            _partition(group, self._site): Sign(0, *at, why).encode()
            for group, why in suspended.items()
            if group not in epochs
        }
        own = {group: Sign(epoch, *at, trouble_of(group)) for group, epoch in epochs.items()}
        signs |= {_partition(group, self._site): sign.encode() for group, sign in own.items()}
        beating = min(own, default="") if self._beats else ""
        signs |= {
            _data(group, self._site): OffsetAndMetadata(end, f"{BEAT_S * 1_000:g}" if group == beating else "", -1)
            for group, end in ends.items()
        }
        signs |= {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in considered.items()}
        try:
            refused = self._metadata.commit(group_id(self._site), signs, _ASK_S)
        except (KafkaError, BrokerUnreachable, KafkaRefused) as error:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "this sequencer can't commit as consumer group %s, so `abcast status` shows it as silent: %s",
                    group_id(self._site),
                    error,
                )
            return None
        taken = {group for group in own if _partition(group, self._site) not in refused}
        self.last = (beating, own[beating]) if beating in taken else None
        return taken

    def close(self) -> None:
        """Close the connection."""
        self._metadata.close()


class Signs(NamedTuple):
    """The newest sign of each group that has one, and the first offset not considered yet of FORWARD partitions.

    `reached`: the end of each group's DATA at its sign.
    """

    of_groups: Mapping[str, Sign]
    considered: Mapping[TopicPartition, int]
    reached: Mapping[str, int]


def read_signs(
    connection: Connection,
    groups: Iterable[str],
    site: str,
    forward: Iterable[TopicPartition] = (),
    metadata: MetadataClient | None = None,
) -> Signs:
    """Return the newest signs, and the progress in the FORWARD partitions. `metadata`: an open client, if there is one.

    Among several groups, the ones with topics that this user may not see have no sign. Raises BrokerUnreachable;
    KafkaRefused for a single group.
    """
    places, considered = {group: _partition(group, site) for group in groups}, list(forward)
    data = {group: _data(group, site) for group in places}
    with nullcontext(metadata) if metadata is not None else closing(connection.metadata_client()) as client:
        committed = committed_of(client, site, [[places[group], data[group]] for group in places], considered)
    signs = {group: Sign.decode(committed.get(place)) for group, place in places.items()}
    return Signs(
        {
            group: sign._replace(every_s=_every_s(committed.get(data[group])))
            for group, sign in signs.items()
            if sign is not None
        },
        {partition: int(committed[partition].offset) for partition in considered if partition in committed},
        {group: int(committed[place].offset) for group, place in data.items() if place in committed},
    )


def committed_of(
    metadata: MetadataClient,
    site: str,
    groups: Sequence[Sequence[TopicPartition]],
    others: Sequence[TopicPartition] = (),
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what the site's sequencer and standby have committed for the partitions of groups, and for `others`.

    Kafka refuses single topics; the client then has no answer about the rest. So groups are asked for one by one, and
    the refused ones left out. Raises BrokerUnreachable; KafkaRefused for a single group.
    """
    try:
        return metadata.committed(group_id(site), [*chain.from_iterable(groups), *others])
    except KafkaRefused:
        if len(groups) <= 1:
            raise
    committed: dict[TopicPartition, OffsetAndMetadata] = {}
    for places in groups:
        with suppress(KafkaRefused):
            committed |= metadata.committed(group_id(site), list(places))
    return committed


def commit_sign(metadata: MetadataClient, group: str, site: str, sign: Sign) -> None:
    """Give a sign for a group. Raises BrokerUnreachable, KafkaRefused, KafkaError."""
    metadata.commit(group_id(site), {_partition(group, site): sign.encode()}, _ASK_S)


def _every_s(data: OffsetAndMetadata | None) -> float:
    told = (data.metadata or "") if data is not None else ""
    return int(told) / 1_000 if told.isdecimal() and len(told) <= _MOST_DIGITS else SIGN_EVERY_S


def _partition(group: str, site: str) -> TopicPartition:
    return TopicPartition(str(Topic(group, "epoch", site)), 0)


def _data(group: str, site: str) -> TopicPartition:
    return TopicPartition(str(Topic(group, "data", site)), 0)


def group_id(site: str) -> str:
    """Return the consumer group under which the sequencers and standbys of a site sign."""
    return f"abcast.sequencer.{site}"
