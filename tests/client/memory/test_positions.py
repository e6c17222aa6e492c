"""Taken deliveries and repeated ones: however a loop ends, and whatever Kafka forgets. In memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors import Letter, Member
from connectors.client.memory.committed_offsets import CommittedOffsets
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.position_notes import PositionNotes
from connectors.client.values.stream import Stream
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import PositionLost, UsageError
from ordering.base.names import Address
from ordering.base.records import Data, Source

WAIT = 60.0
BOB = Address("nyc", "bob")


@pytest.fixture
def kafka() -> MemoryConnection:
    """Return a Kafka with five ordered messages."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g", "nyc"), Member("g", "nyc/alice", connection=connection) as alice:
        for number in range(1, 6):
            alice.broadcast(b"%d" % number)
    return connection


@pytest.fixture
def letters(kafka: MemoryConnection) -> MemoryConnection:
    """Return a Kafka with five letters to bob, too."""
    with Member("g", "nyc/alice", connection=kafka) as alice:
        for number in range(1, 6):
            alice.send("nyc/bob", b"%d" % number)
    return kafka


def bob(kafka: MemoryConnection) -> Member:
    return Member("g", "nyc/bob", connection=kafka)


def rest(kafka: MemoryConnection) -> list[int]:
    """Return the deliveries of the next run."""
    with bob(kafka) as member:
        return [delivery.seqno for delivery in member.deliveries(timeout=0.05)]


def letters_left(kafka: MemoryConnection) -> list[int]:
    with bob(kafka) as member:
        return payloads(member.inbox(timeout=0.05))


def payloads(letters: Iterator[Letter]) -> list[int]:
    return [int(letter.payload) for letter in letters]


class TestWhatIsInHand:
    def test_an_exception_of_the_application(self, letters: MemoryConnection) -> None:
        """The application's database was away: the item comes again after the restart."""

        def run(kind: str) -> None:
            with bob(letters) as member:
                for number, _ in enumerate(getattr(member, kind)(), start=1):
                    if number == 2:
                        raise ZeroDivisionError

        for kind in ("deliveries", "inbox"):
            with pytest.raises(ZeroDivisionError):
                run(kind)
            assert (rest if kind == "deliveries" else letters_left)(letters) == [2, 3, 4, 5]

    @pytest.mark.parametrize("end", ["break", "close the stream", "close the member", "drop", "throw"])
    @pytest.mark.parametrize("says_taken", [False, True])
    def test_however_the_loop_ends(self, letters: MemoryConnection, end: str, says_taken: bool) -> None:
        for kind in ("deliveries", "inbox"):
            member = bob(letters)
            stream: Stream[object] = getattr(member, kind)()
            for number, _ in enumerate(stream, start=1):
                if number == 3:
                    if says_taken:
                        stream.taken()
                    break
            if end == "close the stream":
                stream.close()
            elif end == "close the member":
                member.close()
            elif end == "drop":
                del stream
            elif end == "throw":
                with pytest.raises(KeyboardInterrupt):
                    stream._items.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
            member.close()
        expected = [4, 5] if says_taken else [3, 4, 5]
        assert rest(letters) == expected
        assert letters_left(letters) == expected

    def test_a_second_run_in_the_same_process(self, letters: MemoryConnection) -> None:
        with bob(letters) as member:
            for delivery in member.deliveries():
                if delivery.seqno == 3:
                    break
            for letter in member.inbox():
                if letter.local_seqno == 3:
                    break
            assert [delivery.seqno for delivery in member.deliveries(timeout=0.05)] == [3, 4, 5]
            assert payloads(member.inbox(timeout=0.05)) == [3, 4, 5]

    @pytest.mark.slow
    def test_a_member_of_the_group(self, kafka: MemoryConnection) -> None:
        """Its runs begin with its view, and go on where the one before has taken."""
        with SequencerThread(kafka, "g", "nyc"), bob(kafka) as member:
            member.connect()
            for number in (1, 2, 3):
                member.broadcast(b"new %d" % number).result(WAIT)
            for delivery in member.deliveries():
                if delivery.payload == b"new 2":
                    break
            assert [d.payload for d in member.deliveries(timeout=0.05)] == [b"new 2", b"new 3"]
            assert [d.payload for d in member.deliveries(timeout=0.05)] == []

    def test_the_end_of_the_log_is_no_end_of_the_last_message(self, kafka: MemoryConnection) -> None:
        """A run that asks for more, at the log's end, has taken the last message."""
        assert rest(kafka) == [1, 2, 3, 4, 5]
        assert rest(kafka) == []


class TestBeside:
    @pytest.mark.slow
    def test_a_run_from_a_seqno_moves_nothing(self, kafka: MemoryConnection) -> None:
        """The position stays, whichever way the run went."""
        with bob(kafka) as member:
            assert len(list(member.deliveries(from_seqno=4, timeout=0.05))) == 2
            stream = member.deliveries()
            assert [next(stream).seqno for _ in range(3)] == [1, 2, 3]
            assert len(list(member.deliveries(from_seqno=1, timeout=0.05))) == 5
        assert rest(kafka) == [3, 4, 5]

    @pytest.mark.slow
    @pytest.mark.parametrize(("before", "start"), [(0, 4), (5, 2)])
    def test_unless_it_is_told_to(self, kafka: MemoryConnection, before: int, start: int) -> None:
        if before:
            assert len(rest(kafka)) == before
        with bob(kafka) as member:
            stream = member.deliveries(from_seqno=start, remember=True)
            assert [next(stream).seqno, next(stream).seqno] == [start, start + 1]
        assert rest(kafka) == list(range(start + 1, 6))

    def test_nothing_to_remember(self, kafka: MemoryConnection) -> None:
        with bob(kafka) as member, pytest.raises(UsageError, match="goes with from_seqno"):
            member.deliveries(remember=True)


class TestForgotten:
    @pytest.mark.slow
    def test_a_name_that_kafka_has_forgotten_is_told_so(self, kafka: MemoryConnection) -> None:
        """The name continues at the seqno that it gives, from then on for good."""
        with bob(kafka) as member:
            stream = member.deliveries()
            assert [next(stream).seqno, next(stream).seqno] == [1, 2]
        kafka.topics.forget_commits()
        for _ in range(2):
            with pytest.raises(PositionLost, match=r"nyc/bob has .*deliveries\(from_seqno=N, remember=True\)"):
                rest(kafka)
        with bob(kafka) as member:
            assert [d.seqno for d in member.deliveries(from_seqno=4, timeout=0.05)] == [4, 5]
        with pytest.raises(PositionLost):
            rest(kafka)
        with bob(kafka) as member:
            assert next(member.deliveries(from_seqno=4, remember=True)).seqno == 4
        with pytest.raises(PositionLost):  # it has taken nothing
            rest(kafka)
        with bob(kafka) as member:
            assert [d.seqno for d in member.deliveries(from_seqno=4, timeout=0.05, remember=True)] == [4, 5]
        assert rest(kafka) == []
        kafka.topics.forget_commits()
        with pytest.raises(PositionLost):
            rest(kafka)

    def test_letters(self, letters: MemoryConnection) -> None:
        assert letters_left(letters) == [1, 2, 3, 4, 5]
        letters.topics.forget_commits()
        for _ in range(2):
            with pytest.raises(PositionLost, match=r"inbox\(from_beginning=True\)"):
                letters_left(letters)
        with bob(letters) as member:
            inbox = member.inbox(from_beginning=True)
            assert payloads(iter([next(inbox), next(inbox)])) == [1, 2]
        assert letters_left(letters) == [2, 3, 4, 5]

    def test_one_position_is_not_the_other(self, letters: MemoryConnection) -> None:
        assert letters_left(letters) == [1, 2, 3, 4, 5]
        letters.topics.forget_commits()
        assert rest(letters) == [1, 2, 3, 4, 5]

    def test_a_new_name_is_new(self, kafka: MemoryConnection) -> None:
        assert len(rest(kafka)) == 5
        kafka.topics.forget_commits()
        with Member("g", "nyc/bobby", connection=kafka) as bobby:
            assert next(bobby.deliveries()).seqno == 1

    def test_a_name_that_took_nothing_is_new(self, kafka: MemoryConnection) -> None:
        with bob(kafka) as member:
            next(member.deliveries())
        kafka.topics.forget_commits()
        assert rest(kafka) == [1, 2, 3, 4, 5]

    @pytest.mark.slow
    def test_a_member_goes_on_with_its_view(self, kafka: MemoryConnection) -> None:
        assert len(rest(kafka)) == 5
        kafka.topics.forget_commits()
        with SequencerThread(kafka, "g", "nyc"), bob(kafka) as member:
            member.connect()
            member.broadcast(b"x").result(WAIT)
            assert [delivery.payload for delivery in member.deliveries(timeout=0.05)] == [b"x"]
        assert rest(kafka) == []

    def test_a_position_of_an_earlier_version_gets_its_note(self, kafka: MemoryConnection) -> None:
        """The earlier version committed a position and wrote no note."""
        memory = MemberMemory(kafka, "g", BOB)
        memory._notes._written = {"deliveries"}
        memory.remember_taken(2, 2)
        memory.close()
        assert rest(kafka) == [3, 4, 5]
        kafka.topics.forget_commits()
        with pytest.raises(PositionLost):
            rest(kafka)

    def test_a_crash_between_the_note_and_the_position(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The beginning was committed before: the name begins there, and is not told that it was elsewhere."""
        commits: list[TopicPartition] = []
        really = CommittedOffsets.commit

        def killed(
            offsets: CommittedOffsets, partition: TopicPartition, offset: int, metadata: str, timeout_s: float
        ) -> None:
            commits.append(partition)
            if len(commits) > 1:
                raise KeyboardInterrupt
            really(offsets, partition, offset, metadata, timeout_s)

        memory = MemberMemory(kafka, "g", BOB)
        with monkeypatch.context() as patched:
            patched.setattr(CommittedOffsets, "commit", killed)
            with pytest.raises(KeyboardInterrupt):
                memory.remember_taken(2, 2)
        assert memory._notes._read() == {"deliveries"}
        assert rest(kafka) == [1, 2, 3, 4, 5]

    def test_a_crash_while_a_lost_position_is_given_anew(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A crash does not make it a new name."""
        assert len(rest(kafka)) == 5
        kafka.topics.forget_commits()
        memory = MemberMemory(kafka, "g", BOB)

        def killed(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(PositionNotes, "_append", killed)
            with pytest.raises(KeyboardInterrupt):
                memory.remember_taken(2, 2)
        with pytest.raises(PositionLost):
            rest(kafka)

    @pytest.mark.slow
    def test_a_group_without_the_topic(self, kafka: MemoryConnection, caplog: pytest.LogCaptureFixture) -> None:
        """A group of an earlier version works as before, with a warning, until the topic is there."""
        notes = TopicPartition("abcast.g.memory.nyc", 0)
        log = kafka.topics.partitions.pop(notes)
        with caplog.at_level(logging.WARNING):
            assert rest(kafka) == [1, 2, 3, 4, 5]
        assert "abcast topics create --group g --site nyc" in caplog.text
        kafka.topics.forget_commits()
        assert rest(kafka) == [1, 2, 3, 4, 5]
        kafka.topics.partitions[notes] = log
        with Member("g", "nyc/alice", connection=kafka) as alice, SequencerThread(kafka, "g", "nyc"):
            alice.broadcast(b"6").result(WAIT)
        assert rest(kafka) == [6]
        kafka.topics.forget_commits()
        with pytest.raises(PositionLost):
            rest(kafka)


class TestOffsetsSetByHand:
    DATA = TopicPartition("abcast.g.data.nyc", 0)

    def set(self, kafka: MemoryConnection, offset: int) -> None:
        group = "abcast.member.g.nyc.bob"
        kafka.topics.committed[group, self.DATA] = OffsetAndMetadata(offset, "", -1)

    @pytest.mark.slow
    @pytest.mark.parametrize(("offset", "expected"), [(0, [1, 2, 3, 4, 5]), (4, [3, 4, 5]), (7, []), (99, [])])
    def test_stand_for_the_seqno_that_comes_there(
        self, kafka: MemoryConnection, offset: int, expected: list[int]
    ) -> None:
        """An offset is two more than its seqno here: a seal and a snapshot come first."""
        assert len(rest(kafka)) == 5
        self.set(kafka, offset)
        assert rest(kafka) == expected

    def test_behind_retention(self, kafka: MemoryConnection) -> None:
        """The log no longer tells the seqno at that offset."""
        self.set(kafka, 3)
        kafka.topics.drop(self.DATA.topic, 3)
        with pytest.raises(PositionLost, match="was set to the offset 3"):
            rest(kafka)

    @pytest.mark.slow
    def test_behind_leftovers(self, kafka: MemoryConnection) -> None:
        """Leftovers of a fenced sequencer behind the seal take an offset and no seqno."""
        stale = Data("message", 1, 6, 0, "nyc/x", 1, 1, b"stale", Source("abcast.g.forward.nyc", 0, 99))
        with SequencerThread(kafka, "g", "nyc") as second:
            second.write([stale])
            self.set(kafka, len(kafka.topics.partitions[self.DATA]))
            assert rest(kafka) == []
            with bob(kafka) as member:
                assert member.broadcast(b"6").result(WAIT) == 6
        assert rest(kafka) == [6]
