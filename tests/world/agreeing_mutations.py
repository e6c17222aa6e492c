"""Mutations of sites that agree: each breaks a rule on purpose, and the world must name the violation.

A mutation replaces a piece of the shipped code for the time of a run.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.codec.entry_codec import read_entry, write_entry
from connectors.kafka.codec.epochs import encode_claim
from connectors.relay.process.copying import copier
from connectors.takeover import takeover
from connectors.takeover.agreeing import _Phase
from connectors.takeover.rows import Output
from ordering.agreement.group import Group, after_takeover
from ordering.agreement.log import Entry, LogRow, OrderedRun, Range, absent_from
from ordering.agreement.log import counting as true_counting
from ordering.agreement.log import read_on as true_read_on
from ordering.agreement.site_state import SiteState
from ordering.agreement.sites.forwards import Forwards
from ordering.agreement.sites.other_logs import OtherLogs
from ordering.agreement.sites.own_log import OwnLog
from ordering.base.errors import Disagreement
from ordering.base.records import Data
from ordering.checker.anomalies import DIVERGENT, GAP, LOST, VIEW_VIOLATION
from ordering.membership.membership import Membership
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world.agreeing import UNTOLD
from tests.world.agreeing_actions import EARLY, ENDED, TWO_LOGS, UNREADABLE, WRONG_STATE
from tests.world.agreeing_jobs import WatchedMachine
from tests.world.kafka import partition

_true_compare, _true_copier = OtherLogs._compare, copier
_true_sequence, _true_writes = WatchedMachine._sequence, WatchedMachine.writes
_COMPARE = "ordering.agreement.sites.other_logs.OtherLogs._compare"
_MACHINE = "tests.world.agreeing_jobs.WatchedMachine"


def data_first(machine: Any) -> Sequence[Output] | None:
    """DATA is written before the entry that has its runs."""
    if machine._phase is _Phase.DATA and not machine._in_flight:
        machine._entry = machine.group.end_step(is_last=machine._is_last)
        machine._phase = _Phase.RUNS
    while machine._phase is _Phase.RUNS:
        run, writes = machine.group.due(), []
        if run is not None:
            writes = machine._sequence(run)
        else:
            machine._phase = _Phase.READY
            writes = [] if machine._entry is None else [machine._records.data(write_entry(machine._entry))]
        if writes:
            machine._in_flight.append(machine.group.sent)
            return writes
    return None


def without_seal(found: Any, producer: Any, by: Any, *_: object) -> SequencerState:
    """Take over without a seal, so the last job can still write."""
    data, state = found.data, found.state
    if state.epoch:
        return state  # type: ignore[no-any-return]
    claim = (None, *encode_claim(data.end(), by.agreement, found.format))
    takeover._append(data, producer, data.epochs.topic, claim)
    takeover._append_data(data, producer, seal(1, found.format))
    state = replace(state, epoch=1, format=found.format)
    takeover._append_data(data, producer, snapshot(state))
    return state  # type: ignore[no-any-return]


def without_last(log: Iterable[Data], read_entry: Callable[[Data], Entry]) -> list[Entry]:
    """The last entries are forgotten."""
    return true_counting(log, read_entry)[:-2]


def from_data(state: SiteState, taken: SequencerState) -> Group:
    """The sequencer's state is rebuilt from DATA, not from the snapshot and the runs."""
    group = after_takeover(state, taken)
    group.site.sequenced.state = taken
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
    """Propose for a run before its records are here."""
    return True


def absent_now(machine: WatchedMachine, run: OrderedRun) -> list[Output]:
    """Use the absent sites that this site knows now, not those at the order of the run."""
    site = machine.group.site
    site.sequenced._runs[0] = run._replace(absent=absent_from(site.process.view))
    return _true_sequence(machine, run)


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


def shortened(machine: WatchedMachine) -> Sequence[Output] | None:
    """A job drops parts of an entry that is too large for its Kafka."""
    writes = _true_writes(machine)
    if writes is None or machine._phase is not _Phase.ENTRY:
        return writes
    [(topic, (key, value, headers))] = writes
    limit = machine.job.at.kafka.log(*partition("data", machine.job.at.name)).max_bytes
    if limit is None or len(value) <= limit:
        return writes
    entry = read_entry(decode_data(key, value, headers))._replace(letters=(), ordered=(), snapshot=b"")
    return [(topic, encode_data(write_entry(entry)))]


def by_records(buffers: Any, outputs: Sequence[Output], last: int, has_dead_letters: bool) -> Iterator[Output]:
    """A job that goes on within a run counts its records, not their seqnos."""
    first = next((decode_data(*record).seqno for topic, record in outputs if topic == buffers._topics.data), 0)
    written = last + 1 - first if last else 0
    for output in outputs:
        if output[0] != buffers._topics.data:
            if has_dead_letters:
                yield output
        elif written:
            written -= 1
        else:
            yield output


def with_holes(rule: Any) -> Any:
    """A relay leaves out a record now and then."""
    make = _true_copier(rule)

    def copies(record: Any) -> Any:
        place = f"{rule.direction} {record.topic} {record.offset}".encode()
        return () if ".forward." in record.topic and zlib.crc32(place) % 40 == 0 else make(record)

    return copies


_HOLES = ("tests.relay.carrying.copier", with_holes)

MUTATIONS = (
    Mutation(
        "data-first",
        "A job writes DATA before its entry",
        (EARLY, DIVERGENT),
        (("connectors.takeover.agreeing.AgreeingMachine.writes", data_first),),
    ),
    Mutation(
        "no-seal",
        "A job takes over without a seal",
        WRONG_STATE,
        (("connectors.takeover.takeover._claim", without_seal),),
    ),
    Mutation(
        "forget",
        "A job forgets the last entries",
        WRONG_STATE,
        (("connectors.kafka.log.entries.counting", without_last),),
    ),
    Mutation(
        "from-data",
        "A job rebuilds the sequencer from DATA",
        DIVERGENT,
        (("tests.world.agreeing_jobs.after_takeover", from_data),),
    ),
    Mutation(
        "stale-entries",
        "A site counts another site's entries from behind a seal",
        WRONG_STATE,
        (("ordering.agreement.sites.other_logs.read_on", any_entry),),
    ),
    Mutation(
        "no-payload",
        "A site proposes for records that it can't read",
        UNREADABLE,
        (("ordering.agreement.sites.forwards.Forwards.is_here", always_here),),
    ),
    Mutation(
        "any-log",
        "A site reads the successor of a lost log",
        TWO_LOGS,
        (("ordering.agreement.sites.other_logs.read_on", any_log),),
    ),
    Mutation(
        "one-look",
        "A site does not check for a lost log after its first entry",
        UNTOLD,
        ((_COMPARE, compare_while_empty),),
    ),
    Mutation(
        "numbers-only",
        "A site takes a log that has outgrown the lost one for that one",
        UNTOLD,
        ((_COMPARE, compare_numbers),),
    ),
    Mutation(
        "absent-now",
        "A job goes by the sites absent now, not by those at the run's order",
        DIVERGENT,
        ((f"{_MACHINE}._sequence", absent_now),),
    ),
    Mutation(
        "stay",
        "Members stay in the view without their site",
        VIEW_VIOLATION,
        (("ordering.agreement.sites.sequenced.without_sites", wait_for_all),),
    ),
    Mutation(
        "seldom-snapped",
        "A job takes snapshots of many runs only",
        ENDED,
        (("ordering.agreement.sites.own_log.OwnLog.is_snapshot_due", never_due),),
    ),
    Mutation("holes", "A relay leaves records out of a copy of FORWARD", WRONG_STATE, (_HOLES,)),
    Mutation(
        "unseen-holes",
        "A relay leaves records out of a copy of FORWARD, and no site compares it",
        DIVERGENT,
        (_HOLES, ("ordering.agreement.group.Group._compare", lambda *_: None)),
    ),
    Mutation(
        "marker-a-hole",
        "A site takes an offset without a record for a record that its copy lacks",
        WRONG_STATE,
        (("ordering.agreement.group.Group._compare", each_offset_a_record),),
        needs=("marker",),
    ),
    Mutation(
        "unheeded",
        "A job goes on as if the partition had an entry that was not written",
        LOST,
        (("connectors.engine.writing.WrittenBatch.is_there", lambda _: True),),
        needs=("limit",),
    ),
    Mutation(
        "shortened",
        "A job drops parts of an entry that is too large",
        (WRONG_STATE, LOST),
        ((f"{_MACHINE}.writes", shortened),),
        needs=("limit",),
    ),
    Mutation(
        "records-counted",
        "A job that goes on within a run counts one seqno per record",
        GAP,
        (("connectors.engine.agreeing._Buffers._missing", by_records),),
        needs=("later",),
    ),
)
