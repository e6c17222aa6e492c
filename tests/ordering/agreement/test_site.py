"""A site's part in the agreement: its entries and their times, its reading of others' logs, and its restarts."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from ordering.agreement.codec import decode, encode
from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.group import Group, going_on
from ordering.agreement.log import (
    Entry,
    LogRow,
    OrderedRun,
    Range,
    ReadReport,
    SiteMessage,
    contents_of,
    counting,
    ranges_of,
    read_letter,
    run_of,
    write_letter,
)
from ordering.agreement.messages import Exclude, Stuck
from ordering.agreement.process import SUSPECT_AFTER_MS, suspecting_after
from ordering.agreement.site import MAX_RUNS_IN_FLIGHT, UNPACED_RUNS, Site, begin
from ordering.agreement.site_state import (
    Arrived,
    GroupState,
    Heard,
    Notice,
    OtherLog,
    Place,
    SiteState,
    first_state,
    state_of,
)
from ordering.agreement.sites.forwards import MAX_MARKS
from ordering.agreement.sites.own_log import SNAPSHOT_AFTER_SUSPICIONS, SNAPSHOT_EVERY_ENTRIES, SNAPSHOT_EVERY_RUNS
from ordering.agreement.sites.sequenced import Sequenced
from ordering.agreement.state import Propose, Tick
from ordering.base.errors import Disagreement, HistoryUnavailable, ProtocolViolation
from ordering.base.records import (
    ENTRY,
    EPOCH,
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    SETTINGS,
    STOP_FLUSH,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Malformed,
    Partition,
    Source,
)
from ordering.sequencer.sequencer import step

SITES = ("nyc", "sfo", "lax")


def forward_topic(site: str) -> str:
    return f"abcast.g.forward.{site}"


def record(site: str, offset: int, *, local_seqno: int | None = None) -> Forward:
    number = offset + 1 if local_seqno is None else local_seqno
    return Forward(f"{site}/m", 1, number, b"%d" % number, Source(forward_topic(site), 0, offset))


def state_told(name: str, log: Iterable[Entry | int]) -> SiteState:
    """Return the state that a site's log tells: its entries, and the epochs of its seals."""
    records = [
        Data(ENTRY, each.epoch, local_seqno=each.number, payload=each.to_bytes())
        if isinstance(each, Entry)
        else Data(EPOCH, each)
        for each in log
    ]
    entries = counting(records, lambda record: Entry.from_bytes(record.payload))
    return state_of(entries) if entries else first_state("g", name, SITES)


def sequence(sequenced: Sequenced, records: Iterable[Forward | Malformed]) -> tuple[Data | DeadLetter, ...]:
    """Decide the next run, of these records."""
    state, outputs = step(sequenced.state, sorted(records, key=lambda record: record.source))
    return (*outputs, *sequenced.end_run(state))


def place(site: str) -> str:
    return f"{forward_topic(site)}-0"


class Cluster:
    """Sites whose relays copy at once, entry by entry. `logs` has the entries in each site's log."""

    def __init__(
        self, sites: tuple[str, ...] = SITES, *, suspect_after_ms: int = SUSPECT_AFTER_MS, of_format: int = 1
    ) -> None:
        first = {name: first_state("g", name, sites, suspect_after_ms=suspect_after_ms) for name in sites}
        self.sites = {name: begin(state, 1, of_format=of_format) for name, state in first.items()}
        self.logs: dict[str, list[Entry]] = {name: [] for name in sites}
        self.read = {name: dict.fromkeys(sites, 0) for name in sites}
        self.data: dict[str, list[Data | DeadLetter]] = {name: [] for name in sites}
        self.ends = dict.fromkeys(sites, 0)
        self.down: set[str] = set()
        self.now_ms = 0

    def forward(self, site: str, count: int, *, to: tuple[str, ...] | None = None) -> None:
        """Append `count` records at a site, which the relays copy to the others."""
        self.ends[site] += count
        for name in to if to is not None else self.sites:
            self.sites[name].take(Arrived(place(site), self.ends[site], self.ends[site]))

    def step(self, name: str) -> Entry | None:
        """Run a step of a site with all of its input."""
        for other, log in self.logs.items():
            if other != name and other not in self.down:
                for entry in log[self.read[name][other] :]:
                    self.read[name][other] += 1
                    self.sites[name].take(Heard(other, entry.number, entry.epoch, entry))
        self.sites[name].take(Tick(self.now_ms))
        written = self.sites[name].end_step()
        if written is not None:
            self.logs[name].append(written)
        self.sequence(name)
        return written

    def sequence(self, name: str) -> None:
        site = self.sites[name]
        while (run := site.due()) is not None:
            self.data[name] += sequence(site.sequenced, records_of(run))

    def settle(self, rounds: int = 12) -> None:
        for _ in range(rounds):
            self.now_ms += 20
            for name in self.sites:
                if name not in self.down:
                    self.step(name)


def records_of(run: OrderedRun) -> list[Forward | Malformed]:
    found: list[Forward | Malformed] = []
    for part in ranges_of(run.run):
        site = part.place.removesuffix("-0").rpartition(".")[2]
        found += [record(site, offset) for offset in range(part.first, part.end)]
    return found


def test_all_sites_have_the_same_data() -> None:
    cluster = Cluster()
    for name in SITES:
        cluster.forward(name, 3)
    cluster.settle()
    first, *others = cluster.data.values()
    assert len(first) == 9
    assert all(other == first for other in others)
    assert [data.seqno for data in first if isinstance(data, Data)] == list(range(1, 10))


def test_a_job_that_goes_on_keeps_its_pace() -> None:
    """On Spark each batch makes a group of the state before it: entries heard in earlier batches count."""
    cluster = Cluster()
    for _ in range(UNPACED_RUNS):
        cluster.forward("nyc", 1)
        cluster.step("nyc")
    cluster.step("sfo")
    nyc = Group(cluster.sites["nyc"])
    for entry in cluster.logs["sfo"]:
        nyc.site.take(Heard("sfo", entry.number, entry.epoch, entry))
    nyc.end_step()
    begun = nyc.site.process.in_flight
    state = decode(GroupState, encode(nyc.state))
    assert state.has_heard
    again = going_on(state, nyc.site.sequenced.state)
    again.site.take(Arrived(place("nyc"), 10, 10))
    again.end_step()
    assert again.site.process.in_flight == begun + 1


@pytest.mark.parametrize(("is_heard", "begun"), [(False, UNPACED_RUNS), (True, MAX_RUNS_IN_FLIGHT)])
def test_what_comes_while_a_run_is_under_way_is_one_run(is_heard: bool, begun: int) -> None:
    """The cost of agreement is a run's: few runs begin if no other site is heard, and never too many."""
    cluster = Cluster()
    for _ in range(MAX_RUNS_IN_FLIGHT + 20):
        cluster.forward("nyc", 1)
        # As often as may be, though none of them says that a run is done.
        cluster.sites["nyc"].job.has_heard |= is_heard
        cluster.step("nyc")
    cluster.settle(40)
    lengths = [ordered.run.length for entry in cluster.logs["nyc"] for ordered in entry.ordered]
    assert lengths == [1] * begun + [MAX_RUNS_IN_FLIGHT + 20 - begun]


def test_nothing_leaves_without_an_entry_and_no_entry_is_made_for_nothing() -> None:
    cluster = Cluster()
    cluster.settle(2)
    before = len(cluster.logs["nyc"])
    assert cluster.step("nyc") is None
    cluster.forward("nyc", 1)
    entry = cluster.step("nyc")
    assert entry is not None
    assert [letter.kind for letter in entry.letters] == ["send"]
    assert len(cluster.logs["nyc"]) == before + 1


def test_a_run_is_proposed_for_when_its_records_are_here() -> None:
    cluster = Cluster()
    cluster.forward("nyc", 2, to=("nyc", "sfo"))
    cluster.settle(4)
    assert not any(cluster.data.values())
    said = [read_letter(letter) for entry in cluster.logs["lax"] for letter in entry.letters]
    assert not any(isinstance(message, Propose) for message in said)
    cluster.sites["lax"].take(Arrived(place("nyc"), 2, 2))
    cluster.settle()
    assert [len(data) for data in cluster.data.values()] == [2, 2, 2]


def test_a_job_goes_on_from_the_last_entry_and_makes_the_same_data() -> None:
    """The job begins with the entry's snapshot, and the runs that the snapshot lacks."""
    cluster = Cluster()
    for _ in range(SNAPSHOT_EVERY_RUNS + 5):
        cluster.forward("nyc", 1)
        cluster.settle(3)
    cluster.settle()
    again = begin(state_told("sfo", [1, *cluster.logs["sfo"], 2]), 2)
    assert 0 < again.sequenced.position < SNAPSHOT_EVERY_RUNS + 5
    made: list[Data | DeadLetter] = []
    while (run := again.due()) is not None:
        made += sequence(again.sequenced, records_of(run))
    known = {data.seqno: data for data in cluster.data["sfo"] if isinstance(data, Data)}
    assert made
    for data in made:
        assert isinstance(data, Data)
        assert (data.id, data.source) == (known[data.seqno].id, known[data.seqno].source)
        assert data.epoch == 2


def test_of_a_run_whose_holes_are_forgotten_nothing_is_said() -> None:
    """A site of a version that skips the report hears it late, and may still have to order that run."""
    runs = Range(place("nyc"), 0, 10), Range(place("nyc"), 10, 20)
    holes = tuple(contents_of(run, [(run.first, run.end - 1)]) for run in runs)
    begun = replace(first_state("g", "nyc", SITES), told={place("nyc"): ReadReport(place("nyc"), 0, 20, holes)})
    site = begin(begun, 1)
    site.forwards.note_snapshot(runs[0])
    (said,) = site.state.told.values()
    assert (said.of(runs[0]), said.of(runs[1])) == (None, holes[1])


@pytest.mark.parametrize(
    ("read_there", "is_copy", "is_lost"),
    [((2, 4), True, False), ((2, 4), False, False), ((1, 4), True, True), ((1, 4), False, True), (None, True, True)],
)
def test_a_run_that_begins_without_a_record_may_begin_where_retention_ends(
    read_there: tuple[int, int] | None, is_copy: bool, is_lost: bool
) -> None:
    """The site that submitted the run has read no record there either, as at a transaction's marker, and reports so."""
    run = Range(place("nyc"), 1, 4)
    told = {} if read_there is None else {run.place: ReadReport(*run, (contents_of(run, [read_there]),))}
    since = (OrderedRun(1, ProcessIncarnation("nyc"), run_of((run,), 2)),)
    group = Group(begin(replace(first_state("g", "lax", SITES), position=3, since=deque(since), told=told), 1))
    group.keep_with(lambda _: [(2, 4)])
    group.start_of(run.place, 2, is_copy=is_copy)
    group.arrived(run.place, 2, 3, 4)
    if not is_lost:
        assert group.due() == since[0]
        return
    with pytest.raises(HistoryUnavailable, match="retention has dropped some of it"):
        group.due()


def test_of_many_entries_one_has_the_snapshot() -> None:
    """The others name it; without it the state is not known."""
    cluster = Cluster()
    for _ in range(SNAPSHOT_EVERY_ENTRIES):
        cluster.forward("nyc", 1)
        cluster.settle(3)
    log = cluster.logs["sfo"]
    with_snapshot = [entry.number for entry in log if entry.snapshot]
    assert with_snapshot[0] == 1
    assert 1 < len(with_snapshot) <= len(log) // SNAPSHOT_EVERY_RUNS + 2
    for end in (1, 2, len(log) // 2, len(log)):
        state = state_told("sfo", [1, *log[:end]])
        assert state.base == max(number for number in with_snapshot if number <= end)
        assert state.snapshot == log[state.base - 1].snapshot
    lost = [entry._replace(snapshot=b"") for entry in log]
    with pytest.raises(ProtocolViolation, match="needs the snapshot"):
        state_told("sfo", [1, *lost])


@pytest.mark.parametrize("of_format", [1, 2])
@pytest.mark.parametrize("every_ms", [140, 300, 1000])
def test_what_was_in_data_for_long_enough_is_in_a_snapshot(of_format: int, every_ms: int) -> None:
    """Each step may be the last before a kill, and a retention may drop the records from then on."""
    suspect_after_ms = 400
    after_ms = SNAPSHOT_AFTER_SUSPICIONS * suspect_after_ms
    cluster = Cluster(suspect_after_ms=suspect_after_ms, of_format=of_format)
    in_data: list[tuple[int, dict[str, int]]] = []
    told = dict.fromkeys(SITES, 0)
    while cluster.now_ms < 3 * after_ms:
        if cluster.now_ms % every_ms == 0:
            cluster.forward("nyc", 1)
        cluster.settle(1)
        in_data.append((cluster.now_ms, {name: site.sequenced.position for name, site in cluster.sites.items()}))
        for_long = [positions for at_ms, positions in in_data if cluster.now_ms - at_ms >= after_ms]
        for name, log in cluster.logs.items():
            if log and log[-1].snapshot:
                told[name] = state_told(name, log[-1:]).sequenced
            assert told[name] >= (for_long[-1][name] if for_long else 0), (name, cluster.now_ms)
    assert all(told.values())


def test_as_many_sites_as_one_likes() -> None:
    """Missing answers are one bit for each site: more than a number of 64 bits has."""
    names = tuple(f"s{number:03}" for number in range(100))
    cluster = Cluster(names)
    for name in names[:2]:
        cluster.forward(name, 1)
        cluster.step(name)
    state = state_told("s000", [1, *cluster.logs["s000"]])
    assert state.process.agreement is not None
    [own] = state.process.agreement.own.values()
    assert own.missing.bit_count() == 99


def test_what_does_not_follow_is_none_of_the_log() -> None:
    """An entry of the right epoch and number that does not follow the one before it is skipped, also in the own log."""
    log = agreed().logs["nyc"]
    alien = log[3]._replace(before=b"of another")
    assert state_told("nyc", [1, *log[:3], alien]) == state_told("nyc", [1, *log[:3]])
    assert state_told("nyc", [1, *log[:3], alien, *log[3:]]) == state_told("nyc", [1, *log])


def test_what_can_not_be_read_is_counted() -> None:
    """Unreadable records of another site's log count once each; records of no effect are not read."""
    group = Group(begin(first_state("g", "nyc", SITES), 1))

    def garbage(_: Data) -> Entry:
        raise ProtocolViolation("not an entry")

    for record in (Data(EPOCH, 1), Data(ENTRY, 1, local_seqno=1), Data(ENTRY, 1, local_seqno=7)):
        group.hear("sfo", 1, record, garbage)
    assert group.site.state.rejected == 1
    assert group.site.logs.row("sfo").number == 0


def test_a_sealed_job_is_not_heard() -> None:
    cluster = Cluster()
    cluster.forward("nyc", 1)
    entry = cluster.step("nyc")
    assert entry is not None
    sfo = cluster.sites["sfo"]
    assert sfo.end_step() is not None, "it says that it is there"
    sfo.take(Heard("nyc", 1, 2))
    sfo.take(Heard("nyc", 2, entry.epoch, entry))
    assert sfo.logs.row("nyc") == LogRow("nyc", 2, 0, 2)
    assert sfo.end_step() is None


@pytest.mark.slow
@pytest.mark.parametrize("other_ms", [11_000, 60_000, 24 * 3_600_000])
@pytest.mark.parametrize("is_longer", [False, True])
def test_sites_that_suspect_after_different_times(other_ms: int, *, is_longer: bool) -> None:
    """A changed `suspect_after_ms` is rolled out: no live site is suspected, in any order of starts."""
    before_ms, after_ms = (10_000, other_ms) if is_longer else (other_ms, 10_000)
    cluster = Cluster()

    def run(seconds: int, *names: str) -> list[int]:
        for _ in range(10 * seconds):
            cluster.now_ms += 100
            for name in names:
                cluster.step(name)
        return [cluster.sites[name].process.view.id for name in names]

    for name in SITES:
        cluster.sites[name] = begin(first_state("g", name, SITES, suspect_after_ms=before_ms), 1)
    run(30, *SITES)
    for epoch, name in enumerate(("sfo", "nyc"), 2):
        state = state_told(name, cluster.logs[name])
        state = replace(state, process=suspecting_after(state.process, after_ms))
        cluster.sites[name] = begin(state, epoch, now_ms=cluster.now_ms)
        cluster.read[name] = {other: cluster.sites[name].logs.row(other).at for other in SITES}
        assert run(100, *SITES) == [1, 1, 1]
    cluster.down.add("lax")
    if max(before_ms, after_ms) < 100_000:
        assert run(100, "nyc", "sfo") == [2, 2], "lax is out"


# A log that is lost


def begun_anew(cluster: Cluster, name: str, left: int, epoch: int, entries: int) -> Site:
    """Return a site that has so many entries of its log left, and writes so many before it hears another site."""
    log = cluster.logs[name][:left]
    site = begin(state_told(name, [1, *log, epoch]), epoch)
    cluster.sites[name], cluster.logs[name] = site, log
    for _ in range(entries):
        cluster.forward(name, 1, to=(name,))
        site.take(Tick(site.process.state.now_ms + 1_000))
        written = site.end_step()
        assert written is not None
        log.append(written)
    return site


def agreed() -> Cluster:
    cluster = Cluster()
    for _ in range(3):
        cluster.forward("nyc", 1)
        cluster.settle(4)
    cluster.settle()
    assert len(cluster.logs["nyc"]) > 4
    return cluster


@pytest.mark.parametrize("epoch", [1, 2], ids=["claims-lost", "claims-there"])
@pytest.mark.parametrize("entries", [0, 1, 3])
@pytest.mark.parametrize("is_all_lost", [True, False], ids=["all", "last"])
def test_a_site_whose_log_is_lost_is_told(is_all_lost: bool, entries: int, epoch: int) -> None:
    """Whatever the site has written since, and however often it has begun. (Logs longer than the lost one: see
    below.)
    """
    cluster = agreed()
    named = next(row.number for row in cluster.logs["sfo"][-1].logs if row.site == "nyc")
    entries = entries if is_all_lost else min(entries, 1)
    nyc = begun_anew(cluster, "nyc", 0 if is_all_lost else named - 1, epoch, entries)
    again = begin(state_told("nyc", [1, *cluster.logs["nyc"]]), epoch)
    for site in (nyc, again):
        with pytest.raises(Disagreement, match="was lost"):
            hear_all(site, "sfo", cluster)


def hear_all(site: Site, other: str, cluster: Cluster) -> None:
    for entry in cluster.logs[other]:
        site.take(Heard(other, entry.number, entry.epoch, entry))


def test_a_log_that_has_grown_beyond_the_lost_one_is_not_read() -> None:
    """The others say so, with an entry for that alone, and the site learns of it."""
    cluster = agreed()
    read = cluster.sites["sfo"].logs.row("nyc")
    nyc = begun_anew(cluster, "nyc", 1, 2, read.number)
    sfo = cluster.sites["sfo"]
    row = LogRow("nyc", 1, read.number, 0, read.digest, is_broken=True)
    for entry in cluster.logs["nyc"]:
        sfo.take(Heard("nyc", 0, entry.epoch, entry))
    assert sfo.logs.row("nyc")._replace(at=0, known=0) == row._replace(epoch=2)
    said = sfo.end_step()
    assert said is not None
    assert not said.letters
    assert sfo.notices == (OtherLog("nyc"),)
    assert sfo.end_step() is None
    for entry in cluster.logs["sfo"]:
        nyc.take(Heard("sfo", entry.number, 1, entry._replace(logs=())))
    with pytest.raises(Disagreement, match=f"up to entry {read.number} of epoch 2. That log was lost"):
        nyc.take(Heard("sfo", said.number, 1, said))


def test_a_log_that_is_whole_again_is_read_on() -> None:
    """A broker comes back with the whole log."""
    cluster = agreed()
    whole = list(cluster.logs["nyc"])
    cluster.step("sfo")
    sfo, read = cluster.sites["sfo"], cluster.sites["sfo"].logs.row("nyc").number
    begun_anew(cluster, "nyc", 1, 1, read)
    for entry in cluster.logs["nyc"]:
        sfo.take(Heard("nyc", 0, 1, entry))
    assert sfo.logs.row("nyc").is_broken
    nyc = begin(state_told("nyc", [1, *whole]), 1)
    nyc.take(Arrived(place("nyc"), 99, 99))
    follows = nyc.end_step()
    assert follows is not None
    sfo.take(Heard("nyc", 0, 1, follows))
    assert not sfo.logs.row("nyc").is_broken
    assert sfo.logs.row("nyc").number == follows.number


def test_a_digest_covers_all_before() -> None:
    first = Entry(1, 1, 1, state=b"a")
    second = Entry(1, 1, 2, state=b"b", before=first.digest)
    assert (
        len({first.digest, *(each.digest for each in (second, second._replace(before=b""), first._replace(epoch=2)))})
        == 4
    )
    assert Entry.from_bytes(second.to_bytes()).digest == second.digest


# Absent sites


def test_a_site_that_was_away_reads_what_was_ordered() -> None:
    """The absent site leaves the view, catches up from the others' logs, and its members' messages are ordered."""
    cluster = Cluster()
    cluster.forward("lax", 1)
    cluster.settle()
    cluster.down.add("lax")
    cluster.forward("nyc", 3)
    for _ in range(200):
        cluster.now_ms += 40
        cluster.step("nyc")
        cluster.step("sfo")
    assert len(cluster.data["nyc"]) == 4
    assert cluster.sites["nyc"].process.view.id == 2
    cluster.down.clear()
    cluster.forward("lax", 2)
    for _ in range(100):
        cluster.now_ms += 40
        cluster.settle(1)
    assert [len(data) for data in cluster.data.values()] == [6, 6, 6]
    assert cluster.data["lax"] == cluster.data["nyc"] == cluster.data["sfo"]
    assert not cluster.sites["lax"].process.is_waiting


def test_a_minority_waits() -> None:
    cluster = Cluster()
    cluster.settle(2)
    cluster.down |= {"sfo", "lax"}
    cluster.forward("nyc", 3)
    stuck: list[Notice] = []
    for _ in range(200):
        cluster.now_ms += 40
        cluster.step("nyc")
        stuck += cluster.sites["nyc"].notices
    assert [(notice.reached, notice.needed) for notice in stuck if isinstance(notice, Stuck)] == [
        ((ProcessIncarnation("nyc"),), 2)
    ]
    assert cluster.sites["nyc"].process.is_waiting
    assert not cluster.data["nyc"]


def test_of_two_sites_one_goes_on_when_an_operator_says_so() -> None:
    """A majority of two is both. The excluded site comes back as soon as it can, and has the same order."""
    cluster = Cluster(("nyc", "sfo"))
    cluster.forward("sfo", 1)
    cluster.settle()
    cluster.down.add("sfo")
    cluster.forward("nyc", 2)
    for _ in range(150):
        cluster.now_ms += 40
        cluster.step("nyc")
    assert len(cluster.data["nyc"]) == 1
    cluster.sites["nyc"].take(Exclude(("sfo",)))
    for _ in range(150):
        cluster.now_ms += 40
        cluster.step("nyc")
    assert len(cluster.data["nyc"]) == 3
    cluster.down.clear()
    cluster.forward("sfo", 1)
    for _ in range(100):
        cluster.now_ms += 40
        cluster.settle(1)
    assert len(cluster.data["sfo"]) == 4
    assert cluster.data["sfo"] == cluster.data["nyc"]


def test_a_site_without_the_records_takes_no_more_than_it_can_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordering.agreement.site.MAX_UNSNAPPED_RUNS", 3)
    cluster = Cluster()
    view = cluster.sites["lax"].process.view
    runs = [OrderedRun(n, ProcessIncarnation("nyc"), run_of((Range(place("nyc"), n - 1, n),))) for n in range(1, 6)]
    lax = cluster.sites["lax"]
    for number, run in enumerate(runs, 1):
        assert not lax.is_behind or number > 3
        if not lax.is_behind:
            entry = Entry(view.origin, 1, number, ordered=(run,), before=lax.logs.row("nyc").digest)
            lax.take(Heard("nyc", number, 1, entry))
            lax.end_step()
    assert lax.is_behind
    assert lax.due() is None
    lax.take(Arrived(place("nyc"), 5, 5))
    assert lax.due() == runs[0]


def test_sites_of_other_files_are_refused() -> None:
    entry = Entry(first_state("g", "sfo", ("nyc", "sfo")).process.view.origin, 1, 1)
    with pytest.raises(ProtocolViolation, match="same sites' file"):
        Cluster().sites["nyc"].take(Heard("sfo", 1, 1, entry))


def test_a_letter_that_can_not_be_read_is_counted() -> None:
    site = Cluster().sites["nyc"]
    letters = (
        SiteMessage(("nyc",), "gossip", "[]"),
        SiteMessage(("nyc",), "propose", "[1]"),
        SiteMessage(("sfo",), "gossip", "[]"),
    )
    site.take(Heard("sfo", 1, 1, Entry(site.process.view.origin, 1, 1, letters)))
    assert site.state.rejected == 2


def test_marks_are_few_and_reach_back_to_what_is_not_in_the_snapshot() -> None:
    site = Cluster().sites["nyc"]
    for end in range(1, 200):
        site.take(Arrived(place("sfo"), end, end + 7))
    marks = site.forwards.place(place("sfo")).marks
    assert len(marks) <= MAX_MARKS
    assert marks[0] == (0, 0)
    assert marks[-1] == (199, 206)
    assert max(after.end - before.end for before, after in pairwise(marks)) <= 4 * 199 / MAX_MARKS


def test_values_are_stored_and_found_again() -> None:
    cluster = Cluster()
    cluster.forward("nyc", 2)
    cluster.forward("sfo", 1, to=("sfo", "nyc"))
    cluster.settle(3)
    for name, site in cluster.sites.items():
        state = site.state
        assert decode(SiteState, encode(state)) == state
        for entry in cluster.logs[name]:
            assert Entry.from_bytes(entry.to_bytes()) == entry
            for letter in entry.letters:
                assert write_letter(letter.receivers, read_letter(letter)) == letter
    run = run_of((Range("a-0", 3, 5), Range("a-1", 0, 1)))
    assert run.length == 3
    assert ranges_of(run) == (("a-0", 3, 5), ("a-1", 0, 1))


def test_equal_states_give_equal_bytes() -> None:
    """A map is written in the order of its keys, not in the one in which it was filled."""
    places = [Place(place(name), end) for end, name in enumerate(SITES)]
    states = [
        replace(first_state("g", "lax", SITES), places={each.name: each for each in order})
        for order in (places, places[::-1])
    ]
    assert encode(states[0]) == encode(states[1])
    assert decode(SiteState, encode(states[0])) == states[1]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"[1,2]", b"null", b"\xff"])
def test_what_is_no_entry_is_refused(raw: bytes) -> None:
    for kind in (Entry, SiteState):
        with pytest.raises(ProtocolViolation):
            decode(kind, raw)


@pytest.mark.parametrize(
    "ranges", [(Range("a", 2, 2),), (Range("a", 3, 2),), (Range("a", 0, 1), Range("a", 1, 2))], ids=str
)
def test_what_is_no_run_is_refused(ranges: tuple[Range, ...]) -> None:
    with pytest.raises(ProtocolViolation):
        ranges_of(run_of(ranges))


def said(site: str, offset: int, sender: str, kind: str, number: int = 1, payload: bytes = b"") -> Forward:
    """Return a record in FORWARD of a site, a second after the one before it."""
    source = Source(forward_topic(site), 0, offset)
    return Forward(sender, 1, number, payload, source, kind=kind, timestamp_ms=1_000 * offset + 1_000)


def decide(sequenced: Sequenced, *records: Forward, absent: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Decide one run that was ordered while these sites were absent; return kind and payload of its DATA."""
    topic, _, offset = records[0].source
    run = run_of((Range(f"{topic}-0", offset, offset + len(records)),))
    sequenced.expect([OrderedRun(sequenced.position + 1, ProcessIncarnation("nyc"), run, absent)])
    outputs = sequence(sequenced, records)
    return [(data.kind, data.payload.decode()) for data in outputs if isinstance(data, Data)]


def members_of(sequenced: Sequenced) -> list[str]:
    return [member.address for member in sequenced.state.membership.members]


@pytest.mark.parametrize("member", ["lax/m", "fra/m"], ids=["of-the-site", "heard-there"])
def test_members_of_an_absent_site_leave_the_view(member: str) -> None:
    """The members leave although their own site's clock has stopped; all others stay."""
    sequenced = Sequenced(first_state("g", "nyc", SITES), 1)
    decide(sequenced, said("nyc", 0, "nyc/m", JOIN))
    decide(sequenced, said("lax", 0, member, JOIN))
    decide(sequenced, said("lax", 1, member, HEARTBEAT))
    assert members_of(sequenced) == ["nyc/m", member]
    assert decide(sequenced, said("nyc", 1, "nyc/m", HEARTBEAT)) == []
    [(kind, payload)] = decide(sequenced, said("nyc", 2, "nyc/m", HEARTBEAT), absent=("lax",))
    assert (kind, json.loads(payload)["suspected"]) == (VIEW, [member])
    assert members_of(sequenced) == ["nyc/m"]
    assert decide(sequenced, said("nyc", 3, "nyc/m", HEARTBEAT), absent=("lax",)) == []


def test_a_flush_does_not_wait_for_an_absent_site() -> None:
    """The flush goes on without its members, and ends in time: the stopped clock of that site does not count."""
    sequenced = Sequenced(first_state("g", "nyc", SITES), 1)
    decide(sequenced, said("nyc", 0, "nyc/m", SETTINGS, payload=b'{"flush":true,"flush_timeout_ms":5000}'))
    decide(sequenced, said("nyc", 1, "nyc/m", JOIN, 2))
    decide(sequenced, said("lax", 0, "lax/m", JOIN))
    decide(sequenced, said("nyc", 2, "nyc/m", FLUSH_OK, 3, b"%d" % sequenced.state.membership.flush.id))
    assert members_of(sequenced) == ["nyc/m", "lax/m"]
    decide(sequenced, said("nyc", 3, "nyc/n", JOIN))
    flush = sequenced.state.membership.flush
    answer = said("nyc", 4, "nyc/m", FLUSH_OK, 4, b"%d" % flush.id)
    assert [kind for kind, _ in decide(sequenced, answer)] == [FLUSH_OK]
    kinds = [kind for kind, _ in decide(sequenced, said("nyc", 5, "nyc/m", HEARTBEAT), absent=("lax",))]
    assert kinds == [VIEW, STOP_FLUSH]
    assert members_of(sequenced) == ["nyc/m", "nyc/n"]
    assert set(sequenced.state.membership.detector.clock) == {Partition(forward_topic("nyc"), 0)}
