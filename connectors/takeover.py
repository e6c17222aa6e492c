"""Seal, then take over: how every start of a sequencer begins, whatever ended the one before.

There is one way to start, and it trusts no lock and no checkpoint, only DATA:

1. note where DATA ends (the *floor*) and append it to the EPOCH topic: the claim. Its offset plus one is our epoch,
   so nobody else has it;
2. append the seal to DATA: an empty epoch record. From here on every reader ignores what lower epochs still write;
3. read DATA up to the seal, from the newest snapshot in force (`connectors.data_log`), and rebuild the state;
4. append the state as the epoch's opening snapshot, and go on.

Invariant: the state that a sequencer goes on from holds everything effective before its seal, and nothing effective
of a lower epoch can follow. So numbers are never reassigned, whoever still runs, and whatever crashed before: a
crash after any step leaves an epoch number without a seal, a seal without decisions, or an opening snapshot that is
true where it stands. The next start does the same four steps.

A sequencer sees a newer one by its claim, and stops. That is a courtesy, not what keeps the order: if it sleeps
through the claim, what it writes is stale for every reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kafka import KafkaProducer
from kafka.errors import KafkaError

from connectors.codec import encode_data
from connectors.connection import Connection
from connectors.data_log import Claim, DataLog
from ordering.errors import Fenced, HistoryUnavailable, ProtocolViolation, UsageError
from ordering.reader import Reader, Seal, Verdict
from ordering.records import EPOCH, Data
from ordering.sequencer import SequencerState, absorb, seal, snapshot

log = logging.getLogger(__name__)

History = Callable[[], SequencerState | None]


def take_over(
    connection: Connection, group: str, site: str, history: History | None = None, own: dict[str, int] | None = None
) -> SequencerState:
    """Become the group's sequencer; return the state to go on from.

    `history` gives the state as the ledger knows it, for a DATA topic that retention has emptied. `own` is what
    this process has claimed so far, by group, and is kept up to date: it takes no group back from a newer sequencer.

    Raises BrokerUnreachable, TopicMissing, HistoryUnavailable, Fenced.
    """
    producer = connection.producer()
    try:
        with DataLog(connection, group, site) as data:
            if own is not None and group in own:
                check_not_fenced(data, own[group])
            if data.is_copy():
                raise UsageError(
                    f"{data.topic} is the copy of another site's: run the sequencer of group {group} at its home."
                )
            epoch = 1 + _append(data, producer, data.claims_topic, None, b"%d" % data.end(), [])
            if own is not None:
                own[group] = epoch
            sealed_at = _append_data(data, producer, seal(epoch))
            before = _known(data, sealed_at, history)
            if before.epoch >= epoch:
                check_not_fenced(data, epoch)
                raise ProtocolViolation(
                    f"{data.topic} knows epoch {before.epoch}, but {data.claims_topic} is only at {epoch}: "
                    "was it deleted? The two must be kept together."
                )
            state = replace(before, epoch=epoch, seals=(*before.seals, Seal(epoch, before.seqno + 1)), unsnapped=0)
            _append_data(data, producer, snapshot(state))
            log.info("group %s: epoch %d begins after seqno %d", group, epoch, state.seqno)
            return state
    finally:
        producer.close(timeout=10)


def _append_data(data: DataLog, producer: KafkaProducer, record: Data) -> int:
    key, value, headers = encode_data(record)
    return _append(data, producer, str(data.topic), key, value, headers)


def _known(data: DataLog, floor: int, history: History | None) -> SequencerState:
    """What DATA tells; where retention has left too little of it, what the ledger tells and then DATA."""
    try:
        return data.state(floor)
    except HistoryUnavailable:
        told = history() if history is not None else None
        if told is None:
            raise
    beginning = data.beginning()
    rest = [stored.data for stored in data.records(beginning, floor)]
    known = absorb(told, rest)
    if any(record.seqno > known.seqno for record in rest) or _may_be_stale(told, rest, data.claims(), beginning):
        raise HistoryUnavailable(
            f"the ledger ends at seqno {told.seqno}, and {data.topic} no longer holds what follows: "
            "start with --data of a ledger that reaches further. Going on would give numbers a second time."
        )
    return known


def _may_be_stale(told: SequencerState, rest: Sequence[Data], claims: Iterable[Claim], beginning: int) -> bool:
    """Whether a record of `rest` that counts may be a fenced sequencer's, its seal among what retention has dropped."""
    seals = {record.epoch for record in rest if record.kind == EPOCH and not record.payload}
    unseen = max((claim.epoch for claim in claims if claim.floor < beginning and claim.epoch not in seals), default=0)
    reader = Reader(told.epoch, told.seqno)
    return any(
        reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE and record.epoch < unseen
        for record in rest
    )


def _append(
    data: DataLog,
    producer: KafkaProducer,
    topic: str,
    key: bytes | None,
    value: bytes,
    headers: list[tuple[str, bytes]],
) -> int:
    """Write one record and wait for it; return its offset."""
    try:
        sent = producer.send(topic, key=key, value=value, headers=headers, partition=0)
        return int(sent.get(timeout=data.connection.timeout * 3).offset)
    except KafkaError as error:
        if error.retriable:
            raise data.connection.unreachable() from error
        raise


def check_not_fenced(data: DataLog, epoch: int) -> None:
    """Raise Fenced if a sequencer with an epoch newer than `epoch` has begun to take over."""
    newest = data.newest_epoch()
    if newest > epoch:
        raise _fenced(data.topic.group, newest, epoch)


def _fenced(group: str, newer: int, epoch: int) -> Fenced:
    return Fenced(
        f"group {group}: a newer sequencer took over with epoch {newer}; this one (epoch {epoch}) stops. "
        "Run one sequencer for a site; to hand over on purpose, stop this one first."
    )
