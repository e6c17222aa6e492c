"""`abcast demo`: the whole pipeline on real input, with the verdict at the end."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.demo_sites import parse_names, show_sites
from jobs.demo_verdict import say, show_order, show_verdict
from jobs.options import DEFAULT_DATA, EXIT_ANOMALY, Data, run_script
from ordering.errors import AbcastError, NotOrderedInTime, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors import Delivery
    from connectors.kafka.connection import Connection

EARTHQUAKES = Path(__file__).resolve().parent / "earthquakes" / "earthquakes.jsonl"
GROUP, SITE = "demo", "local"
OBSERVERS = ("observer-1", "observer-2", "observer-3")
SHOWN_DELIVERIES = 5
PATIENCE_SECONDS = 180.0

Lines = dict[str, list[bytes]]


class Mode(str, Enum):
    """How sites are ordered."""

    hub = "hub"
    mesh = "mesh"


def demo(
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Any text file, a line a message (default: the earthquake feed).")
    ] = None,
    members: Annotated[int, typer.Option(min=1, max=200, help="Members that share the lines of --input.")] = 4,
    data: Data = DEFAULT_DATA,
    port: Annotated[int, typer.Option(help="Port of the embedded broker; 0 takes a free one.")] = 0,
    site_names: Annotated[
        str | None, typer.Option("--sites", metavar="NAME,NAME…", help="Show several sites, each on its own Kafka.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="With --sites: one order, decided at the first (hub), or one a site (mesh).")
    ] = Mode.hub,
) -> None:
    """Run everything on an embedded broker: members broadcast, observers deliver, the checker judges.

    Without --input, the 12 seismic networks of a week's earthquake feed broadcast their 1,707 reports at the same
    time, and 3 observers must see them in the same order. Everything started is stopped at the end; the files stay.
    With --sites nyc,sfo the members are dealt to the sites, and the bridge between these is cut and healed.
    """
    lines = _read_earthquakes() if input_file is None else _read_lines(input_file, members)
    from connectors.kafka.connection import Connection
    from connectors.kafka.topics import create_topics
    from connectors.local.broker import EmbeddedBroker
    from connectors.spark.job import JobOptions
    from connectors.spark.session import build_session
    from jobs.streaming import await_ready, job_classes, running

    directory = (data / "demo").absolute()
    if directory.exists():
        # A broker that a killed demo left behind would hold on to the files.
        for left in (directory, *directory.glob("*/")):
            with contextlib.suppress(AbcastError):
                EmbeddedBroker(left / "broker").stop()
        shutil.rmtree(directory)
    started = time.monotonic()
    if site_names is not None:
        directory.mkdir(parents=True)
        anomalies = show_sites(list(lines.values()), parse_names(site_names), mode.value, directory)
        typer.echo(f"the sites: {directory / 'sites.toml'}; broker data and logs: {directory}/SITE/broker")
        say(f"done in {time.monotonic() - started:.0f} s; everything is stopped")
        if anomalies:
            raise typer.Exit(EXIT_ANOMALY)
        return
    with EmbeddedBroker(directory / "broker", port) as broker:
        connection = Connection(broker.bootstrap_servers)
        create_topics(connection, GROUP, [SITE])
        say(f"broker at {broker.bootstrap_servers}; topics of group {GROUP!r} created")
        say("starting Spark: sequencer and ledger (about 10 s) …")
        spark = build_session("abcast demo")
        try:
            with running(job_classes(["sequence", "ledger"]), spark, JobOptions(connection, SITE, directory)) as jobs:
                await_ready(jobs)
                total = sum(map(len, lines.values()))
                say(f"{len(lines)} members broadcast {total} messages, {len(OBSERVERS)} observers deliver")
                observed = _broadcast_and_observe(connection, lines, total)
                _await_ledger(directory / "ledger", total)
            anomalies = _verdict(connection, directory, observed, lines)
            _query(spark, directory, earthquakes=input_file is None)
        finally:
            spark.stop()
    typer.echo()
    typer.echo(f"Delta tables: {directory / 'ledger'}; broker data and logs: {directory / 'broker'}")
    typer.echo(f'  abcast query --data {directory} "SELECT seqno, sender FROM ledger ORDER BY seqno LIMIT 5"')
    say(f"done in {time.monotonic() - started:.0f} s; everything is stopped")
    if anomalies:
        raise typer.Exit(EXIT_ANOMALY)


def _read_earthquakes() -> Lines:
    """The reports by network, in the order of the feed: each network broadcasts its own."""
    lines: Lines = {}
    for line in EARTHQUAKES.read_bytes().splitlines():
        lines.setdefault(f"{SITE}/{json.loads(line)['network']}", []).append(line)
    return lines


def _read_lines(file: Path, members: int) -> Lines:
    """The lines of a file, dealt to the members in turn."""
    try:
        everything = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    if not everything:
        raise UsageError(f"{file} has no lines: a line is a message.")
    dealt = {f"{SITE}/member-{number + 1}": everything[number::members] for number in range(members)}
    return {member: some for member, some in dealt.items() if some}


def _broadcast_and_observe(connection: Connection, lines: Lines, total: int) -> dict[str, list[Delivery]]:
    """All members at once, each in a thread; returns what each observer delivered."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from connectors import Member

    observed: dict[str, list[Delivery]] = {name: [] for name in OBSERVERS}
    failures: list[BaseException] = []

    def broadcast(member: str, messages: Sequence[bytes]) -> None:
        with Member(GROUP, member, connection=connection) as client:
            receipts = [client.broadcast(message) for message in messages]
            receipts[-1].result(timeout=PATIENCE_SECONDS)

    def observe(name: str) -> None:
        with Member(GROUP, f"{SITE}/{name}", connection=connection) as client:
            for delivery in client.deliveries(timeout=PATIENCE_SECONDS):
                observed[name].append(delivery)
                if len(observed[name]) == total:
                    return
            raise NotOrderedInTime(f"{name} has {len(observed[name])} of {total} after {PATIENCE_SECONDS:g} s.")

    def guarded(work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(observe, name), daemon=True) for name in OBSERVERS]
    threads += [
        threading.Thread(target=guarded, args=(broadcast, member, messages), daemon=True)
        for member, messages in lines.items()
    ]
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        tasks = {name: progress.add_task(f"{name} delivers", total=total) for name in OBSERVERS}
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failures:
            time.sleep(0.1)
            for name, task in tasks.items():
                progress.update(task, completed=len(observed[name]))
        for name, task in tasks.items():
            progress.update(task, completed=len(observed[name]))
    if failures:
        raise failures[0]
    return observed


def _await_ledger(path: Path, total: int) -> None:
    from connectors.ledger.table import read_table_state

    deadline = time.monotonic() + PATIENCE_SECONDS
    while read_table_state(path).last_seqno.get(GROUP, 0) < total:
        if time.monotonic() > deadline:
            raise NotOrderedInTime(f"the ledger did not reach seqno {total} in {PATIENCE_SECONDS:g} s.")
        time.sleep(0.2)


def _verdict(connection: Connection, directory: Path, observed: dict[str, list[Delivery]], lines: Lines) -> bool:
    """Show the first deliveries, the digests and the checker's verdict; return whether there are anomalies."""
    from connectors.diagnosis.check import check_data, check_ledger
    from ordering.checker import Checker
    from ordering.records import MessageId

    checker = Checker()
    check_data(checker, connection, GROUP, SITE)
    check_ledger(checker, directory / "ledger", GROUP)
    for name, deliveries in observed.items():
        for d in deliveries:
            checker.delivery(name, d.seqno, MessageId(d.sender, d.incarnation, d.local_seqno), d.payload)
    incarnations = {d.sender: d.incarnation for d in observed[OBSERVERS[0]]}
    for member, messages in lines.items():
        for number in range(1, len(messages) + 1):
            checker.sent(MessageId(member, incarnations.get(member, 1), number))
    say("the first deliveries:")
    for d in observed[OBSERVERS[0]][:SHOWN_DELIVERIES]:
        typer.echo(f"    seqno {d.seqno}  {d.sender:<18} {d.payload[:72].decode('utf-8', 'replace')}")
    say("the order, as each observer saw it:")
    show_order(observed)
    anomalies = checker.finish()
    show_verdict(anomalies)
    return bool(anomalies)


def _query(spark: SparkSession, directory: Path, *, earthquakes: bool) -> None:
    """A Delta query over what was ordered."""
    queries = {
        "messages per member": "SELECT sender, count(*) AS messages, min(seqno) AS first, max(seqno) AS last "
        "FROM ledger GROUP BY sender ORDER BY messages DESC, sender"
    }
    if earthquakes:
        body = "CAST(payload AS STRING)"
        queries = {
            "the strongest quakes": f"SELECT seqno, get_json_object({body}, '$.magnitude') AS magnitude, "
            f"get_json_object({body}, '$.place') AS place FROM ledger "
            f"ORDER BY CAST(get_json_object({body}, '$.magnitude') AS DOUBLE) DESC, seqno LIMIT 3",
            "reports per network": queries["messages per member"],
        }
    spark.read.format("delta").load(str(directory / "ledger")).createOrReplaceTempView("ledger")
    for title, sql in queries.items():
        say(f"Delta: {title}")
        spark.sql(sql).show(20, truncate=60)


if __name__ == "__main__":
    run_script(demo)
