"""ISIS processes and sites around the very same core: loss, repeats, reordering, crashes, cuts, wrong suspicion.

A seed is a history. In half of them a crash takes a process's memory with it (plain processes: a new start is a new
incarnation), in the other half it takes the unstored part (sites: every step is stored before its outputs leave).

Each process is the machine that ships (`connectors.isis.machine`), so all that is sent goes as datagrams. In some seeds
a datagram is so small that most messages go in parts.

These processes use no Kafka, so of `tests.world.powers` they have nothing: their log is their memory, their time a
clock that never goes back. Their incarnation is the time of their start, and that clock may.

    python -m tests.simulator --isis --seeds 2000
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from connectors.isis.machine import BegunAgain, Event, IsisMachine, SentDatagram, fresh_process
from connectors.isis.wire import MAX_DATAGRAM_BYTES, unpack
from ordering.agreement.codec import decode, encode
from ordering.agreement.formation import ProcessIncarnation, View, first_view
from ordering.agreement.history import Gone, History
from ordering.agreement.hold_back import Run
from ordering.agreement.messages import DeliverRun, Installed
from ordering.agreement.process import ProcessState, member
from ordering.agreement.state import Finals
from ordering.agreement.views import Process
from ordering.base.errors import ProtocolViolation
from ordering.base.records import MessageId
from ordering.checker.anomalies import LOST, VIEW_VIOLATION, Anomaly
from ordering.checker.checker import Checker
from tests.simulator.mutation import NONE, Mutation

SUSPECT_AFTER_MS = 200
ACTIONS = 80
SETTLING_ROUNDS = 260
TICK_MS = 25
WRONG_STATE = "wrong-state"
TOO_LARGE = "too-large"
GROUP = b"the seed"
"""The digest of the hostfile, which all have."""


class Letter(NamedTuple):
    """A datagram on its way."""

    sender: str
    receiver: str
    datagram: bytes


@lru_cache(10_000)
def has_final_numbers(datagram: bytes) -> bool:
    return any(isinstance(message, Finals) for message in unpack(GROUP, datagram).messages)


@dataclass
class Log:
    """An incarnation's deliveries, and its group: if all processes die, a new start is in another group."""

    life: ProcessIncarnation
    delivered: list[DeliverRun]
    origin: int = 0


@dataclass
class Node:
    """A name: a process that is up or down, its present life, and what it has delivered in it.

    `stored` is what a site would find if it crashed now, None if that is the process as it is.
    """

    name: str
    machine: IsisMachine | None = None
    incarnation: int = 0
    stored: bytes | None = None
    history: History = field(default_factory=History)
    delivered: list[DeliverRun] = field(default_factory=list)
    now_ms: int = 0
    sent: int = 0
    submitted: list[int] = field(default_factory=list)
    unstored: list[int] = field(default_factory=list)

    @property
    def life(self) -> ProcessIncarnation:
        return ProcessIncarnation(self.name, self.incarnation)

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    @property
    def process(self) -> Process:
        """The process that is up."""
        assert self.machine is not None
        return self.machine.process


class World:
    """A history."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.remembers = self.dice.random() < 0.5
        size = self.dice.choice((2, 3, 3, 3, 4, 5, 5, 6, 7))
        self.names = "abcdefg"[:size]
        self.nodes = {name: Node(name) for name in self.names}
        self.loss = self.dice.choice((0, 0, 5, 20))
        self.repeats = self.dice.choice((0, 10, 30))
        self.largest = self.dice.choice((MAX_DATAGRAM_BYTES, MAX_DATAGRAM_BYTES, 1_000, 300))
        """Largest datagram."""
        self.sudden_death = 0.002
        self.now_ms = 1_000
        self.letters: list[Letter] = []
        self.cut: set[frozenset[str]] = set()
        self.logs: list[Log] = []
        self.views: dict[tuple[int, int], View] = {}
        self.lives = 0
        self.clocks = random.Random(f"clocks {seed}")
        self.has_bad_clocks = self.clocks.random() < 0.4
        self.used: set[tuple[str, int]] = set()
        self.has_excluded = False
        self.gone = False
        self.anomalies: list[Anomaly] = []
        self.story: list[str] = []
        self._start_all()

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.now_ms:>7} ms  {what}")

    # The history

    def run(self) -> list[Anomaly]:
        """Act, settle, and ask the checker."""
        if not self.remembers:
            for _ in range(12):
                self._round()
        for _ in range(ACTIONS):
            self._act()
        self._settle()
        return self._check()

    def run_flood(self) -> list[Anomaly]:
        """Cut a link while others send, and heal it. No process dies, and none helps."""
        self.loss, self.sudden_death = 5, 0.0
        for _ in range(12):
            self._round()
        self._flood()
        lives = [node.life for node in self.nodes.values()]
        self._settle()
        assert lives == [node.life for node in self.nodes.values()]
        return self._check()

    def _start_all(self) -> None:
        view = first_view(ProcessIncarnation(name) for name in self.nodes)
        for node in self.nodes.values():
            if self.remembers:
                state = member(node.life, view, now_ms=self.now_ms, suspect_after_ms=SUSPECT_AFTER_MS)
                self._run(node, Process(state))
                self.logs.append(Log(node.life, node.delivered, view.origin))
            else:
                self._start(node)

    def _start(self, node: Node) -> None:
        """A process starts, or comes back."""
        if self.remembers:
            if node.stored is not None:
                self._run(node, Process(decode(ProcessState, node.stored))).tick(self.now_ms - node.now_ms)
                node.stored = None
            return
        self._begin(node, self._next_life(node))
        node.history, node.sent, node.submitted, node.unstored = History(), 0, [], []
        self._run(node, fresh_process(node.life, self.names, now_ms=self.now_ms, suspect_after_ms=SUSPECT_AFTER_MS))

    def _run(self, node: Node, process: Process) -> IsisMachine:
        node.machine = IsisMachine(
            process, self.names, GROUP, dice=self.clocks, history=node.history, largest=self.largest
        )
        return node.machine

    def _begin(self, node: Node, incarnation: int) -> None:
        node.incarnation, node.delivered = incarnation, []
        self.used.add((node.name, incarnation))
        self.logs.append(Log(node.life, node.delivered))

    def _next_life(self, node: Node) -> int:
        """A number that no life of the name has had: the time, of a clock that goes back now and then."""
        self.lives += 1
        back = self.clocks.random() < 0.5 if self.has_bad_clocks else False
        life = self.clocks.randrange(self.lives) if back else self.lives
        while (node.name, life) in self.used:
            life += 1
        return life

    def _act(self) -> None:
        kind = self.dice.choices(
            ("submit", "round", "letters", "crash", "restart", "cut", "heal", "suspect", "exclude", "storm", "flood"),
            (18, 35, 40, 3, 6, 3, 3, 2, 1, 3, 1),
        )[0]
        node = self.dice.choice(list(self.nodes.values()))
        self.tell(f"{kind} {node.name}")
        if kind == "submit":
            self._submit(node)
        elif kind == "round":
            self._round()
        elif kind == "letters":
            self._carry(self.dice.randrange(1, 30))
        elif kind == "crash":
            self._crash(node)
        elif kind == "restart" and not node.is_up:
            self._start(node)
        elif kind == "cut":
            self._cut()
        elif kind == "heal":
            self.cut.clear()
        elif kind == "suspect":
            self._tick(node, SUSPECT_AFTER_MS + TICK_MS)  # its clock runs ahead: it suspects all
        elif kind == "exclude":
            self._exclude(node)
        elif kind == "storm":
            self._storm()
        elif kind == "flood":
            self._flood()

    def _storm(self) -> None:
        """Much is on its way when some are cut off; they are suspected; and it happens again while the rest decides."""
        for node in self.dice.sample(sorted(self.nodes.values(), key=lambda node: node.name), 2):
            self._submit(node)
        if self.dice.random() < 0.5:
            self._carry(self.dice.randrange(40))
            self._cut()
        else:
            self._cut_off_a_number()
        for _ in range(self.dice.randrange(8, 16)):
            self._round()
        self._carry(self.dice.randrange(40))
        if self.dice.random() < 0.5:
            self._cut()
        else:
            self._crash(self.dice.choice(list(self.nodes.values())))

    def _flood(self) -> None:
        """Cut a link, while a third process sends as much as it may until both ends suspect each other.

        Each end then has the most that it can have to report.
        """
        if len(self.nodes) < 3:
            return
        sender, *ends = self.dice.sample(sorted(self.nodes), 3)
        self.cut = {frozenset(ends)}
        for _ in range(self.dice.randrange(10, 30)):
            for _ in range(self.dice.randrange(1, 8)):
                self._submit(self.nodes[sender])
            self._round()

    def _cut_off_a_number(self) -> None:
        """Cut a sender off, alone or with another one, as soon as it has computed a final number."""
        for _ in range(60):
            sent = [letter.sender for letter in self.letters if has_final_numbers(letter.datagram)]
            if sent:
                side = {sent[-1], *self.dice.sample(sorted(self.nodes), self.dice.randrange(2))}
                self._carry(self.dice.randrange(2))
                self.cut = {frozenset((one, other)) for one in side for other in self.nodes if other not in side}
                return
            self._carry(1)

    def _submit(self, node: Node) -> None:
        if not node.is_up or (self.remembers is False and node.process.view.id == 0):
            return
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            self._submit_run(node)

    def _submit_run(self, node: Node) -> None:
        if node.is_up:
            length = self.dice.choice((1, 1, 1, 3))
            first = node.sent + 1
            node.sent += length
            node.unstored += range(first, first + length)
            run = Run(b"%s %d %d" % (node.name.encode(), node.incarnation, first), length)
            self._step(node, lambda machine: machine.submit(run))

    def _round(self) -> None:
        """Let time pass for all; most messages under way arrive."""
        elapsed_ms = self.dice.randrange(1, 2 * TICK_MS)
        self.now_ms += elapsed_ms
        for node in self.nodes.values():
            self._tick(node, elapsed_ms)
        self._carry(len(self.letters))

    def _tick(self, node: Node, elapsed_ms: int) -> None:
        self._step(node, lambda machine: machine.tick(elapsed_ms), is_whole=True)

    def _carry(self, count: int) -> None:
        for _ in range(min(count, len(self.letters))):
            index = self.dice.randrange(min(len(self.letters), 40))
            letter = self.letters[index]
            if not self.dice.randrange(100) < self.repeats:
                self.letters.pop(index)
            is_cut = frozenset((letter.sender, letter.receiver)) in self.cut
            if not is_cut and not self.dice.randrange(100) < self.loss:
                self._arrive(letter)
        del self.letters[: max(0, len(self.letters) - 3_000)]

    def _arrive(self, letter: Letter) -> None:
        sender = self.names.index(letter.sender)
        self._step(self.nodes[letter.receiver], lambda machine: machine.take(sender, (letter.datagram,)))

    def _crash(self, node: Node) -> None:
        """Kill a process; without memory only as long as enough lives of the views in force are left."""
        if not node.is_up:
            return
        if not self.remembers:
            views = {other.process.view for other in self._up()}
            if self.dice.random() < 0.95 and not all(self._is_alive(view, without=node.name) for view in views):
                return
        self._kill(node)

    def _kill(self, node: Node) -> None:
        """Kill a process: a site finds its last stored state again."""
        if node.stored is None:
            node.stored = encode(node.process.state)
        self.tell(f"    {node.name} dies")
        node.now_ms, node.machine = self.now_ms, None
        node.sent -= len(node.unstored)
        node.unstored = []

    def _cut(self) -> None:
        side = {name for name in self.nodes if self.dice.random() < 0.5}
        if self.dice.random() < 0.3 and len(self.nodes) > 1:
            self.cut.add(frozenset(self.dice.sample(sorted(self.nodes), 2)))  # one link only
            return
        self.cut = {frozenset((one, other)) for one in side for other in self.nodes if other not in side}

    def _exclude(self, node: Node) -> None:
        """An operator decides once, at one place, and about names that are down."""
        down = tuple(name for name, other in self.nodes.items() if not other.is_up)
        if node.is_up and down and not self.has_excluded:
            self.has_excluded = True
            self._step(node, lambda machine: machine.process.exclude(down))

    # One step of a process

    def _step(self, node: Node, act: Callable[[IsisMachine], object], *, is_whole: bool = False) -> None:
        """Let a process that is up act, and end its step, unless that goes on."""
        if node.machine is None:
            return
        goes_on = self.dice.random() < 0.2 and not is_whole
        if goes_on and self.remembers and node.stored is None:
            node.stored = encode(node.process.state)
        try:
            act(node.machine)
            if goes_on:
                return
            outputs = node.machine.writes() or ()
            node.submitted += node.unstored
            node.unstored, node.stored = [], None
        except ProtocolViolation as error:
            self.anomalies.append(Anomaly(WRONG_STATE, f"{node.life}: {error}", ()))
            node.machine = None
            return
        lost = self.dice.random() < self.sudden_death
        for output in outputs:
            if isinstance(output, SentDatagram):
                self._send(node, output, lost=lost)
            else:
                self._hear(node, output)
        if lost:
            self._kill(node)

    def _send(self, node: Node, sent: SentDatagram, *, lost: bool) -> None:
        """Send a datagram; with `lost`, the process crashes after it has stored the step and before it sends."""
        if len(sent.datagram) > self.largest:
            self.anomalies.append(Anomaly(TOO_LARGE, f"{len(sent.datagram)} bytes", ()))
        if not lost:
            self.letters.append(Letter(node.name, self.names[sent.place], sent.datagram))

    def _hear(self, node: Node, event: Event) -> None:
        if isinstance(event, DeliverRun):
            self.tell(f"    {node.name} delivers {event.seqno} {event.run.reference.decode()}")
            node.delivered.append(event)
        elif isinstance(event, Gone):
            self.tell(f"    {node.name} has missed what nobody has any more")
            self.gone = True
        elif isinstance(event, BegunAgain):
            self.tell(f"    {node.name} begins incarnation {event.incarnation.incarnation}")
            self._begin(node, event.incarnation.incarnation)
        elif isinstance(event, Installed):
            self.tell(f"    {node.name} installs view {event.view.id} {[life.name for life in event.view.members]}")
            next(log for log in self.logs if log.delivered is node.delivered).origin = event.view.origin
            known = self.views.setdefault((event.view.origin, event.view.id), event.view)
            if known != event.view:
                self.anomalies.append(Anomaly(VIEW_VIOLATION, f"{known} and {event.view}", ()))

    # The end

    def _settle(self) -> None:
        """Heal and restart all; deliver all that can be delivered."""
        self.tell("all is healed")
        self.cut.clear()
        self.loss = self.repeats = 0
        self.sudden_death = 0.0
        for node in self.nodes.values():
            if not node.is_up:
                self._start(node)
        for _ in range(SETTLING_ROUNDS):
            self._round()
            if not self.letters and self._is_done():
                break

    def _is_done(self) -> bool:
        ends = {node.history.last for node in self._up()}
        return len(ends) == 1 and all(self._is_quiet(node) for node in self._up())

    def _is_quiet(self, node: Node) -> bool:
        agreement = node.process.agreement
        return agreement is not None and not agreement.state.is_frozen and not agreement.state.in_flight

    def _check(self) -> list[Anomaly]:
        checkers: dict[int, Checker] = {}
        goes_on = self._goes_on()
        for log in self.logs:
            checker = checkers.setdefault(log.origin, Checker())
            for delivery in log.delivered:
                sender, incarnation, first = delivery.run.reference.split()
                for index in range(delivery.run.length):
                    message = MessageId(f"s/{sender.decode()}", int(incarnation) + 1, int(first) + index)
                    checker.delivery(f"s/{log.life.name}:{log.life.incarnation}", delivery.seqno + index, message)
        if goes_on:
            for up in self._up():
                for local in up.submitted:
                    checkers.setdefault(up.process.view.origin, Checker()).sent(
                        MessageId(f"s/{up.name}", up.incarnation + 1, local)
                    )
        found = [anomaly for checker in checkers.values() for anomaly in checker.finish()]
        if goes_on and not found and not self.anomalies:
            ends = {node.name: node.history.last for node in self._up()}
            if len(set(ends.values())) > 1 or len(ends) < len(self.nodes):
                found.append(Anomaly(LOST, f"not all deliver all: {ends}", ()))
        return [*self.anomalies, *found]

    def _goes_on(self) -> bool:
        """Whether enough lives are left for the last view; else it is right to wait."""
        origins = {node.process.view.origin for node in self._up() if node.process.agreement is not None}
        views = [node.process.view for node in self._up() if node.process.view.origin in origins]
        return bool(views) and not self.gone and self._is_alive(max(views, key=lambda view: view.id), without="")

    def _is_alive(self, view: View, without: str) -> bool:
        lives = {node.life for node in self._up() if node.name != without}
        return len(lives & set(view.members)) > len(view.members) // 2

    def _up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run one history; what it breaks."""
    with mutation.broken():
        return World(seed).run()


def flood(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history of a cut link alone."""
    with mutation.broken():
        return World(seed).run_flood()


def explain(seed: int, mutation: Mutation, _: str) -> str:
    """Return the history, event by event."""
    with mutation.broken():
        world = World(seed)
        world.run()
    return "\n".join(world.story)
