"""Many groups of one job: a thousand with a message a second each, and a few that are hot.

The process engine, and Spark on this machine and on a standalone cluster of two workers, each deciding one group and
two at a time. The same topics serve all of them, one after the other: each start takes the groups over.

All times are Kafka's: both topics of a group stamp each record when it is appended, and DATA says when its FORWARD was.
So nobody reads a thousand topics while it counts, and the one sender's own waiting is not in it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import new_topic
from connectors.kafka.transport import VARIABLE
from ordering.base.names import Role, Topic
from ordering.base.records import MESSAGE
from tests.bench.lab import ABCAST, Lab, Place
from tests.bench.latency import summary
from tests.bench.load import PAYLOAD_BYTES, Pace
from tests.bench.processes import Child, cpu_seconds, cpu_since
from tests.spark.standalone import LOOPBACK, Master, master, submit_line, worker

PARALLELISM = (1, 2)
_TRANSPORT = "confluent"
_CREATED_AT_ONCE = 100
_ROLES: tuple[Role, ...] = ("forward", "data", "epoch", "dead-letter")
_PATIENCE_S = 120.0
_LOOK_S = 0.25
_LINGER_MS = 20
_PAYLOAD = b"x" * PAYLOAD_BYTES
MEMORY = Path("/dev/shm")
"""The directory of Kafka's logs here. Kafka maps two indexes of each partition into memory, and a write to their
pages may wait 20 ms for a disk like ours: all partitions would wait for it, and nothing else would be measured.
"""

Times = list[tuple[int, int]]


class Way(NamedTuple):
    """A measured setting. `where`: "process", "local" (Spark on this machine) or "two workers"."""

    where: str
    parallelism: int


WAYS = (Way("process", 1), *(Way(where, count) for where in ("local", "two workers") for count in PARALLELISM))


def measure(lab: Lab) -> list[dict[str, Any]]:
    """Measure, for each way, many groups and hot groups."""
    with Lab(lab.plan, lab.say, MEMORY if MEMORY.is_dir() else None) as own:
        own.environment[VARIABLE] = _TRANSPORT
        return _measure(own)


def _measure(lab: Lab) -> list[dict[str, Any]]:
    plan, rows = lab.plan, []
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
    return rows


def _places(lab: Lab, name: str, count: int) -> list[Place]:
    """Create groups at a site of their own, with a sequencer's topics. They go with the broker."""
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
    """Run `abcast sequence` that way; yield it just started."""
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
        self._producer = lab.member_connection(_TRANSPORT).producer(linger_ms=_LINGER_MS)
        self._incarnation = _now_ms()
        self._local_seqnos = {place.forward: itertools.count(1) for place in places}

    def send(self, place: Place) -> None:
        headers = forward_headers(self._incarnation, next(self._local_seqnos[place.forward]))
        self._producer.send(place.forward, value=_PAYLOAD, key=f"{place.site}/sender".encode(), headers=headers)

    def flush(self) -> None:
        self._producer.flush(_PATIENCE_S)

    def close(self) -> None:
        self._producer.close(timeout=10)


class _Reader:
    """The DATA of places, from where it ended when this was made."""

    def __init__(self, connection: Connection, places: Sequence[Place]) -> None:
        self._consumer = connection.consumer()
        self._partitions = [TopicPartition(place.data, 0) for place in places]
        self._starts = self._ends()

    def await_(self, count: int, child: Child) -> None:
        """Wait until they have so many records more, all together."""
        deadline = time.monotonic() + _PATIENCE_S
        while sum(self._ends().values()) - sum(self._starts.values()) < count:
            if time.monotonic() > deadline or child.popen.poll() is not None:
                raise RuntimeError(f"not within {_PATIENCE_S:g} s: {count:,} records in DATA; see {child.log}")
            time.sleep(_LOOK_S)

    def messages(self, count: int) -> Times:
        """Return the times at which FORWARD and DATA got each message, in ms, once `count` messages are there."""
        self._consumer.assign(self._partitions)
        for partition, start in self._starts.items():
            self._consumer.seek(partition, start)
        found = Times()
        deadline = time.monotonic() + _PATIENCE_S
        while len(found) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {_PATIENCE_S:g} s: {count:,} messages, only {len(found):,}")
            for records in self._consumer.poll(timeout_ms=100).values():
                data = [(decode_data(one.key, one.value, one.headers), one.timestamp) for one in records]
                found += [(each.forwarded_at_ms, at_ms) for each, at_ms in data if each.kind == MESSAGE]
        return found

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> Mapping[TopicPartition, int]:
        """Return the ends; new topics may have no leader yet."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._consumer.end_offsets(self._partitions)
            except KafkaError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_S)


def _steady(lab: Lab, cluster: _Cluster, way: Way, places: list[Place], senders: _Senders) -> dict[str, Any]:
    """Send each group a message a second: the start, the latency of later messages, and the CPU."""
    plan, turns = lab.plan, itertools.cycle(places)
    with (
        contextlib.closing(_Reader(lab.connection, places)) as reader,
        _sequencing(lab, cluster, way, places[0].site) as child,
    ):
        ready_s = child.wait_said("ready;", _PATIENCE_S) - child.started_at
        for place in places:
            senders.send(place)
        reader.await_(2 * len(places), child)  # a takeover writes one
        pace = Pace(lambda: senders.send(next(turns)), len(places))
        try:
            time.sleep(plan.many_warm_up_s)
            roots = [child.pid, *(cluster.workers if way.where == "two workers" else ())]
            first, used = _now_ms(), [cpu_seconds(root) for root in roots]
            time.sleep(plan.many_s)
            cpu = Counter[str]()
            for root, before in zip(roots, used, strict=True):
                cpu.update(cpu_since(before, root))
            last = _now_ms()
        finally:
            pace.stop()
        senders.flush()
        # To read a thousand topics at once costs the broker much: not before all is there.
        reader.await_(2 * len(places) + pace.count, child)
        messages = reader.messages(len(places) + pace.count)
    return {
        "groups": len(places),
        "ready_s": ready_s,
        **summary([float(ordered - forwarded) for forwarded, ordered in messages if first <= forwarded < last]),
        "cpu": {part: seconds / plan.many_s for part, seconds in cpu.items()},
    }


def _drain(lab: Lab, cluster: _Cluster, way: Way, places: list[Place], senders: _Senders) -> dict[str, Any]:
    """A backlog in each hot group, which is there at the start: records a second from the first to the last."""
    count = lab.plan.hot_records
    with contextlib.closing(_Reader(lab.connection, places)) as reader:
        for _, place in itertools.product(range(count), places):
            senders.send(place)
        senders.flush()
        with _sequencing(lab, cluster, way, places[0].site) as child:
            reader.await_((count + 1) * len(places), child)
            ordered = [at_ms for _, at_ms in reader.messages(count * len(places))]
    took_s = (max(ordered) - min(ordered)) / 1000
    return {"groups": len(places), "records": len(ordered), "records_per_s": len(ordered) / took_s}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
