"""`abcast publish`: each line of a file or of standard input, or the whole of it, is one message."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.login.configuration import configured
from jobs.terminal.input import Header, Whole, opened, parsed_headers, payloads_of
from jobs.terminal.interruption import EXIT_INTERRUPTED, tell
from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Member, connection_to, run_script
from jobs.terminal.progress import Progress
from ordering.base.errors import AbcastError, NotOrderedInTime, UsageError, counted
from ordering.base.names import DEFAULT_SITE, Address

if TYPE_CHECKING:
    from connectors import Member as MemberClient
    from connectors import Receipt


def publish(
    group: Group,
    member: Member,
    file: Annotated[
        Path | None, typer.Argument(help="A file with one message a line; default: standard input.")
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    outbox: Annotated[
        Path | None,
        typer.Option(help="Keep the forward table in this file, so that a crash loses no accepted message."),
    ] = None,
    header: Header = None,
    whole: Whole = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for all messages to be ordered.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Broadcast each line, or all of the input, as one message.

    It ends when all messages are ordered, and prints the last seqno:
    `seq 1000 | abcast publish --group orders --member nyc/alice`. If it ends early, it says how many were ordered.
    """
    from connectors import Member as MemberClient

    address = Address.parse(member, configured("site", DEFAULT_SITE))
    connection = connection_to(bootstrap_servers, kafka_config, str(address))
    published = _Published(timeout, parsed_headers(header or ()))
    with opened(file) as lines:
        try:
            payloads = payloads_of(lines, is_whole=whole)
            with MemberClient(group, str(address), connection=connection, outbox=outbox) as client:
                published.publish(client, payloads, is_whole=whole)
        except KeyboardInterrupt:
            rest = "the rest may still be" if outbox is None else f"the next start sends the messages in {outbox}"
            tell(f"interrupted: {published}{f'; {rest}' if published.is_waiting else ''}")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except NotOrderedInTime as error:
            raise NotOrderedInTime(f"{published} within {timeout:g} s. {_why(client, address)}") from error
        except AbcastError as error:
            if published.sent:
                typer.echo(f"abcast: {published}", err=True)
            raise error from None
    if as_json:
        row = {"group": group, "member": str(address), "messages": published.sent, "last_seqno": published.last_seqno}
        typer.echo(json.dumps(row))
    else:
        typer.echo(published if published.sent else "no messages")


class _Published:
    """Broadcasts lines, and counts the messages sent and ordered. A sender's messages are ordered as they were sent."""

    def __init__(self, timeout: float, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        self.sent = self.ordered = 0
        self.last_seqno: int | None = None
        self._timeout, self._headers = timeout, headers
        self._waiting: deque[Receipt] = deque()

    def __str__(self) -> str:
        self._settle()
        if not self.sent:
            return "nothing was sent"
        messages = f"{counted(self.sent, 'message')} ordered"
        if not self.is_waiting:
            return f"{messages}, last seqno {self.last_seqno}"
        behind = f", last seqno {self.last_seqno}" if self.ordered else ""
        return f"{self.ordered} of {messages}{behind}"

    @property
    def is_waiting(self) -> bool:
        """Whether some messages are not known to be ordered."""
        return self.ordered < self.sent

    def publish(self, client: MemberClient, payloads: Iterable[bytes], *, is_whole: bool) -> None:
        """Broadcast all payloads, and wait until they are ordered. Raises NotOrderedInTime.

        At a line that can't be sent, wait for the lines before it, then raise UsageError.
        """
        refused: UsageError | None = None
        with Progress("publishing") as progress:
            for number, payload in enumerate(payloads, 1):
                try:
                    self._waiting.append(client.broadcast(payload, self._headers, self._timeout))
                except UsageError as error:
                    refused = error if is_whole else UsageError(f"line {number}: {error}")
                    break
                self.sent += 1
                self._settle()
                progress.advance()
        with Progress("waiting until all are ordered", self.sent, ask=lambda: self.ordered):
            deadline = time.monotonic() + self._timeout
            while self._waiting:
                self._waiting[0].result(timeout=max(0.0, deadline - time.monotonic()))
                self._settle()
        if refused is not None:
            raise refused

    def _settle(self) -> None:
        while self._waiting and self._waiting[0].done() and self._waiting[0].exception() is None:
            self.last_seqno = self._waiting.popleft().result()
            self.ordered += 1


def _why(client: MemberClient, address: Address) -> str:
    from connectors.kafka.log.liveness import say_why

    why = say_why(client.connection, client.group, address.site)
    return (
        why or "Its sequencer is alive: the rest may still be ordered, so look at `abcast status` before you repeat it."
    )


if __name__ == "__main__":
    run_script(publish)
