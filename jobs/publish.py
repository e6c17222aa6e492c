"""`abcast publish`: each line of a file, or of standard input, is one message."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from connectors.kafka.configuration import configured
from jobs.options import DEFAULT_BOOTSTRAP_SERVERS, AsJson, BootstrapServers, Group, Member, run_script
from jobs.progress import Progress
from ordering.errors import UsageError
from ordering.names import DEFAULT_SITE, Address


def publish(
    group: Group,
    member: Member,
    file: Annotated[Path | None, typer.Argument(help="One message a line; standard input if there is none.")] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    outbox: Annotated[
        Path | None, typer.Option(help="Keep the forward table in this file, so that a crash loses nothing accepted.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for all messages to be ordered.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Broadcast each line as one message; end when all are ordered, and print the last seqno.

    `seq 1000 | abcast publish --group orders --member nyc/alice`
    """
    from connectors import Member as MemberClient

    address = str(Address.parse(member, configured("site", DEFAULT_SITE)))
    count, receipt = 0, None
    with (
        MemberClient(group, address, bootstrap_servers=bootstrap_servers, outbox=outbox) as client,
        Progress("published") as progress,
    ):
        for line in _lines(file):
            receipt = client.broadcast(line, timeout=timeout)
            count += 1
            progress.advance()
        progress.say("waiting until all are ordered")
        seqno = receipt.result(timeout=timeout) if receipt else None
    if as_json:
        typer.echo(json.dumps({"group": group, "member": address, "messages": count, "last_seqno": seqno}))
    else:
        typer.echo(f"{count} messages ordered, last seqno {seqno}" if count else "no messages")


def _lines(file: Path | None) -> Iterator[bytes]:
    """The lines without their line ends."""
    try:
        stream = sys.stdin.buffer if file is None or str(file) == "-" else file.open("rb")
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    with stream:
        for line in stream:
            yield line.rstrip(b"\r\n")


if __name__ == "__main__":
    run_script(publish)
