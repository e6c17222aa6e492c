"""The restore of a group whose Kafka is gone, from a ledger: topics made anew, and the order goes on.

A ledger ends a moment before DATA did. So somebody may have seen seqnos behind the ledger's last one, L, and nobody
knows how far. Two facts give the restored history an identity that everybody compares:

* *Its epochs* are above all epochs before it: a move in EPOCH begins a thousand million of its own, as for another home
  (`connectors.relay.promotion`). DATA keeps the epoch of each row up to L. So a comparison of epochs (by a ledger, a
  copy of a hub, a sequencer) tells the same log up to L, and another one behind it.
* *The mark*, a record of the kind `restored`, takes the seqnos L + 1 to L + LEAP, and no message gets them. So a number
  alone (a position, an application's own note, an outbox) tells the lost history, if it is one of them. A leap alone
  would not do, as no number is large enough for certain. Epochs alone would not do, as a number has none.

Invariant. No seqno that a member may have taken names another message: up to L it is the same one, up to L + LEAP
there is none. A reader with a seqno within the mark is told (`HistoryRestored`). A sequencer decides nothing before
DATA has all of this, as it was read back.

1. The topics EPOCH and memory are made. A move to no site (RESTORING) is appended to EPOCH: no sequencer starts. A note
   in memory says that positions were lost (`connectors.kafka.topics.restored_note`). Only then the other topics are
   made, by which jobs and members find the group.
2. The ledger's rows are written to DATA, behind a seal for each epoch; then the seal of the move's epoch, and the mark.
3. DATA is read back, and each record compared with its row. The mark must follow seqno L. A sequencer that has survived
   the old Kafka may have written in between; behind the seal it is fenced, and before it a record differs.
4. The mark's rows are appended to the ledger (`connectors.ledger.process.mark`). So a later restore from it gives
   no seqno behind the mark again, though the ledger lacks the messages there.
5. A base in EPOCH has the state that the ledger tells, and a move makes the site the home. From there on, EPOCH is
   claimed as every home's is.

Crash. Before the last move no sequencer starts, and the restore can be run again. It goes on behind what DATA has,
which the reading rule tells, and repeats what it can't tell. Readers drop repeats, as they drop a relay's. The mark's
epoch is that of the first move. If DATA has the mark, a run with another leap keeps its seqnos. Two
runs at once write the same records, too; if their ledgers or leaps differ, the mark of one does not follow its L, and
it is refused. Behind the last move a run finds the mark in DATA, and changes nothing.

Not restored: messages that were not ordered (their senders send them again: `connectors.client.incarnation`), letters,
casts, dead letters, positions. DATA of casts is written without the header of casts: the casts are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import RESTORING, Move
from connectors.kafka.codec.headers import without_depends
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import Record, append
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.acts import Act, act_of_this_user
from connectors.kafka.log.data_log import DataLog, consumer_of_logs
from connectors.kafka.log.epoch_log import EpochLog, Epochs
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.topics.restored_note import encode_restored
from connectors.kafka.topics.topics import create_topics, find_topics
from connectors.kafka.transport import Consumer
from connectors.ledger.history import count_rows, read_rows
from connectors.ledger.process.mark import append_mark
from connectors.ledger.row import decode_row
from connectors.ledger.state import state_from_ledger
from connectors.relay.bootstrap import TellRecords, data_of_ledger, write_in_order
from connectors.relay.home_copy import post_base
from connectors.relay.joining import join_under_another_name
from connectors.relay.promotion import epochs_above, move_home
from connectors.storage.location import Location
from ordering.base.errors import AbcastError, TopicMissing, UsageError
from ordering.base.formats import NEW_GROUPS
from ordering.base.names import Role, Topic
from ordering.base.reader import Lost, Reader, Verdict
from ordering.base.records import EPOCH, RESTORED, Data
from ordering.sequencer.sequencer import absorb, seal
from ordering.sequencer.state import SequencerState

LOST_FORWARD = "restored"
"""The topic in the sources of restored records. The FORWARD topics that they came from are gone, and the new ones have
other records at those offsets."""
_FIRST: tuple[Role, ...] = ("epoch", "memory")
_LOOKED_AT = 1_000
"""The last records of DATA among which an earlier run's mark is searched for."""


class RestorePlan(NamedTuple):
    """The part of a group that a restore brings back: all up to `last`. It passes over `lost`.

    `senders`, `members`: how many senders the group remembers, and members its view has. `resumes`: a run before was
    interrupted. `is_done`: a run before has ended.
    """

    group: str
    last: int
    lost: Lost
    senders: int
    members: int
    resumes: bool = False
    is_done: bool = False


def plan(connection: Connection, group: str, site: str, ledger: Location, leap: int) -> RestorePlan:
    """Check that the group can be restored at the site, and return what it would have. Writes nothing.

    `leap`: the number of seqnos to pass over; one record of DATA takes 999,999 at most.

    Raises UsageError (no rows, a hole in them, a group of a mesh, topics that are there), LedgerDamaged,
    LedgerUnreadable, BrokerUnreachable.
    """
    return _planned(connection, group, site, _state(ledger, group), leap)


def _planned(connection: Connection, group: str, site: str, state: SequencerState, leap: int) -> RestorePlan:
    """Return the plan for a state that a ledger tells. Raises UsageError for topics that are there."""
    lost = Lost(state.seqno + 1, state.seqno + leap)
    planned = RestorePlan(group, _last_record(state), lost, len(state.received), len(state.membership.members))
    found = {topic.role for topic in find_topics(connection) if (topic.group, topic.site) == (group, site)}
    if not found:
        return planned
    if "epoch" in found:
        with closing(consumer_of_logs(connection)) as consumer:
            known = _epoch_log(connection, group, site, consumer).read()
        home = known.move.home if known.move is not None else ""
        if home == RESTORING and not known.claims:
            mark = _mark_at_end(connection, group, site, known.above) if "data" in found else None
            return planned._replace(resumes=True, lost=mark or lost)
        if not known.below and found <= set(_FIRST):
            return planned._replace(resumes=True)
        if home == site and "data" in found:
            with DataLog(connection, group, site) as log:
                if marks := log.state().lost:
                    return planned._replace(last=marks[-1].first - 1, lost=marks[-1], is_done=True)
    raise UsageError(
        f"{site} has topics of {group} already ({', '.join(sorted(found))}), and a restore makes them anew. If their "
        f"records are not needed, stop the jobs and the members, run `abcast topics delete --group {group} --site "
        f"{site}`, and then this again."
    )


def check_sites(sites: Sites, group: str, site: str, last: int, *, forced: bool = False) -> None:
    """Check that no other site of the file is a better source than a ledger that ends at `last`. Raises UsageError.

    `forced` overrules a copy that reaches as far, or a site that does not answer; but no site that is a home itself.
    """
    if sites.mode == "isis":
        raise UsageError(
            f"{group} is ordered by sites that agree: if the log of one is lost, the others go on without it "
            f"(`abcast site exclude {site} --group {group} --at OTHER`). If all are lost, begin a new group: the "
            "ledger keeps the old one's messages."
        )
    if sites.home is None:
        raise UsageError(
            f"{site} belongs to a mesh, where its neighbours count its old seqnos: let it "
            f"{join_under_another_name(group)}"
        )
    if sites.home != site:
        raise UsageError(
            f"the order is decided at {sites.home}: {site} gets it from there, with `abcast site add {site} --group "
            f"{group}`, and --ledger for what retention has dropped."
        )
    for name in sorted(sites.connections.keys() - {site}):
        try:
            with DataLog(sites.connection(name), group, name) as copy:
                reached, has_decided = copy.state().seqno, copy.epochs.read().has_decided()
            what = f"has a copy of {group} up to seqno {reached}, and the ledger ends at {last}"
        except TopicMissing:
            continue
        except AbcastError as error:
            reached, has_decided = last, False
            what = f"may have a copy of {group}, and does not answer ({error})"
        if has_decided:
            raise UsageError(
                f'{name} is the home of {group}, or was: it has ordered messages itself. Write home = "{name}" into '
                f"the sites' file, and let {site} join again (`abcast site add {site} --group {group}`). If its "
                f"messages do not count, stop its jobs, run `abcast topics delete --group {group} --site {name}`, and "
                "this again."
            )
        if reached >= last and not forced:
            raise UsageError(
                f'{name} {what}. A copy lacks less: write home = "{name}" into the sites\' file, and run `abcast site '
                f"promote {name} --group {group}`; then {site} joins again (`abcast site add {site}`). --force "
                f"restores the ledger all the same: if {name} has more, its topics must be made anew."
            )


def restore(
    connection: Connection,
    group: str,
    site: str,
    ledger: Location,
    leap: int,
    partitions: int = 1,
    replication_factor: int = 1,
    why: str = "",
    to_write: TellRecords = lambda _: None,
    written: TellRecords = lambda _: None,
) -> RestorePlan:
    """Restore the group at the site; return what it has. May be cut off anywhere, and done again.

    `to_write` gets the number of missing records once, `written` the number of further ones. EPOCH records the user,
    and `why`. Raises as `plan` does; UsageError also if another program writes to the topics, or the ledger grows.
    """
    state = _state(ledger, group)
    planned = _planned(connection, group, site, state, leap)
    if planned.is_done:
        return planned
    act = act_of_this_user("restore", f"{group} from a ledger, up to seqno {planned.last}", why)
    create_topics(connection, group, [site], partitions, replication_factor, _FIRST)
    above = _begin(connection, group, site, state, act)
    append(connection, str(Topic(group, "memory", site)), encode_restored(planned.last))
    create_topics(connection, group, [site], partitions, replication_factor)
    with DataLog(connection, group, site) as log:
        found = _read_back(log, above, ledger)
        if found.mark is None:
            to_write(state.seqno - found.seqno)
            rows = read_rows(ledger, group, found.seqno + 1)
            history = data_of_ledger(group, site, rows, found.epoch)
            mark = Data(RESTORED, above, planned.lost.first, state.view, payload=planned.lost.to_json(), count=leap)
            write_in_order(connection, str(log.topic), _records(history, mark), written)
            found = _read_back(log, above, ledger)
        if found.mark is None or found.before != found.mark.data.seqno - 1:
            raise _disturbed(log)
        mark = found.mark.data
        if not append_mark(ledger, group, found.mark) or not _is_same(mark, _row_at(ledger, group, mark.seqno)):
            raise _disturbed(log)
        formed = replace(state, format=NEW_GROUPS.number)
        post_base(connection, log.epochs.topic, absorb(formed, [seal(above, NEW_GROUPS.number), mark]))
        move_home(connection, log.epochs.topic, Move(site, max(above, log.epochs.read().above)), act)
    return planned._replace(last=min(planned.last, mark.seqno - 1), lost=Lost.from_json(mark.payload))


class _Written(NamedTuple):
    """The records that readers take from DATA: up to `seqno`, in `epoch`.

    `mark` is that of this restore, None if there is none yet, and `before` the last seqno in front of it.
    """

    epoch: int
    seqno: int
    mark: StoredRecord | None = None
    before: int = 0


def _state(ledger: Location, group: str) -> SequencerState:
    """Return the state that the ledger tells. Raises UsageError."""
    state = state_from_ledger(ledger, group)
    if state is None:
        raise UsageError(
            f"there is no ledger of group {group} in {ledger}: name the --data of its ledger's job, or a copy of it. "
            f"Without any row, begin a new group (`abcast topics create --group NAME`)."
        )
    if (rows := count_rows(ledger, group)) != state.seqno:
        raise UsageError(
            f"{ledger} has {rows} rows of {group}, and ends at seqno {state.seqno}: rows are missing, or there twice. "
            "Name a whole copy of the ledger; `abcast check` shows where a ledger has gaps."
        )
    if state.origins or state.membership.remote:
        raise UsageError(
            f"{ledger} is of a site in a mesh: its neighbours count its old seqnos, so it must "
            f"{join_under_another_name(group)}"
        )
    return state


def _last_record(state: SequencerState) -> int:
    """Return the last seqno of the ledger that a record had: a restore before may have ended with its mark."""
    last = state.seqno
    for lost in reversed(state.lost):
        last = lost.first - 1 if lost.last == last else last
    return last


def _epoch_log(connection: Connection, group: str, site: str, consumer: Consumer) -> EpochLog:
    log = EpochLog(connection, group, site, consumer)
    with connection.reachable("READ", log.topic):
        consumer.partitions_for_topic(log.topic)  # a consumer must know a topic before it can return its offsets
    return log


def _begin(connection: Connection, group: str, site: str, state: SequencerState, act: Act) -> int:
    """Keep all sequencers away; return the number above which the restored epochs begin.

    Raises UsageError if a sequencer has begun the group since the plan.
    """
    with closing(consumer_of_logs(connection)) as consumer:
        log = _epoch_log(connection, group, site, consumer)
        if log.read().move is None:
            move = Move(RESTORING, epochs_above(max(state.epoch, log.known.highest_epoch)))
            move_home(connection, log.topic, move, act)
        known = log.read()
    if is_over := _other_restore(known, group):
        raise is_over
    if known.claims or known.move is None or known.move.home != RESTORING:
        raise UsageError(
            f"a sequencer has begun {group} anew meanwhile: stop the jobs. If `abcast status` shows that the group is "
            f"empty, run `abcast topics delete --group {group} --site {site}`, and this again."
        )
    return known.above


def _records(history: Iterator[Data], mark: Data) -> Iterator[Record]:
    """Yield the records of DATA: the history, the seal of the restored epochs, the mark."""
    for data in history:
        if data.kind == EPOCH:
            yield encode_data(replace(data, format=NEW_GROUPS))
        elif data.source is not None:
            source = data.source._replace(topic=LOST_FORWARD)
            yield encode_data(replace(data, source=source, headers=without_depends(data.headers)))
        else:
            yield encode_data(data)
    yield encode_data(seal(mark.epoch, NEW_GROUPS.number))
    yield encode_data(mark)


def _read_back(log: DataLog, above: int, ledger: Location) -> _Written:
    """Return what readers take from DATA. The mark of this restore has the epoch `above`.

    Raises UsageError if a record differs from its row in the ledger.
    """
    reader, mark, before = Reader(), None, 0
    rows = data_of_ledger(log.topic.group, log.topic.site, read_rows(ledger, log.topic.group, 1), 0)
    expected = (data for data in rows if data.kind != EPOCH)
    for stored in log.records(log.beginning(), log.end()):
        data, last = stored.data, reader.last_seqno
        if reader.judge(data) is not Verdict.TAKE:
            continue
        row = next(expected, None)
        if data.kind == RESTORED and data.epoch == above and row is None:
            mark, before = stored, last
        elif not _is_same(data, row):
            raise _disturbed(log)
        elif data.epoch == above:
            mark, before = stored, last  # in the ledger, too: an earlier run has appended it
    return _Written(reader.epoch, reader.last_seqno, mark, before)


def _is_same(data: Data, row: Data | None) -> bool:
    """Whether a record of DATA is the one that the ledger's row was made from."""
    return row is not None and (data.kind, data.epoch, *data.id) == (row.kind, row.epoch, *row.id)


def _row_at(ledger: Location, group: str, seqno: int) -> Data | None:
    rows = next(read_rows(ledger, group, seqno), [])
    return decode_row(rows[0]) if rows else None


def _mark_at_end(connection: Connection, group: str, site: str, above: int) -> Lost | None:
    """Return the seqnos of the mark of this restore, if DATA has it near its end."""
    with DataLog(connection, group, site) as log:
        end = log.end()
        for stored in log.records(max(log.beginning(), end - _LOOKED_AT), end):
            if (stored.data.kind, stored.data.epoch) == (RESTORED, above):
                return Lost.from_json(stored.data.payload)
    return None


def _disturbed(log: DataLog) -> UsageError:
    topic = log.topic
    if is_over := _other_restore(log.epochs.read(), topic.group):
        return is_over
    return UsageError(
        f"{topic} has other records than the ledger, or the ledger has grown: a sequencer of the old Kafka still runs, "
        "or a ledger's job, or a restore from another ledger. Stop these, run `abcast topics delete --group "
        f"{topic.group} --site {topic.site}`, and this again."
    )


def _other_restore(known: Epochs, group: str) -> UsageError | None:
    """Return the error of a run that was overtaken: another one has ended."""
    if not known.is_promoted():
        return None
    return UsageError(f"another restore of {group} has ended at the same time, and the group goes on: change nothing.")
