"""Any argument of an application works, or raises an AbcastError that says why not. In memory."""

from __future__ import annotations

import array
import decimal
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.configuration import check_servers, configured
from connectors.testing import MemoryConnection, MemoryGroup
from ordering.base.errors import AbcastError, UsageError
from ordering.base.records import MAX_PAYLOAD_BYTES
from tests.waiting import WAIT


def released() -> memoryview:
    view = memoryview(b"x")
    view.release()
    return view


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.complex_numbers(),
    st.decimals(),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.builds(bytearray, st.binary()),
    st.builds(lambda content: memoryview(content), st.binary()),
    st.builds(released),
    st.sampled_from([object(), object, len, Path("x"), b"\0", "\0", "nyc/bob", "bob", "x" * 300, [], {}, set(), ...]),
    st.lists(st.one_of(st.text(), st.binary(), st.none()), max_size=3),
    st.dictionaries(st.text(st.characters(exclude_categories=())), st.one_of(st.binary(), st.text()), max_size=3),
    st.lists(st.tuples(st.text(), st.binary()), max_size=3),
)


@pytest.fixture(scope="module", autouse=True)
def threads_before() -> int:
    """Count the threads of other tests of this process."""
    return threading.active_count()


@pytest.fixture(scope="module")
def alice(threads_before: int) -> Iterator[Member]:
    with MemoryGroup("g", "nyc") as group:
        yield group.member("alice")


CALLS: dict[str, tuple[list[str], Callable[[Member, dict[str, Any]], object]]] = {
    "broadcast": (["payload", "headers", "timeout"], lambda m, a: m.broadcast(**{"payload": b"x", **a}).result(WAIT)),
    "send": (
        ["address", "payload", "headers", "timeout"],
        lambda m, a: m.send(**{"address": "bob", "payload": b"x", **a}).result(WAIT),
    ),
    "result": (["timeout"], lambda m, a: m.broadcast(b"x").result(**a)),
    "exception": (["timeout"], lambda m, a: m.broadcast(b"x").exception(**a)),
    "deliveries": (["from_seqno", "timeout", "events", "remember"], lambda m, a: m.deliveries(**a).close()),
    "inbox": (["timeout", "from_beginning"], lambda m, a: m.inbox(**a).close()),
    "wait_ordered": (["timeout"], lambda m, a: m.wait_ordered(**a)),
    "connect": (["from_ledger", "state", "or_history", "from_seqno", "timeout"], lambda m, a: m.connect(**a)),
    "flush": (["timeout"], lambda m, a: m.flush(**a)),
}


@pytest.mark.parametrize("name", CALLS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_calls(alice: Member, name: str, data: st.DataObject) -> None:
    arguments, call = CALLS[name]
    given_ones = data.draw(st.dictionaries(st.sampled_from(arguments), NONSENSE, min_size=1))
    with suppress(AbcastError):
        call(alice, given_ones)


OPTIONS = ["group", "member", "connect_timeout", "default_site", "ledger", "max_pending_records", "max_pending_bytes"]
OPTIONS += ["resend_after_s", "block", "unblock", "get_state", "set_state", "connection", "serializer", "deserializer"]


@settings(deadline=None)
@given(given_ones=st.dictionaries(st.sampled_from(OPTIONS), NONSENSE, min_size=1))
def test_options(given_ones: dict[str, Any]) -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    if given_ones.get("connection", ...) is None:
        return  # then it would look for a broker
    with suppress(AbcastError):
        Member(**{"group": "g", "member": "nyc/alice", "connection": connection, **given_ones}).close()


@pytest.mark.parametrize("outbox", [5, b"x", [], "\0", object(), "no/such/directory/x", "."])
def test_outboxes(outbox: Any) -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with pytest.raises(AbcastError):
        Member("g", "nyc/alice", connection=connection, outbox=outbox)


def test_payloads_of_bytes(alice: Member) -> None:
    """A mutable payload is copied when it is passed."""
    changing = bytearray(b"one")
    receipts = [
        alice.broadcast(changing),
        alice.broadcast(memoryview(b"--two--")[2:5]),
        alice.broadcast(memoryview(array.array("B", b"three"))),
    ]
    changing[:] = b"xxx"
    first = receipts[0].result(WAIT)
    assert receipts[-1].result(WAIT) == first + 2
    taken = alice.deliveries(first, timeout=0)
    assert [delivery.payload for delivery in taken] == [b"one", b"two", b"three"]
    with pytest.raises(UsageError, match="over the limit"):
        alice.broadcast(bytearray(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(UsageError, match="not str: encode it first"):
        alice.broadcast("text")


def test_serializer() -> None:
    """A payload that the deserializer can't read raises where its value is used; the loop goes on."""
    with MemoryGroup("g", "nyc") as group:
        alice = group.member("alice", serializer=lambda order: json.dumps(order).encode(), deserializer=json.loads)
        alice.broadcast({"buy": 100}).result(WAIT)
        alice.send("nyc/alice", ["sell", 50]).result(WAIT)
        group.member("bob").broadcast(b"no JSON").result(WAIT)
        alice.broadcast([1]).result(WAIT)
        first, second, third = alice.deliveries(timeout=0)
        assert (first.value, third.value) == ({"buy": 100}, [1])
        assert second.payload == b"no JSON"
        with pytest.raises(json.JSONDecodeError):
            _ = second.value
        assert next(alice.inbox()).value == ["sell", 50]
        with pytest.raises(UsageError, match=r"the serializer can't make a payload of a set: .*not JSON serializable"):
            alice.broadcast({1})
        plain = group.member("carol", serializer=str)
        with pytest.raises(UsageError, match="not str"):
            plain.broadcast(7)
        assert next(plain.deliveries()).value == b'{"buy": 100}'


def test_an_iterator_is_for_one_thread(alice: Member) -> None:
    stream = alice.deliveries(alice.broadcast(b"x").result(WAIT) + 1)
    waiting = threading.Thread(target=lambda: next(stream))
    waiting.start()
    time.sleep(0.1)
    with pytest.raises(UsageError, match="give each thread its own"):
        next(stream)
    alice.broadcast(b"y").result(WAIT)
    waiting.join(WAIT)
    stream.close()


def test_times(alice: Member) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    delivery = next(alice.deliveries(alice.broadcast(b"x").result(WAIT)))
    assert before < delivery.forwarded_at <= delivery.sequenced_at < before + timedelta(seconds=WAIT)
    assert delivery.sequenced_at.timestamp() * 1000 == pytest.approx(delivery.sequenced_at_ms)


def test_for_ever_is_none_or_infinite(alice: Member) -> None:
    for timeout in (None, float("inf"), 10**400, decimal.MAX_EMAX):
        assert alice.broadcast(b"x", timeout=timeout).result(timeout) > 0
        assert alice.wait_ordered(timeout) is not None
    assert alice.broadcast(b"x", timeout=-1).exception(WAIT) is None


class TestConfiguration:
    """A value that the call omits comes from a variable, else the file, else the default."""

    def test_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("ABCAST_BOOTSTRAP_SERVERS", "ABCAST_CONFIG", "ABCAST_SITE"):
            monkeypatch.delenv(name, raising=False)
        assert configured("bootstrap_servers", "default:1") == "default:1"
        (tmp_path / "abcast.toml").write_text('bootstrap_servers = "file:1"\nsite = 5\n[publish]\nsite = "x"\n')
        assert configured("bootstrap_servers", "default:1") == "file:1"
        monkeypatch.setenv("ABCAST_BOOTSTRAP_SERVERS", "variable:1")
        assert configured("bootstrap_servers", "default:1") == "variable:1"
        with pytest.raises(UsageError, match=r"site in the configuration file abcast\.toml is a text, not 5"):
            configured("site", "local")
        monkeypatch.setenv("ABCAST_CONFIG", "other.toml")
        with pytest.raises(UsageError, match=r"other\.toml can't be read"):
            configured("site", "local")

    @pytest.mark.slow
    def test_a_member_reads_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error has one traceback, and names the variable to set."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ABCAST_SITE", "nyc")
        monkeypatch.setenv("ABCAST_BOOTSTRAP_SERVERS", "127.0.0.1:1")
        with pytest.raises(AbcastError, match=r"at 127\.0\.0\.1:1.*ABCAST_BOOTSTRAP_SERVERS names another") as error:
            Member("g", "alice", connect_timeout=0.5)
        assert error.value.__suppress_context__
        assert error.value.__cause__ is None
        connection = MemoryConnection()
        connection.create("g", "nyc")
        with Member("g", "alice", connection=connection) as alice:
            assert str(alice.address) == "nyc/alice"

    @given(st.text())
    def test_any_servers(self, servers: str) -> None:
        with suppress(UsageError):
            assert check_servers(servers)

    @pytest.mark.parametrize("servers", ["foo:bar", "a:0", "a:99999", "", "a,,b", "http://a:1", "a:1:2", "a b"])
    def test_bad_servers(self, servers: str) -> None:
        with pytest.raises(UsageError, match="write HOST:PORT"):
            Member("g", "alice", bootstrap_servers=servers)

    @pytest.mark.parametrize("servers", ["a", "a:1", "a-b.c_d:65535, 10.0.0.1:9092", "[::1]:9092"])
    def test_good_servers(self, servers: str) -> None:
        assert Connection(servers).bootstrap_servers == servers

    def test_two_kafkas(self) -> None:
        with pytest.raises(UsageError, match="not both"):
            Member("g", "nyc/a", bootstrap_servers="127.0.0.1:1", connection=MemoryConnection())


def test_a_ledger_needs_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member raises when it is made, not when retention has dropped something."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "connectors.client.memory.ledger_reader.find_spec", lambda name: None if name == "deltalake" else found(name)
    )
    with pytest.raises(UsageError, match=r"ledger= needs deltalake: pip install 'abcast\[jobs\]'"):
        Member("g", "nyc/a", connection=MemoryConnection(), ledger="abcast-data/ledger")


def test_a_ledger_with_casts() -> None:
    """Deliveries with casts read no ledger."""
    with pytest.raises(UsageError, match="take ledger= or casts=True"):
        Member("g", "nyc/a", connection=MemoryConnection(), ledger="abcast-data/ledger", casts=True)


def test_nothing_is_left_running(alice: Member, threads_before: int) -> None:
    assert threading.active_count() < threads_before + 20
