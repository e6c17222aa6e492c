"""A view changes although processes are slow: messages wait until they are read, and reading takes time."""

from __future__ import annotations

import random
from collections import deque

import pytest

from ordering.agreement.formation import ProcessIncarnation, first_view
from ordering.agreement.messages import Accept, BallotPromise, DecidedView, Message, Prepare, To
from ordering.agreement.process import member
from ordering.agreement.views import Process

SUSPECT_AFTER_MS = 1_500
BATCH = 64
STEP_MS = 10
LARGE = (BallotPromise, Accept, DecidedView)
"""Messages with delivered and final runs: they take long to read."""


class Machine:
    """Processes of one view that share a slow processor: each reads its inbox as one batch, then is busy."""

    def __init__(self, names: str, large_ms: float, seed: int) -> None:
        view = first_view(ProcessIncarnation(name) for name in names)
        self.processes = {
            name: Process(member(ProcessIncarnation(name), view, suspect_after_ms=SUSPECT_AFTER_MS)) for name in names
        }
        self.inboxes: dict[str, deque[tuple[ProcessIncarnation, Message]]] = {name: deque() for name in names}
        self.on_their_way: list[tuple[float, str, To]] = []
        self.busy_until_ms = dict.fromkeys(names, 0.0)
        self.large_ms, self.dice, self.now_ms = large_ms, random.Random(seed), 0

    def go_on(self) -> None:
        """Let some time pass."""
        self.now_ms += STEP_MS
        arrived = [each for each in self.on_their_way if each[0] <= self.now_ms]
        self.on_their_way = [each for each in self.on_their_way if each[0] > self.now_ms]
        for _, sender, to in arrived:
            if to.receiver.name in self.processes:
                self.inboxes[to.receiver.name].append((ProcessIncarnation(sender), to.message))
        for name, process in self.processes.items():
            if self.busy_until_ms[name] <= self.now_ms:
                self._work(name, process)

    def _work(self, name: str, process: Process) -> None:
        process.wake(self.now_ms)
        inbox, read_ms = self.inboxes[name], 1.0
        for _ in range(min(BATCH, len(inbox))):
            sender, message = inbox.popleft()
            read_ms += self.dice.uniform(0.5, 1.5) * (self.large_ms if isinstance(message, LARGE) else 0.5)
            process.receive(sender, message)
        process.tick(self.now_ms)
        self.busy_until_ms[name] = self.now_ms + read_ms
        letters = [output for output in process.end_batch() if isinstance(output, To)]
        self.on_their_way += [(self.busy_until_ms[name] + 1, name, to) for to in letters]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("large_ms", [1, 300, 500])
def test_a_view_comes_also_where_questions_come_faster_than_they_are_read(large_ms: float, seed: int) -> None:
    """Otherwise each question waits behind its own repeats, its answer is late, and rivals outbid each other for
    ever.
    """
    machine = Machine("abcd", large_ms, seed)
    del machine.processes["d"]
    while any(process.view.id == 1 for process in machine.processes.values()):
        machine.go_on()
        assert machine.now_ms < 3 * SUSPECT_AFTER_MS, "they do not get to the end of what they ask each other"
    assert {process.view for process in machine.processes.values()} == {machine.processes["a"].view}


def test_a_question_that_comes_repeatedly_is_answered_once_in_a_batch() -> None:
    """The answer is large."""
    machine = Machine("abc", 1, 0)
    asked = [to for to in _questions(machine.processes["a"]) if to.receiver.name == "b"]
    for to in asked * 5:
        machine.processes["b"].receive(ProcessIncarnation("a"), to.message)
    answers = [output for output in machine.processes["b"].end_batch() if isinstance(output, To)]
    assert [type(to.message) for to in answers] == [BallotPromise]
    machine.processes["b"].receive(ProcessIncarnation("a"), asked[0].message)
    assert [type(to.message) for to in machine.processes["b"].end_batch() if isinstance(to, To)] == [BallotPromise]


def _questions(process: Process) -> list[To]:
    """Return a process's messages when it suspects all others."""
    process.tick(SUSPECT_AFTER_MS)
    process.tick(SUSPECT_AFTER_MS + 2)
    return [to for to in process.end_batch() if isinstance(to, To) and isinstance(to.message, Prepare)]


def test_what_came_while_a_process_was_busy_is_no_silence() -> None:
    machine = Machine("abc", 1, 0)
    process = machine.processes["a"]
    beats = [to for to in _beats(machine.processes["b"]) if to.receiver.name == "a"]
    process.wake(3 * SUSPECT_AFTER_MS)
    process.receive(ProcessIncarnation("b"), beats[0].message)
    process.receive(ProcessIncarnation("c"), beats[0].message)
    for more_ms in (0, 1, 2):
        process.tick(3 * SUSPECT_AFTER_MS + more_ms)
    assert not any(isinstance(to, To) and isinstance(to.message, Prepare) for to in process.end_batch())


def _beats(process: Process) -> list[To]:
    process.tick(SUSPECT_AFTER_MS // 2)
    return [to for to in process.end_batch() if isinstance(to, To)]
