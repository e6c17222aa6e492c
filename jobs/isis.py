"""`abcast isis`: total order among plain processes, by agreement over UDP."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal import interruption
from jobs.terminal.options import AsJson, run_script

if TYPE_CHECKING:
    from connectors.isis.machine import Event
    from connectors.isis.process import IsisProcess

IN_FLIGHT_MESSAGES = 4_096
"""The most messages that are handed to the process and not ordered yet."""


def isis(
    hostfile: Annotated[
        Path,
        typer.Option(
            "--hostfile", "-f", help="The processes, a line each, HOST or HOST:PORT. All processes need the same file."
        ),
    ],
    process_id: Annotated[int, typer.Option("--id", "-i", min=0, help="The line of this process, from 0.")],
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="The number of messages to multicast.")],
    port: Annotated[
        int | None, typer.Option("--port", "-p", min=1, max=65_535, help="The port of lines without one.")
    ] = None,
    delays: Annotated[
        bool, typer.Option("--delays", "-d", help="Delay some datagrams by a random time, to stress the algorithm.")
    ] = False,
    drop: Annotated[float, typer.Option(min=0, max=0.9, help="Lose this share of the datagrams on purpose.")] = 0.0,
    repeat: Annotated[float, typer.Option(min=0, max=1, help="Send this share of the datagrams twice.")] = 0.0,
    suspect_after: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds of silence after which a process is suspected.")
    ] = 2.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Report events on standard error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Agree on one order with other processes, without Kafka.

    It needs no sequencer and no JVM: the processes run the ISIS algorithm over UDP. All processes are equal. Start them
    in any order; the first message is delivered when all have started once. Each prints its deliveries, and runs until
    Ctrl-C:

        0: Processed message 3 from sender 1 with seq (17, 2)

    Message 3 of process 1 has the number 17, proposed by process 2. All print the same lines in the same order.

    If a process is silent, the others agree on a view without it and go on, if they are more than half of the last
    view. Fewer wait, and say so. A restarted process joins, and prints the deliveries that it missed.

    Example: write the lines 127.0.0.1:7001, 127.0.0.1:7002 and 127.0.0.1:7003 to a file `hosts`, and run in three
    terminals, with N replaced by 0, 1 and 2: `abcast isis --hostfile hosts --id N --count 5`.
    """
    from connectors.isis.hostfile import read_hostfile
    from connectors.isis.process import DELAYS, Faults, IsisProcess, counted

    hosts = read_hostfile(hostfile, port)
    faults = Faults(drop=drop, repeat=repeat, delay=DELAYS.delay if delays else 0.0)
    process = IsisProcess(hosts, process_id, faults=faults, suspect_after_ms=int(suspect_after * 1_000))
    try:
        _run(process, process_id, count, verbose=verbose, as_json=as_json)
    except KeyboardInterrupt:
        interruption.taken()
    finally:
        process.close()
        if verbose:
            for line in counted(process):
                typer.echo(f"{process_id}: {line}", err=True)


def _run(process: IsisProcess, process_id: int, count: int, *, verbose: bool, as_json: bool) -> None:
    sent, reported = 0, set[str]()
    while True:
        while sent < count and process.process.in_flight < IN_FLIGHT_MESSAGES:
            sent += 1
            process.submit(b"message %d of process %d" % (sent, process_id))
        events = process.work()
        for why in process.rejected.keys() - reported:
            reported.add(why)
            typer.echo(f"{process_id}: dropping datagrams {why} (said once)", err=True)
        if events:
            for event in events:
                _say(process_id, event, verbose=verbose, as_json=as_json)
            sys.stdout.flush()


def _say(process_id: int, event: Event, *, verbose: bool, as_json: bool) -> None:
    from connectors.isis.machine import BegunAgain
    from ordering.agreement.history import Gone
    from ordering.agreement.messages import DeliverRun, Installed, Stuck

    if isinstance(event, DeliverRun):
        sender, proposer = int(event.sender.name), int(event.proposer.name)
        if as_json:
            row = {"process": process_id, "number": event.number, "sender": sender, "seq": [event.key, proposer]}
            sys.stdout.write(json.dumps(row) + "\n")
            return
        seq = f"({event.key}, {proposer})"
        sys.stdout.write(f"{process_id}: Processed message {event.number} from sender {sender} with seq {seq}\n")
        return
    if isinstance(event, Gone):
        text = f"missed deliveries {event.first} to {event.last}: no process keeps them any more"
    elif isinstance(event, Stuck):
        here, all_of_it = len(event.reached), len(event.view.members)
        text = f"waiting: {here} of the {all_of_it} processes of view {event.view.id} answer, {event.needed} are needed"
    elif isinstance(event, BegunAgain):
        text = "the others know a later start of this process: did the clock go back? It begins again, as a later one"
    elif not verbose:
        return
    else:
        members = ", ".join(str(int(member.name)) for member in event.view.members)
        text = f"view {event.view.id}: {members}" + ("" if isinstance(event, Installed) else " (joining)")
    typer.echo(f"{process_id}: {text}", err=True)


if __name__ == "__main__":
    run_script(isis)
