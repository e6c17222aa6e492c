"""Mutations of ISIS between sites: each breaks a rule on purpose, and the simulator must name the violation.

A mutation replaces a piece of the core, or of the job that drives it, for the time of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ordering.agreement.group import Group, after_takeover
from ordering.agreement.log import Entry, LogRow, OrderedRun, Range, absent_from
from ordering.agreement.log import counting as true_counting
from ordering.agreement.log import read_on as true_read_on
from ordering.agreement.sites.forwards import Forwards
from ordering.agreement.sites.other_logs import OtherLogs
from ordering.agreement.sites.own_log import OwnLog
from ordering.base.errors import Disagreement
from ordering.base.records import EPOCH, Data, Forward, Malformed
from ordering.checker.anomalies import DIVERGENT, GAP, LOST, VIEW_VIOLATION
from ordering.membership.membership import Membership
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.simulator.isis_sites import ENDED, TWO_LOGS, UNREADABLE, UNTOLD, WRONG_STATE, Job, World, known_state, taken
from tests.simulator.isis_sites import sequence_run as true_sequence_run
from tests.simulator.kafka import Away, TooLarge
from tests.simulator.mutation import Mutation

_SITES = "tests.simulator.isis_sites"
_true_append, _true_compare, _true_relay = Job._append, OtherLogs._compare, World._relay
_COMPARE = "ordering.agreement.sites.other_logs.OtherLogs._compare"


def data_first(job: Any) -> None:
    """DATA is written before the entry that has its runs."""
    job.poll()
    entry = job.group.end_step()
    if entry is not None:
        job.sequence()
        if not job.died and not job.dies():
            job.kafka.log.append(entry)


def without_seal(world: Any, kafka: Any) -> Group:
    """A job starts, and does not end what the one before it may write."""
    kafka.claims = 1
    return after_takeover(known_state(world, kafka), taken(kafka))


def without_last(log: Iterable[Data], read_entry: Callable[[Data], Entry]) -> list[Entry]:
    """The last entries are forgotten."""
    return true_counting(log, read_entry)[:-2]


def from_data(world: Any, kafka: Any) -> Group:
    """The sequencer's state is rebuilt from DATA, not from the snapshot and the runs."""
    kafka.claims += 1
    kafka.log.append(Data(EPOCH, kafka.claims))
    group = after_takeover(known_state(world, kafka), taken(kafka))
    told = absorb(
        SequencerState(group.site.group), (record for record in kafka.log.records if isinstance(record, Data))
    )
    group.site.sequenced.state = told
    return group


def any_entry(row: LogRow, epoch: int, entry: Entry | None) -> tuple[LogRow, bool]:
    """Count entries behind a seal, too."""
    if entry is None:
        return row, False
    if entry.number <= row.number:
        return row, False
    return row._replace(epoch=epoch, number=entry.number, digest=entry.digest), True


def any_log(row: LogRow, epoch: int, entry: Entry | None) -> tuple[LogRow, bool]:
    """An entry need not follow the one that was read before it."""
    return true_read_on(row if entry is None else row._replace(digest=entry.before), epoch, entry)


def compare_while_empty(logs: OtherLogs, name: str, entry: Entry) -> None:
    """Stop looking at the others' reading after the first entry."""
    if not logs._state.number:
        _true_compare(logs, name, entry)


def compare_numbers(logs: OtherLogs, name: str, entry: Entry) -> None:
    """Compare the others' reading by its number only."""
    bare = (row._replace(digest=logs._state.trail.get(row.number, b""), is_broken=False) for row in entry.logs)
    _true_compare(logs, name, entry._replace(logs=tuple(bare)))


def always_here(_forwards: Forwards, _run: OrderedRun) -> bool:
    """A run is proposed for before its records are here."""
    return True


def absent_now(group: Group, run: OrderedRun, records: Sequence[Forward | Malformed]) -> list[Data]:
    """Use the absent sites that this site knows now, not those at the order of the run."""
    group.site.sequenced._runs[0] = run._replace(absent=absent_from(group.site.process.view))
    return true_sequence_run(group, run, records)


def wait_for_all(membership: Membership, _sites: Collection[str]) -> Membership:
    """Members of absent sites are waited for until they are late by the clock of their own partition."""
    return membership


def never_due(_own_log: OwnLog, *, is_last: bool) -> bool:
    """Snapshots are taken of many runs only."""
    return False


def each_offset_a_record(group: Group, run: OrderedRun, part: Range) -> None:
    """A range must have a record at each offset."""
    read = group._contents(part)
    if read is not None and read.records < part.end - part.first:
        raise Disagreement(f"{part} of {run} lacks records.")


def append_unheeded(job: Any, entry: Entry) -> None:
    """A job takes an entry for written that its Kafka has refused."""
    with suppress(Away):
        _true_append(job, entry)


def append_shortened(job: Any, entry: Entry) -> None:
    """A job drops parts of an entry that is too large for its Kafka."""
    try:
        _true_append(job, entry)
    except TooLarge:
        _true_append(job, entry._replace(letters=(), ordered=(), snapshot=b""))


def without_records(data: Sequence[Data], _before: int, seqnos: int) -> list[Data]:
    """A job that goes on within a run counts its records, not their seqnos."""
    return [*data[seqnos:]]


def with_holes(world: Any, source: str, target: str) -> None:
    """A relay leaves out a record now and then."""
    copy = world.kafkas[target].copies.get(source)
    records = [] if copy is None else copy.records
    end = len(records)
    _true_relay(world, source, target)
    if len(records) > end + 1 and world.dice.random() < 0.2:
        del records[end]


_HOLES = (f"{_SITES}.World._relay", with_holes)

MUTATIONS = (
    Mutation(
        "data-first",
        "DATA is written before its entry",
        DIVERGENT,
        ((f"{_SITES}.Job.step", data_first),),
        from_seed=240,
    ),
    Mutation(
        "no-seal",
        "a job takes over without a seal",
        WRONG_STATE,
        ((f"{_SITES}.take_over", without_seal),),
        from_seed=26,
    ),
    Mutation(
        "forget", "a job forgets the last entries", WRONG_STATE, ((f"{_SITES}.counting", without_last),), from_seed=35
    ),
    Mutation("from-data", "the sequencer is rebuilt from DATA", DIVERGENT, ((f"{_SITES}.take_over", from_data),)),
    Mutation(
        "stale-entries",
        "entries behind a seal count at other sites",
        WRONG_STATE,
        (("ordering.agreement.sites.other_logs.read_on", any_entry),),
    ),
    Mutation(
        "no-payload",
        "a site proposes for what it can't read",
        UNREADABLE,
        (("ordering.agreement.sites.forwards.Forwards.is_here", always_here),),
    ),
    Mutation(
        "any-log",
        "a lost log's successor is read",
        TWO_LOGS,
        (("ordering.agreement.sites.other_logs.read_on", any_log),),
        from_seed=310,
    ),
    Mutation(
        "one-look",
        "a site that has written an entry does not look whether its log was lost",
        UNTOLD,
        ((_COMPARE, compare_while_empty),),
    ),
    Mutation(
        "numbers-only",
        "a log that has grown beyond the lost one is taken for that",
        UNTOLD,
        ((_COMPARE, compare_numbers),),
        from_seed=100,
    ),
    Mutation(
        "absent-now",
        "members leave the view when their site's absence is known",
        DIVERGENT,
        ((f"{_SITES}.sequence_run", absent_now),),
        from_seed=2,
    ),
    Mutation(
        "stay",
        "members stay in the view without their site",
        VIEW_VIOLATION,
        (("ordering.agreement.sites.sequenced.without_sites", wait_for_all),),
    ),
    Mutation(
        "seldom-snapped",
        "what little was ordered gets into no snapshot",
        ENDED,
        (("ordering.agreement.sites.own_log.OwnLog.is_snapshot_due", never_due),),
    ),
    Mutation("holes", "a copy of FORWARD lacks records", WRONG_STATE, (_HOLES,)),
    Mutation(
        "unseen-holes",
        "a copy of FORWARD lacks records, and nobody compares what was read",
        DIVERGENT,
        (_HOLES, ("ordering.agreement.group.Group._compare", lambda *_: None)),
    ),
    Mutation(
        "marker-a-hole",
        "an offset without a record is taken for a record that a copy lacks",
        WRONG_STATE,
        (("ordering.agreement.group.Group._compare", each_offset_a_record),),
        needs=("marker",),
    ),
    Mutation(
        "unheeded",
        "a job goes on as if the partition had an entry that was not written",
        LOST,
        ((f"{_SITES}.Job._append", append_unheeded),),
        needs=("away",),
    ),
    Mutation(
        "shortened",
        "a job drops parts of an entry that is too large",
        WRONG_STATE,
        ((f"{_SITES}.Job._append", append_shortened),),
        from_seed=10,
        needs=("limit",),
    ),
    Mutation(
        "records-counted",
        "a job that goes on within a run takes each record for one seqno",
        GAP,
        ((f"{_SITES}.unwritten", without_records),),
        needs=("later",),
    ),
)
