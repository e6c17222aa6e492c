"""The participants of the demo: members that broadcast at the same time (one is to be killed), and three observers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.demo.member import PATIENCE_SECONDS, speak
from jobs.demo.processes import Started
from ordering.base.errors import AbcastError, NotOrderedInTime

if TYPE_CHECKING:
    from connectors import Delivery, Member, Receipt
    from connectors.kafka.connection.connection import Connection
    from ordering.participant.events import ViewChange

OBSERVERS = ("observer-1", "observer-2", "observer-3")
EARLY = 0.6
"""The share of their messages that members send without waiting for the takeover."""

_POLL_S = 0.05


class Observer:
    """The deliveries of an observer, in order, with their times, and the views that it saw."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.times: list[float] = []
        """The time of each delivery, by the monotonic clock."""
        self.views: list[ViewChange] = []

    def watch(self, member: Member) -> None:
        """Deliver until the member is closed."""
        from connectors import Delivery
        from ordering.participant.events import ViewChange

        for what in member.deliveries(events=True):
            if isinstance(what, Delivery):
                self.times.append(time.monotonic())
                self.taken.append(what)
            elif isinstance(what, ViewChange):
                self.views.append(what)

    @property
    def seqno(self) -> int:
        """The seqno of the last delivery; 0 before the first."""
        return self.taken[-1].seqno if self.taken else 0


class DemoProcesses:
    """The participants, in threads of this process; `mortal` has a process of its own. A context manager."""

    def __init__(
        self, connection: Connection, group: str, site: str, lines: Mapping[str, Sequence[bytes]], log: Path
    ) -> None:
        """Prepare the participants. `lines`: the messages of each member, by its address."""
        self.lines = lines
        self.receipts: list[Receipt] = []
        self.observers = {name: Observer() for name in OBSERVERS}
        by_size = sorted(lines, key=lambda member: -len(lines[member]))
        self.mortal = by_size[1] if len(by_size) > 1 else None
        """The member that is killed, if there are others."""
        self.unsaid = 0
        """The number of messages that `mortal` did not send."""
        self._connection, self._group, self._site, self._log = connection, group, site, log
        self._process: Started | None = None
        self._begin, self._go_on, self._leave = threading.Event(), threading.Event(), threading.Event()
        self._stop = threading.Event()
        self._speaking = 0
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._members = contextlib.ExitStack()

    def __enter__(self) -> DemoProcesses:
        """Start the observers."""
        from connectors import Member

        for name, observer in self.observers.items():
            member = Member(self._group, f"{self._site}/{name}", connection=self._connection)
            self._members.callback(member.close)
            self._start(observer.watch, member)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let all leave; at once after a failure or an interruption."""
        if kind is not None:
            self._stop.set()
        self._begin.set()
        self._go_on.set()
        self._leave.set()
        if self._process is not None:
            self._process.kill()
        with contextlib.suppress(AbcastError) if kind is not None else contextlib.nullcontext():
            self._members.close()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def speak(self, seconds: float) -> None:
        """Let the members join, and broadcast, all at the same time; return when all are in one view, and begin.

        They send the part EARLY in that share of `seconds`, then wait for `go_on`. Raises like `wait`.
        """
        for member, lines in self.lines.items():
            if member == self.mortal:
                # It is killed before it sends the rest.
                arguments = [self._connection.bootstrap_servers, self._group, member, str(seconds * EARLY)]
                given = b"".join(line + b"\n" for line in lines[: round(len(lines) * EARLY)])
                self._process = Started(f"{__package__}.member", arguments, self._log, given)
            else:
                self._speaking += 1
                self._start(self._speak, member, lines, seconds)
        first = self.observers[OBSERVERS[0]]
        self.wait(lambda: first.views and set(self.lines) <= set(first.views[-1].members), "all members joined")
        self._begin.set()

    def go_on(self) -> None:
        """Let the members send the messages that they have kept for after the takeover."""
        self._go_on.set()

    def kill_the_mortal(self, show: Callable[[], None]) -> tuple[ViewChange, float]:
        """Kill `mortal`; return the view without it, and the seconds until all observers had that view."""
        assert self._process is not None
        self._process.kill()
        at = time.monotonic()
        newest = [observer.views for observer in self.observers.values()]
        self.wait(
            lambda: all(self.mortal not in views[-1].members for views in newest), f"{self.mortal} was missed", show
        )
        took = time.monotonic() - at
        views = newest[0]
        first_without = len(views) - 1
        while self.mortal not in views[first_without - 1].members:
            first_without -= 1
        return views[first_without], took

    def await_end(self, show: Callable[[], None]) -> int:
        """Wait until all messages are ordered, and all observers have them; return the last seqno."""
        self.wait(lambda: self._speaking == 0, "all messages were ordered", show)
        last = max(receipt.result(PATIENCE_SECONDS) for receipt in self.receipts)
        self.wait(
            lambda: all(observer.seqno >= last for observer in self.observers.values()), "all were delivered", show
        )
        return last

    def wait(self, condition: Callable[[], object], what: str, show: Callable[[], None] = lambda: None) -> None:
        """Wait until the condition holds; call `show` after each look. Raises a thread's error, NotOrderedInTime."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self._failures:
                raise self._failures[0]
            if time.monotonic() > deadline:
                raise NotOrderedInTime(f"it took longer than {PATIENCE_SECONDS:g} s until {what}.")
            show()
            time.sleep(_POLL_S)

    def _speak(self, address: str, lines: Sequence[bytes], seconds: float) -> None:
        from connectors import Member

        with Member(self._group, address, connection=self._connection) as member:
            member.connect(timeout=PATIENCE_SECONDS)
            self._begin.wait(PATIENCE_SECONDS)
            early = round(len(lines) * EARLY)
            receipts = list(speak(member, lines[:early], seconds * EARLY, self._stop))
            self._go_on.wait(PATIENCE_SECONDS)
            receipts += speak(member, lines[early:], seconds * (1 - EARLY), self._stop)
            while not (self._stop.is_set() or all(receipt.done() for receipt in receipts[-1:])):
                self._stop.wait(_POLL_S)
            with self._lock:
                self.receipts += receipts
                self._speaking -= 1
            self._leave.wait(PATIENCE_SECONDS)
            if self._stop.is_set():
                raise InterruptedError  # so that it closes without waiting for unordered messages

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised in the main thread by wait
                self._failures.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()
