"""Sites of the ISIS agreement around the very same core, each with its Kafka, its job and its relays.

Jobs are killed between any two records that they write, started while another of the site still runs, and cut off;
relays stop, repeat and begin anew; clocks run ahead; an operator excludes dead sites. A retention drops FORWARD and
copies of it, down to what all sites have in DATA (and had when the site's job was stopped, or so long before it was
killed as `ordering.agreement.sites.own_log.SNAPSHOT_AFTER_MS` says), and logs, down to the records read. The log of one
site is lost at the end of some histories: the others then go on without it, and it is told. In most histories the
Kafkas have powers (`tests.simulator.kafka`): clocks of partitions' leaders jump, partitions are away, transactions
leave markers, topics take no large entries. In some, all sites run a later version, whose sequencer also writes records
of its own kind, which take several seqnos.

    python -m tests.simulator --isis-sites --seeds 2000
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, cast

from connectors.kafka.codec.entry_codec import write_entry
from ordering.agreement.group import Group, after_takeover, going_on
from ordering.agreement.log import Entry, OrderedRun, Range, counting, ranges_of
from ordering.agreement.site import Site
from ordering.agreement.site_state import GroupState, SiteState, first_state, state_of
from ordering.agreement.sites.own_log import SNAPSHOT_AFTER_SUSPICIONS
from ordering.base.errors import Disagreement, HistoryUnavailable, ProtocolViolation
from ordering.base.reader import Reader, Verdict
from ordering.base.records import (
    ENTRY,
    EPOCH,
    HEARTBEAT,
    JOIN,
    MESSAGE,
    SETTINGS,
    Data,
    Exclusion,
    Forward,
    Malformed,
    MessageId,
    Source,
)
from ordering.checker.anomalies import LOST, VIEW_VIOLATION, Anomaly
from ordering.checker.checker import Checker
from ordering.membership.settings import Settings
from ordering.sequencer.sequencer import step
from ordering.sequencer.state import SequencerState
from tests.simulator.kafka import NOW_MS, Kafka, Log, NotWritten, OutOfRange
from tests.simulator.mutation import NONE, Mutation
from tests.world.jobs import write_later

GROUP = "g"
SUSPECT_AFTER_MS = 400
RESEND_AFTER_MS = 80
MEMBER_SUSPECT_AFTER_MS = 600
"""Silence of a member that makes a view without it, which all sites must put in the same place."""
ACTIONS = 100
SETTLING_ROUNDS = 300
ROUND_MS = 40
KINDS = {
    "send": 18,
    "round": 30,
    "step": 20,
    "carry": 20,
    "crash": 3,
    "restart": 8,
    "start_second": 3,
    "cut": 3,
    "heal": 4,
    "run_ahead": 1,
    "stop": 4,
    "retire": 8,
    "exclude": 1,
    "storm": 4,
}
"""Actions and their weights."""
ASKS = b"later "
"""The beginning of messages behind which a later version writes a record of its own kind."""
POWERS = ((), ("clock", "away", "marker"), ("marker", "limit"), ("clock", "away", "limit"))
"""The powers of the Kafkas of a history, by its seed."""
MISHAPS = 0.03
"""Probability in each round, at each site."""
WRONG_STATE = "wrong-state"
UNREADABLE = "unreadable"
"""A run is ordered, and a site that has taken part in that lacks its records."""
TWO_LOGS = "two-logs"
"""A site has read something of a log that was lost, and takes the one that was begun in its place."""
UNTOLD = "untold"
"""A site goes on whose log was lost."""

ENDED = "ended"
"""A job says that what it needs is not there, though all sites have it in DATA."""

Record = Data | Entry
"""Records of a site's log: DATA, seals among it, and entries."""


class SiteKafka:
    """A site's topics, in the one Kafka in memory. `copies` and `logs` have the relays' records, with the offset at
    home.

    For a site whose log was lost, `begun_anew` has the entries that it has written since, and `copied` the length of
    the lost log at each other site.
    """

    def __init__(self, name: str, others: Sequence[str], seed: int, powers: Sequence[str], format_2_from: int) -> None:
        self.name = name
        self.kafka = Kafka(seed, powers, size_of)
        self.forward = self.kafka.log(f"abcast.{GROUP}.forward.{name}")
        self.log = self.kafka.log(f"abcast.{GROUP}.data.{name}")
        self.copies = {other: self.kafka.log(f"forward of {other}") for other in others}
        self.logs = {other: self.kafka.log(f"log of {other}") for other in others}
        self.claims = 0
        self.format_2_from = format_2_from
        """The claim from which on the group has format 2 at this site: an operator has upgraded it there."""
        self.is_lost = False
        self.begun_anew: list[Entry] = []
        self.copied: dict[str, int] = {}
        self.in_data: dict[str, int] = {}
        """The end of each place's records in DATA."""
        self.settled: dict[str, int] = {}
        """The offset of each place up to which it may be dropped: all sites have had it in DATA for long enough."""

    @property
    def place(self) -> str:
        return f"abcast.{GROUP}.forward.{self.name}-0"

    def forward_of(self, name: str) -> Log:
        """Return FORWARD of a site, as it is here."""
        return self.forward if name == self.name else self.copies[name]

    def written(self) -> Reader:
        """The reading rule behind all of DATA."""
        reader = Reader()
        for record in self.log.records:
            if isinstance(record, Data):
                reader.judge(record)
        return reader

    def entries(self) -> dict[Data, Entry | None]:
        """Return entries and seals in the log's order. Raise Away."""
        found: dict[Data, Entry | None] = {}
        for _, record in self.log.read(self.log.beginning):
            if isinstance(record, Entry):
                found[Data(ENTRY, record.epoch, local_seqno=record.number, payload=record.digest)] = record
            elif record.kind == EPOCH:
                found[record] = None
        return found


def size_of(record: Any) -> int:
    """Return the bytes of a record's value, or of the one that a relay has copied."""
    stored = record[1] if type(record) is tuple else record
    return len(write_entry(stored).payload if isinstance(stored, Entry) else stored.payload)


def since(log: Log, start: int, count: int) -> list[tuple[int, Any]]:
    """Return so many records from an offset on, if they exist; none of an absent partition. Raise OutOfRange."""
    is_there = not log.is_away and start <= len(log.records)
    return list(islice(log.read(start), count)) if is_there else []


def brought_up_to(copy: Log, since_at: int) -> int:
    """Behind which offset at home a relay goes on, as the last records of what it fills tell; 0 if none does."""
    last = copy.records[max(len(copy.records) - 60, since_at, copy.beginning) :]
    return 1 + max((record[0] for record in last if record), default=-1)


class Job:
    """A job of a site: takes over, then step by step."""

    def __init__(self, world: World, kafka: SiteKafka) -> None:
        self.world, self.kafka = world, kafka
        self.group = take_over(world, kafka)
        self.read = {
            place: self.group.start_of(place, kafka.forward_of(name).beginning, is_copy=name != kafka.name)
            for name, place in world.places.items()
        }
        self.records: dict[str, dict[int, Forward]] = {place: {} for place in self.read}
        self.heard = {name: self.group.start_of_log(name, log.beginning) for name, log in kafka.logs.items()}
        self.group.keep_with(self._offsets)
        self.settling: tuple[int, dict[str, int]] | None = None
        self.told_ms = world.now_ms
        self.died = False

    @property
    def site(self) -> Site:
        """The site's part in the agreement."""
        return self.group.site

    @property
    def counts(self) -> bool:
        """Whether no later job of the site has taken over. One that does not may find that others contradict it."""
        return self.site.epoch == self.kafka.claims

    def step(self) -> None:
        """Take what there is, write the entry, then DATA; die on the way, perhaps."""
        self.poll()
        self.write()
        self._settle()

    def stop(self) -> None:
        """End with a last entry."""
        passed = self._passed()
        entry = self.group.end_step(is_last=True)
        if self.dies():
            return
        if entry is not None:
            self._append(entry)
        if self.counts:
            self.kafka.settled |= passed

    def _settle(self) -> None:
        """Note the offsets that DATA has had for so long that no later job needs them."""
        now_ms = self.site.process.state.now_ms
        if self.died or not self.counts:
            self.settling = None
        elif self.settling is None:
            self.settling = now_ms, self._passed()
        elif now_ms - self.settling[0] >= SNAPSHOT_AFTER_SUSPICIONS * SUSPECT_AFTER_MS:
            self.kafka.settled |= self.settling[1]
            self.settling = None

    def _passed(self) -> dict[str, int]:
        """Return each place's offset that DATA of all sites has, and this job has passed."""
        passed = self.world.in_data()
        for run in self.site.sequenced.runs:
            for part in ranges_of(run.run):
                passed[part.place] = min(passed[part.place], part.first)
        return passed

    def _append(self, entry: Entry) -> None:
        self.kafka.log.append(entry)
        if self.kafka.is_lost:
            self.kafka.begun_anew.append(entry)
        else:
            self.world.note_view(self)

    def write(self) -> None:
        entry = self.group.end_step()
        if entry is not None:
            if self.dies():
                return
            self._append(entry)
            if self.dies():
                return
        self.sequence()
        if self.world.stores_state and not self.died:
            self.group = stored_and_loaded(self.group)
            self.group.keep_with(self._offsets)

    def sequence(self) -> None:
        """Write the DATA of ordered runs, record by record."""
        while (run := self.group.due()) is not None:
            for data in (*self.group.open(), *sequence_run(self.group, run, self._fetch(run))):
                if self.dies():
                    return
                self.kafka.log.append(data)
            self.group.written = self.group.sent
            self.kafka.in_data |= {part.place: part.end for part in ranges_of(run.run)}
            self.world.note_members(self, run)

    def dies(self) -> bool:
        if self.world.dice.random() < self.world.sudden_death:
            self.died = True
        return self.died

    def _offsets(self, part: Range) -> list[tuple[int, int]]:
        return [(n, n + 1) for n in range(part.first, part.end) if n in self.records[part.place]]

    def _fetch(self, run: OrderedRun) -> list[Forward]:
        """The records of a run."""
        parts = ranges_of(run.run)
        return [self.records[part.place][n] for part in parts for n, _ in self._offsets(part)]

    def poll(self) -> None:
        dice = self.world.dice
        now_ms = self.world.now_ms + self.world.ahead.get(self.kafka.name, 0)
        self.group.tick(max(0, now_ms - self.told_ms))
        self.told_ms = max(self.told_ms, now_ms)
        inputs = [("forward", name) for name in self.world.places] + [("log", name) for name in self.kafka.logs]
        dice.shuffle(inputs)
        for kind, name in inputs:
            if dice.random() < 0.2:
                continue
            if kind == "log" and self.site.is_behind:
                continue
            if kind == "log":
                self._read_log(name, dice.randrange(1, 30))
            elif name == self.kafka.name:
                own = since(self.kafka.forward, self.read[self.kafka.place], dice.randrange(1, 12))
                self._take(self.kafka.place, own, own)
            else:
                place = self.world.places[name]
                copied = since(self.kafka.copies[name], self.read[place], dice.randrange(1, 12))
                self._take(place, copied, [record for _, record in copied])

    def _take(self, place: str, here: list[tuple[int, Any]], records: list[tuple[int, Forward]]) -> None:
        """Take FORWARD of a place as it is here, with offsets at home."""
        if not records:
            return
        self.read[place] = here[-1][0] + 1
        last = max(offset for offset, _ in records)
        is_idle = all(record.kind == HEARTBEAT for _, record in records)
        kept_from = self.group.arrived(place, records[0][0], last, self.read[place], is_idle=is_idle)
        self.records[place].update((offset, record) for offset, record in records if offset >= kept_from)

    def _read_log(self, name: str, count: int) -> None:
        for offset, (_, record) in since(self.kafka.logs[name], self.heard[name], count):
            at = self.heard[name] = offset + 1
            if isinstance(record, Data):
                self.group.hear(name, at, record, _not_an_entry)
            else:
                bare = Data(ENTRY, record.epoch, local_seqno=record.number)
                before = self.site.logs.row(name).number
                self.group.hear(name, at, bare, lambda _, entry=record: entry)  # type: ignore[misc]
                if self.site.logs.row(name).number > before:
                    self.world.note_read(self, name, record)


def _not_an_entry(record: Data) -> Entry:
    raise ProtocolViolation(f"{record} is none.")


def stored_and_loaded(group: Group) -> Group:
    """Store and load the state, as between two batches on Spark."""
    state = GroupState.from_bytes(group.state.to_bytes())
    return going_on(state, SequencerState.from_bytes(group.site.sequenced.state.to_bytes()))


def take_over(world: World, kafka: SiteKafka) -> Group:
    """Claim, seal, read up to the seal: every start of a job."""
    kafka.log.append(Data(EPOCH, kafka.claims + 1))
    kafka.claims += 1
    return after_takeover(known_state(world, kafka), taken(kafka))


def taken(kafka: SiteKafka) -> SequencerState:
    """Return the state that DATA tells at a takeover."""
    of_format = 1 + (kafka.claims >= kafka.format_2_from)
    return SequencerState(GROUP, epoch=kafka.claims, seqno=kafka.written().last_seqno, format=of_format)


def known_state(world: World, kafka: SiteKafka) -> SiteState:
    """Return the state that the log tells."""
    log = kafka.entries()
    entries = counting(log, lambda record: cast("Entry", log[record]))
    return state_of(entries) if entries else world.first(kafka)


def sequence_run(group: Group, _run: OrderedRun, records: Sequence[Forward | Malformed]) -> list[Data]:
    """Return the unwritten part of the next run's DATA."""
    before = group.site.sequenced.state.seqno
    state, data = decide(group.site.sequenced.state, sorted(records, key=lambda record: record.source))
    decided = group.decided(state, is_refused=False)
    return unwritten((*data, *decided.closing), before, decided.written)


def unwritten(data: Sequence[Data], before: int, seqnos: int) -> list[Data]:
    """Return the records of a run behind `before` whose seqnos are not among the first so many, which are in DATA."""
    return [record for record in data if record.seqno > before + seqnos]


def decide(state: SequencerState, records: Sequence[Forward | Malformed]) -> tuple[SequencerState, list[Data]]:
    """Decide a run's records, with a record of a later version behind each message that asks for one."""
    data: list[Data] = []
    asking = [at for at, record in enumerate(records, 1) if isinstance(record, Forward) and later_count(record)]
    for first, end in pairwise((0, *asking, len(records))):
        state, outputs = step(state, records[first:end])
        decided = [output for output in outputs if isinstance(output, Data)]
        data += decided
        if decided and (count := later_count(decided[-1])):
            state, record = write_later(state, count)
            data.append(record)
    return state, data


def later_count(message: Forward | Data) -> int:
    """Return how many seqnos a later version takes behind a message."""
    return int(message.payload[len(ASKS) :]) if message.payload.startswith(ASKS) else 0


@dataclass
class Sender:
    """A member: sends again what it has not seen in its site's DATA, and now and then in a wrong order."""

    name: str
    site: str
    sent: int = 0
    ordered: int = 0


class World:
    """A history."""

    def __init__(self, seed: int, powers: Sequence[str] = (), later: float = 0.0) -> None:
        """`later`: the share of messages behind which a later version writes a record of its own."""
        self.dice = random.Random(seed)
        self.later, self.later_dice = later, random.Random(f"later {seed}")
        size = self.dice.choice((2, 3, 3, 3, 4, 5, 5, 5, 7))
        self.names = [f"s{number}" for number in range(size)]
        upgrades = random.Random(f"format {seed}")
        self.kafkas = {
            name: SiteKafka(
                name,
                [other for other in self.names if other != name],
                10 * seed + number,
                powers,
                1 if later else upgrades.choice((1, 1, 1, 2, 3, 1_000_000)),  # others read no record of several seqnos
            )
            for number, name in enumerate(self.names)
        }
        self.places = {name: kafka.place for name, kafka in self.kafkas.items()}
        self.has_members = seed % 2 == 1
        self.loses_a_log = seed % 5 == 2
        self.stores_state = seed % 16 == 0
        self.rests = seed % 4 == 1
        self.now_ms = NOW_MS
        self.ahead: dict[str, int] = {}
        self.cut: set[tuple[str, str]] = set()
        self.sudden_death = 0.04 if later else 0.01
        self.anomalies: list[Anomaly] = []
        self.views: dict[int, object] = {}
        self.has_excluded = False
        self.told: set[str] = set()
        self.senders = [Sender(f"{name}/m{n}", name) for name in self.names for n in range(self.dice.choice((1, 1, 2)))]
        self.jobs: dict[str, list[Job]] = {name: [] for name in self.names}
        for name in self.names:
            self._start(name)

    def first(self, kafka: SiteKafka) -> SiteState:
        """A site that begins."""
        return first_state(
            GROUP,
            kafka.name,
            self.names,
            now_ms=self.now_ms,
            suspect_after_ms=SUSPECT_AFTER_MS,
            resend_after_ms=RESEND_AFTER_MS,
        )

    def run(self) -> list[Anomaly]:
        """Act, settle, and ask the checker."""
        for _ in range(ACTIONS):
            self._act()
        if self.rests:
            self._rest()
        if self.loses_a_log and not self.has_excluded:
            self._lose_log(self.dice.choice(self.names))
        self._settle()
        return self._check()

    # The history

    def _act(self) -> None:
        kind = self.dice.choices(list(KINDS), list(KINDS.values()))[0]
        getattr(self, f"_{kind}")(self.dice.choice(self.names))

    def _crash(self, name: str) -> None:
        self.jobs[name].clear()

    def _stop(self, name: str) -> None:
        for job in self.jobs[name]:
            with suppress(NotWritten):
                job.stop()
        self.jobs[name].clear()

    def in_data(self) -> dict[str, int]:
        """Return the end of each place's records in DATA of all sites."""
        return {
            place: min(kafka.in_data.get(place, 0) for kafka in self.kafkas.values()) for place in self.places.values()
        }

    def _retire(self, name: str) -> None:
        """Retention drops at a site what no start of its job needs, nor a relay."""
        kafka = self.kafkas[name]
        if kafka.is_lost or any(log.is_away for log in kafka.kafka.logs.values()):
            return
        try:
            rows = {site: row.at for site, row in known_state(self, kafka).logs.items()}
        except ProtocolViolation:
            return  # the next start tells that
        for other, place in self.places.items():
            settled = kafka.settled.get(place, 0)
            if other == name:
                kafka.forward.drop(settled)
                continue
            copy = kafka.copies[other]
            kept = (at for at, record in copy.read(copy.beginning) if record[0] >= settled)
            copy.drop(next(kept, len(copy.records)))
            kafka.logs[other].drop(rows.get(other, 0))
        entries = kafka.entries()
        counts = counting(entries, lambda record: cast("Entry", entries[record]))
        if counts:
            carried = min(
                max((record[0] for record in there.logs[name].records if record), default=0)
                for there in self.kafkas.values()
                if there is not kafka
            )
            firsts = [kafka.log.records.index(entry) for entry in counts if entry.number <= counts[-1].base]
            kafka.log.drop(max((first for first in firsts if first <= carried), default=0))

    def _restart(self, name: str) -> None:
        if not self.jobs[name]:
            self._start(name)

    def _start_second(self, name: str) -> None:
        if len(self.jobs[name]) < 2:
            self._start(name)

    def _heal(self, _name: str = "") -> None:
        self.cut.clear()
        self.ahead.clear()

    def _run_ahead(self, name: str) -> None:
        """A clock does: its site suspects all others."""
        self.ahead[name] = SUSPECT_AFTER_MS + 2 * ROUND_MS

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
            self.jobs[self.dice.choice(self.names)].clear()
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
                self._relay(one, other)
        self._step_in_danger(other, 3, 0.4)
        self._cut_off(knowing)
        if self.dice.random() < 0.7:  # when it is back, the others have gone on
            for _ in range(self.dice.randrange(25)):
                self._round()
        if not self.jobs[other]:
            self._start(other)

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
        self._cut_off(knowing)
        leaving = self._leave(knowing)
        others = [one for one in self.names if one not in knowing]
        unaware = [one for one in others if not any(job.site.process.is_waiting for job in self.jobs[one])]
        if leaving is None or not unaware:
            return
        other = self.dice.choice(unaware)
        self.cut -= {(one, other) for one in knowing}
        for _ in range(4):
            for one in (*knowing, leaving):
                self._relay(one, other)
        self.cut |= {(one, other) for one in knowing}
        if self.dice.random() < 0.3:
            self._start_second(other)
        self._step_in_danger(other, 1, 0.2)
        if self.dice.random() < 0.5:
            self._let_hear(knowing, other)
        if self.dice.random() < 0.5:
            self._crash(other)
        if not self.jobs[other]:
            self._start(other)
        for _ in range(4):
            self._step(other)
            self._send()

    def _write_final(self) -> str | None:
        """Sites work, without time, until one has written a final number: which one. Others may hear that one only."""
        only = self.dice.choice(self.names) if self.dice.random() < 0.7 else ""
        for _ in range(12):
            for name in self.dice.sample(self.names, len(self.names)):
                end = len(self.kafkas[name].log.records)
                self._step(name)
                if self._has_said(name, "finals", end):
                    return name
                for other in self.names:
                    if not only or only in (name, other):
                        self._relay(name, other)
        return None

    def _let_know(self, name: str) -> list[str]:
        """Let so many sites hear and confirm its entries that they are a majority but one; return them."""
        others = [other for other in self.names if other != name]
        told = self.dice.sample(others, max(0, len(self.names) // 2 - 1))
        for one in told:
            for _ in range(8):
                self._relay(name, one)
            for _ in range(3):
                self._step(one)
        return [name, *told]

    def _let_hear(self, names: Collection[str], other: str) -> None:
        """These hear what the other one has said just now, or what a job of it has that was replaced."""
        before = set(self.cut)
        self.cut -= {(other, one) for one in names}
        for one in names:
            self._relay(other, one)
            self._step(one)
        self.cut = before

    def _leave(self, names: Collection[str]) -> str | None:
        """Time goes on until another site opens a ballot, which nobody has read yet: which one."""
        for _ in range(40):
            ends = {one: len(self.kafkas[one].log.records) for one in self.names if one not in names}
            self._round()
            for one, end in ends.items():
                if self._has_said(one, "prepare", end):
                    return one
        return None

    def _has_said(self, name: str, kind: str, since: int) -> bool:
        """Whether a letter of the kind is in an entry of a site, from that offset of its log on."""
        entries = (record for record in self.kafkas[name].log.records[since:] if isinstance(record, Entry))
        return any(letter.kind == kind for entry in entries for letter in entry.letters)

    def _cut_off(self, names: Collection[str]) -> None:
        self.cut = {(one, two) for one in self.names for two in self.names if (one in names) != (two in names)}

    def _step_in_danger(self, name: str, steps: int, sudden_death: float) -> None:
        self.sudden_death, before = sudden_death, self.sudden_death
        for _ in range(steps):
            self._step(name)
        self.sudden_death = before

    def _start(self, name: str) -> None:
        try:
            self.jobs[name].append(Job(self, self.kafkas[name]))
        except ProtocolViolation as error:
            self.anomalies.append(Anomaly(WRONG_STATE, f"{name}: {error}", ()))
        except HistoryUnavailable as error:
            self._note_end(name, error)
        except NotWritten:
            return  # it is started again

    def _note_end(self, name: str, error: HistoryUnavailable) -> None:
        if self.kafkas[name].is_lost:
            self.told.add(name)
        else:
            self.anomalies.append(Anomaly(ENDED, f"{name}: {error}", ()))

    def _step(self, name: str) -> None:
        for job in list(self.jobs[name]):
            try:
                job.step()
            except ProtocolViolation as error:
                if job.kafka.is_lost and isinstance(error, Disagreement):
                    self.told.add(name)
                elif job.counts:
                    self.anomalies.append(Anomaly(WRONG_STATE, f"{name}: {error}", ()))
                job.died = True
            except HistoryUnavailable as error:
                self._note_end(name, error)
                job.died = True
            except (NotWritten, OutOfRange):
                job.died = True  # a write has failed, or unread records are gone: the job is started again
            self._note_held(job)
            is_told = not job.counts and self.dice.random() < 0.05  # that it was fenced
            if job.died or is_told:
                self.jobs[name].remove(job)

    def note_view(self, job: Job) -> None:
        """Views that entries tell of are the same; one that is in no entry may be forgotten."""
        view = job.site.process.view
        if job.counts and self.views.setdefault(view.id, view) != view:
            self.anomalies.append(Anomaly(VIEW_VIOLATION, f"{self.views[view.id]} and {view}", ()))

    def note_members(self, job: Job, run: OrderedRun) -> None:
        """Behind a run, no member of a site that is absent from its view of sites is in the group's view."""
        membership = job.site.sequenced.state.membership
        left = [life.address for life in membership.members if life.address.partition("/")[0] in run.absent]
        if left and membership.detector.clock and job.counts:
            self.anomalies.append(Anomaly(VIEW_VIOLATION, f"{left} are in the view without their site", ()))

    def _round(self, _name: str = "") -> None:
        """Time goes on, relays carry, jobs work."""
        self.now_ms += self.dice.randrange(1, 2 * ROUND_MS)
        for kafka in self.kafkas.values():
            kafka.kafka.now_ms = self.now_ms
            kafka.kafka.mishap([*kafka.kafka.logs], MISHAPS)
        for name in self.names:
            for other in self.names:
                if self.dice.random() < 0.8:
                    self._relay(name, other)
        for name in self.names:
            self._step(name)

    def _send(self, _name: str = "") -> None:
        """Send new messages; and sometimes earlier ones, or message n + 1 before n."""
        sender = self.dice.choice(self.senders)
        numbers = list(range(sender.ordered + 1, sender.sent + 1)) if self.dice.random() < 0.3 else []
        new = self.dice.choice((1, 1, 2, 5))
        numbers += range(sender.sent + 1, sender.sent + new + 1)
        sender.sent += new
        if self.dice.random() < 0.3:
            self.dice.shuffle(numbers)
        self._forward(sender, numbers)

    def _forward(self, sender: Sender, numbers: list[int]) -> None:
        kafka = self.kafkas[sender.site]
        for number in numbers:
            source = Source(f"abcast.{GROUP}.forward.{sender.site}", 0, len(kafka.forward.records))
            kind, payload = self._said(sender, number)
            record = Forward(sender.name, 1, number, payload, source, kind=kind, timestamp_ms=kafka.forward.now_ms)
            with suppress(NotWritten):  # it is sent again
                kafka.forward.append(record)

    def _said(self, sender: Sender, number: int) -> tuple[str, bytes]:
        if self.dice.random() < 0.05:
            return HEARTBEAT, b""
        if self.has_members and number == 1:
            return JOIN, b""
        if self.has_members and number == 2 and sender is self.senders[0]:
            return SETTINGS, Settings(suspect_after_ms=MEMBER_SUSPECT_AFTER_MS).to_json()
        if self.later_dice.random() < self.later:
            return MESSAGE, ASKS + b"%d" % self.later_dice.choice((1, 2, 3, 7))
        return MESSAGE, b"%s %d" % (sender.name.encode(), number)

    def _carry(self, name: str) -> None:
        self._relay(name, self.dice.choice(self.names))

    def _relay(self, source: str, target: str) -> None:
        """Carry on after what the target has; or begin before that, as a relay does that was started again."""
        if source == target or (source, target) in self.cut:
            return
        here, there = self.kafkas[source], self.kafkas[target]
        back = self.dice.randrange(1, 12) if self.dice.random() < 0.1 else 0
        count = self.dice.randrange(1, 40)
        copy, log = there.copies[source], there.logs[source]
        with suppress(NotWritten):
            start = max(here.forward.beginning, brought_up_to(copy, 0) - back)
            for found in since(here.forward, start, count):
                copy.append(found)
            start = max(here.log.beginning, brought_up_to(log, here.copied.get(target, 0)) - back)
            for offset, record in since(here.log, start, count):
                log.append((offset, record if isinstance(record, Entry) else Data(EPOCH, record.epoch)))

    def _cut(self, _name: str = "") -> None:
        pairs = [(one, other) for one in self.names for other in self.names if one != other]
        if self.dice.random() < 0.3:
            self.cut.add(self.dice.choice(pairs))  # one direction of one link
            return
        side = {name for name in self.names if self.dice.random() < 0.4}
        self.cut = {(one, other) for one, other in pairs if (one in side) != (other in side)}

    def _exclude(self, name: str) -> None:
        """An operator decides once, at one site, and about sites that are down."""
        down = tuple(other for other in self.names if not self.jobs[other])
        if self.jobs[name] and down and not self.has_excluded:
            self.has_excluded = True
            group = self.jobs[name][-1].group
            group.exclusions.add([Exclusion(group.site.process.view.id, down)])

    # All have all, nothing comes for a while, and retention drops what there was

    def _rest(self) -> None:
        self._settle()
        sites = self.dice.sample(self.names, self.dice.randrange(len(self.names) + 1))
        for name in sites:
            self._stop(name)
            self._restart(name)
        for _ in range(2 * SNAPSHOT_AFTER_SUSPICIONS * SUSPECT_AFTER_MS // ROUND_MS + 10):
            self._round()
        for name in self.names:
            self._crash(name)
        for name in self.names:
            self._retire(name)
            self._restart(name)
        for _ in range(3):
            self._send()

    # A log that is lost

    def _lose_log(self, name: str) -> None:
        """Lose a part of a site's log that all others have read.

        An operator has them go on without the site, which begins again and again, and may not hear the others for a
        while.
        """
        kafka = self.kafkas[name]
        others = [other for other in self.names if other != name]
        self._heal()
        for other in self.names:
            self._restart(other)
        for _ in range(8):
            self._send()
            self._round()
        self._heal()
        read = [max((job.site.logs.row(name).number for job in self.jobs[other]), default=0) for other in others]
        if not min(read):
            return
        last = min(read) - 1  # a log that lacks little soon grows beyond the lost one
        left = self.dice.choice((0, self.dice.randrange(min(read)), last, last, last))
        self._truncate(kafka, left)
        self.has_excluded = True
        if self.dice.random() < 0.5:  # who hears nobody grows, and is told later
            self.cut = {(other, name) for other in others}
        for _ in range(self.dice.randrange(40)):
            for sender in self.senders:
                if sender.site == name and self.dice.random() < 0.5:
                    sender.sent += 1
                    self._forward(sender, [sender.sent])
            if not self.jobs[name] or self.dice.random() < 0.2:
                self._crash(name)
                self._start(name)
            self._round()

    def _truncate(self, kafka: SiteKafka, left: int) -> None:
        """Truncate the log to so many entries. If none is left, the claims may be lost, too."""
        self.jobs[kafka.name].clear()
        records = kafka.log.records
        counting = [record for record in records if isinstance(record, Entry) and record.number <= left]
        end = 0 if not left else max(at for at, record in enumerate(records, 1) if record is counting[-1])
        kafka.log.truncate(end)
        kafka.is_lost = True
        kafka.copied = {
            name: len(there.logs[kafka.name].records) for name, there in self.kafkas.items() if there != kafka
        }
        if not end and self.dice.random() < 0.5:
            kafka.claims = 0

    def _exclude_lost(self) -> None:
        """Do as the message to the operator says."""
        lost = tuple(name for name in self.names if self.kafkas[name].is_lost)
        for name in self.names:
            for job in self.jobs[name]:
                if lost and name not in lost:
                    job.group.exclusions.add([Exclusion(job.site.process.view.id, lost)])

    def note_read(self, job: Job, name: str, entry: Entry) -> None:
        """A site has taken an entry of another one's log."""
        if any(entry is each for each in self.kafkas[name].begun_anew):
            self.anomalies.append(Anomaly(TWO_LOGS, f"{job.kafka.name} has read two of {name}", ()))

    def _note_held(self, job: Job) -> None:
        """Note that a site that has proposed for a run has its records."""
        agreement = job.site.process.agreement
        for held in agreement.state.held if agreement is not None else ():
            if any(part.end > job.site.forwards.place(part.place).end for part in ranges_of(held.run)):
                self.anomalies.append(Anomaly(UNREADABLE, f"{held.run} at {job.kafka.name}", ()))

    # The end

    def _settle(self) -> None:
        """Heal and restart all; order all that can be ordered."""
        self.cut.clear()
        self.ahead.clear()
        for kafka in self.kafkas.values():
            kafka.kafka.heal()
        self.sudden_death = 0.0
        for name in self.names:
            self.jobs[name] = [job for job in self.jobs[name] if job.counts]
            if not self.jobs[name]:
                self._start(name)
        for number in range(SETTLING_ROUNDS):
            self._exclude_lost()
            self._round()
            for name in self.names:
                if not self.kafkas[name].is_lost:
                    self._restart(name)  # what it was to read may have gone in the last round
            if number % 10 == 9 and self._resend():
                break

    def _resend(self) -> bool:
        """Send unordered messages again; return whether there is none, and all sites are even."""
        ordered: dict[str, int] = {}
        ends = set()
        for kafka in self.whole():
            reader = Reader()
            for record in kafka.log.records:
                if record is None or isinstance(record, Entry):
                    continue
                taken = reader.judge(record) is Verdict.TAKE
                if taken and record.sender.startswith(f"{kafka.name}/"):
                    ordered[record.sender] = record.local_seqno
            ends.add(reader.last_seqno)
        is_done = len(ends) == 1 and self.told >= {name for name, kafka in self.kafkas.items() if kafka.is_lost}
        for sender in self.senders:
            sender.ordered = ordered.get(sender.name, 0)
            missing = list(range(sender.ordered + 1, sender.sent + 1))
            is_done = is_done and (not missing or self.kafkas[sender.site].is_lost)
            self._forward(sender, missing)
        return is_done

    def whole(self) -> list[SiteKafka]:
        """Return all logs but a lost one."""
        return [kafka for kafka in self.kafkas.values() if not kafka.is_lost]

    def _check(self) -> list[Anomaly]:
        checker = Checker()
        found: list[Anomaly] = []
        for kafka in self.whole():
            for record in kafka.log.records:
                if isinstance(record, Data):
                    checker.data(kafka.name, record)
        for sender in self.senders:
            for number in range(1, sender.sent + 1):
                if not self.kafkas[sender.site].is_lost:
                    checker.sent(MessageId(sender.name, 1, number))
        found += checker.finish()
        ends = {kafka.name: kafka.written().last_seqno for kafka in self.whole()}
        if len(set(ends.values())) > 1 and not found and not self.anomalies:
            found.append(Anomaly(LOST, f"not all sites have all: {ends}", ()))
        untold = {name for name, kafka in self.kafkas.items() if kafka.is_lost} - self.told
        return [*self.anomalies, *found, *(Anomaly(UNTOLD, name, ()) for name in sorted(untold))]


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run one history; return what it breaks. A broken rule has the powers that it names, and no others."""
    is_whole = mutation is NONE
    powers = (
        POWERS[(seed // 4 + seed // 16) % len(POWERS)]
        if is_whole
        else tuple(each for each in mutation.needs if each != "later")
    )
    later = 0.3 if "later" in mutation.needs or (is_whole and seed % 6 == 4) else 0.0
    with mutation.broken():
        return World(seed, powers, later).run()
