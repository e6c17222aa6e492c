"""Bootstrap of a new site: the history that Kafka's retention has dropped, written from another site's ledger.

A hub's new site gets DATA itself. A mesh's new site gets a session of a link, as from a relay. Both are written in the
order of seqnos, and begin behind the last seqno in the new site's own rows. So a bootstrap may be cut off and started
again. In a mesh the relay begins its own session once the site has ordered enough of this one
(`connectors.relay.link_start`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kafka.future import Future

from connectors.kafka.codec.codec import encode_data, forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import Record, append, producing
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import ensure_topic
from connectors.ledger.history import message_numbers, read_rows
from connectors.ledger.row import decode_row
from connectors.ledger.state import state_from_ledger
from connectors.relay.copy_beginning import check_beginning
from connectors.relay.home_copy import post_base
from connectors.relay.link_start import ledger_start
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.base.formats import later
from ordering.base.kinds import DATA_KINDS
from ordering.base.names import Topic, relay_of
from ordering.base.reader import Lost
from ordering.base.records import LINK_START, MESSAGE, RESTORED, Data, Source
from ordering.sequencer.links import LinkStart, carry
from ordering.sequencer.sequencer import seal

UNACKNOWLEDGED = 10_000
"""Records written ahead of Kafka's acknowledgement, at most."""
ACKNOWLEDGED_S = 120.0
"""The longest wait for the acknowledgement of a record."""

TellRecords = Callable[[int], None]
"""A callback that gets a number of records."""


def bootstrap(
    sites: Sites,
    group: str,
    ledger: Location,
    direction: Direction,
    to_write: TellRecords = lambda _: None,
    written: TellRecords = lambda _: None,
) -> int:
    """Write the records of the source's ledger that the target lacks; return the ledger's last seqno.

    `to_write` gets the number of these records once, `written` the number of further ones that were sent.

    Raises UsageError (no ledger of this group; a hub's target with a sequencer of its own, or without its beginning),
    BrokerUnreachable, TopicMissing; LaterVersion for a row of an unknown kind.
    """
    state = state_from_ledger(ledger, group)
    if state is None:
        raise UsageError(f"there is no ledger of group {group} in {ledger}: name the home's DIR/ledger.")
    target = sites.connection(direction.target)
    if sites.home is None:
        relayed = Topic(group, "relayed", direction.target, direction.source)
        ensure_topic(target, relayed, 1)
        with DataLog(target, group, direction.target) as log:
            reached = log.state().origins
        last = state.seqno
        _write_session(sites, direction, ledger, group, reached, lambda start: to_write(last - start), written)
        return state.seqno
    with DataLog(target, group, direction.target) as copy:
        if copy.epochs.read().has_decided():
            raise UsageError(f"{copy.topic} has a sequencer of its own, so it can't follow {direction.source}.")
        check_beginning(copy)
        known = copy.state()
        to_write(max(0, state.seqno - known.seqno))
        rows = read_rows(ledger, group, known.seqno + 1)
        write_in_order(target, str(copy.topic), _hub_records(group, direction.source, rows, known.epoch), written)
        # A ledger tells neither the group's format nor counted records.
        posted = replace(state, format=max(state.format, known.format), counted=known.counted)
        post_base(target, copy.epochs.topic, posted)
    return state.seqno


def _hub_records(group: str, home: str, rows: Iterator[list[dict[str, Any]]], epoch: int) -> Iterator[Record]:
    """Return the records of `data_of_ledger`, encoded."""
    return map(encode_data, data_of_ledger(group, home, rows, epoch))


def data_of_ledger(group: str, home: str, rows: Iterator[list[dict[str, Any]]], epoch: int) -> Iterator[Data]:
    """Yield DATA as the sequencer wrote it, as far as the ledger tells. `epoch`: the one in force before.

    The mark of a restore is one record, though the ledger has a row for each seqno that it takes. Seals are written,
    too: they tell the epoch of each record in a copy, even if the copy is cut off or becomes the home.
    """
    for chunk in rows:
        for row in chunk:
            if row["kind"] not in DATA_KINDS:
                raise later(
                    f"the ledger has a record of the kind {row['kind']} at seqno {row['seqno']}, which is not known"
                )
            if row["epoch"] > epoch:
                epoch = row["epoch"]
                yield seal(epoch)
            if row["kind"] != RESTORED:
                yield _hub_record(group, home, row)
            elif row["payload"]:
                lost = Lost.from_json(row["payload"])
                yield replace(decode_row(row), seqno=lost.first, count=lost.last - lost.first + 1)


def _hub_record(group: str, home: str, row: dict[str, Any]) -> Data:
    """Return the DATA of a row of a hub's ledger. A record of the sequencer's own (a view, say) has no source."""
    data = decode_row(row)
    if not data.sender:
        return data
    is_local = row["site"] == home
    topic = Topic(group, "forward", home) if is_local else Topic(group, "relayed", home, row["site"])
    return replace(data, source=Source(str(topic), row["forward_partition"], row["forward_offset"]))


def _write_session(
    sites: Sites,
    direction: Direction,
    ledger: Location,
    group: str,
    reached: Mapping[str, int],
    begins_after: TellRecords,
    written: TellRecords,
) -> None:
    """Write a session that begins right before the first message that the target lacks.

    Call `begins_after` first, with the seqno after which it begins.
    """
    target, carries = sites.connection(direction.target), functools.partial(sites.carries, direction)
    start = _link_start(ledger, group, reached, carries)
    begins_after(start.seqno)
    topic, relay = str(Topic(group, "relayed", direction.target, direction.source)), relay_of(direction.source)
    session = append(target, topic, (relay.encode("ascii"), start.to_json(), forward_headers(1, 1, kind=LINK_START)))
    rows = read_rows(ledger, group, start.seqno + 1)
    write_in_order(target, topic, _session(direction.source, session, carries, rows), written)


def _link_start(ledger: Location, group: str, reached: Mapping[str, int], carries: Callable[[str], bool]) -> LinkStart:
    """Return the `link-start` of a session that begins right before the first message that the target lacks."""
    columns = message_numbers(ledger, group)
    rows = zip(*(columns[name].to_pylist() for name in ("site", "seqno", "origin_seqno")), strict=True)
    numbers = ((name, seqno, seqno if number is None else number) for name, seqno, number in rows)
    return ledger_start(numbers, reached, carries)


def _session(
    source: str, session: int, carries: Callable[[str], bool], rows: Iterator[list[dict[str, Any]]]
) -> Iterator[Record]:
    """Yield the records that the relay from `source` would make of the ledger's rows."""
    for chunk in rows:
        for row in chunk:
            data = decode_row(row)
            kind, sender, incarnation, local_seqno, payload, link = carry(data, source, session, carries)
            application = data.headers if kind == MESSAGE else ()
            yield sender.encode("ascii"), payload, forward_headers(incarnation, local_seqno, application, kind, link)


def write_in_order(connection: Connection, topic: str, records: Iterator[Record], written: TellRecords) -> None:
    """Append the records in order. The producer never gives up on one, so none is missing in the middle.

    Raises KafkaTimeoutError if one is not acknowledged within ACKNOWLEDGED_S.
    """
    waiting: deque[Future] = deque()
    with producing(connection, delivery_timeout_ms=2**31 - 1) as producer:
        for key, value, headers in records:
            waiting.append(producer.send(topic, key=key, value=value, headers=headers, partition=0))
            if len(waiting) >= UNACKNOWLEDGED:
                waiting.popleft().get(timeout=ACKNOWLEDGED_S)
            written(1)
        while waiting:
            waiting.popleft().get(timeout=ACKNOWLEDGED_S)
