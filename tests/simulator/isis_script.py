"""Scripted traces of the ISIS agreement: a command, and under it what it does, message by message.

processes a b c     a view of these processes
submit a TEXT       a process has a message to order
carry [a b]         all that is on its way (from a to b) arrives, in the order in which it was sent
lose a b            all that is on its way from a to b is lost
kill a              a process is gone
time MS             so much later, everybody's clock ticks
check               all who are left have delivered the same, and nothing is on its way
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ordering.agreement.formation import ProcessIncarnation, View, first_view
from ordering.agreement.hold_back import Run
from ordering.agreement.messages import (
    Accept,
    Ballot,
    BallotAccepted,
    BallotPromise,
    Beat,
    DecidedView,
    DeliverRun,
    Event,
    From,
    Installed,
    Message,
    NextView,
    Output,
    Prepare,
    Refuse,
    Stuck,
    To,
)
from ordering.agreement.process import member
from ordering.agreement.state import Finals, Known, Placed, Propose, Send, Submit, Tick
from ordering.agreement.views import Process


class OnItsWay(NamedTuple):
    """A message that was sent and has not arrived."""

    sender: str
    receiver: str
    message: Message


class Script:
    """The processes of one trace."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.delivered: dict[str, list[tuple[int, bytes]]] = {}
        self.wire: list[OnItsWay] = []
        self.now_ms = 0

    def do(self, line: str) -> list[str]:
        """Do a command; what it does, a line each."""
        command, *words = line.split()
        done = list(getattr(self, f"_{command}")(*words))
        return done or ["nothing"]

    def _processes(self, *names: str) -> Iterator[str]:
        view = first_view(map(ProcessIncarnation, names))
        for name in names:
            self.processes[name] = Process(member(ProcessIncarnation(name), view))
            self.delivered[name] = []
        yield f"view {view.id}: {_members(view)}"

    def _submit(self, name: str, *words: str) -> Iterator[str]:
        yield from self._take(name, [Submit(Run(" ".join(words).encode()))])

    def _carry(self, *ends: str) -> Iterator[str]:
        arriving, self.wire = self.wire, []
        for item in arriving:
            if ends and (item.sender, item.receiver) != ends:
                self.wire.append(item)
        for name in list(self.processes):
            chosen = [item for item in arriving if item.receiver == name and item not in self.wire]
            if chosen:
                yield from self._take(name, [From(ProcessIncarnation(item.sender), item.message) for item in chosen])

    def _lose(self, sender: str, receiver: str) -> Iterator[str]:
        for item in [item for item in self.wire if (item.sender, item.receiver) == (sender, receiver)]:
            self.wire.remove(item)
            yield f"lost on its way to {receiver}: {self._said(sender, item.message)}"

    def _kill(self, name: str) -> Iterator[str]:
        del self.processes[name], self.delivered[name]
        self.wire = [item for item in self.wire if name not in (item.sender, item.receiver)]
        yield f"{name} is gone"

    def _time(self, ms: str) -> Iterator[str]:
        self.now_ms += int(ms)
        for name in list(self.processes):
            yield from self._take(name, [Tick(self.now_ms)])

    def _check(self) -> Iterator[str]:
        first, *others = self.delivered.values()
        yield "all have delivered the same" if all(other == first for other in others) else f"{self.delivered}"

    def _take(self, name: str, events: Iterable[Event]) -> Iterator[str]:
        process = self.processes[name]
        for event in events:
            process.take(event)
        said: list[tuple[Message, list[str]]] = []
        outputs = process.end_batch()
        names = [life.name for life in process.view.members]
        for output in outputs:
            if isinstance(output, To):
                if output.receiver.name in self.processes:
                    self.wire.append(OnItsWay(name, output.receiver.name, output.message))
                if said and said[-1][0] is output.message:
                    said[-1][1].append(output.receiver.name)
                else:
                    said.append((output.message, [output.receiver.name]))
            else:
                yield from self._happened(name, output)
        for message, receivers in said:
            yield f"{name} to {' '.join(receivers)}: {_words(message, names)}"

    def _happened(self, name: str, output: Output) -> Iterator[str]:
        if isinstance(output, DeliverRun):
            self.delivered[name].append((output.seqno, output.run.reference))
            text = output.run.reference.decode()
            yield f"{name} delivers {output.seqno} '{text}' of {output.sender.name}: {output.key}{output.proposer.name}"
        elif isinstance(output, Installed):
            yield f"{name} installs view {output.view.id}: {_members(output.view)}"
        elif isinstance(output, Stuck):
            reached = " ".join(life.name for life in output.reached)
            yield f"{name} waits: only {reached} of {_members(output.view)}, and {output.needed} are needed"
        else:
            raise AssertionError(f"{output} has no words")

    def _said(self, sender: str, message: Message) -> str:
        process = self.processes.get(sender)
        return _words(message, [life.name for life in process.view.members] if process else [])


def rewrite(text: str) -> str:
    """A trace with what its commands do now."""
    script = Script()
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {done}" for done in script.do(line)]
    return "\n".join(lines) + "\n"


def _members(view: View) -> str:
    return " ".join(life.name for life in view.members)


def _words(message: Message, names: list[str]) -> str:
    """Return a message in words; `names` are the names of the places in its view."""
    if isinstance(message, Send):
        return f"message {message.first} {', '.join(repr(run.reference.decode()) for run in message.runs)}"
    if isinstance(message, Propose):
        return f"proposes {', '.join(map(str, message.numbers))} for message {message.first} of {names[message.sender]}"
    if isinstance(message, Finals):
        keys = ", ".join(f"{key.number}{names[key.proposer]}" for key in message.keys)
        return f"message {message.first} is {keys}"
    if isinstance(message, Known):
        known = " ".join(f"{name}{number}" for name, number in zip(names, message.finals, strict=True))
        return f"knows the numbers up to {known}, has delivered {message.delivered}"
    if isinstance(message, Beat):
        return "is there"
    if isinstance(message, Prepare):
        return f"ballot {_ballot(message.ballot, names)}"
    if isinstance(message, Refuse):
        return f"no, there is {_ballot(message.promised, names)}"
    if isinstance(message, BallotPromise):
        report = message.report
        finals = _places(report.finals, names) or "nothing"
        return f"promise to {_ballot(message.ballot, names)}: has delivered {report.delivered}, knows besides {finals}"
    if isinstance(message, Accept):
        return f"accept in {_ballot(message.ballot, names)}: {_value(message.value, names)}"
    if isinstance(message, BallotAccepted):
        return f"accepted in {_ballot(message.ballot, names)}"
    if isinstance(message, DecidedView):
        return f"decided: view {message.value.view.id}"
    raise AssertionError(f"{message} has no words")


def _ballot(ballot: Ballot, names: list[str]) -> str:
    return f"{ballot.round}{names[ballot.coordinator]}"


def _places(runs: Iterable[Placed], names: list[str]) -> str:
    return ", ".join(
        f"{names[placed.id.sender]}{placed.id.number} is {placed.key.number}{names[placed.key.proposer]}"
        for placed in runs
    )


def _value(value: NextView, names: list[str]) -> str:
    settled = _places(value.settled, names) or "nothing"
    return f"view {value.view.id} of {_members(value.view)} after seqno {value.view.base}; settled {settled}"
