"""`abcast demo`: the whole pipeline on real input, what it survives, and a picture of the order.

It deletes only what a demo has made: its directory has a marker file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from jobs.demo.cast import OBSERVERS, DemoProcesses
from jobs.demo.member import PATIENCE_SECONDS
from jobs.demo.picture import DeliveryMark, Moment, Story, svg, terminal
from jobs.demo.processes import Started
from jobs.demo.sites import parse_names, show_sites
from jobs.demo.verdict import say, show_order, show_verdict
from jobs.terminal import interruption
from jobs.terminal.engine_option import Engine, EngineOption
from jobs.terminal.options import DEFAULT_DATA, EXIT_ANOMALY, Data, require, run_script
from jobs.terminal.streaming import LOOK_S, STOPPING
from ordering.base.errors import AbcastError, NotOrderedInTime, UsageError

if TYPE_CHECKING:
    from connectors.kafka.connection.connection import Connection

EARTHQUAKES = Path(__file__).resolve().parent / "earthquakes" / "earthquakes.jsonl"
GROUP, SITE = "demo", "local"
MARKER = ".made-by-abcast-demo"
SUSPECT_AFTER_MS = 4000
"""The silence after which a member is suspected: short, so that the audience sees a killed one leave the view."""

SPEAKING_SECONDS = 18.0
"""The time over which the members spread their messages."""

KILLED_AFTER = 0.15
"""The share of the messages after whose delivery the sequencer is killed."""

DEFAULT_WIDTH = 100
LOOPBACK = "127.0.0.1"

_ABCAST = "abcast"
"""The module of the command."""

Lines = dict[str, list[bytes]]


class Mode(str, Enum):
    """The mode of the sites."""

    hub = "hub"
    mesh = "mesh"
    isis = "isis"


class Survived(NamedTuple):
    """The moments of the kills, and their effects on the observers, in sentences."""

    moments: list[Moment]
    sentences: list[str]


def demo(
    input_file: Annotated[
        Path | None, typer.Option("--input", help="A text file with a message a line (default: the earthquake feed).")
    ] = None,
    members: Annotated[int, typer.Option(min=1, max=200, help="Members that share the lines of --input.")] = 4,
    data: Data = DEFAULT_DATA,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the embedded broker; 0 takes a free one.")] = 0,
    engine: EngineOption = Engine.spark,
    site_names: Annotated[
        str | None, typer.Option("--sites", metavar="NAME,NAME…", help="Show several sites, each on its own Kafka.")
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="With --sites: one order, decided at the first (hub) or agreed on (isis), or one a site (mesh). (hub)"
        ),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="At the end, keep the broker, the jobs and their page up until Ctrl-C.")
    ] = False,
) -> None:
    """Show everything at work, on an embedded broker.

    Members broadcast, observers deliver, and the checker judges.

    Without --input, the 12 seismic networks of a week's earthquake feed broadcast their 1,707 reports at the same
    time, and 3 observers must see them in the same order. During that, the demo kills the sequencer (kill -9) and
    restarts it, and kills a member. A page shows the order as it comes: the demo prints its address. At the end it
    stops everything; the files stay, with a picture among them. With --sites nyc,sfo, it deals the members to the
    sites, and cuts and heals the link between them. Of three sites or more that agree (--mode isis), it cuts the last
    one off.
    """
    require("pyspark")
    if "ABCAST_LOG_LEVEL" not in os.environ:
        logging.getLogger().setLevel(logging.WARNING)  # resends of members, say, are expected here
    lines = _read_earthquakes() if input_file is None else _read_lines(input_file, members)
    began = time.monotonic()
    names = None if site_names is None else parse_names(site_names)
    if names is None and mode is not None:
        raise UsageError(f"--mode {mode.value} is for a demo of several sites: name them, as with --sites nyc,sfo.")
    if names is not None and (port or stay):
        raise UsageError("--port and --stay are for a demo of one site: omit them, or omit --sites.")
    if stay:
        require("prometheus_client")
    if not isinstance(data, Path):
        raise UsageError(f"the demo works in a directory, not in {data}.")
    directory = _empty_directory(data)
    if names is not None:
        has_anomalies = show_sites(list(lines.values()), names, (mode or Mode.hub).value, directory, engine)
        typer.echo(f"the sites: {directory / 'sites.toml'}; broker data and logs: {directory}/SITE/broker")
    else:
        has_anomalies = _show(lines, directory, port, engine, is_feed=input_file is None, stay=stay)
    say(f"done in {time.monotonic() - began:.0f} s; everything is stopped")
    if has_anomalies:
        raise typer.Exit(EXIT_ANOMALY)


def _empty_directory(data: Path) -> Path:
    """Return the demo's directory, after deleting an earlier demo's files. Raises UsageError."""
    from connectors.local.broker import EmbeddedBroker

    directory = (data / "demo").absolute()
    if directory.exists():
        if not (directory / MARKER).exists():
            raise UsageError(
                f"{directory} is not from a demo, and is not deleted: choose another --data, or move it away."
            )
        # A broker that a killed demo left behind would hold on to the files.
        for left in (directory, *directory.glob("*/")):
            with contextlib.suppress(AbcastError):
                EmbeddedBroker(left / "broker").stop()
        shutil.rmtree(directory)
    try:
        directory.mkdir(parents=True)
        (directory / MARKER).touch()
    except OSError as error:
        raise UsageError(f"{directory} can't be written: {error.strerror}.") from error
    return directory


def _show(lines: Lines, directory: Path, port: int, engine: Engine, *, is_feed: bool, stay: bool) -> bool:
    """Run the demo of one site; return whether there are anomalies. `stay`: wait for Ctrl-C before all is stopped."""
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.topics.settings import change_settings
    from connectors.kafka.topics.topics import create_topics
    from connectors.local.broker import EmbeddedBroker

    with EmbeddedBroker(directory / "broker", port) as broker:
        connection = Connection(broker.bootstrap_servers, timeout=PATIENCE_SECONDS)
        create_topics(connection, GROUP, [SITE])
        change_settings(connection, GROUP, SITE, suspect_after_ms=SUSPECT_AFTER_MS)
        say(f"broker at {broker.bootstrap_servers}; topics of group {GROUP!r} created")
        say(
            "starting the sequencer and the ledger in Spark; that takes about 10 s …"
            if engine is Engine.spark
            else "starting the sequencer, a Python process; the ledger follows in Spark …"
        )
        jobs = _Jobs(connection, directory, engine)
        try:
            jobs.await_ready()
            if jobs.page:
                say(f"the order as it comes: {jobs.page}")
            with DemoProcesses(connection, GROUP, SITE, lines, directory / "member.log") as cast:
                survived, last = _perform(cast, jobs)
                _await_ledger(directory / "ledger", last)
            has_anomalies = _conclude(connection, directory, cast, survived, last, is_feed=is_feed)
            if stay:
                _stay(connection, jobs)
            return has_anomalies
        except KeyboardInterrupt:
            say("stopping …")
            raise
        finally:
            jobs.stop()


def _stay(connection: Connection, jobs: _Jobs) -> None:
    """Wait for Ctrl-C. Raises EnvironmentProblem if a job ends."""
    interruption.stop_when_asked(STOPPING)
    say(f"{jobs.page} stays, until Ctrl-C. Publish something, in another terminal:")
    typer.echo(f"    seq 100 | abcast publish --bootstrap-servers {connection.bootstrap_servers} -g {GROUP} -m you")
    while not interruption.is_asked_to_stop():
        jobs.check()
        time.sleep(LOOK_S)


class _Jobs:
    """The sequencer, which can be killed, and the ledger: one process with Spark, two with the other engine."""

    def __init__(self, connection: Connection, directory: Path, engine: Engine) -> None:
        self._directory = directory
        self._common = ["--bootstrap-servers", connection.bootstrap_servers, "--site", SITE, "--data", str(directory)]
        self._listen: list[str] = []
        self.page = ""
        """The address of the sequencer's page; "" if the extra for it is not installed."""
        if importlib.util.find_spec("prometheus_client") is not None:
            port = _free_port()
            self.page, self._listen = f"http://localhost:{port}", ["--listen", str(port), "--listen-payloads"]
        self._command = ["run"] if engine is Engine.spark else ["sequence", "--engine", "process"]
        self._engine = engine
        self._ledger: Started | None = None
        self._sequencer = self._started(*self._command, *self._listen)

    def _started(self, *command: str) -> Started:
        return Started(_ABCAST, [*command, *self._common], self._directory / f"{command[0]}.log")

    def await_ready(self) -> None:
        """Wait until the sequencer works. Raises EnvironmentProblem."""
        self._sequencer.await_ready(PATIENCE_SECONDS)

    def start_the_ledger(self) -> None:
        """Start the ledger as a process, unless the sequencer's Spark runs it. Does not wait until it is ready."""
        if self._engine is Engine.process:
            self._ledger = self._started("ledger")

    def check(self) -> None:
        """Raise EnvironmentProblem if a job has ended."""
        for job in self._all():
            job.check()

    def kill_the_sequencer(self) -> None:
        """Kill the sequencer (kill -9), and start another, which goes on some seconds later."""
        self._sequencer.kill()
        self._sequencer = self._started(*self._command, *self._listen)

    def stop(self) -> None:
        """Stop the jobs in order."""
        for job in self._all():
            job.stop()

    def _all(self) -> list[Started]:
        return [self._sequencer, *([self._ledger] if self._ledger is not None else [])]


def _free_port() -> int:
    """Return a port of this machine that is free, for each sequencer in turn."""
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


def _perform(cast: DemoProcesses, jobs: _Jobs) -> tuple[Survived, int]:
    """Let all members send, and kill the sequencer and a member; return the effects, and the last seqno."""
    total = sum(map(len, cast.lines.values()))
    first = cast.observers[OBSERVERS[0]]
    say(f"{len(cast.lines)} members join, and broadcast {total} messages; {len(OBSERVERS)} observers deliver")
    cast.speak(SPEAKING_SECONDS)
    jobs.start_the_ledger()
    moments, sentences = [], []
    with _progress(cast, total, jobs.check) as show:
        cast.wait(lambda: len(first.taken) >= max(1, total * KILLED_AFTER), "the first were delivered", show)
        epoch, before = first.taken[-1].epoch, time.monotonic()
        say("kill -9 to the sequencer; another one is started …")
        jobs.kill_the_sequencer()
        cast.wait(lambda: first.taken[-1].epoch > epoch, "the next sequencer ordered something", show)
        cast.go_on()
        number, after = next((n, d) for n, d in enumerate(first.taken) if d.epoch > epoch)
        silent = first.times[number] - before
        moments.append(Moment(after.seqno, f"sequencer killed; the next one after {silent:.1f} s"))
        sentences.append(
            f"kill -9 of the sequencer: the next one went on {silent:.1f} s later, with seqno {after.seqno}, "
            f"in epoch {after.epoch} after {epoch}"
        )
        if cast.mortal is not None:
            say(f"kill -9 to the member {cast.mortal} …")
            view, took = cast.kill_the_mortal(show)
            had = sum(delivery.sender == cast.mortal for delivery in first.taken)
            cast.unsaid = len(cast.lines[cast.mortal]) - had
            moments.append(Moment(view.seqno, f"{cast.mortal} killed; out of the view after {took:.1f} s"))
            sentences.append(
                f"kill -9 of the member {cast.mortal}: view {view.view_id} without it came {took:.1f} s later, "
                f"at seqno {view.seqno}, after {had} of its {len(cast.lines[cast.mortal])} messages"
            )
        last = cast.await_end(show)
        show()
    return Survived(moments, sentences), last


def _read_earthquakes() -> Lines:
    """Return the reports by network, in the order of the feed: each network broadcasts its own."""
    lines: Lines = {}
    for line in EARTHQUAKES.read_bytes().splitlines():
        lines.setdefault(f"{SITE}/{json.loads(line)['network']}", []).append(line)
    return lines


def _read_lines(file: Path, members: int) -> Lines:
    """Return the lines of a file, dealt to the members in turn."""
    try:
        everything = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    if not everything:
        raise UsageError(f"{file} has no lines: a line is a message.")
    dealt = {f"{SITE}/member-{number + 1}": everything[number::members] for number in range(members)}
    return {member: some for member, some in dealt.items() if some}


@contextlib.contextmanager
def _progress(cast: DemoProcesses, total: int, check: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Show a bar for each observer; yield the function that checks and then updates the bars."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        tasks = {name: progress.add_task(f"{name} delivers", total=total) for name in cast.observers}

        def show() -> None:
            check()
            for name, task in tasks.items():
                progress.update(task, completed=len(cast.observers[name].taken), total=total - cast.unsaid)

        yield show


def _await_ledger(path: Path, last: int) -> None:
    from connectors.ledger.table import read_table_state

    deadline = time.monotonic() + PATIENCE_SECONDS
    while read_table_state(path).last_seqno.get(GROUP, 0) < last:
        if time.monotonic() > deadline:
            raise NotOrderedInTime(f"the ledger did not reach seqno {last} in {PATIENCE_SECONDS:g} s.")
        time.sleep(0.2)


def _conclude(
    connection: Connection, directory: Path, cast: DemoProcesses, survived: Survived, last: int, *, is_feed: bool
) -> bool:
    """Show the order, the picture, the verdict and a query; return whether there are anomalies."""
    from connectors.diagnosis.check import check_data, check_ledger
    from ordering.base.records import MessageId
    from ordering.checker.checker import Checker

    observed = {name: [d for d in observer.taken if d.seqno <= last] for name, observer in cast.observers.items()}
    marks = {name: [DeliveryMark(d.seqno, d.sender) for d in deliveries] for name, deliveries in observed.items()}
    story = Story(marks, survived.moments)
    picture = directory / "order.svg"
    picture.write_text(svg(story, f"One order of {len(story.order):,} messages"), encoding="utf-8")
    say(f"a part of the order, as {len(observed)} observers saw it (all of it: {picture})")
    width = shutil.get_terminal_size((DEFAULT_WIDTH, 0)).columns if sys.stdout.isatty() else DEFAULT_WIDTH
    for line in terminal(story, width, survived.moments[0].seqno):
        typer.echo(line)
    checker = Checker()
    check_data(checker, connection, GROUP, SITE)
    check_ledger(checker, directory / "ledger", GROUP)
    for name, deliveries in observed.items():
        for d in deliveries:
            checker.delivery(name, d.seqno, MessageId(d.sender, d.incarnation, d.local_seqno), d.payload)
    for receipt in cast.receipts:
        checker.sent(receipt.message_id)
    say("the whole order:")
    show_order(observed)
    say("what it survived:")
    for sentence in survived.sentences:
        typer.echo(f"    {sentence}")
    anomalies = checker.finish()
    show_verdict(anomalies)
    _query(directory, is_feed=is_feed)
    return bool(anomalies)


def _query(directory: Path, *, is_feed: bool) -> None:
    """Run queries over the ledger and show their answers."""
    from connectors.ledger.query.sql import question
    from jobs.terminal.rows import show_table

    queries: Mapping[str, str] = {
        "messages per member": "SELECT sender, count(*) AS messages, min(seqno) AS first, max(seqno) AS last "
        "FROM ledger WHERE kind = 'message' GROUP BY sender ORDER BY messages DESC, sender"
    }
    if is_feed:
        quake = "SELECT seqno, text(payload)->>'magnitude' AS magnitude, text(payload)->>'place' AS place FROM ledger "
        strongest = "WHERE kind = 'message' ORDER BY CAST(magnitude AS DOUBLE) DESC, seqno LIMIT 3"
        queries = {"the strongest quakes": quake + strongest, "reports per network": queries["messages per member"]}
    with question(directory) as asked:
        for title, sql in queries.items():
            say(f"from the Delta table: {title}")
            answer = asked.ask(sql)
            show_table(answer.columns, answer.rows, sys.stdout)
    typer.echo()
    typer.echo(f"Delta tables: {directory / 'ledger'}; broker data and logs: {directory / 'broker'}")
    typer.echo(f'  abcast query --data {directory} "SELECT seqno, sender FROM ledger ORDER BY seqno LIMIT 5"')


if __name__ == "__main__":
    run_script(demo)
