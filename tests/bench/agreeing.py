"""Sites that agree (mode "isis") beside a hub and a mesh: three sites, on Spark with each trigger of its relays, and on
the process engine with its own relays.

The sites have names of their own for one Kafka, so that relays copy everything as between clusters. All jobs run, as
users start them, in processes of their own: a sequencer at each site (in a hub at home), and one process of relays, or
with the process engine one for each site, as `abcast run` does it.
First each site gets as many messages as it takes; then messages come at a fixed rate. A warm-up before it is not
measured: a site on Spark needs it until Java has compiled most of a batch's planning.

`ordered_per_s`: from the first message in FORWARD until all sites have every message. A latency is the time from a
message's arrival in FORWARD of a site to its arrival in DATA of the same site: then its sender's receipt has a seqno.
In a hub only messages of the sites that are not the home count. A run is valid only if all sites of one order have the
same messages, by digest.

The cost of the agreement is counted in the sites' logs while messages come at the rate: entries (each is a record that
relays copy to all others), the messages of the agreement in them, and hops. A hop is one way of a relay between two
sites; the hops of a run follow one another.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, get_args

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.entry_codec import read_entry, write_entry
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.connection.sites import Mode, Trigger
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.topics.topics import create_topics
from ordering.agreement.log import CONTENTS, Entry, read_letter
from ordering.agreement.state import Finals, Send
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, MAX_NUMBER, MESSAGE, MessageId
from tests.bench import isis
from tests.bench.lab import ABCAST, Lab
from tests.bench.latency import summary
from tests.bench.processes import Child, cpu_seconds

SITES = ("nyc", "sfo", "lax")
HOME = SITES[0]
RELAYS = (*get_args(Trigger), "process")
PAYLOAD_BYTES = 100
_WARM_UP = 300
"""Messages at each site before anything is measured, with the process engine."""
PATIENCE_S = 300.0
_READY_S = 240.0
_SETTLE_S = 3.0
_SUSPECT_AFTER_MS = 60_000
"""Longer than Spark's silence on a busy machine: the agreement is measured, not the end of a view."""


class Way(NamedTuple):
    """A mode and its relays: Spark's with a trigger, or the process engine's."""

    mode: Mode
    relays: str

    @property
    def engine(self) -> str:
        """Return the engine of sequencers and relays."""
        return "process" if self.relays == "process" else "spark"


def measure(lab: Lab) -> dict[str, Any]:
    """Measure each way, and plain processes that agree over UDP."""
    ways = [Way(mode, relays) for relays in RELAYS for mode in get_args(Mode)]
    sites = [{**way._asdict(), **_measure(lab, way)} for way in ways]
    lab.say("agreeing: three plain processes over UDP")
    plain = [isis.measure(3, lab.plan.plain_messages, PAYLOAD_BYTES, in_flight) for in_flight in (16, 512)]
    return {"sites": sites, "processes": plain, "rate": lab.plan.agreeing_rate, "records": lab.plan.agreeing_records}


def _write_file(lab: Lab, way: Way) -> Path:
    """Write the sites' file. Each site names the Kafka differently, so relays take it for several."""
    server = lab.connection.bootstrap_servers
    own = {"hub": f'home = "{HOME}"\n', "isis": f"suspect_after_ms = {_SUSPECT_AFTER_MS}\n", "mesh": ""}
    head = f'mode = "{way.mode}"\n' + own[way.mode]
    if way.relays in get_args(Trigger):
        head = f'trigger = "{way.relays}"\n' + head
    names = {site: ",".join([server] * count) for count, site in enumerate(SITES, 1)}
    file = lab.path("sites.toml")
    file.write_text(head + "".join(f'[sites.{site}]\nbootstrap_servers = "{name}"\n' for site, name in names.items()))
    return file


def _measure(lab: Lab, way: Way) -> dict[str, Any]:
    group, plan = f"agreeing-{way.mode}-{way.relays}", lab.plan
    lab.say(f"agreeing: {way.mode}, {way.engine} engine, {way.relays} relays")
    create_topics(lab.connection, group, SITES)
    a_second = plan.agreeing_rate / len(SITES)
    warm_up = int(plan.agreeing_warm_up_s * a_second) if way.engine == "spark" else _WARM_UP
    burst = range(warm_up + 1, warm_up + plan.agreeing_records + 1)
    rates = (plan.agreeing_rate, *(plan.agreeing_other_rates if way.engine == "process" else ()))
    paced, begin = dict[int, range](), burst.stop
    for rate in rates:
        paced[rate] = range(begin, begin := begin + int(plan.agreeing_s * rate / len(SITES)))
    try:
        with _running(lab, way) as roots:
            _order(lab, group, range(1, burst.start), plan.agreeing_rate)
            time.sleep(_SETTLE_S)
            before = _cpu(roots)
            _order(lab, group, burst)
            cpu_s = _cpu(roots) - before
            for rate, numbers in paced.items():
                _order(lab, group, numbers, rate)
        return _figures(lab.connection, group, way, burst, paced, cpu_s)
    finally:
        lab.delete(group)


@contextlib.contextmanager
def _running(lab: Lab, way: Way) -> Iterator[list[int]]:
    """Run all jobs, and yield their process ids once they are ready."""
    file = _write_file(lab, way)
    logs, data = lab.path("logs"), lab.path("data")
    with contextlib.ExitStack() as children:
        started: list[Child] = []
        for site in SITES[:1] if way.mode == "hub" else SITES:
            job = [ABCAST, "sequence", "--site", site, "--sites", file, "--data", data / site, "--engine", way.engine]
            log = logs / f"sequence-{site}.log"
            started.append(children.enter_context(Child(job, log, lab.environment)))
        relay = [ABCAST, "relay", "--sites", file, "--data", data / "relay", "--engine", way.engine]
        for number, source in enumerate([["--from", site] for site in SITES] if way.engine == "process" else [[]]):
            started.append(
                children.enter_context(Child([*relay, *source], logs / f"relay-{number}.log", lab.environment))
            )
        for child in started:
            child.wait_said("ready;", _READY_S)
        yield [child.pid for child in started]


def _cpu(roots: Sequence[int]) -> float:
    """Return the CPU seconds of the jobs and their children."""
    return sum(sum(cpu_seconds(root).values()) for root in roots)


def _order(lab: Lab, group: str, numbers: range, rate: float = 0.0) -> None:
    """Send messages of these local seqnos at each site, at `rate` a second together, or at once; wait until all
    sites have all.
    """
    producer = lab.member_connection("confluent").producer()
    began = time.monotonic()
    for number in numbers:
        for site in SITES:
            key, headers = f"{site}/load".encode(), forward_headers(1, number)
            producer.send(str(Topic(group, "forward", site)), bytes(PAYLOAD_BYTES), key, headers, 0)
        if rate:
            due = began + (number - numbers.start + 1) * len(SITES) / rate
            time.sleep(max(0.0, due - time.monotonic()))
    producer.close(timeout=60)
    expected = (numbers.stop - 1) * len(SITES)
    deadline = time.monotonic() + PATIENCE_S
    for site in SITES:
        with DataLog(lab.connection, group, site) as log:
            while (seqno := log.state().seqno) < expected:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{site} has {seqno} of {expected} after {PATIENCE_S:g} s")
                time.sleep(0.2)


# Records of the topics afterwards


class Log(NamedTuple):
    """A site's DATA: the records that count, and its entries with their times (ms)."""

    taken: list[StoredRecord]
    entries: list[tuple[int, Entry]]


def _read(connection: Connection, group: str, site: str) -> Log:
    reader, log = Reader(), Log([], [])
    with DataLog(connection, group, site) as data:
        for stored in data.records(data.beginning(), data.end()):
            record = stored.data
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE:
                log.taken.append(stored)
            elif record.kind == ENTRY:
                log.entries.append((stored.timestamp_ms, read_entry(record)))
    return log


def _digest(log: Log) -> str:
    """Return a digest of the part that all sites of one order share."""
    said = blake2b()
    for stored in log.taken:
        said.update(f"{stored.data.kind} {stored.data.seqno} {stored.data.view} {stored.data.id};".encode())
    return said.hexdigest()


def _sent_at(connection: Connection, group: str) -> dict[MessageId, int]:
    """Return the time at which the broker had each message in FORWARD (ms)."""
    sent: dict[MessageId, int] = {}
    for site in SITES:
        place = TopicPartition(str(Topic(group, "forward", site)), 0)
        with contextlib.closing(connection.consumer()) as consumer:
            end = consumer.end_offsets([place])[place]
            for record in read_range(connection, consumer, place, 0, end):
                kind, incarnation, number = (record.headers[0][1] or b"").split()[1:4]
                if kind == MESSAGE.encode():
                    id_ = MessageId((record.key or b"").decode(), int(incarnation), int(number))
                    sent.setdefault(id_, record.timestamp)
    return sent


def _figures(
    connection: Connection, group: str, way: Way, burst: range, paced: Mapping[int, range], cpu_s: float
) -> dict[str, Any]:
    logs = {site: _read(connection, group, site) for site in SITES}
    if way.mode != "mesh":
        assert len({_digest(log) for log in logs.values()}) == 1, "the sites differ"
    sent = _sent_at(connection, group)
    ends = {
        site: [stored for stored in log.taken if stored.data.kind == MESSAGE and stored.data.local_seqno in burst]
        for site, log in logs.items()
    }
    assert all(len(of_site) == len(burst) * len(SITES) for of_site in ends.values()), "a site lacks messages"
    began_ms = min(at for id_, at in sent.items() if id_.local_seqno == burst.start)
    seconds = (max(of_site[-1].timestamp_ms for of_site in ends.values()) - began_ms) / 1000
    latencies = {
        rate: [
            float(stored.timestamp_ms - sent[stored.data.id])
            for site, log in logs.items()
            if way.mode != "hub" or site != HOME
            for stored in log.taken
            if stored.data.sender == f"{site}/load" and stored.data.local_seqno in numbers
        ]
        for rate, numbers in paced.items()
    }
    (usual, numbers), *_ = paced.items()
    messages = len(burst) * len(SITES)
    found = {
        "ordered_per_s": messages / seconds,
        "cpu_us_per_message": 1e6 * cpu_s / messages,
        **summary(latencies[usual]),
        "rates": [{"per_s": rate, **summary(latencies[rate])} for rate in sorted(paced)],
    }
    if way.mode == "isis":
        begin_ms = min(at for id_, at in sent.items() if id_.local_seqno == numbers.start)
        end_ms = min((at for id_, at in sent.items() if id_.local_seqno == numbers.stop), default=MAX_NUMBER)
        found["costs"] = _costs(
            {site: log.entries for site, log in logs.items()}, range(begin_ms, end_ms), len(numbers) * len(SITES)
        )
    return found


def _costs(logs: Mapping[str, list[tuple[int, Entry]]], when_ms: range, messages: int) -> dict[str, Any]:
    """Return entries, their bytes and their letters by message, and the hops of a run until its own site has
    ordered it.
    """
    entries = {site: [entry for at, entry in log if at in when_ms] for site, log in logs.items()}
    every = [entry for of_site in entries.values() for entry in of_site]
    said = Counter(letter.kind for entry in every for letter in entry.letters)
    runs = {ordered.first: ordered for entry in every for ordered in entry.ordered}
    hops = [hop for site, of_site in entries.items() for hop in _hops(site, of_site)]
    return {
        "entries": len(every) / messages,
        "entry_bytes": sum(len(write_entry(entry).payload) for entry in every) / len(every),
        "letters": {kind: count / messages for kind, count in sorted(said.items())},
        "messages_a_run": mean(run.run.length for run in runs.values()),
        "hops": mean(hops) if hops else None,
    }


def _hops(site: str, entries: Sequence[Entry]) -> Iterator[int]:
    """Yield the hops of each of the site's runs: to the others and back for the proposals; and one more if it had
    to wait for the final number of another site's run, sent no later than this run's arrival there.
    """
    sent: dict[bytes, int] = {}
    final: dict[int, int] = {}
    for entry in entries:
        for letter in entry.letters:
            message = read_letter(letter) if letter.kind != CONTENTS else None
            if isinstance(message, Send):
                sent |= {run.reference: message.first + number for number, run in enumerate(message.runs)}
            elif isinstance(message, Finals):
                for number in range(message.first, message.first + len(message.keys)):
                    final.setdefault(number, entry.number)
        for ordered in entry.ordered:
            if ordered.sender.name == site and sent.get(ordered.run.reference) in final:
                yield 2 if final[sent[ordered.run.reference]] == entry.number else 3
