"""The status of a group, from its topics, its sequencer's signs of life and the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka.structs import TopicPartition

from connectors.diagnosis.forward_end import Gap, count_waiting, newest_forward, reached_offsets, spans_of
from connectors.diagnosis.replicas import UnderReplicated
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.connection.ranges import a_few_records, read_range, windows_back
from connectors.kafka.log.acts import KEPT, Act
from connectors.kafka.log.data_log import DataLog, consumer_of_logs, topic_missing
from connectors.kafka.log.entries import last_state
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.liveness import ELSEWHERE, RESTORED, Liveness, SecondLook, judge
from connectors.kafka.log.open_transactions import READ_COMMITTED, OpenTransaction, open_transactions
from connectors.kafka.log.sign_of_life import Sign, read_signs
from connectors.kafka.log.standby_sign import StandbySign, read_standbys
from connectors.kafka.topics.topics import find_topics, wrong_in_logs
from connectors.kafka.transport.seam import Consumer
from ordering.agreement.state import Drop
from ordering.agreement.suspicion import suspects
from ordering.base.errors import EnvironmentProblem, KafkaRefused, StoreUnreachable
from ordering.base.formats import FIRST
from ordering.base.names import BY_RELAYS, Address, Topic, is_relay, is_tick
from ordering.sequencer.state import SequencerState

if TYPE_CHECKING:
    from connectors.ledger.last_row import LedgerEnd

RATE_S = 60
_SHORT = 500
"""Records behind a snapshot that DATA tells as cheaply as memory does."""
_NEWEST_DATA = 20
_MAX_LOOK_BACK = 1000
_FIRST_RECORDS = 10

Decided = Callable[[str], SequencerState | None]
"""Returns what a sequencer of this process has decided for a group, if there is one."""


class PastTakeover(NamedTuple):
    """A sequencer's claim of a group, at the broker's time. The host is "" in claims of earlier versions.

    `is_planned`: an operator asked for it (`abcast takeover`).
    """

    epoch: int
    host: str
    pid: int
    at_ms: int
    is_planned: bool = False


class Deleted(NamedTuple):
    """The records that maintenance or retention has deleted, of FORWARD and of DATA.

    `data_at_ms`: the broker's time of the last purge of DATA; 0 if there was none, or that is not known.
    """

    forward: int = 0
    data: int = 0
    data_at_ms: int = 0


class AgreementStatus(NamedTuple):
    """The status of a site that agrees with others: its view of the sites, and whether it waits and orders nothing.

    `rejected`: the number of inputs of other sites that were left out, as they break the protocol. `silent`: the sites
    that it has not heard for too long, as of its newest entry.
    """

    view: int
    sites: tuple[str, ...]
    waits: bool
    rejected: int = 0
    silent: tuple[str, ...] = ()

    def __str__(self) -> str:
        sites, left_out = ", ".join(self.sites), ""
        if self.rejected:
            left_out = f"; ignored {self.rejected:,} inputs of other sites, which break the protocol"
        if not self.waits:
            return f"agrees in view {self.view} of the sites {sites}{left_out}"
        silent = f"; not heard: {', '.join(self.silent)}" if self.silent else ""
        return (
            f"waits: too few of the sites {sites} (view {self.view}) answer, or they go on without it{silent}{left_out}"
        )


class GroupStatus(NamedTuple):
    """The status of a group. `rate`: records of DATA per second over the last minute.

    `members`: in the view. `silences`: for each of them, the seconds since its newest record in FORWARD here, None if
    it has none among the newest. `senders`: remembered addresses that have sent anything, operators and relays
    included. `lag`: FORWARD records that wait for a seqno or a refusal; 0 in a copy. `relays`: for each site whose
    relay gives heartbeats here, the seconds since its last record, None without one. `strays`: records in DATA that are
    no DATA, back to the newest snapshot. `ledger_lag`: seqnos that the ledger lacks; None without a ledger, or with
    `other_history`. `gaps`: open gaps of senders. `agreement`: None if no sites agree. `wrong_settings`: of DATA and
    EPOCH, and how to mend them. `format`: see `ordering.base.formats`. `other_history`: what to do if the ledger has
    another group's history under this name, or is damaged. `trouble`: what the serving job reports that it can't do for
    the group; with `is_left_out`, it does not order it. `acts`: the last acts of operators. `open_transactions`:
    transactions on FORWARD that hold up the records behind them. `under_replicated`: partitions with replicas that are
    not in sync. `takeovers`: the last ones, the newest last; `handovers`: the number of planned ones, ever. `standby`:
    a process that waits to take over, if there is one. `deleted`: by maintenance or retention.
    """

    group: str
    sequencer: Liveness
    last_seqno: int
    epoch: int
    view: int
    members: int
    senders: int
    lag: int
    rate: float
    duplicates: int
    dead_letters: int
    relays: Mapping[str, float | None]
    strays: int = 0
    ledger_lag: int | None = None
    gaps: Sequence[Gap] = ()
    agreement: AgreementStatus | None = None
    wrong_settings: str = ""
    other_history: str = ""
    format: int = FIRST.number
    acts: Sequence[Act] = ()
    trouble: str = ""
    is_left_out: bool = False
    open_transactions: Sequence[OpenTransaction] = ()
    silences: Mapping[str, float | None] = MappingProxyType({})
    under_replicated: Sequence[UnderReplicated] = ()
    takeovers: Sequence[PastTakeover] = ()
    deleted: Deleted = Deleted()
    handovers: int = 0
    standby: StandbySign | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether messages wait, and no sequencer orders them, or an open transaction holds some up."""
        return self.lag > 0 and (not self.is_served or bool(self.open_transactions))

    @property
    def is_failure(self) -> bool:
        """Whether messages wait, and the group's sequencer does not work.

        A job that reports that it leaves the group out works, and so does one that waits for a client's transaction.
        """
        return self.lag > 0 and not self.is_served and not self.is_left_out

    @property
    def is_served(self) -> bool:
        """Whether a sequencer, here or elsewhere, orders the messages."""
        return self.sequencer.works and not (self.agreement is not None and self.agreement.waits)

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain values."""
        plain = {
            "sequencer": self.sequencer._asdict(),
            "relays": dict(self.relays),
            "silences": dict(self.silences),
            "gaps": [gap._asdict() for gap in self.gaps],
            "acts": [act._asdict() for act in self.acts],
            "takeovers": [each._asdict() for each in self.takeovers],
            "standby": self.standby._asdict() if self.standby is not None else None,
            "under_replicated": [each._asdict() for each in self.under_replicated],
            "open_transactions": [each._asdict() for each in self.open_transactions],
            "deleted": self.deleted._asdict(),
            "agreement": self.agreement._asdict() if self.agreement is not None else None,
        }
        return {**self._asdict(), **plain}


def read_status(
    connection: Connection,
    group: str,
    site: str,
    in_ledger: Mapping[str, int] | None = None,
    ledger: LedgerEnd | None = None,
    second_look: SecondLook | None = None,
    neighbours: Collection[str] = (),
    decided: Decided = lambda _: None,
) -> GroupStatus:
    """Read the status of a group. `in_ledger`: the last seqno of each group in the ledger, if there is one. `ledger`:
    compared with DATA for `other_history`. `neighbours`: sites whose relays should give heartbeats here, as far as the
    caller knows them. `decided`: spares the reading of DATA back to the newest snapshot, where it holds.

    A sequencer of another host that looks silent gets a `second_look`, after 3 s.

    Raises BrokerUnreachable, TopicMissing, HistoryUnavailable.
    """
    look = second_look or SecondLook(connection, [group], site)
    topics = [topic for topic in find_topics(connection) if (topic.group, topic.site) == (group, site)]
    with closing(a_few_records(connection)) as consumer, closing(consumer_of_logs(connection)) as of_logs:
        forward = _partitions(consumer, [topic for topic in topics if topic.role in READ_COMMITTED])
        with closing(connection.metadata_client()) as metadata:
            signs = read_signs(connection, [group], site, forward, metadata)
            waiting = _standby(metadata, group, site)
        with DataLog(connection, group, site, of_logs) as data:
            # A copy's sequencer is elsewhere: the offsets that it has considered are not visible here.
            is_copy = data.is_copy()
            sign = signs.of_groups.get(group)
            sequencer = judge(data, sign, partial(look.gives_another, group))
            has_forward = any(each.topic == str(Topic(group, "forward", site)) for each in forward)
            if not has_forward and sequencer.state not in (ELSEWHERE, RESTORED):
                _check_forward(connection, group, site)
            wrong = "" if is_copy else wrong_in_logs(connection, [group], site).get(group, "")
            before = data.strays
            known = None if wrong else _in_force(data, decided(group), signs.reached.get(group, 0))
            end, state = known or data.end_and_state()
            strays = data.strays - before
            agreement, epochs = _agreement(data), data.epochs.read()
            of_format, acts = epochs.format, tuple(epochs.acts)
            takeovers = tuple(
                PastTakeover(each.epoch, each.host, each.pid, each.at_ms, each.is_planned)
                for each in epochs.claims[-KEPT:]
            )
            handovers = sum(each.is_planned for each in epochs.claims)
            other = _other_history(data, ledger, (end, state))
            begins = data.beginning()
            purged_ms = _purged_ms(epochs, begins) or 0
        if agreement is not None:  # relayed records are another site's, which this site does not handle
            forward = [partition for partition in forward if partition.topic == str(Topic(group, "forward", site))]
        with connection.reachable():
            dead = _partitions(consumer, [topic for topic in topics if topic.role == "dead-letter"])
            relayed = _partitions(consumer, [topic for topic in topics if topic.role in BY_RELAYS])
            spans = spans_of(consumer, forward)
            reached = reached_offsets(spans, state, signs.considered)
            lag = 0 if is_copy else count_waiting(connection, of_logs, state, spans, reached)
            gaps, heard_ms = newest_forward(connection, consumer, state, spans, reached)
            now_ms = time.time() * 1000
            return GroupStatus(
                group=group,
                sequencer=sequencer,
                last_seqno=state.seqno,
                epoch=state.epoch,
                view=state.view,
                members=len(state.membership.members),
                senders=len(state.received),
                lag=lag,
                rate=_rate(consumer, TopicPartition(str(Topic(group, "data", site)), 0)),
                duplicates=state.duplicates,
                dead_letters=sum(end - beginning for beginning, end in spans_of(consumer, dead).values()),
                relays={}
                if is_copy
                else _relays(
                    connection, consumer, relayed, _linked(state, site) | {*neighbours}, is_agreed=agreement is not None
                ),
                strays=strays,
                ledger_lag=None if in_ledger is None or other else state.seqno - in_ledger.get(group, 0),
                gaps=() if is_copy else gaps,
                agreement=agreement,
                acts=acts,
                takeovers=takeovers,
                deleted=Deleted(sum(beginning for beginning, _ in spans.values()), begins, purged_ms),
                handovers=handovers,
                standby=waiting if waiting is not None and waiting.is_beside(sequencer.host, sequencer.pid) else None,
                wrong_settings=wrong,
                other_history=other,
                format=max(state.format, of_format),
                trouble=sign.trouble if sign is not None and sign.is_new else "",
                is_left_out=is_left_out(sign),
                open_transactions=tuple(open_transactions(connection, consumer, forward)),
                silences={
                    member.address: max(0.0, now_ms - heard_ms[member.address]) / 1000
                    if member.address in heard_ms
                    else None
                    for member in state.membership.members
                },
            )


def _check_forward(connection: Connection, group: str, site: str) -> None:
    """Raise TopicMissing if the group has no FORWARD topic. It may be hidden from this user."""
    topic = str(Topic(group, "forward", site))
    with closing(connection.metadata_client()) as metadata, suppress(KafkaRefused):
        if not metadata.partitions_of(topic):
            raise topic_missing(topic, group, site)


def _in_force(data: DataLog, decided: SequencerState | None, signed_end: int) -> tuple[int, SequencerState] | None:
    """Return the end of DATA, and what a sequencer of this process has decided, up to the last seqno there; None where
    DATA must tell.

    EPOCH shows that nobody else has claimed the group, the newest records that DATA has its epoch, and the end at its
    last sign that DATA has lost nothing since. Where DATA has lost its beginning, a purge's note shows that a snapshot
    is left. After a recent snapshot, DATA tells the state as cheaply.
    """
    if decided is None or decided.unsnapped <= _SHORT:
        return None
    epochs = data.epochs.read()
    claim = epochs.newest_claim
    if claim is None or claim.agreement or claim.epoch != decided.epoch:
        return None
    begins, end = data.beginning(), data.end()
    if end < signed_end or (begins and _purged_ms(epochs, begins) is None):
        return None
    epoch = last = 0
    for each in data.records(max(begins, end - _NEWEST_DATA), end):  # one at a time: payloads may be large
        if each.data.seqno:
            epoch, last = each.data.epoch, each.data.seqno + each.data.count - 1
    return (end, replace(decided, seqno=last)) if last and epoch == decided.epoch else None


def _purged_ms(epochs: Epochs, begins: int) -> int | None:
    """Return the time of the purge up to `begins`. Its note is about the snapshot that remains there."""
    return max((ms for note, ms in epochs.noted_ms.items() if begins and note.offset == begins + 1), default=None)


def _standby(metadata: MetadataClient, group: str, site: str) -> StandbySign | None:
    with suppress(KafkaRefused):  # without the right to see dead letters
        return read_standbys(metadata, [group], site).get(group)
    return None


def _other_history(data: DataLog, ledger: LedgerEnd | None, known: tuple[int, SequencerState]) -> str:
    if ledger is None:
        return ""
    from connectors.ledger.delta_files import LedgerUnreadable  # imported late: they need Delta, as the ledger does
    from connectors.ledger.last_row import other_history
    from connectors.ledger.table_state import LedgerDamaged

    try:
        return other_history(data, ledger, known)
    except (LedgerDamaged, LedgerUnreadable, EnvironmentProblem, StoreUnreachable) as error:
        return str(error)


def is_left_out(sign: Sign | None) -> bool:
    """Whether the sequencer's newest sign says that it goes on without the group."""
    return sign is not None and sign.is_new and not sign.epoch


def _agreement(data: DataLog) -> AgreementStatus | None:
    """Return the status of the agreement from the site's log; None if there is none."""
    claim = data.epochs.read().newest_claim
    state = last_state(data, data.end()) if claim is not None and claim.agreement else None
    if state is None:
        return None
    view, agreement = state.process.view, state.process.agreement
    waits = agreement is None or agreement.is_frozen
    invalid = 0 if agreement is None else agreement.dropped.get(Drop.INVALID.value, 0)
    rejected = state.rejected + state.process.ignored + invalid
    silent = tuple(site.name for site in view.members if site in suspects(state.process))
    return AgreementStatus(view.id, tuple(site.name for site in view.members), waits, rejected, silent)


def _partitions(consumer: Consumer, topics: Sequence[Topic]) -> list[TopicPartition]:
    """Return all partitions of the topics, sorted."""
    names = sorted(map(str, topics))
    return [
        TopicPartition(name, number) for name in names for number in sorted(consumer.partitions_for_topic(name) or ())
    ]


def _rate(consumer: Consumer, data: TopicPartition) -> float:
    """Return the records of DATA per second over the last minute."""
    found = consumer.offsets_for_times({data: int((time.time() - RATE_S) * 1000)}).get(data)
    return 0.0 if found is None else float(consumer.end_offsets([data])[data] - found.offset) / RATE_S


def _relays(
    connection: Connection,
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    linked: Collection[str],
    *,
    is_agreed: bool,
) -> dict[str, float | None]:
    """Return the seconds since each neighbour's relay wrote into the topic that it fills; None if nothing is left.

    A relay gives heartbeats in a mesh, known by a `linked` neighbour or the relay's own records, and where sites agree.
    Other relays have nothing to carry from an idle site: they are left out.
    """
    heard: dict[str, float] = dict.fromkeys(linked, 0.0)
    beating = set(linked)
    for partition, (beginning, end) in spans_of(consumer, partitions).items():
        topic = Topic.of(partition.topic)
        neighbour = topic.neighbour or topic.site
        at_ms, is_beat = _newest_of_relay(connection, consumer, partition, beginning, end)
        heard[neighbour] = max(heard.get(neighbour, 0.0), at_ms / 1000)
        if is_beat or is_agreed:
            beating.add(neighbour)
    return {name: max(0.0, time.time() - at) if at else None for name, at in sorted(heard.items()) if name in beating}


def _linked(state: SequencerState, site: str) -> set[str]:
    """Return the neighbours whose relays have certainly carried something: a link, or a remote view."""
    relays = {Address.parse(sender).site for sender in state.received if is_relay(sender)}
    return {*state.links, *relays} - {site}


def _newest_of_relay(
    connection: Connection, consumer: Consumer, partition: TopicPartition, beginning: int, end: int
) -> tuple[int, bool]:
    """Return the time (ms) of the newest record that is no tick of this site, 0 without one, and whether it is a beat.

    Behind many ticks, the time is that of the oldest one of them.
    """
    at_ms = 0
    lowest = max(beginning, end - _MAX_LOOK_BACK)
    for start, below in windows_back(lowest, end, 10):
        for raw in reversed(list(read_range(connection, consumer, partition, start, below))):
            sender, at_ms = (raw.key or b"").decode("utf-8", "replace"), raw.timestamp
            if not is_tick(sender):
                return at_ms, is_relay(sender)
    if lowest == beginning:
        return 0, False
    # A session's first records show that there was a relay, however long ago.
    first = read_range(connection, consumer, partition, beginning, min(beginning + _FIRST_RECORDS, lowest))
    return at_ms, any(is_relay((raw.key or b"").decode("utf-8", "replace")) for raw in list(first))
