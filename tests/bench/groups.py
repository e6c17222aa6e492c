"""Many groups of one job: a thousand with a message a second each, and a few that are hot.

The process engine, and Spark on this machine and on a standalone cluster of two workers, each deciding one group and
two at a time. The same topics serve all of them, one after the other: each start takes the groups over.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.codec import forward_headers
from connectors.kafka.connection import Connection
from connectors.kafka.topics import new_topic
from connectors.kafka.transport import VARIABLE, Consumer
from ordering.names import Role, Topic
from tests.bench.lab import ABCAST, Lab, Place
from tests.bench.latency import summary
from tests.bench.load import PAYLOAD_BYTES, Pace, sent_at, stamped_payload
from tests.bench.processes import Child, cpu_seconds, cpu_since
from tests.spark.standalone import LOOPBACK, Master, master, submit_line, worker

PARALLELISM = (1, 2)
_TRANSPORT = "confluent"
_CREATED_AT_ONCE = 100
_ROLES: tuple[Role, ...] = ("forward", "data", "epoch", "dead-letter")
_PATIENCE_S = 120.0
_SETTLE_S = 1.0


class Way(NamedTuple):
    """What decides. `where`: "process", "local" (Spark on this machine) or "two workers"."""

    where: str
    parallelism: int


WAYS = (Way("process", 1), *(Way(where, count) for where in ("local", "two workers") for count in PARALLELISM))


def measure(lab: Lab) -> list[dict[str, Any]]:
    """For each way, what many groups get and what hot ones get."""
    plan, rows = lab.plan, []
    lab.environment[VARIABLE] = _TRANSPORT
    try:
        lab.say(f"groups: making topics of {plan.many_groups:,} groups, and of {plan.hot_groups} hot ones")
        many, hot = _places(lab, "many", plan.many_groups), _places(lab, "hot", plan.hot_groups)
        with _cluster(lab) as cluster, contextlib.closing(_Senders(lab, [*many, *hot])) as senders:
            for way in WAYS:
                lab.say(f"groups: {way.where}, {way.parallelism} at a time")
                rows.append(
                    {
                        **way._asdict(),
                        "many": _steady(lab, cluster, way, many, senders),
                        "hot": _drain(lab, cluster, way, hot, senders),
                    }
                )
    finally:
        del lab.environment[VARIABLE]
    return rows


def _places(lab: Lab, name: str, count: int) -> list[Place]:
    """Groups at a site of their own, with the topics that a sequencer has to do with. They go with the broker."""
    places = [Place(f"{name}-{number}", f"{name}-site") for number in range(count)]
    with lab.connection.admin() as admin:
        for some in (places[first : first + _CREATED_AT_ONCE] for first in range(0, count, _CREATED_AT_ONCE)):
            topics = [Topic(place.group, role, place.site) for place in some for role in _ROLES]
            admin.create_topics([new_topic(topic) for topic in topics])
            admin.wait_for_topics(list(map(str, topics)))
    return places


class _Cluster(NamedTuple):
    """`workers`: the processes below which executors run."""

    line: str
    workers: Sequence[int]


@contextlib.contextmanager
def _cluster(lab: Lab) -> Iterator[_Cluster]:
    """A master and two workers with a core each, all the time: they are idle while nothing is submitted."""
    directory = lab.path("cluster")
    directory.mkdir()
    with master(directory) as where, worker(where, "one") as one, worker(where, "two") as two:
        yield _Cluster(_submit(where), [one.pid, two.pid])


def _submit(where: Master) -> str:
    return submit_line(where).removesuffix(" run")


@contextlib.contextmanager
def _sequencing(lab: Lab, cluster: _Cluster, way: Way, site: str) -> Iterator[Child]:
    """`abcast sequence` that way, as it has just been started."""
    options = (
        *("sequence", "--bootstrap-servers", lab.connection.bootstrap_servers, "--site", site),
        *("--data", lab.path("data"), "--parallelism", way.parallelism),
    )
    log = lab.path("logs") / "sequence.log"
    if way.where == "two workers":
        command = f"exec {cluster.line} {' '.join(map(str, options))}"
        child = Child(["bash", "-c", command], log, {**lab.environment, "SPARK_LOCAL_IP": LOOPBACK})
    else:
        engine = "process" if way.where == "process" else "spark"
        child = Child([ABCAST, *options, "--engine", engine], log, lab.environment)
    with child:
        yield child


class _Senders:
    """A sender for each group, by one producer."""

    def __init__(self, lab: Lab, places: Sequence[Place]) -> None:
        self._producer = lab.member_connection(_TRANSPORT).producer(linger_ms=5)
        self._incarnation = time.time_ns() // 1_000_000
        self._local_seqnos = {place.forward: itertools.count(1) for place in places}

    def send(self, place: Place, payload: bytes) -> None:
        headers = forward_headers(self._incarnation, next(self._local_seqnos[place.forward]))
        key = f"{place.site}/sender".encode()
        self._producer.send(place.forward, value=payload, key=key, headers=headers)

    def flush(self) -> None:
        self._producer.flush(_PATIENCE_S)

    def close(self) -> None:
        self._producer.close(timeout=10)


class _Arrivals:
    """Reads the DATA topics of all groups from their ends on, in a thread.

    `seen`: (sent at, arrived at) of each message, in ns. `groups`: those of which one has come.
    """

    def __init__(self, connection: Connection, places: Sequence[Place]) -> None:
        self.seen: list[tuple[int, int]] = []
        self.groups: set[str] = set()
        self._stop = threading.Event()
        self._consumer = connection.consumer()
        partitions = [TopicPartition(place.data, 0) for place in places]
        ends = _ends(self._consumer, partitions)
        self._consumer.assign(partitions)
        for partition, end in ends.items():
            self._consumer.seek(partition, end)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(self._consumer):
            while not self._stop.is_set():
                polled = self._consumer.poll(timeout_ms=100)
                now = time.monotonic_ns()
                for partition, records in polled.items():
                    messages = [record for record in records if record.key is not None]
                    self.seen += [(sent_at(record.value or b""), now) for record in messages]
                    if messages:
                        self.groups.add(partition.topic)

    def await_(self, what: str, child: Child, is_there: Any) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_there():
            if time.monotonic() > deadline or child.popen.poll() is not None:
                raise RuntimeError(f"not within {_PATIENCE_S:g} s: {what}; see {child.log}")
            time.sleep(0.05)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


def _steady(lab: Lab, cluster: _Cluster, way: Way, places: list[Place], senders: _Senders) -> dict[str, Any]:
    """A message a second of each group: the start, the latency of what is sent after it, and the CPU it takes."""
    plan, turns = lab.plan, itertools.cycle(places)
    arrivals = _Arrivals(lab.member_connection(_TRANSPORT), places)
    with contextlib.closing(arrivals), _sequencing(lab, cluster, way, places[0].site) as child:
        ready_s = child.wait_said("ready;", _PATIENCE_S) - child.started_at
        pace = Pace(lambda: senders.send(next(turns), stamped_payload()), len(places))
        try:
            arrivals.await_("every group", child, lambda: len(arrivals.groups) == len(places))
            time.sleep(plan.many_warm_up_s)
            roots = [child.pid, *(cluster.workers if way.where == "two workers" else ())]
            first, used = time.monotonic_ns(), [cpu_seconds(root) for root in roots]
            time.sleep(plan.many_s)
            cpu = Counter[str]()
            for root, before in zip(roots, used, strict=True):
                cpu.update(cpu_since(before, root))
            last = time.monotonic_ns()
        finally:
            pace.stop()
        sent = pace.count
        arrivals.await_("all that was sent", child, lambda: len(arrivals.seen) >= sent)
    times = [(end - begin) / 1e6 for begin, end in arrivals.seen if first <= begin < last]
    return {
        "groups": len(places),
        "ready_s": ready_s,
        **summary(times),
        "cpu": {part: seconds / plan.many_s for part, seconds in cpu.items()},
    }


def _drain(lab: Lab, cluster: _Cluster, way: Way, places: list[Place], senders: _Senders) -> dict[str, Any]:
    """A backlog in each hot group, which comes at once: records a second until all is ordered."""
    count, payload = lab.plan.hot_records, b"x" * PAYLOAD_BYTES
    arrivals = _Arrivals(lab.member_connection(_TRANSPORT), places)
    with contextlib.closing(arrivals), _sequencing(lab, cluster, way, places[0].site) as child:
        child.wait_said("ready;", _PATIENCE_S)
        time.sleep(_SETTLE_S)
        started = time.monotonic()
        for _ in range(count):
            for place in places:
                senders.send(place, payload)
        senders.flush()
        sent_s = time.monotonic() - started
        arrivals.await_("all that is hot", child, partial(_have, arrivals, count * len(places)))
        took = time.monotonic() - started
    return {
        "groups": len(places),
        "records": count * len(places),
        "sent_s": sent_s,
        "records_per_s": count * len(places) / took,
    }


def _ends(consumer: Consumer, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Where they end. Topics that were just made may have no leader yet."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return consumer.end_offsets(partitions)
        except KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _have(arrivals: _Arrivals, count: int) -> bool:
    return len(arrivals.seen) >= count
