"""Datagrams: all messages round-trip, and other bytes are refused. The hostfile, and its mistakes."""

from __future__ import annotations

import random
import time
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.isis.hostfile import Host, digest, read_hostfile
from connectors.isis.machine import BegunAgain, IsisMachine, fresh_process
from connectors.isis.process import IsisProcess
from connectors.isis.wire import (
    MAX_DATAGRAM_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_UNFINISHED,
    DatagramAssembly,
    MalformedDatagram,
    Packet,
    Part,
    encode_message,
    pack,
    unpack,
)
from ordering.agreement.formation import Hello, ProcessIncarnation, View
from ordering.agreement.history import Ask, MissedDeliveries
from ordering.agreement.hold_back import Key, Places, Run, RunId
from ordering.agreement.messages import (
    NO_BALLOT,
    Accept,
    Ballot,
    BallotAccepted,
    BallotPromise,
    Beat,
    DecidedView,
    DeliverRun,
    Hears,
    Join,
    NextView,
    Prepare,
    Refuse,
    ViewReport,
    Vote,
)
from ordering.agreement.state import Finals, Known, Placed, Propose, Proposed, Send
from ordering.base.errors import EnvironmentProblem, UsageError
from tests.isis.processes import free_ports

GROUP = b"8 bytes."
VIEW = View(
    5, 2, (ProcessIncarnation("000", 7), ProcessIncarnation("001", 8)), 40, ((ProcessIncarnation("000", 7), 3),)
)
VALUE = NextView(VIEW, (Placed(40, RunId(0, 3), 1, Key(9, 1)),))
REPORT = ViewReport(40, VALUE.settled, (), (3, 0))
MESSAGES: list[Packet] = [
    Send(1, 4, (Run(b"a"), Run(b"", 3)), (7, 9)),
    Propose(1, 1, 4, (9, 10)),
    Finals(1, 4, (Key(9, 1), Key(10, 0))),
    Known(1, (3, 4), 7),
    Beat(1),
    Hello((ProcessIncarnation("000", 7),)),
    Join(1),
    Hears(1, (ProcessIncarnation("000", 7),)),
    Prepare(1, Ballot(2, 0)),
    BallotPromise(1, Ballot(2, 0), None, REPORT),
    BallotPromise(1, Ballot(2, 0), Vote(Ballot(1, 1), VALUE), REPORT),
    BallotPromise(
        1, Ballot(2, 0), None, REPORT._replace(proposed=(Proposed(RunId(0, 1), 1, Key(5, 0), Places(1 << 99)),))
    ),
    Refuse(1, NO_BALLOT),
    Accept(1, Ballot(2, 0), VALUE),
    BallotAccepted(1, Ballot(2, 0)),
    DecidedView(VALUE),
    Ask(3),
    MissedDeliveries(
        2, (DeliverRun(3, ProcessIncarnation("000", 7), 1, Run(b"\x00\xff"), 9, ProcessIncarnation("001", 8)),)
    ),
]


def datagrams(*messages: Packet) -> list[bytes]:
    parts = [part for message in messages for part in encode_message(message)]
    return list(pack(GROUP, 3, 1_700_000_000_000_000, parts, 2_000))


def test_all_messages_travel_together() -> None:
    (raw,) = datagrams(*MESSAGES)
    found = unpack(GROUP, raw)
    assert (found.sender, found.incarnation, found.suspect_after_ms) == (3, 1_700_000_000_000_000, 2_000)
    assert list(found.messages) == MESSAGES


@given(st.lists(st.binary(max_size=5_000), min_size=1, max_size=30))
def test_many_runs_take_several_datagrams(payloads: list[bytes]) -> None:
    found: list[Run] = []
    for raw in datagrams(Send(1, 5, tuple(map(Run, payloads)), tuple(range(1, len(payloads) + 1)))):
        for message in unpack(GROUP, raw).messages:
            assert isinstance(message, Send)
            assert message.first == 5 + len(found)
            found += message.runs
    assert found == [Run(payload) for payload in payloads]


@pytest.mark.slow
def test_what_is_longer_than_a_datagram_comes_in_parts() -> None:
    """The parts come in any order, with repeats, and again if one is lost."""
    dice = random.Random(1)
    runs = tuple(Placed(n, RunId(0, n), 1, Key(dice.randrange(1 << 40), 0)) for n in range(1, 20_000))
    long = BallotPromise(1, Ballot(2, 0), None, REPORT._replace(recent=runs))
    sent = datagrams(long)
    assert len(sent) > 2
    assert max(map(len, sent)) <= MAX_DATAGRAM_BYTES
    parts = [part for raw in sent for part in unpack(GROUP, raw).messages if isinstance(part, Part)]
    assembly = DatagramAssembly()
    assert [message for part in [*parts[1:], parts[1]] for message in assembly.take(1, part)] == []
    assert assembly.take(2, parts[0]) == ()
    assert assembly.take(1, parts[0]) == (long,)
    assert [message for part in parts[::-1] for message in assembly.take(1, part)] == [long]
    assert assembly.take(1, parts[0]) == assembly.take(1, parts[0]._replace(digest=b"another.")) == ()
    assert [message for part in parts[1:] for message in assembly.take(1, part)] == [long]
    with pytest.raises(MalformedDatagram, match="damaged"):
        [assembly.take(3, part._replace(piece=b"x")) for part in parts]
    with pytest.raises(MalformedDatagram, match="too large"):
        assembly.take(3, parts[0]._replace(parts=10_000))


@pytest.mark.parametrize("seed", range(5))
def test_large_messages_that_are_sent_again_in_turn_all_come(seed: int) -> None:
    """The link loses every other datagram: the parts of one message are kept while the others are sent."""
    dice = random.Random(seed)
    sent = []
    for view in range(1, MAX_UNFINISHED + 1):
        runs = tuple(Placed(n, RunId(0, n), 1, Key(dice.randrange(1 << 40), 0)) for n in range(1, 100))
        message = encode_message(BallotPromise(view, Ballot(2, 0), None, REPORT._replace(recent=runs)))
        sent.append(list(pack(GROUP, 3, 1, message, largest=300)))
    assembly, come = DatagramAssembly(), set()
    for _ in range(15):
        for raw in (raw for message in sent for raw in message if dice.random() < 0.5):
            for part in unpack(GROUP, raw).messages:
                assert isinstance(part, Part)
                come |= {message.view for message in assembly.take(1, part) if isinstance(message, BallotPromise)}
    assert come == set(range(1, MAX_UNFINISHED + 1))


def test_what_is_kept_of_a_sender_is_bounded() -> None:
    """The parts of the last messages are kept."""
    assembly = DatagramAssembly()
    pieces = [Part(b"%08d" % number, 0, 2, b"x") for number in range(1_000)]
    assert [message for part in pieces for message in assembly.take(1, part)] == []
    assert sum(map(len, assembly._pieces.values())) == MAX_UNFINISHED


def test_the_largest_payload_fits() -> None:
    (raw,) = datagrams(Send(1, 1, (Run(bytes(MAX_PAYLOAD_BYTES)),), (1,)))
    assert len(raw) <= MAX_DATAGRAM_BYTES


@given(st.integers(0, len(MESSAGES) - 1), st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_datagram_is_malformed(which: int, where: int, by: int) -> None:
    (raw,) = datagrams(MESSAGES[which])
    place = where % len(raw)
    with pytest.raises(MalformedDatagram):
        unpack(GROUP, raw[:place] + bytes([raw[place] ^ by]) + raw[place + 1 :])
    with pytest.raises(MalformedDatagram):
        unpack(GROUP, raw[:place])


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_datagram_or_malformed(body: bytes) -> None:
    """Also bytes behind a right header."""
    rest = GROUP + bytes(14) + body
    raw = b"AI\x03" + zlib.crc32(rest).to_bytes(4, "big") + rest
    for guess in (body, raw):
        with suppress(MalformedDatagram):
            unpack(GROUP, guess)


@pytest.mark.slow
def test_a_body_that_would_fill_the_memory_is_malformed() -> None:
    bomb = zlib.compress(b"[" * 50_000_000, 9)
    (raw,) = pack(GROUP, 0, 1, [bytes([14]) + len(bomb).to_bytes(4, "big") + bomb])
    with pytest.raises(MalformedDatagram, match="too large"):
        unpack(GROUP, raw)


def test_another_hostfile_is_malformed() -> None:
    (raw,) = datagrams(Beat(1))
    with pytest.raises(MalformedDatagram, match="of another hostfile"):
        unpack(digest([Host("a", 1)]), raw)


# The hostfile


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts"
    path.write_text(text)
    return path


def test_a_hostfile(tmp_path: Path) -> None:
    text = "# three\n127.0.0.1:7001\n\nlocalhost   # with --port\n127.0.0.1:7003\n"
    assert read_hostfile(write(tmp_path, text), 7002) == (
        Host("127.0.0.1", 7001),
        Host("localhost", 7002),
        Host("127.0.0.1", 7003),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 processes"),
        ("localhost\n", "line 1 .* has no port, and there is no --port"),
        ("a:1\nb:0\n", "line 2 .* has a port that is not 1 to 65535: 'b:0'"),
        ("a:65536\n", "a port that is not 1"),
        ("a:x\n", "a port that is not 1"),
        (":7001\n", "is not HOST or HOST:PORT"),
        ("a b:1\n", "is not HOST or HOST:PORT"),
        ("::1:7\n", "is not HOST or HOST:PORT"),
        ("a:1\nb:1\na:1\n", r"line 3 .* has a:1 again \(line 1\)"),
        ("".join(f"a:{port}\n" for port in range(1, 102)), "has 101 processes"),
    ],
)
def test_a_bad_hostfile_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_hostfile(write(tmp_path, text))


def test_a_hostfile_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="can't be read"):
        read_hostfile(tmp_path / "hosts")


# The process


def test_what_is_not_a_datagram_of_the_group_is_counted_and_dropped() -> None:
    """Datagrams from a stranger's address, damaged ones, and ones of another group or another id."""
    ports = free_ports(2)
    hosts = [Host("127.0.0.1", port) for port in ports]
    process, other = IsisProcess(hosts, 0), IsisProcess(hosts, 1)
    group, incarnation = digest(hosts), 9
    beat = list(encode_message(Beat(1)))
    stranger = IsisProcess([Host("127.0.0.1", free_ports(1)[0])], 0)
    try:
        sent: list[tuple[IsisProcess, bytes]] = [
            (stranger, b"hello"),
            (other, b"hello"),
            (other, bytes(100)),
            (other, next(pack(b"12345678", 1, incarnation, beat))),
            (other, next(pack(group, 0, incarnation, beat))),
            (other, next(pack(group, 1, incarnation, [b"\x63\x00\x00\x00\x00"]))),
            (other, next(pack(group, 1, incarnation, [b"\x01\x00\x00\x00\x01a"]))),
        ]
        for sender, raw in sent:
            sender._put(("127.0.0.1", ports[0]), raw)
        for _ in range(20):
            process.work()
    finally:
        for one in (process, other, stranger):
            one.close()
    assert process.rejected == {
        "from an address that is not in the hostfile": 1,
        "too short": 1,
        "not of this version": 1,
        "of another hostfile": 1,
        "under another's id": 1,
        "of an unknown kind": 1,
        "not a message": 1,
    }


def test_a_clock_that_went_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is not taken for an old start of its own: it becomes a later one, and its messages are sent."""
    hosts = [Host("127.0.0.1", port) for port in free_ports(3)]
    group = [IsisProcess(hosts, place, suspect_after_ms=300) for place in range(3)]
    told: list[BegunAgain] = []

    def delivered(*counts: int) -> list[list[bytes]]:
        """Return each process's deliveries from now on, until all have so many."""
        found: list[list[bytes]] = [[] for _ in group]
        deadline = time.monotonic() + 20
        while any(len(have) < count for have, count in zip(found, counts, strict=True)):
            assert time.monotonic() < deadline
            for have, one in zip(found, group, strict=True):
                events = one.work(0.001)
                have += [event.run.reference for event in events if isinstance(event, DeliverRun)]
                told.extend(event for event in events if isinstance(event, BegunAgain))
        return found

    try:
        group[0].submit(b"before")
        delivered(1, 1, 1)
        before = group[2].process.me
        group[2].close()
        monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
        group[2] = IsisProcess(hosts, 2, suspect_after_ms=300)
        assert group[2].process.me.incarnation == 5_000
        group[2].submit(b"after")
        assert delivered(1, 1, 2) == [[b"after"], [b"after"], [b"before", b"after"]]
    finally:
        for one in group:
            one.close()
    assert told == [BegunAgain(group[2].process.me)]
    assert group[2].process.me > before


def test_two_starts_that_know_of_one_later_start_begin_again_as_different_ones() -> None:
    """The second one may not have heard of the first, and others may still have its messages."""
    names, later = ("000", "001"), ProcessIncarnation("000", 50)
    hello = list(pack(GROUP, 1, 9, encode_message(Hello((later, ProcessIncarnation("001", 9))))))
    begun: list[ProcessIncarnation] = []
    for seed in range(2):
        process = fresh_process(ProcessIncarnation("000", 7), names, now_ms=0)
        machine = IsisMachine(process, names, GROUP, dice=random.Random(seed))
        machine.take(1, hello)
        begun += [event.incarnation for event in machine.writes() or () if isinstance(event, BegunAgain)]
    assert later < begun[0] != begun[1] > later


def test_a_port_in_use() -> None:
    hosts = [Host("127.0.0.1", free_ports(1)[0])]
    first = IsisProcess(hosts, 0)
    try:
        with pytest.raises(EnvironmentProblem, match="is in use"):
            IsisProcess(hosts, 0)
    finally:
        first.close()


def test_two_lines_that_are_one_place() -> None:
    hosts = [Host("127.0.0.1", 7001), Host("127.0.0.1", 7002), Host("localhost", 7001)]
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:7001 and localhost:7001 are the same place"):
        IsisProcess(hosts, 1)


@pytest.mark.parametrize(
    "message",
    [
        Send(1, 2**60, (Run(b"x"),), (1,)),
        Propose(1, 0, 1, (1, 2**60)),
        Finals(1, 1, (Key(2**60, 0),)),
        Known(1, (0, 2**60, 0), 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_number_that_no_process_gets_to_is_malformed(message: Packet) -> None:
    """The messages that follow from it would not fit into a datagram."""
    [datagram] = datagrams(message)
    with pytest.raises(MalformedDatagram, match="not a message"):
        unpack(GROUP, datagram)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(EnvironmentProblem, match=r"can't listen at 192\.0\.2\.1"):
        IsisProcess([Host("192.0.2.1", 7001)], 0)
