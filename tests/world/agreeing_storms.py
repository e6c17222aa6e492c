"""Storms: rare orders of events that are likely to break an agreement, by design rather than by chance."""

from __future__ import annotations

from collections.abc import Collection

from tests.world.agreeing_actions import AgreeingActions


class AgreeingStorms(AgreeingActions):
    """The actions, and storms."""

    def _storm(self, _name: str) -> None:
        """A site is cut off, or dies, while runs are under way, long enough for the others to go on without it."""
        if self.dice.random() < 0.4:
            self._hear_late_words()
        else:
            for _ in range(6):
                self._send()
            for _ in range(self.dice.randrange(4)):
                self._round()
            self.dice.choice((self._hear_last_words, self._cut))()
        if self.dice.random() < 0.5:
            self._crash(self.dice.choice(self.names))
        for _ in range(self.dice.randrange(10, 30)):
            self._round()

    def _hear_last_words(self) -> None:
        """Cut off sites that know a final number, a majority but one, from all but one, which may die in its next
        step.
        """
        name = self._write_final()
        if name is None:
            return
        knowing = self._let_know(name)
        other = self.dice.choice([other for other in self.names if other not in knowing])
        for _ in range(8):
            for one in knowing:
                self.relay(one, other)
        self._step_in_danger(other, 3, 0.4)
        self.cut_off(knowing)
        if self.dice.random() < 0.7:  # when it is back, the others have gone on
            for _ in range(self.dice.randrange(25)):
                self._round()
        self._restart(other)

    def _hear_late_words(self) -> None:
        """Sites are cut off with a final number. When others leave them, one hears both, and may die, or be replaced.

        So what it has learned by the number, and what it has promised without it, are a step from each other.
        """
        self._heal()
        for site in self.names:
            self._restart(site)
        for _ in range(8):
            self._round()
        self._send()
        name = self._write_final()
        if name is None or len(self.names) < 3:
            return
        knowing = self._let_know(name)
        self.cut_off(knowing)
        leaving = self._leave(knowing)
        others = [one for one in self.names if one not in knowing]
        unaware = [one for one in others if not any(job.site.process.is_waiting for job in self.jobs[one])]
        if leaving is None or not unaware:
            return
        other = self.dice.choice(unaware)
        self.cut -= {(one, other) for one in knowing}
        for _ in range(4):
            for one in (*knowing, leaving):
                self.relay(one, other)
        self.cut |= {(one, other) for one in knowing}
        if self.dice.random() < 0.3:
            self._start_second(other)
        self._step_in_danger(other, 1, 0.2)
        if self.dice.random() < 0.5:
            self._let_hear(knowing, other)
        if self.dice.random() < 0.5:
            self._crash(other)
        self._restart(other)
        for _ in range(4):
            self._step(other)
            self._send()

    def _write_final(self) -> str | None:
        """Sites work, without time, until one has written a final number: which one. Others may hear that one only."""
        only = self.dice.choice(self.names) if self.dice.random() < 0.7 else ""
        for _ in range(12):
            for name in self.dice.sample(self.names, len(self.names)):
                end = self.sites[name].end
                self._step(name)
                if self._has_said(name, "finals", end):
                    return name
                for other in self.names:
                    if not only or only in (name, other):
                        self.relay(name, other)
        return None

    def _let_know(self, name: str) -> list[str]:
        """Let so many sites hear and confirm its entries that they are a majority but one; return them."""
        others = [other for other in self.names if other != name]
        told = self.dice.sample(others, max(0, len(self.names) // 2 - 1))
        for one in told:
            for _ in range(8):
                self.relay(name, one)
            for _ in range(3):
                self._step(one)
        return [name, *told]

    def _let_hear(self, names: Collection[str], other: str) -> None:
        """These hear what the other one has said just now, or what a job of it has that was replaced."""
        before = set(self.cut)
        self.cut -= {(other, one) for one in names}
        for one in names:
            self.relay(other, one)
            self._step(one)
        self.cut = before

    def _leave(self, names: Collection[str]) -> str | None:
        """Time goes on until another site opens a ballot, which nobody has read yet: which one."""
        for _ in range(40):
            ends = {one: self.sites[one].end for one in self.names if one not in names}
            self._round()
            for one, end in ends.items():
                if self._has_said(one, "prepare", end):
                    return one
        return None

    def _has_said(self, name: str, kind: str, since: int) -> bool:
        """Whether a letter of the kind is in an entry of a site, from that offset of its log on."""
        return any(letter.kind == kind for entry in self.sites[name].entries(since) for letter in entry.letters)

    def _step_in_danger(self, name: str, steps: int, sudden_death: float) -> None:
        self.sudden_death, before = sudden_death, self.sudden_death
        for _ in range(steps):
            self._step(name)
        self.sudden_death = before
