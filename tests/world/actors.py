"""The actors of a world, one at a time, each with a clock of its own that never goes back.

A wait of the shipped code lets no time pass for the others: it moves the actor's clock, which the world's time
overtakes later. At each call to a Kafka (`Actors.call`) the actor may be killed, may get an error, or pauses while
others act.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka.errors import KafkaConnectionError

from ordering.base.errors import BrokerUnreachable
from tests.world.clock import START_S, Clock


class Killed(BaseException):
    """The actor is killed at this point. No handler of errors may see it."""


class Actors(Clock):
    """The time of a world, whose turn it is, and the dice of its actors."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.actor = ""
        self.ahead = Counter[str]()
        """By actor: how much its clock is ahead of the true time, in ms."""
        self.sudden_death = 0.0
        """The probability that the actor is killed, before each record that it writes."""
        self.errors = 0.0
        """The probability that a call to a Kafka fails."""
        self.pauses = 0.0
        """The probability that the actor pauses before a call to a Kafka."""
        self.during_a_pause: Callable[[], None] = lambda: None
        """Lets others act."""
        self._is_in_pause = False
        self.is_cut_off: Callable[[str, str], bool] = lambda _actor, _site: False
        """Whether an actor does not reach a site."""
        self._reached: dict[str, float] = {}

    @property
    def now_ms(self) -> int:
        """The true time, in ms."""
        return round(1000 * START_S) + self.passed_ms

    @property
    def passed_ms(self) -> int:
        """The time that has passed, in ms."""
        return round(1000 * self.steady_s)

    def pass_time(self, elapsed_ms: int) -> None:
        """Let time pass for all."""
        self.steady_s = (self.passed_ms + elapsed_ms) / 1000

    def catch_up(self) -> None:
        """Pass the time of the longest wait. While an actor waits, its clock does not move."""
        waited_ms = [int(1000 * reached) - self.ahead[actor] - self.now_ms for actor, reached in self._reached.items()]
        self.pass_time(max([0, *waited_ms]))

    @contextmanager
    def acting(self, actor: str, sudden_death: float = 0.0) -> Iterator[None]:
        """Let this actor act."""
        before = self.actor, self.sudden_death
        self.actor, self.sudden_death = actor, sudden_death
        try:
            yield
        finally:
            self.actor, self.sudden_death = before

    def may_die(self) -> None:
        """Raise Killed, perhaps."""
        if self.sudden_death and self.dice.random() < self.sudden_death:
            raise Killed(self.actor)

    def call(self, *, writes: bool = False) -> None:
        """Begin a call to a Kafka. Raises Killed, and KafkaConnectionError for a call that fails."""
        if writes:
            self.may_die()
        if self.pauses and not self._is_in_pause and self.dice.random() < self.pauses:
            self._is_in_pause = True
            try:
                with self.acting(""):
                    self.during_a_pause()
            finally:
                self._is_in_pause = False
        if self.errors and self.dice.random() < self.errors:
            raise KafkaConnectionError("the call fails")

    def check_reaches(self, site: str) -> None:
        """Raise BrokerUnreachable if the actor is cut off from the site."""
        if self.actor != site and self.is_cut_off(self.actor, site):
            raise BrokerUnreachable(f"{site} does not answer {self.actor}.")

    def sleep(self, seconds: float) -> None:
        """Wait, as the actor."""
        self._reached[self.actor] = self.monotonic() + seconds

    def monotonic(self) -> float:
        """Return the time of the actor's clock, in seconds."""
        now = (self.now_ms + self.ahead[self.actor]) / 1000
        reached = self._reached[self.actor] = max(now, self._reached.get(self.actor, 0.0))
        return reached
