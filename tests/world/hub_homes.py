"""Actions at a hub: relays, links, and operators, who make one site after the other the home."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kafka.errors import KafkaError

from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from connectors.relay.bootstrap import bootstrap
from connectors.relay.hub import HomeData, SiteForward
from connectors.relay.promotion import promote
from ordering.base.errors import AbcastError, HistoryUnavailable, UsageError
from tests.ledger.ledger_of import write_ledger
from tests.relay.carrying import Carrier
from tests.world.actors import Killed
from tests.world.hub_actions import FALSE_ALARM, LOGS, HubActions
from tests.world.hub_sites import GROUP

OPERATOR = "operator"


class HubHomes(HubActions):
    """The sites of a hub, and what happens there."""

    def __init__(self, seed: int, actions: Mapping[str, int], powers: Sequence[str]) -> None:
        names = ["nyc", "sfo", "lax", "oak"][: random.Random(seed).choice([2, 3, 3, 3, 4])]
        super().__init__(seed, actions, names, powers)
        self.may_lose = self.dice.random() < 0.4
        """Whether the operator may be cut off from a site, so that what that has may be lost."""
        self.refused: set[str] = set()
        """Sites whose copies have to be made anew."""
        self.lacking: dict[str, str] = {}
        """Sites that lack what only a ledger has, and whose ledger."""
        self.is_promoting = self.is_healed = False
        self.late: list[Carrier] = []
        """Relays that go on although others have begun in their place."""
        self.first = names[0]
        """The home from the beginning, until it has lost all."""

    # Relays

    def ways(self) -> list[Direction]:
        """Return the directions that have a relay by the file of their source."""
        return [way for name, file in self.files.items() for way in file.directions() if way.source == name]

    def _carry(self, _name: str) -> None:
        way = self.dice.choice(sorted({*self.ways(), *self.relays}))
        if way in self.relays or way in self.ways():
            self.relay(*way)

    def _replace_relay(self, _name: str) -> None:
        """Another relay begins while one goes on that has not noticed it yet."""
        if self.relays:
            self.late.append(self.relays.pop(self.dice.choice(sorted(self.relays))))

    def _carry_late(self, _name: str) -> None:
        if self.late:
            relay = self.late.pop(self.dice.randrange(len(self.late)))
            if relay.job.direction not in self.cut:
                relay.carry(self.dice.randrange(1, self.most_carried))

    def _look(self, _name: str) -> None:
        """Let a relay do what it does now and then."""
        if self.relays and (way := self.dice.choice(sorted(self.relays))) not in self.cut:
            self.look(way)

    def look(self, way: Direction) -> None:
        """Let the relay do what it does now and then."""
        try:
            with self.actors.acting(f"relay {way}"):
                self.relays[way].job.check()
        except AbcastError as error:
            del self.relays[way]
            self.note_error(f"relay {way}", error)
            if "has another seqno" in str(error):
                self._note_alarm(error)

    def new_relay(self, way: Direction) -> Carrier:
        """Start a relay. Raises what a start raises."""
        file = self.files[way.source]
        with self.unanswered(self.dice.choice([0.0, 0.0, 0.3])):
            return Carrier(HomeData if file.home == way.source else SiteForward, file, way, GROUP)

    def relay_has_ended(self, way: Direction, error: AbcastError) -> None:
        """Note what the error says: a copy has to be made anew, or filled from a ledger."""
        if isinstance(error, UsageError):
            if "has another seqno" in str(error) or "begins in the middle" in str(error):
                self._note_alarm(error)
            if "let it join again" in str(error) and (self.is_healed or "is the home, " not in str(error)):
                self.refused.add(way.target)
        elif isinstance(error, HistoryUnavailable):
            self.lacking[way.target] = way.source

    def _note_alarm(self, error: AbcastError) -> None:
        if not (self.may_lose or self.may_cut):
            self.blame(FALSE_ALARM, f"nothing was lost, and yet: {error}")

    def stop_relays(self, name: str) -> None:
        """Stop the relays from and to a site."""
        self.relays = {way: relay for way, relay in self.relays.items() if name not in way}
        self.late = [relay for relay in self.late if name not in relay.job.direction]

    # Links

    def _cut(self, _name: str = "") -> None:
        """Cut a link, or the operator's own way; or make all whole again."""
        one, other = self.dice.sample([*self.names, OPERATOR], 2)
        if self.dice.random() < 0.4:
            self._heal()
        elif self.may_lose or OPERATOR not in (one, other):
            self.cut |= {(one, other), (other, one)}

    def cut_operator_off(self, names: Sequence[str]) -> None:
        """Let none of these sites answer the operator."""
        self.cut |= {(OPERATOR, name) for name in names}

    # Operators

    def _damage(self, name: str) -> None:
        """A power failure takes the end of a log; or somebody deletes a site's topics, and creates them again."""
        if not self.may_cut:
            return
        self.forked.add(name)
        self.actors.pass_time(5_000)
        if self.dice.random() < 0.2:
            self.make_anew(name)
            return
        kafka = self.sites[name].kafka
        log = kafka.log(*self.dice.choice(kafka.places((*LOGS, "data"))))
        log.truncate(max(log.beginning, len(log.records) - self.dice.choice([1, 2, 5])))

    def _bootstrap(self, _name: str) -> None:
        if self.lacking:
            self.bootstrap(self.dice.choice(sorted(self.lacking)), self.dice.choice([0.0, 0.1]))

    def bootstrap(self, name: str, unanswered: float = 0.0) -> None:
        """`abcast site add --ledger`, as the errors say, with the relay stopped; until it says that it is done."""
        source = self.lacking[name]
        self.stop_relays(name)
        with tempfile.TemporaryDirectory() as directory:
            ledger = write_ledger(Path(directory) / "ledger", self.sites[source].in_ledger(), GROUP)
            with self.actors.acting(OPERATOR), self.unanswered(unanswered), suppress(AbcastError, KafkaError):
                try:
                    bootstrap(self.file_of(source), GROUP, ledger, Direction(source, name))
                except UsageError as error:
                    self.note_error(OPERATOR, error)
                del self.lacking[name]

    def _roll_out(self, name: str) -> None:
        """Give a site the newest file."""
        self.files[name] = self.newest

    def _fail_over(self, name: str) -> None:
        """The site is to be the home, mostly while the old one works. Some have the new file at once."""
        if name == self.newest.home and self.dice.random() < 0.7:
            return
        if self.dice.random() < 0.7:
            self._work_before(name)
        self.newest, self.is_promoting = self.file_of(name), True
        if self.may_lose and self.dice.random() < 0.6:  # the operator has a reason
            gone = self.dice.sample(self.names, self.dice.randrange(1, len(self.names)))
            self.cut_operator_off([each for each in gone if each != name])
        for each in self.names:
            if self.dice.random() < 0.6:
                self.files[each] = self.newest
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            self._command()
        if not self.is_promoting and self.dice.random() < 0.5:
            self._start(name)
            self.race()
        if self.may_lose and self.dice.random() < 0.2:
            self.lose_homes()

    def _work_before(self, name: str) -> None:
        """Let the present home decide, and its relay carry that to the site."""
        home = self.newest.home or ""
        if not any(job.site == home for job in self.jobs):
            self._start(home)
        for _ in range(2):
            self._send(home)
            self._decide(home)
            self.relay(home, name)
        self._deliver(home)

    def _command(self, _name: str = "") -> None:
        """Promote the site, while sequencers go on."""
        if self.is_promoting:
            self.promote(self.dice.choice([0.0, 0.15, 0.3]), 0.02)
            self.race()

    def race(self) -> None:
        """Let sequencers that have not looked yet decide on, and members deliver that."""
        for job in list(self.jobs):
            if job in self.jobs and self.dice.random() < 0.8:
                self._send(job.site)
                self._decide(job.site)
                self._deliver(job.site)

    def lose_homes(self) -> None:
        """Make two sites the home, one after the other. Each decides; no other site answers the operator then."""
        for home in self.dice.sample(self.names, 2):
            self.newest, self.is_promoting = self.file_of(home), True
            self.cut_operator_off([name for name in self.names if name != home])
            self.cut.discard((OPERATOR, home))
            self.files[home] = self.newest
            self.promote()
            self._start(home)
            self.race()

    def promote(self, unanswered: float = 0.0, sudden_death: float = 0.0) -> None:
        """Run the operator's command, which is given again until it says that it is done, or can't be."""
        home = self.newest.home
        assert home is not None
        self.actors.pass_time(60_000)
        with self.actors.acting(OPERATOR, sudden_death), self.unanswered(unanswered), suppress(AbcastError, Killed):
            try:
                done = promote(self.newest, GROUP, home)
            except UsageError as error:
                self.note_error(OPERATOR, error)
                self.is_promoting = "from a ledger first" in str(error)
                if "begins in the middle" in str(error) or "let it join again" in str(error):
                    self.refused.add(home)
                if self.is_promoting:
                    others = [site for site in self.sites.values() if site.name != home]
                    self.lacking[home] = max(others, key=lambda site: site.delivered).name
                return
            self.is_promoting = False
            self.forked.update(done.not_copied)

    def is_made_home(self, home: str) -> bool:
        """Promote the site, from a ledger if need be; whether that is done."""
        self.newest, self.is_promoting = self.file_of(home), True
        self.promote()
        if home in self.refused:
            self.rejoin(home)
            self.promote()
        if home in self.lacking:
            self.bootstrap(home)
            self.promote()
        with DataLog(self.newest.connection(home), GROUP, home) as data:
            return data.epochs.read().is_promoted()

    def _rejoin_refused(self, _name: str) -> None:
        if refused := sorted(self.refused - {self.newest.home or ""}):
            self.rejoin(self.dice.choice(refused))

    def _rejoin(self, name: str) -> None:
        """Let a site that never was the home join again."""
        with suppress(AbcastError), DataLog(self.sites[name].connection, GROUP, name) as data:
            if not data.epochs.read().has_decided() and name != self.newest.home:
                self.rejoin(name)

    def rejoin(self, name: str) -> None:
        """Do what the errors say: delete the site's topics of the group, and let it be a copy."""
        self.files[name] = self.newest
        for job in [job for job in self.jobs if job.site == name]:
            self.kill(job)
        self.stop_relays(name)
        self.make_anew(name)

    def make_anew(self, name: str) -> None:
        """Delete all topics of the site, and create them."""
        super().make_anew(name)
        if name == self.first:
            self.first = ""
        self.refused.discard(name)
        self.lacking.pop(name, None)
