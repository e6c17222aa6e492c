"""How plain processes that remember nothing begin: the first view, without a coordinator.

A process that starts is *fresh*: it knows the names of all processes (the hostfile), a number of its own start (its
incarnation), and nothing else. It says to everybody which *lives* (name, incarnation) it has heard of, its own among
them (`Hello`). Later lives replace earlier ones. It installs the first view as soon as all the lives that it has heard
of have said exactly the same lives. From then on it never says anything here again. It tells the view to those that
ask.

Some may not have seen that all have said so. A process takes over an installed first view, of which a member tells it,
if it is in that view itself, and if the member is the newest life of its name that it has heard of.

Invariant. All live processes that have installed a first view have installed the same. Suppose that q has installed V
and r has installed another one, W, and both are alive.

* W contains q's own life. An earlier life q' of that name would have said W, and r's life in it, so r would have
  started before q. V then has r's life, or an earlier r'. If r: r said V and W, and V (with q) after W (with q'), but
  r said nothing after W. If r': it said V, and q's life in it, so q would have started before r. Likewise V contains
  r's life.
* So q has said V and W. Lives only grow, so what it said second is above what it said first; and it said nothing after
  V. So W is below V, or the same; with r in the place of q, V is below W, or the same.
* A view that is taken over from a member is one that the member has installed, and the member is alive or was the
  newest life of its name. The process that takes it over has said nothing that has a later life of the member, so
  nothing that could be installed beside it.

All names must have been started once before the first view is there, as in the source. A process that starts later, or
again, finds a view in which it is not, and asks to join (`ordering.agreement.views`). If all die, all begin anew: no
process is left that has delivered anything. The number of the views' origin tells the old group's messages from the new
one's. A crash at any point keeps the invariant, because a process that crashes comes back as another life. So a process
whose incarnation is not the latest that the others know of its name (a clock went back) is to begin again as a later
one, as long as it is fresh: that is a crash, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple


class ProcessIncarnation(NamedTuple):
    """One life of a process: a site has one only (its log remembers), a plain process one for each start."""

    name: str
    incarnation: int = 0


class View(NamedTuple):
    """Who takes part, from which seqno on. `members` are sorted; their places are those of the protocol in the view.

    `base` is the last seqno before it, and `rows` has the last run that was ordered of each process ever heard of: its
    newest life, a member or not. `origin` is the same in all views of one group, and in no other's.
    """

    origin: int
    id: int
    members: tuple[ProcessIncarnation, ...]
    base: int = 0
    rows: tuple[tuple[ProcessIncarnation, int], ...] = ()


class Hello(NamedTuple):
    """A fresh process says which lives it has heard of."""

    lives: tuple[ProcessIncarnation, ...]


def first_view(lives: Iterable[ProcessIncarnation]) -> View:
    """The view that a group of these lives begins with."""
    members = tuple(sorted(lives))
    digest = blake2b(repr([tuple(life) for life in members]).encode("utf-8"), digest_size=7)
    return View(int.from_bytes(digest.digest(), "big"), 1, members)


class Formation:
    """A fresh process. Mutable, and never stored: who has something to store is not fresh."""

    def __init__(self, me: ProcessIncarnation, names: Iterable[str]) -> None:
        self.me = me
        self.names = tuple(sorted(names))
        self._said: dict[str, tuple[ProcessIncarnation, ...]] = {}
        self._lives: dict[str, int] = {me.name: me.incarnation}

    def hello(self) -> Hello:
        """What the process says now."""
        return Hello(tuple(ProcessIncarnation(*row) for row in sorted(self._lives.items())))

    def hear(self, sender: ProcessIncarnation, said: Hello) -> View | None:
        """Take what another process has said; the first view, if everybody has said the same."""
        for life in (sender, *said.lives):
            if life.name in self.names:
                self._lives[life.name] = max(life.incarnation, self._lives.get(life.name, 0))
        if self._lives[self.me.name] != self.me.incarnation or not self.is_newest(sender):
            return None
        self._said[sender.name] = said.lives
        return self.view()

    def view(self) -> View | None:
        """The first view, if everybody has said the same as this process does."""
        lives = self.hello().lives
        complete = len(lives) == len(self.names)
        if complete and all(self._said.get(life.name) == lives for life in lives if life != self.me):
            return first_view(lives)
        return None

    def is_newest(self, life: ProcessIncarnation) -> bool:
        """Whether no later life of that name was heard of."""
        return life.incarnation >= self.newest(life.name)

    def newest(self, name: str) -> int:
        """The latest incarnation of that name that was heard of, 0 if none was."""
        return self._lives.get(name, 0)

    def may_take_over(self, member: ProcessIncarnation, members: Iterable[ProcessIncarnation]) -> bool:
        """Whether to believe a live member that this is the first view."""
        lives: Mapping[str, int] = dict(members)
        return self.is_newest(member) and lives.get(member.name) == member.incarnation
