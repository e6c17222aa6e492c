"""`abcast bench`: throughput and latency of the order on the user's own Kafka, beside two bare hops of the same Kafka.

A message goes from `broadcast` to FORWARD, from there through the sequencer to DATA, and from there to `deliveries`:
two hops of Kafka with a decision between them. The bare hops do the same with a plain producer, a copy and a plain
consumer. Both paths take turns, with the same client library, payloads and rate; sequencer and copy are processes of
their own. Sender and receiver are in this process, so one clock tells the latency.

A message's time begins when it was due, not when it was sent: a path that holds the sender up looks as slow as it is.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs.terminal.interruption import Held
from jobs.terminal.options import AsJson, BootstrapServers, KafkaConfig, Site, connection_to
from jobs.terminal.progress import Progress
from jobs.terminal.times import seconds
from ordering.base.errors import AbcastError, NotOrderedInTime, UsageError
from ordering.base.names import DEFAULT_SITE, Topic
from ordering.base.records import MAX_PAYLOAD_BYTES

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

    from connectors.kafka.connection.connection import Connection

_STAMP = struct.Struct(">q")
ROUNDS, WARM_UP_S = 2, 2.0
PATIENCE_S = 60.0
"""Seconds for the first message to be ordered, and for the last ones of a round to arrive."""
STOP_S = 10.0


class Figures(NamedTuple):
    """The figures of a path. `behind_ms`: the most that the sender was late. Latencies are in ms, from when a message
    was due to its arrival.
    """

    messages: int
    per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    behind_ms: float


class Window(NamedTuple):
    """A round of a path: latencies in ms, the seconds to the last arrival, and the sender's delay."""

    latencies: list[float]
    took_s: float
    behind_s: float


class MeasuredWay:
    """A way from a sender to a receiver: `send` takes a payload, `receive` yields the payloads that arrive."""

    def __init__(self, name: str, send: Callable[[bytes], object], receive: Iterator[bytes]) -> None:
        self.name = name
        self._send, self._receive = send, receive
        self._arrived: list[tuple[int, int]] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"abcast-bench-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for payload in self._receive:
                self._arrived.append((_STAMP.unpack_from(payload)[0], time.monotonic_ns()))
        except Exception as error:  # noqa: BLE001 - raised by `measure`
            self._failure = error

    def measure(self, rate: float, size: int, for_s: float) -> Window:
        """Send for so many seconds, and wait for the last arrival. `rate`: messages a second; 0: as many as go.

        Raises NotOrderedInTime if messages don't arrive, and the errors of both ends.
        """
        self._arrived.clear()
        filling, began_ns = b"x" * (size - _STAMP.size), time.monotonic_ns()
        count, behind_s = 0, 0.0
        while True:
            now_s = (time.monotonic_ns() - began_ns) / 1e9
            due_s = count / rate if rate else now_s
            if max(due_s, now_s) >= for_s:
                break
            if due_s > now_s:
                time.sleep(due_s - now_s)
            behind_s = max(behind_s, now_s - due_s)
            self._send(_STAMP.pack(began_ns + int(due_s * 1e9)) + filling)
            count += 1
        self.await_arrivals(count)
        latencies = [(arrived - due) / 1e6 for due, arrived in self._arrived]
        took_s = (self._arrived[-1][1] - began_ns) / 1e9 if self._arrived else for_s
        return Window(latencies, max(took_s, for_s), behind_s)

    def join(self) -> None:
        """Wait until the receiver has ended, which its owner has told it."""
        self._thread.join(STOP_S)

    def await_arrivals(self, count: int) -> None:
        """Wait until so many messages of this round have arrived. Raises as `measure` does."""
        waited, known = time.monotonic(), -1
        while len(self._arrived) < count:
            if self._failure is not None:
                raise self._failure
            if len(self._arrived) > known:
                waited, known = time.monotonic(), len(self._arrived)
            if time.monotonic() - waited > PATIENCE_S:
                raise NotOrderedInTime(f"{self.name}: {known:,} of {count:,} messages arrived, then none for a minute.")
            time.sleep(0.002)


def bench(
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0: as many as go.")] = 1000.0,
    size: Annotated[int, typer.Option(min=_STAMP.size, max=MAX_PAYLOAD_BYTES, help="Bytes of a payload.")] = 100,
    for_: Annotated[str, typer.Option("--for", help="The time to measure each of the two, such as 30s or 5m.")] = "30s",
    existing: Annotated[
        bool,
        typer.Option(
            "--existing", help="Let the sequencer decide that serves the site. A ledger there keeps the rows."
        ),
    ] = False,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=10, help="Copies of each partition (3, or as many as there are brokers).")
    ] = None,
    site: Site = DEFAULT_SITE,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Measure throughput and latency on your own Kafka.

    A message counts from broadcast to delivery. The command makes a group of its own, orders messages in it with a
    sequencer of its own (the process engine), and removes the group at the end, also after Ctrl-C. Beside it, it
    measures two bare hops of the same Kafka: a plain producer, a copy from topic to topic, a plain consumer. The ratio
    is the price of the order. Sender and receiver are members in this process. The load is real: choose a rate that the
    cluster can spare.
    """
    for_s = seconds(for_, "--for", 1)
    if not math.isfinite(rate):
        raise UsageError(f"--rate is {rate}: give a number.")
    connection = connection_to(bootstrap_servers, kafka_config, "bench")
    name = f"bench-{secrets.token_hex(4)}"
    at = site if existing else name
    typer.echo(f"group {name}: made at site {at}, and removed at the end", err=True)
    windows: dict[str, list[Window]] = {"kafka": [], "abcast": []}
    with ExitStack() as cleanup, Progress("preparing") as progress:
        copies = cleanup.enter_context(_topics(connection, name, (at, f"{name}-hops"), replication_factor))
        ways = {
            "kafka": cleanup.enter_context(_hops(connection, name, f"{name}-hops")),
            "abcast": cleanup.enter_context(_members(connection, name, at, is_served=existing)),
        }
        progress.say("warming up")
        for way in ways.values():
            way.measure(min(rate or 100.0, 1000.0), size, min(WARM_UP_S, for_s))
        for _ in range(ROUNDS):
            for key, way in ways.items():
                progress.say(f"measuring {way.name}")
                windows[key].append(way.measure(rate, size, for_s / ROUNDS))
        progress.say("removing the group")
    of_kafka, of_abcast = (_figures(each) for each in windows.values())
    row = {
        "group": name,
        "bootstrap_servers": connection.bootstrap_servers,
        "transport": connection.transport_in_use,
        "sequencer": "existing" if existing else "process",
        "replication_factor": copies,
        "rate": rate,
        "size": size,
        "seconds": for_s,
        "kafka": of_kafka._asdict(),
        "abcast": of_abcast._asdict(),
        "ratio": {key: getattr(of_abcast, key) / getattr(of_kafka, key) for key in ("per_s", "p50_ms", "p99_ms")},
    }
    if as_json:
        typer.echo(json.dumps(row))
    else:
        _show(row, of_kafka, of_abcast)


def _show(row: dict[str, Any], of_kafka: Figures, of_abcast: Figures) -> None:
    from jobs.terminal.rows import show_table

    shown = [
        (way, f"{each.per_s:,.0f}", *(f"{ms:.1f} ms" for ms in (each.p50_ms, each.p99_ms, each.max_ms)))
        for way, each in (("two bare hops of Kafka", of_kafka), ("abcast, broadcast to delivery", of_abcast))
    ]
    show_table(("way", "messages/s", "p50", "p99", "max"), shown, sys.stdout)
    ratio = row["ratio"]
    typer.echo(
        f"abcast takes {ratio['p50_ms']:.1f} times as long as the bare hops (p50; p99: {ratio['p99_ms']:.1f} times), "
        f"at {ratio['per_s']:.2f} times their rate"
    )
    for way, each in (("Kafka", of_kafka), ("abcast", of_abcast)):
        if row["rate"] and each.per_s < 0.95 * row["rate"]:
            late = f"the sender was {each.behind_ms:,.0f} ms late"
            typer.echo(f"{way} did not keep {row['rate']:,.0f} messages/s: {late}")


def _figures(windows: list[Window]) -> Figures:
    import numpy as np

    latencies = [each for window in windows for each in window.latencies]
    if not latencies:
        raise UsageError("no message was due in that time: take a higher --rate, or a longer --for.")
    p50, p99 = (float(each) for each in np.percentile(latencies, [50, 99]))
    per_s = len(latencies) / sum(window.took_s for window in windows)
    behind_ms = 1000 * max(window.behind_s for window in windows)
    return Figures(len(latencies), per_s, p50, p99, max(latencies), behind_ms)


@contextmanager
def _topics(connection: Connection, group: str, sites: tuple[str, ...], copies: int | None) -> Iterator[int]:
    """Create the group's topics; yield the number of copies; delete them."""
    from connectors.kafka.topics.topics import create_topics, delete_topics, find_topics

    if copies is None:
        with connection.admin() as admin:
            copies = min(3, len(admin.describe_cluster()["brokers"]))
    try:
        create_topics(connection, group, sites, 1, copies)
        yield copies
    finally:
        delete_topics(connection, [topic for topic in find_topics(connection) if topic.group == group])


@contextmanager
def _members(connection: Connection, group: str, site: str, *, is_served: bool) -> Iterator[MeasuredWay]:
    """Yield the way through the order."""
    from connectors import Member
    from connectors.kafka.log.liveness import say_why

    with ExitStack() as cleanup:
        if not is_served:
            cleanup.enter_context(_child(_sequence, connection, group, site))
        sender = cleanup.enter_context(Member(group, f"{site}/sender", connection=connection))
        receiver = cleanup.enter_context(Member(group, f"{site}/receiver", connection=connection))
        try:
            first = sender.broadcast(_STAMP.pack(0)).result(PATIENCE_S)
        except NotOrderedInTime as error:
            raise NotOrderedInTime(f"nothing was ordered. {say_why(connection, group, site)}".strip()) from error
        deliveries = receiver.deliveries(from_seqno=first + 1)
        yield MeasuredWay("abcast", sender.broadcast, (delivery.payload for delivery in deliveries))


@contextmanager
def _hops(connection: Connection, group: str, site: str) -> Iterator[MeasuredWay]:
    """Yield the way through two bare hops, with the settings of members."""
    from connectors.client.tail.sharing import BATCH_BYTES, LINGER_MS

    source, target = (str(Topic(group, role, site)) for role in ("forward", "data"))
    with ExitStack() as cleanup:
        cleanup.enter_context(_child(_copy, connection, source, target))
        producer = connection.producer(linger_ms=LINGER_MS, batch_size=BATCH_BYTES)
        cleanup.callback(producer.close, STOP_S)
        stopping = threading.Event()
        way = MeasuredWay("Kafka", lambda payload: producer.send(source, payload), _read(connection, target, stopping))
        cleanup.callback(way.join)
        cleanup.callback(stopping.set)
        producer.send(source, _STAMP.pack(0))
        way.await_arrivals(1)
        yield way


def _read(connection: Connection, topic: str, stopping: threading.Event) -> Iterator[bytes]:
    """Yield the values of a topic's only partition as they come."""
    from kafka.structs import TopicPartition

    place = TopicPartition(topic, 0)
    with contextlib.closing(connection.consumer()) as consumer:
        consumer.assign([place])
        consumer.seek(place, 0)
        while not stopping.is_set():
            for record in consumer.poll(timeout_ms=100).get(place, ()):
                yield record.value or b""


@contextmanager
def _child(target: Callable[..., None], connection: Connection, *arguments: str) -> Iterator[None]:
    """Run `target(connection, *arguments, pipe)` in a process of its own. It says "" once it is ready, or its error; a
    closed pipe ends it, also after a kill of this process.
    """
    import multiprocessing
    from multiprocessing.resource_tracker import ensure_running

    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    bare = replace(connection, waiting=_in_silence)
    child = spawning.Process(target=_work, args=(target, bare, arguments, theirs), daemon=True)
    with contextlib.closing(ours):
        ensure_running()  # it would let the signals through again
        kept = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            with Held():  # a half-started child would end with a stack trace
                child.start()  # with the signals blocked: a terminal sends them to it, too
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, kept)
        theirs.close()
        try:
            if problem := _said(ours):
                raise AbcastError(problem)
            yield
        finally:
            ours.close()
            child.join(STOP_S)
            if child.is_alive():
                child.kill()


def _said(pipe: Pipe) -> str:
    """Return "" if the child is ready, else the sentence of its error."""
    try:
        return str(pipe.recv()) if pipe.poll(PATIENCE_S) else "a process of the measurement does not begin."
    except (EOFError, OSError):
        return "a process of the measurement has ended."


def _work(target: Callable[..., None], connection: Connection, arguments: tuple[str, ...], pipe: Pipe) -> None:
    """Do the work of a child, and say the error that ends it to the parent; not if that is gone."""
    with contextlib.suppress(OSError):
        try:
            target(connection, *arguments, pipe)
        except AbcastError as error:
            pipe.send(str(error))


def _in_silence(_: str) -> AbstractContextManager[object]:
    return nullcontext()


def _sequence(connection: Connection, group: str, site: str, pipe: Pipe) -> None:
    """Order the group in this process."""
    from connectors.engine.job import EngineJob
    from connectors.engine.options import EngineOptions
    from connectors.kafka.groups.group_choice import GroupChoice
    from jobs.terminal.engine_option import tune
    from jobs.terminal.streaming import working

    tune()
    with working([EngineJob(EngineOptions(connection, site, groups=GroupChoice.parse(group)))]) as [job]:
        pipe.send("")
        while not job.done.is_set() and not pipe.poll(0.5):  # it is closed at the end
            pass


def _copy(connection: Connection, source: str, target: str, pipe: Pipe) -> None:
    """Copy records from topic to topic in this process, as they come, with the process engine's settings of Kafka."""
    from kafka.structs import TopicPartition

    from connectors.engine.intake import POLL_RECORDS

    place, producer = TopicPartition(source, 0), connection.producer(linger_ms=0)
    reading = connection.consumer(max_poll_records=POLL_RECORDS, isolation_level="read_committed")
    with contextlib.closing(reading) as consumer:
        consumer.assign([place])
        consumer.seek(place, 0)
        pipe.send("")
        while not pipe.poll():
            for record in consumer.poll(timeout_ms=100).get(place, ()):
                producer.send(target, value=record.value, partition=0)
    producer.close(STOP_S)
