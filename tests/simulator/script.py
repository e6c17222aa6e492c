"""The command language of tests/traces/*.txt: one command a line, what it changes under it, indented.

Traces that begin with `members` have a language of their own (`tests.world.member_script`). The others have the actors
of `tests.world.group`, as they ship. A record is on its way until a command lets it arrive.

    group a b partitions=1     a fresh group with these members, each with an outbox (b- has none)
    send a 3                   a broadcasts 3 messages; they are on the wire
    arrive a 2 1               the records with these local seqnos of a reach FORWARD, in this order (default: all)
    drop a 3                   these never arrive (default: all)
    resend a                   a sends its forward table again
    restart a                  a is killed and starts again; with an outbox, it sends what that holds
    read a                     a delivers what there is
    poison                     a stranger writes a record that is no FORWARD record
    start X                    a sequencer process starts (and does nothing yet)
    step X until sealed        X goes on until it has done that: measured, claimed, sealed, opened
    takeover X                 start, and all of the take-over
    batch X                    X looks for newer claims, and decides and writes what there is
    plan X                     X decides a batch and has written no record of it yet
    write X 2                  the next 2 records of the batch arrive
    crash X                    kill -9
    buffered X                 kill -9; what it had not written yet arrives all the same
    fail X                     the write of the batch fails: X is about to take over again
    late X                     what the failed write had left arrives after all
    lose X 1                   the next record of the batch never reaches the broker
    deliver D                  the deliverer D (made when first named) delivers what there is
    resume D                   D is killed, and reads on after the last seqno it has
    check                      all faults end; then the world's verdict on all of it

Members are written without their site. `fenced` means that a process saw a newer epoch and stopped. Notes in EPOCH are
not told: they are why epochs have gaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from unittest.mock import patch

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.codec.dead_letter_codec import decode_dead_letter
from connectors.kafka.codec.epochs import Claim, decode
from connectors.kafka.transport import PlainRecord
from ordering.base.errors import AbcastError, Fenced
from ordering.base.names import Address
from ordering.base.records import EPOCH, Data, MessageId
from ordering.sequencer.state import SequencerState
from tests.world.clients import Deliverer
from tests.world.group import CLAIMS, DATA, FORWARD, playing
from tests.world.group_history import History, Shape
from tests.world.group_job import SITE, GroupJob
from tests.world.kafka import partition
from tests.world.member_parts import count_incarnations
from tests.world.member_script import MemberScript
from tests.world.wires import RUSH, OnItsWay, WiredProducer

INDENT = "    "
DEAD_LETTERS = partition("dead-letter", SITE)
LOOK_MS = 1_000
"""The time before a batch, in which a job looks for newer claims."""
RESEND_AFTER_S = 10.0
"""The time after which a member sends again by itself. A trace takes less."""
CALLS = 80
"""The calls to Kafka in which a job does what there is to do."""


def rewrite(text: str) -> str:
    """The script with what its commands really do under each of them. Comments and blank lines stay."""
    is_of_members = "members" in [line.split()[0] for line in text.splitlines() if line.strip()]
    lines: list[str] = []
    with ExitStack() as stack:
        runner: Script | MemberScript = MemberScript() if is_of_members else Script(stack)
        for line in text.splitlines():
            if line.startswith(INDENT):
                continue
            lines.append(line)
            if line and not line.startswith("#"):
                lines += [INDENT + what for what in runner.run(line)]
    return "\n".join(lines) + "\n"


def name_of(message: MessageId) -> str:
    return str(message).removeprefix(f"{SITE}/")


class _NoFaults(random.Random):
    """Dice that let nothing happen by itself, and all of it at once."""

    def random(self) -> float:
        return 0.999

    def randint(self, a: int, b: int) -> int:
        return b


class Script:
    """Runs commands one by one; each returns what it changed, a line a thing."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        if verb == "group":
            self._make_group(words)
        before = self._ends()
        try:
            said = getattr(self, f"_do_{verb}")(*words) or []
        except AbcastError as error:
            said = [f"{type(error).__name__}: {error}"]
        changes = self._changes(before) if verb != "check" else []
        return [*changes, *said] or ["nothing"]

    # What changed.

    def _ends(self) -> dict[object, int]:
        return {place: len(log) for place, log in self.world.kafka.topics.partitions.items()}

    def _changes(self, ends: dict[object, int]) -> list[str]:
        logs = self.world.kafka.topics.partitions
        forward = sorted(place for place in logs if place.topic == FORWARD.topic)
        return [
            line
            for place in (*forward, CLAIMS, DATA, DEAD_LETTERS)
            for record in logs[place][ends[place] :]
            for line in self._told(place.topic, record)
        ]

    def _told(self, topic: str, record: PlainRecord) -> list[str]:
        at = record.offset
        if topic == FORWARD.topic:
            is_poison = not record.headers
            return [f"FORWARD {record.partition}:{at} {'malformed' if is_poison else name_of(_sent_as(record))}"]
        if topic == CLAIMS.topic:
            claim = decode(topic, at, record.value, record.headers, 0)
            if not isinstance(claim, Claim):
                return []
            return [f"EPOCH {at} claim of epoch {claim.epoch}, floor {claim.floor}"]
        if topic == DATA.topic:
            return [f"DATA {at} {self._data(_decoded(record))}"]
        source, reason, _ = decode_dead_letter(record.headers)
        return [f"dead letter {source.rsplit('-', 1)[-1]}: {reason}"]

    @staticmethod
    def _data(record: Data) -> str:
        if record.kind != EPOCH:
            return f"epoch {record.epoch} seqno {record.seqno} {name_of(record.id)}"
        if not record.payload:
            return f"epoch {record.epoch} seal"
        return f"epoch {record.epoch} snapshot after seqno {SequencerState.from_bytes(record.payload).seqno}"

    # Members.

    def _make_group(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words if "=" in word)
        shape = Shape(
            partitions=int(options.get("partitions", 1)), deliverers=0, haste=0.0, batch_rows=RUSH, snapshot_every=1_000
        )
        self.world = world = self._stack.enter_context(playing(History(0, shape, ())))
        self._stack.enter_context(patch("tests.world.clients.RESEND_AFTER_S", RESEND_AFTER_S))
        numbers = "connectors.client.memory.incarnation_numbers.IncarnationNumbers"
        self._stack.enter_context(patch(f"{numbers}.claim", count_incarnations))
        self._stack.enter_context(patch(f"{numbers}.is_of_a_wrong_clock", lambda *_: False))
        world.dice = world.actors.dice = _NoFaults(0)
        world.members = [
            world.new_member(Address(SITE, name.removesuffix("-")), has_outbox=not name.endswith("-"))
            for name in words
            if "=" not in name
        ]
        self.members = {member.address.name: member for member in world.members}
        self.wires: dict[str, list[OnItsWay]] = {name: [] for name in self.members}
        for member in world.members:
            member.start()
        self.jobs: dict[str, GroupJob] = {}
        self.takeovers = 0
        self.deliverers: dict[str, Deliverer] = {}

    def _do_group(self, *words: str) -> None:
        """`run` has made it."""

    def _do_send(self, name: str, count: str = "1") -> list[str]:
        for _ in range(int(count)):
            self.members[name].broadcast()
        return [self._held(name)]

    def _held(self, name: str) -> str:
        sender = self.members[name].sender
        assert sender is not None
        assert sender.forwarder is not None
        pending = sender.forwarder._pending_messages.table.pending()
        return f"{name} holds " + (" ".join(str(entry.local_seqno) for entry in pending) or "nothing")

    def _wire(self, name: str) -> list[OnItsWay]:
        """The records of a member on their way."""
        for producer in self.members[name].producers:
            self.wires[name] += producer.wire
            producer.wire = []
        return self.wires[name]

    def _taken(self, name: str, locals_: Sequence[str]) -> list[OnItsWay]:
        """Take the records with these local seqnos from the wire, by default all."""
        wire = self._wire(name)
        if locals_:
            taken = [next(each for each in wire if _local_seqno(each) == local) for local in locals_]
        else:
            taken = list(wire)
        self.wires[name] = [each for each in wire if each not in taken]
        return taken

    def _do_arrive(self, name: str, *locals_: str) -> None:
        for each in self._taken(name, locals_):
            self.world.kafka.write(each)

    def _do_drop(self, name: str, *locals_: str) -> list[str]:
        return ["dropped " + " ".join(map(_local_seqno, self._taken(name, locals_)))]

    def _do_resend(self, name: str) -> list[str]:
        sender = self.members[name].sender
        assert sender is not None
        assert sender.forwarder is not None
        with sender.forwarder.changed:
            sender.forwarder._send_queue.send_table()
        return ["on the wire " + " ".join(map(_local_seqno, self._wire(name)))]

    def _do_restart(self, name: str) -> list[str]:
        self._wire(name)
        member = self.members[name]
        member.crash()
        member.start()
        assert member.sender is not None
        assert member.sender.forwarder is not None
        return [f"{self._held(name)}, as incarnation {member.sender.forwarder.incarnation}"]

    def _do_read(self, name: str) -> list[str]:
        self.members[name].turn()
        return [*self._delivered(self.members[name].application), self._held(name)]

    @staticmethod
    def _delivered(reader: Deliverer) -> list[str]:
        before = len(reader.delivered)
        reader.catch_up()
        return [f"delivers {seqno} {name_of(message)}" for seqno, message, _payload in reader.delivered[before:]]

    def _do_poison(self) -> None:
        self.world.kafka.topics.append(FORWARD, b"nobody", b"poison", [])

    # Sequencers.

    def _do_start(self, name: str) -> None:
        self.jobs[name] = GroupJob(self.world.kafka, name, self._note_takeover, is_blind=False, shape=Shape())

    def _note_takeover(self, job: GroupJob, state: SequencerState) -> None:
        self.takeovers += 1
        self.world.note_takeover(job, state)

    def _advance(self, name: str, is_done: Callable[[], bool], calls: int = 1) -> list[str]:
        """Let a job make calls to Kafka until it is done, or is fenced."""
        process = self.jobs[name].process
        for _ in range(CALLS):
            if is_done():
                return []
            with self.world.actors.acting(name):
                process.step(calls)
            if process.has_ended:
                assert isinstance(process.error, Fenced), process.error
                return [f"{name} is fenced"]
        raise AssertionError(f"{name} does not get there")

    def _producers(self, name: str) -> list[WiredProducer]:
        return [producer for producer in self.jobs[name].process.producers if producer.wire]

    def _do_step(self, name: str, _until: str, event: str) -> list[str]:
        ends, takeovers = self._ends(), self.takeovers
        is_done: dict[str, Callable[[], bool]] = {
            "measured": lambda: bool(self._producers(name)),  # its claim is on its way
            "claimed": lambda: self._ends()[CLAIMS] > ends[CLAIMS],
            "sealed": lambda: self._ends()[DATA] > ends[DATA],
            "opened": lambda: self.takeovers > takeovers,
        }
        return self._advance(name, is_done[event])

    def _do_takeover(self, name: str) -> list[str]:
        self._do_start(name)
        return self._do_step(name, "until", "opened")

    def _do_plan(self, name: str) -> list[str]:
        return self._advance(name, lambda: self._has_planned(name)) or [
            f"{name} is to write " + " ".join(_short(each) for each in self._producers(name)[0].wire)
        ]

    def _has_planned(self, name: str) -> bool:
        pipeline, producers = self.jobs[name].pipeline, self._producers(name)
        return pipeline is not None and bool(producers) and _of(producers[0].wire[-1]).seqno == pipeline.state.seqno

    def _do_write(self, name: str, count: str) -> None:
        self._producers(name)[0].arrive(int(count))

    def _do_batch(self, name: str) -> list[str]:
        self.world.actors.pass_time(LOOK_MS)
        self.world.kafka.haste = 1.0
        turns = iter((False, True))
        try:
            return self._advance(name, lambda: next(turns), CALLS)
        finally:
            self.world.kafka.haste = 0.0

    def _do_crash(self, name: str) -> None:
        self.jobs.pop(name).process.kill()
        self.world.kafka.leftovers.clear()

    def _do_buffered(self, name: str) -> None:
        self.jobs.pop(name).process.kill()
        self._do_late(name)

    def _do_fail(self, name: str) -> None:
        self.world.kafka.abandon(self._producers(name)[0].lose(0))

    def _do_late(self, _name: str) -> None:
        for each in self.world.kafka.leftovers.pop():
            self.world.kafka.write(each)

    def _do_lose(self, name: str, count: str) -> list[str]:
        producer = self._producers(name)[0]
        lost = producer.wire[: int(count)]
        producer.wire = producer.lose(int(count))
        return ["lost " + " ".join(map(_short, lost))]

    # Readers.

    def _do_deliver(self, name: str) -> list[str]:
        if name not in self.deliverers:
            self.deliverers[name] = self.world.new_deliverer(name)
            self.world.deliverers.append(self.deliverers[name])
        return self._delivered(self.deliverers[name])

    def _do_resume(self, name: str) -> list[str]:
        self.deliverers[name].resume()
        return [f"{name} reads on after seqno {self.deliverers[name].passed}"]

    def _do_check(self) -> list[str]:
        for job in self.jobs.values():
            job.process.kill()
        self.world.heal()
        return [f"{anomaly.name}: {anomaly.detail}" for anomaly in self.world.check()] or ["every promise holds"]


def _sent_as(record: PlainRecord) -> MessageId:
    """Return the id of a FORWARD record."""
    _, _, incarnation, local_seqno, *_ = record.headers[0][1].decode().split(" ")
    return MessageId((record.key or b"").decode(), int(incarnation), int(local_seqno))


def _local_seqno(each: OnItsWay) -> str:
    return str(each.record[2][0][1].decode().split(" ")[3])


def _decoded(record: PlainRecord) -> Data:
    return decode_data(record.key, record.value, record.headers)


def _of(each: OnItsWay) -> Data:
    return decode_data(*each.record)


def _short(each: OnItsWay) -> str:
    record = _of(each)
    return "snapshot" if record.kind == EPOCH else f"{record.seqno}={name_of(record.id)}"
