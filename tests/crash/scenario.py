"""A group at a site of its own, with the processes and members of a crash test, and the verdict."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from kafka import KafkaProducer
from kafka.structs import TopicPartition

from connectors import Delivery, Member
from connectors.diagnosis.check import check_data, check_deliveries, check_ledger
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.topics.topics import create_topics
from connectors.storage.location import Location
from ordering.base.names import Topic
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import EPOCH, Data, MessageId
from ordering.checker.checker import Checker
from tests.crash.processes import ABCAST, ROOT, Process
from tests.waiting import PATIENCE, WAIT, eventually

_numbers = itertools.count(1)


class Scenario:
    """A group, its site and its directory. `close` ends everything that was started through it."""

    def __init__(self, bootstrap_servers: str, directory: Path, *, partitions: int = 1, copies: int = 1) -> None:
        self.number = next(_numbers)
        self.group, self.site = f"g{self.number}", f"s{self.number}"
        self.directory = directory
        self.data = directory / "data"
        self.connection = Connection(bootstrap_servers)
        self.engine = "spark"
        """The engine that `sequencer` starts."""
        self.runner: Sequence[str] = ()
        """The words before the command of each process: they may run it on another host (`tests.crash.network`)."""
        self.processes: list[Process] = []
        self._closers: list[Member] = []
        self._loads: list[Load] = []
        self._probe: Member | None = None
        self.probes: list[MessageId] = []
        create_topics(self.connection, self.group, [self.site], partitions, copies)

    # --- processes ---

    def start(self, name: str, *arguments: object, ready: bool = False) -> Process:
        """Start a process; `ready`: it is a streaming job, so wait until it works."""
        process = Process(f"{len(self.processes)}-{name}", (*self.runner, *arguments), self.directory / "logs")
        self.processes.append(process)
        if ready:
            process.wait_ready()
        return process

    def job(self, command: str, data: Location | None = None, *options: object, ready: bool = True) -> Process:
        """`abcast run`, `sequence` or `ledger` at our site."""
        return self.start(
            command,
            *(ABCAST, command, "--bootstrap-servers", self.connection.bootstrap_servers),
            *("--site", self.site, "--data", data or self.data, *options),
            ready=ready,
        )

    def sequencer(self, data: Path | None = None, *, ready: bool = True) -> Process:
        return self.job("sequence", data, "--engine", self.engine, ready=ready)

    # --- members ---

    def address(self, name: str) -> str:
        return f"{self.site}/{name}"

    def member(self, name: str, **options: object) -> Member:
        """Return a member in this process; close it at the end."""
        member = Member(self.group, self.address(name), connection=self.connection, **options)  # type: ignore[arg-type]
        self._closers.append(member)
        return member

    def load(self, name: str, pause: float = 0.03, threads: int = 1) -> Load:
        """A member that broadcasts all the time."""
        load = Load(self.member(name), pause, threads)
        self._loads.append(load)
        return load

    def probe(self, timeout: float = 90.0) -> float:
        """Broadcast a message and wait until it is ordered; return the seconds."""
        if self._probe is None:
            self._probe = self.member("probe")
        started = time.monotonic()
        receipt = self._probe.broadcast(b"probe")
        self.probes.append(receipt.message_id)
        receipt.result(timeout * PATIENCE)
        return time.monotonic() - started

    def observer(self, name: str) -> Observer:
        """A member that delivers all the time."""
        return Observer(self.member(name))

    def sender(self, name: str, outbox: Path | None, prefix: str, count: int) -> Process:
        """A sending member in a process of its own: see `tests.crash.sender`."""
        arguments = (self.connection.bootstrap_servers, self.group, self.address(name), outbox or "-", prefix, count)
        return self.start(f"sender-{name}", sys.executable, ROOT / "tests" / "crash" / "sender.py", *arguments)

    def abcast(self, command: str, *options: object) -> Process:
        """Another `abcast` command of our group."""
        common = ("--group", self.group, "--bootstrap-servers", self.connection.bootstrap_servers)
        return self.start(command, ABCAST, command, *common, *options)

    def write_forward(self, message: MessageId, payload: bytes, timestamp_ms: int | None = None) -> None:
        """Write one FORWARD record by hand, as any client could."""
        producer = KafkaProducer(bootstrap_servers=self.connection.bootstrap_servers)
        try:
            producer.send(
                str(Topic(self.group, "forward", self.site)),
                key=message.sender.encode(),
                value=payload,
                headers=forward_headers(message.incarnation, message.local_seqno),
                timestamp_ms=timestamp_ms,
            ).get(timeout=WAIT)
        finally:
            producer.close(timeout=WAIT)

    # --- the log ---

    def records(self, start: int = 0) -> list[StoredRecord]:
        """Return the records of DATA."""
        with DataLog(self.connection, self.group, self.site) as log:
            return list(log.records(max(start, log.beginning()), log.end()))

    def end(self) -> int:
        """Return the offset after DATA's last record."""
        with DataLog(self.connection, self.group, self.site) as log:
            return log.end()

    def effective(self, after_seqno: int = 0) -> list[Data]:
        """Return the messages of DATA as taken by a reader that has all up to `after_seqno`."""
        reader = Reader(0, after_seqno)
        messages = (message for stored in self.records() for message in unpacked(stored.data))
        return [message for message in messages if reader.judge(message) is Verdict.TAKE]

    def epochs(self) -> list[int]:
        """Return every epoch record, in their order."""
        return [stored.data.epoch for stored in self.records() if stored.data.kind == EPOCH]

    def forward_ends(self) -> dict[tuple[str, int], int]:
        consumer = self.connection.consumer()
        try:
            topic = str(Topic(self.group, "forward", self.site))
            places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            return {(place.topic, place.partition): end for place, end in consumer.end_offsets(places).items()}
        finally:
            consumer.close()

    def deliveries(self, name: str, count: int, timeout: float = 30.0) -> list[Delivery]:
        """Return the first `count` deliveries of a new reader, from the beginning."""
        taken: list[Delivery] = []
        with Member(self.group, self.address(name), connection=self.connection) as reader:
            for delivery in itertools.islice(reader.deliveries(from_seqno=1, timeout=timeout * PATIENCE), count):
                taken.append(delivery)
        return taken

    # --- the verdict ---

    def verify(
        self,
        sent: Iterable[MessageId],
        deliveries: Mapping[str, Iterable[Delivery]] | None = None,
        *,
        logs: Iterable[Path] = (),
        ledger: Location | None = None,
        fresh_reader: bool = True,
    ) -> int:
        """Check DATA, the ledger, the delivery logs and the receipts for anomalies; return the number of ordered
        messages.
        """
        checker = Checker()
        highest, _ = check_data(checker, self.connection, self.group, self.site)
        if ledger is not None:
            eventually(lambda: ledger_seqno(ledger, self.group) >= highest, 60, f"the ledger has seqno {highest}", 0.3)
            check_ledger(checker, ledger, self.group)
        taken = {name: list(items) for name, items in (deliveries or {}).items()}
        if fresh_reader:
            taken["fresh reader"] = self.deliveries("fresh-reader", len(self.effective()))
        for name, items in taken.items():
            for item in items:
                checker.delivery(
                    name, item.seqno, MessageId(item.sender, item.incarnation, item.local_seqno), item.payload
                )
        for log in logs:
            with log.open(encoding="utf-8") as lines:
                check_deliveries(checker, log.name, lines)
        for message in (*sent, *self.probes):
            checker.sent(message)
        assert checker.finish() == []
        return highest

    def close(self) -> None:
        """End all processes; one that can't end is an error."""
        for load in self._loads:
            load.halt()
        for process in self.processes:
            process.kill()
        for member in self._closers:
            try:
                member.close(timeout=0)
            except Exception as error:  # noqa: BLE001 - the test has failed already, or does not care
                print(f"closing {member}: {error}")


class Load:
    """A member that broadcasts all the time, from one thread or several. Each payload says thread and number."""

    def __init__(self, member: Member, pause: float, threads: int) -> None:
        self.member = member
        self.sent: list[MessageId] = []
        self.problem: BaseException | None = None
        self._pause = pause
        self._lock = threading.Lock()
        self._receipts: list[object] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, thread: int) -> None:
        try:
            for number in itertools.count(1):
                if self._stop.is_set():
                    return
                receipt = self.member.broadcast(f"{self.member.address} t{thread} {number}".encode(), timeout=120)
                with self._lock:
                    self.sent.append(receipt.message_id)
                time.sleep(self._pause)
        except BaseException as error:  # noqa: BLE001 - shown by finish
            self.problem = error

    def burst(self, count: int) -> None:
        """Broadcast `count` messages at once, besides the threads' messages."""
        for number in range(count):
            receipt = self.member.broadcast(f"{self.member.address} burst {number}".encode(), timeout=120)
            with self._lock:
                self.sent.append(receipt.message_id)

    def burst_of_packs(self, packs: int, messages: int = 4) -> None:
        """Broadcast `packs` packs of `messages` each at once, besides the threads' messages."""
        payloads = [f"{self.member.address} pack {number}".encode() for number in range(messages)]
        for number in range(packs):
            # A header of its own, so that no other message joins it.
            receipt = self.member.broadcast_many(payloads, [("number", b"%d" % number)], timeout=120)
            sender, incarnation, last = receipt.message_id
            with self._lock:
                self.sent += (MessageId(sender, incarnation, last - messages + n) for n in range(1, messages + 1))

    def finish_after(self, count: int, timeout: float = 60.0) -> list[MessageId]:
        """`finish` when at least `count` messages are sent."""
        eventually(lambda: len(self.sent) >= count, timeout, f"{count} messages are sent")
        return self.finish(timeout)

    def halt(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)

    def finish(self, timeout: float = 60.0) -> list[MessageId]:
        """Stop broadcasting, wait until every message is ordered, and return the messages."""
        self.halt()
        if self.problem is not None:
            raise self.problem
        self.member.wait_ordered(timeout * PATIENCE)
        return self.sent


class Observer:
    """A member that delivers all the time, in a thread."""

    def __init__(self, member: Member) -> None:
        self.taken: list[Delivery] = []
        self.times: list[float] = []
        """The time of each, by a steady clock."""
        self.problem: BaseException | None = None
        self._deliveries = member.deliveries()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for delivery in self._deliveries:
                self.times.append(time.monotonic())
                self.taken.append(delivery)
        except BaseException as error:  # noqa: BLE001 - shown by wait
            self.problem = error

    def longest_gap(self, since: float) -> float:
        """Return the longest time between two deliveries since then."""
        times = [each for each in self.times if each >= since]
        return max(later - earlier for earlier, later in pairwise([since, *times]))

    def wait(self, seqno: int, timeout: float = 60.0) -> list[Delivery]:
        """Wait for `seqno`, and return the deliveries."""
        eventually(lambda: self.problem or (self.taken and self.taken[-1].seqno >= seqno), timeout, f"delivery {seqno}")
        if self.problem is not None:
            raise self.problem
        return self.taken


def ledger_seqno(ledger: Location, group: str) -> int:
    """Return the table's last seqno of the group, 0 before there is one."""
    from connectors.ledger.table import read_table_state

    return read_table_state(ledger).last_seqno.get(group, 0)
