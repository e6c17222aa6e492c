"""Casts between two sites of a hub: the table of all orders holds for members at both, whatever the relays do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Delivery, Member
from connectors.client.tail import cast_reader
from connectors.diagnosis.casts import check_casts
from connectors.kafka.topics.settings import change_settings
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from jobs.deliver import _event_line, _line
from ordering.base.names import Topic
from ordering.checker.anomalies import CAUSAL_VIOLATION, DIVERGENT, FIFO_VIOLATION, LOST
from tests.client.casts.test_orders import texts
from tests.client.two_sites import relays
from tests.waiting import WAIT, eventually

GROUP = "g"
CAST_SFO = str(Topic(GROUP, "cast", "sfo"))


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "LOOK_SOON_S"):
        monkeypatch.setattr(cast_reader, name, 0.05)


@pytest.fixture
def nyc() -> Iterator[MemoryConnection]:
    """The home's Kafka, with a sequencer, and flush on."""
    connection = MemoryConnection()
    connection.create(GROUP, "nyc", partitions=2)
    for number in range(2):
        relayed = TopicPartition(str(Topic(GROUP, "relayed", "nyc", "sfo")), number)
        connection.topics.partitions[relayed] = []
    with SequencerThread(connection, GROUP):
        change_settings(connection, GROUP, "nyc", flush=True)
        yield connection


@pytest.fixture
def sfo() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create(GROUP, "sfo", partitions=2)
    return connection


def member(connection: MemoryConnection, address: str) -> Member:
    return Member(GROUP, address, connection=connection, casts=True)


def joined(closing: contextlib.ExitStack, nyc: MemoryConnection, sfo: MemoryConnection) -> tuple[Member, Member]:
    """Return a member at each site, in one view."""
    alice, bob = (closing.enter_context(each) for each in (member(nyc, "nyc/alice"), member(sfo, "sfo/bob")))
    for each in (alice, bob):
        each.connect(timeout=WAIT)
    return alice, bob


@pytest.mark.slow
def test_a_chain_through_all_orders(nyc: MemoryConnection, sfo: MemoryConnection) -> None:
    """Members at two sites answer each other, in an order after another; the relays are cut off all the time."""
    with contextlib.ExitStack() as closing:
        running = closing.enter_context(contextlib.ExitStack())
        for relay in relays(nyc, sfo, GROUP):
            running.enter_context(relay)
        alice, bob = joined(closing, nyc, sfo)
        streams = [each.deliveries(timeout=WAIT) for each in (alice, bob)]
        for number, order in enumerate(["causal", "total", "causal", "causal", "total", "total", "causal"] * 3):
            (alice, bob)[number % 2].broadcast(b"%d" % number, order=order)  # type: ignore[call-overload]
            running.close()
            for relay in relays(nyc, sfo, GROUP):
                running.enter_context(relay)
            assert [texts(stream, 1) for stream in streams] == [[f"{order} {number}"]] * 2
    [copy, original] = (
        [log for place, log in each.topics.partitions.items() if place.topic == CAST_SFO] for each in (nyc, sfo)
    )
    assert sum(map(len, copy)) > sum(map(len, original)), "the relays have repeated something"


def test_a_total_message_waits_for_casts_of_another_site(nyc: MemoryConnection, sfo: MemoryConnection) -> None:
    """The order comes before the casts that it depends on: members at the other site hold it back."""
    forward, data, of_sfo, of_nyc = relays(nyc, sfo, GROUP)
    with contextlib.ExitStack() as closing:
        for relay in (forward, data, of_nyc):
            closing.enter_context(relay)
        alice, bob = joined(closing, nyc, sfo)
        stream = alice.deliveries(timeout=WAIT)
        for number in range(3):
            bob.broadcast(b"cast %d" % number, order="causal")
        bob.broadcast(b"total").result(WAIT)
        alice.broadcast(b"unaware", order="fifo").result(WAIT)
        assert texts(stream, 1) == ["fifo unaware"]
        closing.enter_context(of_sfo)
        assert texts(stream, 4) == ["causal cast 0", "causal cast 1", "causal cast 2", "total total"]


def test_casts_of_no_view(nyc: MemoryConnection, sfo: MemoryConnection) -> None:
    """Without a JOIN, each sender's casts come in order and once at the other site, to a member there before."""
    with contextlib.ExitStack() as closing:
        closing.enter_context(relays(nyc, sfo, GROUP)[1])
        alice, bob = (closing.enter_context(each) for each in (member(nyc, "nyc/alice"), member(sfo, "sfo/bob")))
        stream = alice.deliveries(timeout=WAIT)
        alice.broadcast(b"first", order="fifo")
        assert texts(stream, 1) == ["fifo first"]
        for number in range(50):
            bob.broadcast(b"%d" % number, order="fifo")
        for _ in range(3):
            with relays(nyc, sfo, GROUP)[2]:
                eventually(lambda: nyc.topics.numbers(CAST_SFO))
        closing.enter_context(relays(nyc, sfo, GROUP)[2])
        assert texts(stream, 50) == [f"fifo {number}" for number in range(50)]
        alice.broadcast(b"last", order="fifo")
        assert texts(stream, 1) == ["fifo last"], "nothing comes twice"


@pytest.mark.slow
def test_a_view_separates_casts_of_both_sites(nyc: MemoryConnection, sfo: MemoryConnection, tmp_path: Path) -> None:
    """A third member joins at the other site: both old members deliver all earlier casts before the view.

    Their logs show it, and the check finds a log that lacks the last cast before the view.
    """
    begin = '{"event": "begin"}'
    logs = [[begin], [begin]]
    with contextlib.ExitStack() as closing:
        for relay in relays(nyc, sfo, GROUP):
            closing.enter_context(relay)
        alice, bob = joined(closing, nyc, sfo)
        streams = [each.deliveries(timeout=WAIT, events=True) for each in (alice, bob)]
        for number in range(30):
            for each in (alice, bob):
                each.broadcast(b"before %d" % number, order="causal")
        carol = closing.enter_context(member(sfo, "sfo/carol"))
        carol.connect(timeout=WAIT)
        bob.broadcast(b"after", order="causal")
        seen = []
        for stream, log in zip(streams, logs, strict=True):
            before: set[tuple[str, int]] = set()
            for what in stream:
                line = _line(what, as_json=True) if isinstance(what, Delivery) else _event_line(what, as_json=True)
                log.append(line)
                if "sfo/carol" in getattr(what, "members", ()):
                    break
                if isinstance(what, Delivery):
                    before.add((what.sender, what.local_seqno))
            seen.append(before)
        assert seen[0] == seen[1]
        assert len(seen[0]) == 60
        assert texts(carol.deliveries(timeout=WAIT), 1) == ["causal after"]

    def found(*of_members: Sequence[str]) -> list[str]:
        files = [tmp_path / name for name in ("alice", "bob")]
        for file, lines in zip(files, of_members, strict=True):
            file.write_text("".join(f"{line}\n" for line in lines))
        connections = {"nyc": nyc, "sfo": sfo}
        _, anomalies = check_casts(GROUP, connections, files, one_order=True, settled=False)
        return [anomaly.name for anomaly in anomalies]

    assert found(*logs) == []
    last = max(at for at, line in enumerate(logs[1]) if '"order"' in line)
    assert found(logs[0], logs[1][:last] + logs[1][last + 1 :]) == [DIVERGENT]


@pytest.mark.slow
def test_check_finds_what_is_wrong_at_either_site(nyc: MemoryConnection, sfo: MemoryConnection, tmp_path: Path) -> None:
    """The check compares one site's delivery log with clocks and views of both; a cast that never came is lost."""
    connections = {"nyc": nyc, "sfo": sfo}
    _, _, of_sfo, of_nyc = running = relays(nyc, sfo, GROUP)
    with contextlib.ExitStack() as closing:
        for relay in running:
            closing.enter_context(relay)
        alice, bob = joined(closing, nyc, sfo)
        streams = {each: each.deliveries(timeout=WAIT) for each in (alice, bob)}
        logs: dict[Member, list[Delivery]] = {alice: [], bob: []}
        for number in range(4):
            (alice, bob)[number % 2].broadcast(b"%d" % number, order="causal")
            for each, stream in streams.items():
                logs[each].append(next(stream))
        alice.broadcast(b"price", order="fifo")
        for each, stream in streams.items():
            logs[each].append(next(stream))

        def found(*deliveries: Sequence[Delivery]) -> list[str]:
            files = [tmp_path / f"{number}.jsonl" for number in range(len(deliveries))]
            for file, of_member in zip(files, deliveries, strict=True):
                file.write_text("".join(f"{_line(each, as_json=True)}\n" for each in of_member))
            read, anomalies = check_casts(GROUP, connections, files, one_order=True, settled=True)
            assert list(read.values()) == [len(each) for each in deliveries]
            return [anomaly.name for anomaly in anomalies]

        eventually(lambda: not found(*logs.values()), what="the copies are whole")
        first, second, third, fourth, fifth = logs[bob]
        assert found(logs[alice], [second, first, third, fourth, fifth]) == [CAUSAL_VIOLATION]
        assert found([first, second, third, fifth, fourth], logs[bob]) == []
        assert FIFO_VIOLATION in found(logs[alice], [first, second, fifth, fourth, third])
        for relay in (of_sfo, of_nyc):
            relay.stop()
        bob.broadcast(b"nobody at nyc has it", order="fifo").result(WAIT)
        assert found() == [LOST]
