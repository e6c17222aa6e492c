"""`abcast deliver`: one line per delivery, in the order of delivery."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from connectors.kafka.login.configuration import configured
from jobs.terminal import interruption
from jobs.terminal.options import (
    AsJson,
    BootstrapServers,
    Group,
    KafkaConfig,
    Location,
    Member,
    connection_to,
    location,
    run_script,
)
from jobs.terminal.rows import as_text, harmless, json_entry, json_line
from jobs.terminal.times import time_ms
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE, Address
from ordering.casts.casts import TOTAL
from ordering.participant.events import BEGIN

if TYPE_CHECKING:
    from connectors import Delivery
    from connectors import Member as MemberClient
    from connectors.client.values.stream import Stream
    from ordering.participant.events import Event

WAITED_S = 2.0
_POLL_S = 0.2


def deliver(
    group: Group,
    member: Member,
    from_seqno: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="First seqno; default: after the last one that this member took, or 1. The position stays as it is.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="10m|TIME",
            help="Begin with messages that are as young: 90s, 10m, 2h, 7d, or since 2026-11-27T12:30 (UTC, or with a "
            "zone). The position stays as it is.",
        ),
    ] = None,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember",
            help="With --from-seqno or --since: move the position, so that the next run resumes after this one.",
        ),
    ] = False,
    count: Annotated[int | None, typer.Option(min=0, help="End after this many deliveries.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="End after this many seconds without a delivery.")
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="End after the messages that are there at the start: --timeout 0."),
    ] = False,
    sender: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Print messages of this sender only, without a site: of the member's; may be repeated."
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Print messages only whose payload, as it is printed, has a match."),
    ] = None,
    ledger: Annotated[
        Location | None,
        typer.Option(
            parser=location,
            metavar="DIR|URL",
            help="The Delta ledger, for messages that Kafka's retention has dropped: DIR/ledger. Not with --casts.",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    events: Annotated[
        bool, typer.Option("--events", help="Print views (also remote ones) and flushes at their seqnos, too.")
    ] = False,
    casts: Annotated[
        bool, typer.Option("--casts", help="Print messages in fifo and causal order, too. They have no seqno.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the group's messages in their order.

    It runs until Ctrl-C, unless --count, --timeout or --until-end ends it. Messages that --sender and --grep leave out
    are taken, too, and not counted; --timeout counts from them, too. A line of text has seqno, sender and payload
    (`base64:…` if it is not text). A line of --json has `seqno`, `sender`, `incarnation`, `local_seqno`, `payload` (or
    `payload_base64`), `view_id` in a group with members, `headers` if there are any, and `order` if the message is not
    total (`fifo` or `causal`, with seqno 0). With --events, some lines have an `event` (`view`, `block`, `unblock`,
    `remote-view`) in the place of a sender; with --casts, `begin` comes first.

    --since goes by the broker's time of each record of DATA: when the message was ordered. If Kafka may have dropped
    messages of that time, --ledger is needed, and tells them.
    """
    from connectors import Member as MemberClient
    from connectors.client.deliveries.since import seqno_since

    if count == 0:
        return
    address = Address.parse(member, configured("site", DEFAULT_SITE))
    if until_end and timeout is not None:
        raise UsageError("--until-end is --timeout 0: give one of them.")
    if since is not None and from_seqno is not None:
        raise UsageError("--since and --from-seqno both say where to begin: give one of them.")
    since_ms = None if since is None else time_ms(since, "--since")
    timeout = 0.0 if until_end else timeout
    wanted = _Wanted.parse(sender or (), grep, address.site)
    connection = connection_to(bootstrap_servers, kafka_config, str(address))
    with MemberClient(group, str(address), connection=connection, ledger=ledger, casts=casts) as client:
        taken = 0
        try:
            if since_ms is not None:
                from_seqno = seqno_since(connection, group, address.site, since_ms, ledger)
            stream: Stream[Any] = (
                client.deliveries(from_seqno, timeout, events=True, remember=remember)
                if events
                else client.deliveries(from_seqno, timeout, remember=remember)
            )
            if casts and events and as_json:
                typer.echo(json.dumps({"event": BEGIN}))
            for what in _with_waits_shown(stream, client, from_seqno):
                is_message = hasattr(what, "payload")
                if is_message and not wanted.has(what):
                    continue
                typer.echo(_line(what, as_json) if is_message else _event_line(what, as_json))
                stream.taken()  # printed already, as `echo` flushes
                taken += is_message
                if taken == count:
                    break
        except KeyboardInterrupt:
            interruption.taken()


class _Wanted(NamedTuple):
    """A choice of messages. Without senders: all senders."""

    senders: frozenset[str]
    pattern: re.Pattern[str] | None

    @classmethod
    def parse(cls, senders: Sequence[str], pattern: str | None, site: str) -> _Wanted:
        """Parse the options. Raises UsageError."""
        addresses = frozenset(str(Address.parse(name, site)) for name in senders)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of `[[`, say
                return cls(addresses, None if pattern is None else re.compile(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"--grep {pattern!r:.200} is no regular expression: {error}.") from error

    def has(self, delivery: Delivery) -> bool:
        """Whether the message is printed."""
        if self.senders and delivery.sender not in self.senders:
            return False
        return self.pattern is None or self.pattern.search(as_text(delivery.payload)) is not None


def _with_waits_shown(stream: Stream[Any], client: MemberClient, from_seqno: int | None) -> Iterator[Any]:
    """Yield from the stream. On a terminal, say once in each wait, after WAITED_S, what it waits for, and why."""
    if not sys.stderr.isatty():
        yield from stream
        return
    from connectors.kafka.log.liveness import say_why

    waiting = _Waiting("from its position on" if from_seqno is None else f"from seqno {from_seqno} on")
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_POLL_S):
            if time.monotonic() - waiting.since < WAITED_S or waiting.is_told:
                continue
            waiting.is_told = True
            why = say_why(client.connection, client.group, client.address.site)
            typer.echo(f"waiting for messages of {client.group} {waiting.what} …{why and ' '}{why}", err=True)

    threading.Thread(target=tell, name="abcast-waiting", daemon=True).start()
    try:
        for what in stream:
            waiting.since, waiting.is_told = time.monotonic(), True
            yield what
            waiting.what, waiting.since, waiting.is_told = f"after seqno {what.seqno}", time.monotonic(), False
    finally:
        is_over.set()


@dataclass
class _Waiting:
    """The current wait: for which deliveries, since when, and whether the user was told."""

    what: str
    since: float = field(default_factory=time.monotonic)
    is_told: bool = False


def _line(delivery: Delivery, as_json: bool) -> str:
    if not as_json:
        return f"{delivery.seqno}\t{delivery.sender}\t{harmless(as_text(delivery.payload))}"
    line: dict[str, Any] = {
        "seqno": delivery.seqno,
        "sender": delivery.sender,
        "incarnation": delivery.incarnation,
        "local_seqno": delivery.local_seqno,
    }
    line |= [json_entry("payload", delivery.payload)]
    if delivery.view_id:
        line["view_id"] = delivery.view_id
    if delivery.order != TOTAL:
        line["order"] = delivery.order
    return json_line(line, delivery.headers)


def _event_line(event: Event, as_json: bool) -> str:
    names = {"ViewChange": "view", "Block": "block", "Unblock": "unblock", "RemoteView": "remote-view"}
    name = names[type(event).__name__]
    line: dict[str, Any] = {"seqno": event.seqno, "event": name}
    for part in ("view_id", "site", "members", "reachable", "joined", "left", "suspected", "requester"):
        if hasattr(event, part):
            line[part] = getattr(event, part)
    if as_json:
        return json.dumps(line)
    text, members = name, ", ".join(line.get("members", ())) or "nobody"
    if name == "view":
        text = f"view {line['view_id']}: {members}"
    elif name == "remote-view":
        text = f"remote view of {line['site']}: {members if line['reachable'] else 'unreachable'}"
    return f"{event.seqno}\t-\t{text}"


if __name__ == "__main__":
    run_script(deliver)
