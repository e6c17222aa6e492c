"""`abcast send` and `abcast inbox`: letters, from one member to another."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.login.configuration import configured
from jobs.terminal import interruption
from jobs.terminal.input import Header, Whole, opened, parsed_headers, payloads_of
from jobs.terminal.options import AsJson, BootstrapServers, Group, KafkaConfig, Member, connection_to
from jobs.terminal.progress import Progress
from jobs.terminal.rows import as_text, harmless, json_entry, json_line
from ordering.base.errors import AbcastError, NotWrittenInTime, UsageError, counted
from ordering.base.names import DEFAULT_SITE, Address

if TYPE_CHECKING:
    from connectors import Letter
    from connectors.client.values.letter import LetterReceipt


def send(
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The receiver, SITE/NAME, or NAME at your site.")],
    group: Group,
    member: Member,
    file: Annotated[Path | None, typer.Argument(help="A file with one letter a line; default: standard input.")] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    header: Header = None,
    whole: Whole = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for all letters to be written.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Send each line, or all of the input, to one member.

    `echo hello | abcast send bob --group orders --member alice`. A letter needs no sequencer, and has no seqno: only
    its receiver gets it, from `abcast inbox` or `Member.inbox()`, now or when it runs again. One sender's letters
    arrive in order, each once. The command ends when all of them are written. If it ends early, it says how many were.
    At a line that can't be sent it ends after the lines before it.
    """
    from connectors import Member as MemberClient

    address = Address.parse(member, configured("site", DEFAULT_SITE))
    to, headers = Address.parse(receiver, address.site), parsed_headers(header or ())
    connection = connection_to(bootstrap_servers, kafka_config, str(address))
    waiting: deque[LetterReceipt] = deque()
    sent = 0

    def written() -> int:
        while waiting and waiting[0].done() and waiting[0].exception() is None:
            waiting.popleft()
        return sent - len(waiting)

    def so_far() -> str:
        done = written()
        return f"{'' if done == sent else f'{done} of '}{counted(sent, 'letter')} written"

    try:
        with opened(file) as lines, MemberClient(group, str(address), connection=connection) as client:
            refused: UsageError | None = None
            for number, payload in enumerate(payloads_of(lines, is_whole=whole), 1):
                try:
                    waiting.append(client.send(to, payload, headers, timeout))
                except UsageError as error:
                    refused = error if whole else UsageError(f"line {number}: {error}")
                    break
                sent += 1
                written()
            with Progress("waiting until all are written", sent, ask=written):
                deadline = time.monotonic() + timeout
                while waiting:
                    waiting[0].result(max(0.0, deadline - time.monotonic()))
                    written()
            if refused is not None:
                raise refused
    except NotWrittenInTime as error:
        raise NotWrittenInTime(
            f"{so_far()} within {timeout:g} s. See whether Kafka runs "
            "(`abcast doctor`). The rest may still be written, so ask the receiver before you repeat it."
        ) from error
    except (AbcastError, KeyboardInterrupt) as error:
        if sent:
            typer.echo(f"abcast: {so_far()}", err=True)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(interruption.EXIT_INTERRUPTED) from None
        raise
    row = {"group": group, "member": str(address), "receiver": str(to), "letters": sent}
    typer.echo(json.dumps(row) if as_json else f"{counted(sent, 'letter')} written to {to}" if sent else "no letters")


def inbox(
    group: Group,
    member: Member,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many letters.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="End after this many seconds without a letter.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End after the letters that are there at the start: --timeout 0.")
    ] = False,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Print all letters that are left again, also those taken before.")
    ] = False,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print the letters to a member, each sender's in order.

    It begins behind the last letter that the member's name took, and runs until Ctrl-C, unless --count, --timeout or
    --until-end ends it. A printed letter counts as taken: no other run under this name gets it. A line has sender and
    payload (`base64:…` if it is not text); one of --json has `sender`, `incarnation`, `local_seqno`, `payload` (or
    `payload_base64`), and `headers` if there are any.
    """
    from connectors import Member as MemberClient

    if until_end and timeout is not None:
        raise UsageError("--until-end is --timeout 0: give one of them.")
    address = Address.parse(member, configured("site", DEFAULT_SITE))
    connection = connection_to(bootstrap_servers, kafka_config, str(address))
    with MemberClient(group, str(address), connection=connection) as client:
        try:
            letters = client.inbox(0.0 if until_end else timeout, from_beginning=from_beginning)
            for number, letter in enumerate(letters, 1):
                typer.echo(_line(letter, as_json=as_json))
                letters.taken()  # printed already, as `echo` flushes
                if number == count:
                    break
        except KeyboardInterrupt:
            interruption.taken()


def _line(letter: Letter, *, as_json: bool) -> str:
    if not as_json:
        return f"{letter.sender}\t{harmless(as_text(letter.payload))}"
    line = {"sender": letter.sender, "incarnation": letter.incarnation, "local_seqno": letter.local_seqno}
    return json_line({**line, **dict([json_entry("payload", letter.payload)])}, letter.headers)
