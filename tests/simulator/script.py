"""The command language of tests/traces/*.txt: one command a line, what it changes under it, indented.

Traces that begin with `members` have a language of their own (`tests.world.member_script`).

    group a b partitions=1     a fresh group with these members, each with an outbox (b- has none)
    send a 3                   a broadcasts 3 messages; they are on the wire
    arrive a 2 1               the records with these local seqnos of a reach FORWARD, in this order (default: all)
    drop a 3                   these never arrive (default: all)
    resend a                   a sends its forward table again
    restart a                  a is killed and starts again
    read a                     a delivers what there is
    poison                     a stranger writes a record that is no FORWARD record
    partition                  FORWARD gets one more partition
    start X                    a sequencer process starts (and does nothing yet)
    step X until sealed        X goes on until it has done that: measured, claimed, sealed, rebuilt, opened
    takeover X                 start, and all of the take-over
    batch X                    one whole micro-batch
    plan X                     X decides a batch and has written no record of it yet
    write X 2                  X writes the next 2 records of the batch
    crash X                    kill -9
    buffered X                 kill -9; what it had not written yet arrives all the same
    fail X                     the attempt at the batch fails: X's next step begins a takeover
    late X                     what the failed attempt had not written yet arrives after all
    lose X 1                   the next record of the batch never reaches the broker
    deliver D                  the deliverer D (made when first named) delivers what there is
    resume D                   D is killed, and reads on after the last seqno it has
    check                      the checker's verdict on all of it

Members are written without their site. `fenced` means that a process saw a newer epoch and stopped.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.kafka.codec.codec import WRONG_VERSION
from ordering.base.errors import AbcastError
from ordering.base.records import EPOCH, Data, Forward, MessageId
from ordering.checker.checker import Checker
from ordering.sequencer.state import SequencerState
from tests.simulator.broker import SITE, Broker
from tests.simulator.dice import Dice
from tests.simulator.members import Member
from tests.simulator.readers import Deliverer
from tests.simulator.rules import Rules
from tests.simulator.sequencers import Sequencer
from tests.world.member_script import MemberScript

INDENT = "    "


def rewrite(text: str) -> str:
    """The script with what its commands really do under each of them. Comments and blank lines stay."""
    is_of_members = "members" in [line.split()[0] for line in text.splitlines() if line.strip()]
    runner: Script | MemberScript = MemberScript() if is_of_members else Script()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [INDENT + what for what in runner.run(line)]
    return "\n".join(lines) + "\n"


def name_of(message: MessageId) -> str:
    return str(message).removeprefix(f"{SITE}/")


class Script:
    """Runs commands one by one; each returns what it changed, a line a thing."""

    def __init__(self) -> None:
        self._make_group(["a"])

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        before = self._snapshot()
        try:
            said = getattr(self, f"_do_{verb.replace('-', '_')}")(*words) or []
        except AbcastError as error:
            said = [f"{type(error).__name__}: {error}"]
        return [*self._changes(*before), *said] or ["nothing"]

    # What changed.

    def _snapshot(self) -> tuple[list[int], int, int]:
        return [log.end for log in self.broker.forward], len(self.broker.data), len(self.broker.claims)

    def _changes(self, forward: list[int], data: int, claims: int) -> list[str]:
        lines = []
        for partition, log in enumerate(self.broker.forward):
            for _, record in log.read(forward[partition] if partition < len(forward) else 0):
                what = name_of(record.id) if isinstance(record, Forward) else f"malformed ({record.reason})"
                lines.append(f"FORWARD {partition}:{record.source.offset} {what}")
        for epoch, floor, *_ in self.broker.claims[claims:]:
            lines.append(f"EPOCH {epoch - 1} claim of epoch {epoch}, floor {floor}")
        lines += [
            f"DATA {offset} {self._data(self.broker.data[offset])}" for offset in range(data, len(self.broker.data))
        ]
        return lines

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
        self.broker = Broker(int(options.get("partitions", 1)))
        names = [word for word in words if "=" not in word]
        self.members = {
            name.removesuffix("-"): Member(self.broker, name.removesuffix("-"), outbox=not name.endswith("-"))
            for name in names
        }
        self.sequencers: dict[str, Sequencer] = {}
        self.failed: dict[str, list[Data]] = {}
        self.deliverers: dict[str, Deliverer] = {}

    def _do_group(self, *words: str) -> None:
        self._make_group(list(words))

    def _do_send(self, name: str, count: str = "1") -> list[str]:
        sent = [self.members[name].broadcast() for _ in range(int(count))]
        return [f"{name} holds {self._held(name)}"] if all(sent) else ["the forward table is full"]

    def _held(self, name: str) -> str:
        return " ".join(str(entry.local_seqno) for entry in self.members[name].table.pending()) or "nothing"

    def _on_the_wire(self, name: str, locals_: tuple[str, ...]) -> list[int]:
        """Indexes, to be used one after the other: each one counts what the ones before have removed."""
        wire = [local for _incarnation, local, _payload in self.members[name].wire]
        indexes = []
        for local in map(int, locals_ or tuple(map(str, wire))):
            indexes.append(wire.index(local))
            wire.pop(indexes[-1])
        return indexes

    def _do_arrive(self, name: str, *locals_: str) -> None:
        for index in self._on_the_wire(name, locals_):
            self.members[name].append(index)

    def _do_drop(self, name: str, *locals_: str) -> list[str]:
        dropped = [self.members[name].wire.pop(index) for index in self._on_the_wire(name, locals_)]
        return ["dropped " + " ".join(str(local) for _incarnation, local, _payload in dropped)]

    def _do_resend(self, name: str) -> list[str]:
        self.members[name].resend()
        return ["on the wire " + " ".join(str(local) for _incarnation, local, _payload in self.members[name].wire)]

    def _do_restart(self, name: str) -> list[str]:
        self.members[name].crash()
        return [f"{name} is incarnation {self.members[name].incarnation} and holds {self._held(name)}"]

    def _do_read(self, name: str) -> list[str]:
        member = self.members[name]
        before = len(member.delivered)
        member.read(len(self.broker.data))
        return [*self._delivered(member.delivered[before:]), f"{name} holds {self._held(name)}"]

    @staticmethod
    def _delivered(entries: list[tuple[int, MessageId, bytes]]) -> list[str]:
        return [f"delivers {seqno} {name_of(message)}" for seqno, message, _payload in entries]

    def _do_poison(self) -> None:
        self.broker.append_malformed(0, WRONG_VERSION)

    def _do_partition(self) -> None:
        self.broker.add_partition()

    # Sequencers.

    def _do_start(self, name: str) -> None:
        self.sequencers[name] = Sequencer(self.broker, Rules(), Dice(0), zombie=False, batch_rows=1000)

    def _advance(self, name: str, done: Callable[[str], bool]) -> list[str]:
        while True:
            event = self.sequencers[name].advance()
            if event is None:
                return [f"{name} is fenced"]
            if done(event):
                return []

    def _do_step(self, name: str, _until: str, event: str) -> list[str]:
        return self._advance(name, lambda happened: happened == event)

    def _do_takeover(self, name: str) -> list[str]:
        self._do_start(name)
        return self._advance(name, lambda event: event == "opened")

    def _do_plan(self, name: str) -> list[str]:
        return self._advance(name, lambda event: event == "planned") or [self._plan_of(name)]

    def _plan_of(self, name: str) -> str:
        return f"{name} is to write " + (" ".join(map(self._short, self.sequencers[name].outputs)) or "nothing")

    @staticmethod
    def _short(record: Data) -> str:
        if record.kind == EPOCH:
            return "snapshot"
        return f"{record.seqno}={name_of(record.id)}"

    def _do_write(self, name: str, count: str) -> list[str]:
        for _ in range(int(count)):
            self._advance(name, lambda event: event == "wrote")
        return []

    def _do_batch(self, name: str) -> list[str]:
        letters = len(self.sequencers[name].dead_letters)
        fenced = self._advance(name, lambda event: event == "committed")
        new = self.sequencers[name].dead_letters[letters:]
        return [
            *fenced,
            *(f"dead letter {letter.source.partition}:{letter.source.offset}: {letter.reason}" for letter in new),
        ]

    def _do_crash(self, name: str) -> None:
        del self.sequencers[name]

    def _do_buffered(self, name: str) -> None:
        sequencer = self.sequencers.pop(name)
        for record in sequencer.outputs:
            self.broker.append_data(record)

    def _do_fail(self, name: str) -> None:
        self.failed[name] = self.sequencers[name].fail()

    def _do_late(self, name: str) -> None:
        for record in self.failed.pop(name):
            self.broker.append_data(record)

    def _do_lose(self, name: str, count: str) -> list[str]:
        [batch] = self.sequencers[name].in_flight
        lost, batch.data = batch.data[: int(count)], batch.data[int(count) :]
        return ["lost " + " ".join(map(self._short, lost))]

    # Readers.

    def _do_deliver(self, name: str) -> list[str]:
        deliverer = self.deliverers.setdefault(name, Deliverer(self.broker, name))
        before = len(deliverer.delivered)
        deliverer.read(len(self.broker.data))
        return self._delivered(deliverer.delivered[before:])

    def _do_resume(self, name: str) -> list[str]:
        self.deliverers[name].crash()
        return [f"{name} reads on after seqno {self.deliverers[name].cursor.last_seqno}"]

    def _do_check(self) -> list[str]:
        checker = Checker(causal=True)
        for record in self.broker.data:
            checker.data(SITE, record)
        for member in self.members.values():
            member.report(checker)
        for deliverer in self.deliverers.values():
            deliverer.report(checker)
        return [f"{anomaly.name}: {anomaly.detail}" for anomaly in checker.finish()] or ["every promise holds"]
