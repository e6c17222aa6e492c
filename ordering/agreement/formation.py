"""Formation: the first view of plain processes that remember nothing, without a coordinator.

A process that starts is *fresh*: it knows the names of all processes (the hostfile) and its own incarnation. It tells
everybody the incarnations that it has heard of (`Hello`); later ones replace earlier ones. It installs the first view
once all of them have told exactly the same incarnations, and sends no Hello any more. A process that missed this takes
over the view from a member, if it is in that view and knows no later incarnation of the member.

Invariant. All live processes that have installed a first view have installed the same. A crash keeps it, because the
process comes back in another incarnation. docs/protocols/formation.md has the proof, and the cases of late starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple


class ProcessIncarnation(NamedTuple):
    """An incarnation of a process: a plain process has one for each start, a site only one, since its log remembers."""

    name: str
    incarnation: int = 0


class View(NamedTuple):
    """A view of the processes that agree. `members` are sorted; a process's *place* in the view is its index there.

    `base` is the last seqno before the view. `rows` has the last ordered run of each process ever heard of, in its
    newest incarnation, member or not. All views of a group have one `origin`, and no other group has it.
    """

    origin: int
    id: int
    members: tuple[ProcessIncarnation, ...]
    base: int = 0
    rows: tuple[tuple[ProcessIncarnation, int], ...] = ()


class Hello(NamedTuple):
    """A fresh process's message with the incarnations that it has heard of."""

    incarnations: tuple[ProcessIncarnation, ...]


def first_view(incarnations: Iterable[ProcessIncarnation]) -> View:
    """Return the first view of a group of these incarnations."""
    members = tuple(sorted(incarnations))
    digest = blake2b(repr([tuple(process) for process in members]).encode("utf-8"), digest_size=7)
    return View(int.from_bytes(digest.digest(), "big"), 1, members)


class Formation:
    """A fresh process. Mutable, and never stored: a process with something to store is not fresh."""

    def __init__(self, me: ProcessIncarnation, names: Iterable[str]) -> None:
        self.me = me
        self.names = tuple(sorted(names))
        self._said: dict[str, tuple[ProcessIncarnation, ...]] = {}
        self._incarnations: dict[str, int] = {me.name: me.incarnation}

    def hello(self) -> Hello:
        """Return the process's present Hello."""
        return Hello(tuple(ProcessIncarnation(*row) for row in sorted(self._incarnations.items())))

    def hear(self, sender: ProcessIncarnation, said: Hello) -> View | None:
        """Take another process's Hello. Return the first view if all processes have told the same."""
        for process in (sender, *said.incarnations):
            if process.name in self.names:
                self._incarnations[process.name] = max(process.incarnation, self._incarnations.get(process.name, 0))
        if self._incarnations[self.me.name] != self.me.incarnation or not self.is_newest(sender):
            return None
        self._said[sender.name] = said.incarnations
        return self.view()

    def view(self) -> View | None:
        """Return the first view if all processes have told the same as this one, or None."""
        incarnations = self.hello().incarnations
        complete = len(incarnations) == len(self.names)
        if complete and all(
            self._said.get(process.name) == incarnations for process in incarnations if process != self.me
        ):
            return first_view(incarnations)
        return None

    def is_newest(self, process: ProcessIncarnation) -> bool:
        """Whether no later incarnation of the name was heard of."""
        return process.incarnation >= self.newest(process.name)

    def newest(self, name: str) -> int:
        """Return the latest incarnation of the name that was heard of, 0 if none was."""
        return self._incarnations.get(name, 0)

    def may_take_over(self, member: ProcessIncarnation, members: Iterable[ProcessIncarnation]) -> bool:
        """Whether to take over a first view with these `members` from a live member."""
        incarnations: Mapping[str, int] = dict(members)
        return self.is_newest(member) and incarnations.get(member.name) == member.incarnation
