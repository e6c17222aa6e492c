"""`DataLog.state` and `after`, and a takeover's knowledge when retention has dropped the beginning of DATA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from connectors.client.api.member import Member
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import Note, encode_claim, encode_note
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log import log_state
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.log_state import snapshot_below
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.upgrade import upgrade
from connectors.takeover.takeover import take_over
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable, KafkaRefused, OvertakenByRetention, ProtocolViolation
from ordering.base.formats import PACKS
from ordering.base.names import Role, Topic
from ordering.base.reader import Reader, Seal
from ordering.base.records import START_FLUSH, STRAY_EPOCH, Data, Source
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.sequencer import absorb, seal, snapshot
from ordering.sequencer.state import SequencerState


def data(epoch: int, seqno: int, sender: str = "s/a", local_seqno: int | None = None) -> Data:
    source = Source("abcast.g.forward.s", 0, seqno)
    return Data("message", epoch, seqno, 0, sender, 1, seqno if local_seqno is None else local_seqno, source=source)


def state(epoch: int, seqno: int, *seals: Seal) -> SequencerState:
    return SequencerState("g", epoch, seqno, received={"s/a": ReceivedRow(1, seqno)} if seqno else {}, seals=seals)


def log_of(*records: Data, floors: tuple[int, ...], notes: Sequence[Note] = (), beginning: int = 0) -> DataLog:
    kafka = MemoryConnection()
    kafka.create("g", "s")
    place, epochs = (TopicPartition(str(Topic("g", role, "s")), 0) for role in ("data", "epoch"))
    for record in records:
        kafka.topics.append(place, *encode_data(record))
    for entry in (*map(encode_claim, floors), *map(encode_note, notes)):
        kafka.topics.append(epochs, None, *entry)
    kafka.topics.drop(place.topic, beginning)
    return DataLog(kafka, "g", "s")


FIRST = (seal(1), snapshot(state(1, 0, Seal(1, 1))), data(1, 1), data(1, 2))
SECOND = (seal(2), snapshot(state(2, 2, Seal(1, 1), Seal(2, 3))))
ZOMBIE = data(1, 3, "s/zombie", 1)


def test_reading_on_in_the_middle_at_the_end_and_beyond() -> None:
    log = log_of(*FIRST, *SECOND, data(2, 3), floors=(0, 4))
    assert log.after(0)[:2] == (1, Reader(1, 0))
    assert log.after(1)[:2] == (2, Reader(1, 1))
    assert log.after(2)[:2] == (5, Reader(2, 2))
    assert log.after(3)[:2] == (7, Reader(2, 3))
    with pytest.raises(ProtocolViolation, match="asked to read on after seqno 4"):
        log.after(4)
    assert log.after(4, or_end=True)[:2] == (7, Reader(2, 3))


def test_a_stray_in_a_new_topic_makes_it_no_copy() -> None:
    """A record of another site's DATA in a new topic: its first sequencer may still come."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    topic = TopicPartition(str(Topic("g", "data", "nyc")), 0)
    kafka.topics.append(topic, None, b"x", [])
    with DataLog(kafka, "g", "nyc") as log:
        assert not log.is_copy()
        kafka.topics.append(topic, *encode_data(seal(7)))
        assert log.is_copy()
        kafka.topics.partitions[topic].pop()
    assert take_over(kafka, "g", "nyc").epoch == 1


def test_a_snapshot_behind_a_higher_seal_is_no_base() -> None:
    """A zombie's snapshot counts its own records behind the seal, which no reader takes."""
    stale = snapshot(state(1, 3, Seal(1, 1)))
    log = log_of(*FIRST, *SECOND, ZOMBIE, stale, data(2, 3), floors=(0, 4))
    assert (log.state().epoch, log.state().received) == (2, {"s/a": ReceivedRow(1, 3)})


@pytest.mark.parametrize(
    ("epoch", "kept", "seqno"),
    [
        pytest.param(1, FIRST, 2, id="some messages are lost"),
        pytest.param(1, (*FIRST, snapshot(state(1, 2, Seal(1, 1)))), 2, id="all messages behind a snapshot are lost"),
        pytest.param(2, (*FIRST, *SECOND), 2, id="all messages of the epoch are lost"),
        pytest.param(2, (*FIRST, SECOND[0]), 2, id="the opening snapshot is lost, too"),
        pytest.param(2, FIRST, 2, id="the seal is lost, too"),
        pytest.param(2, FIRST[:3], 1, id="a message before the seal is lost, too"),
        pytest.param(1, (), 0, id="all is lost"),
        pytest.param(1, (*FIRST, data(1, 4)), 2, id="a message has followed"),
        pytest.param(1, (*FIRST[:2], data(1, 4)), 0, id="a message has followed the opening snapshot"),
        pytest.param(2, (*FIRST, SECOND[0], data(2, 4)), 2, id="a message has followed the seal"),
        pytest.param(2, (*FIRST, data(2, 4)), 2, id="a message has followed a lost seal"),
    ],
)
def test_a_snapshot_behind_lost_records_is_no_base(epoch: int, kept: tuple[Data, ...], seqno: int) -> None:
    """Messages up to 4 were written. DATA loses its end, and the sequencer goes on with a snapshot."""
    hidden = snapshot(state(epoch, 4, *(Seal(1, 1), Seal(2, 3))[:epoch]))
    notes = (Note(1, 1, 0), Note(5, 2, 2))[:epoch]
    log = log_of(*kept, hidden, data(epoch, 5), floors=(0, 4)[:epoch], notes=notes)
    assert log.state().seqno == seqno
    assert (found := snapshot_below(log, log.end(), 5)) is None or found.state.seqno <= seqno


def test_a_snapshot_behind_records_that_were_written_twice() -> None:
    """The state is never one that counts less than DATA has, and a late repetition hides no snapshot."""
    twice = data(1, 1)
    assert log_of(*FIRST, twice, snapshot(state(1, 1, Seal(1, 1))), floors=(0,)).state().seqno == 2
    found = snapshot_below(log := log_of(*FIRST, twice, snapshot(state(1, 2, Seal(1, 1))), floors=(0,)), 6, 2)
    assert found is not None
    assert (found.offset, log.state().seqno) == (5, 2)


@pytest.mark.parametrize("first", [Data("stray", STRAY_EPOCH), data(1, 7), Data("entry", 2, local_seqno=3)])
def test_a_snapshot_that_kafka_repeats_late_is_no_base(first: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first record of a window may say nothing about its epoch."""
    ordered = *FIRST, *SECOND, SECOND[1], *(data(2, seqno) for seqno in range(3, 9))
    log = log_of(*ordered, first, SECOND[1], data(2, 9), floors=(0, 4), notes=(Note(1, 1, 0), Note(5, 2, 2)))
    for window in range(1, log.end() + 1):
        monkeypatch.setattr(log_state, "_FIRST_WINDOW", window)
        assert log.state().seqno == 9
        found = snapshot_below(log, log.end(), 9)
        assert found is not None
        assert found.offset == 6


def test_an_idle_log_has_its_state_without_decoding_each_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle group has a snapshot each hour, and a message now and then."""
    idle = [each for n in range(3, 100) for each in (snapshot(state(1, n - 1, Seal(1, 1))), data(1, n))]
    log, decoded = log_of(*FIRST, *idle, floors=(0,)), list[int]()
    decode = SequencerState.from_bytes

    def counted(raw: bytes) -> SequencerState:
        decoded.append(len(raw))
        return decode(raw)

    monkeypatch.setattr(SequencerState, "from_bytes", counted)
    assert log.state().seqno == 99
    assert len(decoded) <= 4


def test_a_snapshot_that_a_purge_has_kept_is_a_base() -> None:
    log = log_of(*FIRST, snapshot(state(1, 2, Seal(1, 1))), data(1, 3), floors=(0,), beginning=4)
    assert log.state().seqno == 3


def test_a_snapshot_hides_no_epoch_without_a_claim() -> None:
    """EPOCH has lost the newest claim. A fenced sequencer writes a snapshot behind the new one's seal."""
    late = snapshot(state(1, 2, Seal(1, 1)))
    assert log_of(*FIRST, *SECOND, data(2, 3), late, floors=(0,)).state().epoch == 2


def test_the_state_without_the_beginning() -> None:
    """A snapshot in force is enough; without one, DATA alone does not tell it."""
    records = *FIRST, *SECOND, data(2, 3)
    log = log_of(*records, floors=(0, 4), beginning=5)
    assert (log.state().epoch, log.state().seqno) == (2, 3)
    with pytest.raises(HistoryUnavailable, match="no snapshot is left"):
        log_of(*records, floors=(0, 4), beginning=6).state()


def test_a_claim_that_comes_while_a_reader_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims are read behind the end of DATA. So a zombie's snapshot behind a seal below that end never counts."""
    log = log_of(*FIRST, seal(2), ZOMBIE, snapshot(state(1, 3, Seal(1, 1))), floors=(0,))
    log.epochs.read()
    kafka: Any = log.connection
    ask = log._consumer.beginning_offsets

    def claim_first(*args: Any) -> Any:
        kafka.topics.append(log.epochs.partition, None, *encode_claim(len(FIRST)))
        return ask(*args)

    monkeypatch.setattr(log._consumer, "beginning_offsets", claim_first)
    monkeypatch.setattr(log_state, "_FIRST_WINDOW", 2)
    told = log.state(7)
    assert (told.epoch, told.seqno) == (2, 2)


@pytest.mark.parametrize("end", [3, 4, 5, 6])
def test_a_purge_at_any_moment(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that knows an end has the state there, or begins again, even if a late claim makes the note needed."""
    records = *FIRST, snapshot(state(1, 2, Seal(1, 1))), data(1, 3)
    outcomes = set[bool]()
    for moment in range(30):
        log, calls = log_of(*records, floors=(0, 2)), 0

        def purge_first(ask: Any, log: DataLog = log, moment: int = moment) -> Any:
            def asked(*args: Any, **settings: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == moment:
                    kafka: Any = log.connection
                    kafka.topics.append(log.epochs.partition, None, *encode_note(Note(5, 1, 2)))
                    kafka.topics.drop(log.partition.topic, 4)
                return ask(*args, **settings)

            return asked

        for call in ("beginning_offsets", "end_offsets", "poll"):
            monkeypatch.setattr(log._consumer, call, purge_first(getattr(log._consumer, call)))
        try:
            assert log.state(end).seqno == min(end - 2, 2) + (end == 6)
        except OvertakenByRetention:
            outcomes.add(False)
            assert log.state().seqno == 3
        else:
            outcomes.add(True)
    assert outcomes == {True, False}
    assert calls < 30


def test_a_takeover_keeps_no_payloads_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover may read many messages, in many logs at once. A view's payload is kept: it names the members; a small
    one, too: a copy of its record would take longer.
    """
    kept: list[Data] = []

    def absorb_what_is_kept(before: SequencerState, records: Iterable[Data]) -> SequencerState:
        kept.extend(records)
        return absorb(before, kept)

    monkeypatch.setattr(log_state, "absorb", absorb_what_is_kept)
    message = replace(data(1, 1), payload=b"x" * 1_000, headers=(("mine", b"x"),))
    view = Data("view", 1, 2, 1, payload=b'{"view":1,"members":[]}')
    log = log_of(*FIRST[:2], message, view, Data("entry", 1, local_seqno=1, payload=b"x" * 1_000), floors=(0,))
    assert log.state().seqno == 2
    assert kept == [FIRST[1], data(1, 1), view, Data("entry", 1, local_seqno=1)]


@pytest.mark.parametrize(("seqno", "beginning", "is_held"), [(1, 3, True), (1, 4, False), (2, 6, True), (0, 3, False)])
def test_what_retention_has_dropped_is_not_there(seqno: int, beginning: int, is_held: bool) -> None:
    last = snapshot(state(2, 3, Seal(1, 1), Seal(2, 3)))
    log = log_of(*FIRST, *SECOND, data(2, 3), last, floors=(0, 4), beginning=beginning)
    if is_held:
        assert log.after(seqno).offset == max(beginning, seqno)
    else:
        with pytest.raises(HistoryUnavailable, match=f"no longer holds seqno {seqno + 1}"):
            log.after(seqno)


def test_where_a_whole_epoch_is_gone_the_next_one_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA may be long: the search does not read it to its end."""
    log = log_of(*FIRST, *SECOND, *(data(2, seqno) for seqno in range(3, 100)), floors=(0, 4), beginning=6)
    read: list[int] = []
    records = log.records

    def counted(start: int, end: int) -> Iterator[StoredRecord]:
        for stored in records(start, end):
            read.append(stored.offset)
            yield stored

    monkeypatch.setattr(log, "records", counted)
    known = log.end(), state(2, 99, Seal(1, 1), Seal(2, 3))
    with pytest.raises(HistoryUnavailable, match="no longer holds seqno 1"):
        log.after(0, known=known)
    assert read == [6]


@pytest.mark.parametrize("beginning", [4, 5])
@pytest.mark.parametrize("seqno", [1, 2])
def test_leftovers_of_a_dropped_epoch_are_not_what_retention_has_dropped(beginning: int, seqno: int) -> None:
    """A relay of the former home repeats its records in the new home, behind the seal. A purge keeps that seal."""
    log = log_of(*FIRST, *SECOND, data(1, 1), data(1, 2), data(2, 3), floors=(0, 4), beginning=beginning)
    with pytest.raises(HistoryUnavailable, match=f"no longer holds seqno {seqno}"):
        log.after(seqno - 1)
    assert log.after(2).offset <= 8


def test_a_note_of_a_lost_seal_leads_to_no_seqno() -> None:
    """DATA loses the second seal, and all before it. Its sequencer goes on, and is killed before it notices."""
    third = seal(3), snapshot(state(3, 4, Seal(3, 5)))
    notes = Note(1, 1, 0), Note(3, 2, 0), Note(5, 3, 4)
    log = log_of(*(data(2, seqno) for seqno in range(1, 5)), *third, data(3, 5), floors=(0, 2, 4), notes=notes)
    assert log.state().seqno == 5
    assert [log.after(seqno).offset for seqno in range(5)] == [0, 1, 2, 3, 5]


def packs(count: int, size: int) -> tuple[Data, ...]:
    """Return a log of so many records, each with so many messages, behind its seal."""
    log = (replace(data(1, n * size + 1), kind="messages", count=size) for n in range(count))
    return seal(1), *log


def copy_of(*records: Data, bases: Iterable[SequencerState], beginning: int = 0) -> DataLog:
    """Return a copy that a relay has filled."""
    log = log_of(*records, floors=(), beginning=beginning)
    for base in bases:
        append(log.connection, log.epochs.topic, encode_data(snapshot(base)))
    return log


def reads(monkeypatch: pytest.MonkeyPatch, log: DataLog) -> list[int]:
    """Return the offsets that are read from here on."""
    read, records = list[int](), log.records

    def counted(start: int, end: int) -> Iterator[StoredRecord]:
        for stored in records(start, end):
            read.append(stored.offset)
            yield stored

    monkeypatch.setattr(log, "records", counted)
    return read


def of_packs(seqno: int) -> SequencerState:
    return replace(state(1, seqno, Seal(1, 1)), counted=True, format=PACKS.number)


@pytest.mark.parametrize("size", [2, 30])
def test_the_cost_of_a_position_among_packs_does_not_grow_with_history(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 6_000
    log = log_of(*packs(count, size), floors=(0,))
    read, known = reads(monkeypatch, log), (log.end(), of_packs(count * size))
    for record in (1, 2, 700, count // 2, count - 300, count - 1, count):
        read.clear()
        start = log.after(record * size - 1, known=known)
        assert record - 64 <= start.offset <= record
        assert len(read) < 200


@pytest.mark.parametrize("size", [1, 30])
def test_the_cost_of_a_copys_state_does_not_grow_with_packs(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 6_000
    base = replace(of_packs((count - 50) * size), counted=size > 1)
    log = copy_of(*packs(count, size), bases=[base])
    read = reads(monkeypatch, log)
    assert log.state().seqno == count * size
    assert len(read) < 500


@pytest.mark.parametrize("beginning", [0, 5])
@pytest.mark.parametrize("size", [1, 30])
def test_a_copy_without_the_end_of_its_base_has_an_earlier_state(size: int, beginning: int) -> None:
    """Retention has dropped the beginning, too, but not the place of the base's last record."""
    bases = [replace(of_packs(seqno * size), counted=size > 1) for seqno in (20, 40)]
    assert copy_of(*packs(40, size), bases=bases, beginning=beginning).state().seqno == 40 * size
    assert copy_of(*packs(30, size), bases=bases, beginning=beginning).state().seqno == 30 * size
    assert copy_of(*packs(50, size), bases=bases, beginning=41).state().seqno == 50 * size
    assert copy_of(*packs(40, size), bases=bases, beginning=41).state().seqno == 40 * size


@pytest.mark.parametrize("role", ["data", "epoch"])
@pytest.mark.parametrize("ask", ["partitions_for_topic", "end_offsets"])
def test_a_refusal_names_the_topic(monkeypatch: pytest.MonkeyPatch, role: Role, ask: str) -> None:
    """The refusal names it also where the library's error does not, as with librdkafka."""
    kafka = MemoryConnection()
    kafka.create("g", "a")
    topic, asked = str(Topic("g", role, "a")), getattr(MemoryConsumer, ask)

    def refused(consumer: MemoryConsumer, what: Any, **_: Any) -> Any:
        if topic in (what, *(place.topic for place in what if isinstance(place, TopicPartition))):
            raise TopicAuthorizationFailedError
        return asked(consumer, what)

    with DataLog(kafka, "g", "a") as log:
        monkeypatch.setattr(MemoryConsumer, ask, refused)
        monkeypatch.setattr(MemoryConnection, "reachable", Connection.reachable)
        with pytest.raises(KafkaRefused, match=rf"may not READ {topic}"):
            _ = DataLog(kafka, "g", "a") if ask == "partitions_for_topic" else (log.end(), log.epochs.read())


@pytest.mark.slow
def test_a_reader_of_casts_begins_outside_of_each_flush() -> None:
    """Members join one by one. Records without a seqno let `after` go back from one flush into the one before."""
    kafka, wait_s = MemoryConnection(), 20.0
    kafka.create("g", "nyc")
    place = TopicPartition(str(Topic("g", "data", "nyc")), 0)
    with SequencerThread(kafka, "g"), ExitStack() as stack:
        change_settings(kafka, "g", "nyc", flush=True)
        for _ in range(2):
            kafka.topics.append(place, None, b"a stray", [])
        for name in "abcdef":
            stack.enter_context(Member("g", f"nyc/{name}", connection=kafka)).connect(timeout=wait_s)
        with DataLog(kafka, "g", "nyc") as log:
            last, in_flush = log.state().seqno, 0
            for seqno in range(last + 1):
                start = log.after(seqno)
                in_flush += bool(log.state(start.offset).membership.flush.id)
                start, known = log.outside_of_a_flush(start)
                assert not known.membership.flush.id
                assert start.reader.last_seqno <= seqno
    assert in_flush > 5


def test_a_reader_of_casts_begins_outside_of_a_flush_that_a_copy_repeats() -> None:
    """A relay may begin its copy again. Where records take several seqnos, `after` may find the repeat."""
    kafka, wait_s = MemoryConnection(), 20.0
    for site in ("nyc", "lax"):
        kafka.create("g", site)
    upgrade(kafka, "g", "nyc")
    with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka) as alice:
        change_settings(kafka, "g", "nyc", flush=True)
        alice.connect(timeout=wait_s)
        alice.broadcast_many([b"m"] * 10).result(wait_s)
        for number in range(20):
            receipt = alice.broadcast(b"m", headers=[("goes alone", b"%d" % number)])
        receipt.result(wait_s)
        with Member("g", "nyc/b", connection=kafka) as bob, DataLog(kafka, "g", "nyc") as log:
            bob.connect(timeout=wait_s)
            records = [stored.data for stored in log.records(0, log.end())]
    last = max(at for at, data in enumerate(records) if data.kind == START_FLUSH)
    for record in records[: last + 1] * 2:
        kafka.topics.append(TopicPartition(str(Topic("g", "data", "lax")), 0), *encode_data(record))
    with DataLog(kafka, "g", "lax") as log:
        for seqno in range(records[last].seqno + 1):
            start, state = log.outside_of_a_flush(log.after(seqno))
            assert start.reader.last_seqno == state.seqno <= seqno, "no seqno behind it is passed over"
        flush = log.state().membership.flush.id
        assert flush == records[last].seqno
        assert log.after(flush - 1).offset > last, "a repeat"
        start, state = log.outside_of_a_flush(log.after(flush))
        assert not state.membership.flush.id
        assert start.reader.last_seqno < flush
        assert start.offset <= last


def test_a_group_whose_first_sequencer_begins_during_the_look_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequencers start in a new group. One reads EPOCH, and DATA after the other's takeover."""
    kafka = MemoryConnection()
    kafka.create("g", "s")
    with DataLog(kafka, "g", "s") as log:

        def end_after_a_takeover(reached: int = 0) -> int:
            take_over(kafka, "g", "s")
            return DataLog.end(log, reached)

        monkeypatch.setattr(log, "end", end_after_a_takeover)
        assert not log.is_copy()
