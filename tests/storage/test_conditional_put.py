"""Delta's log on S3: two JVMs put one version, and one has committed. A real server, Hadoop's own client."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError

from connectors.local.jars import jars_of
from connectors.spark.table_store import problem, prove
from connectors.storage.location import RemotePath, files_below
from connectors.storage.settings import LOG_STORE
from ordering.base.errors import UsageError
from tests.ledger.bare_jvm import bare_gateway
from tests.storage.s3_server import S3Server

# An object store and a JVM run for it.
pytestmark = pytest.mark.slow

DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def jvms() -> Iterator[list[JVMView]]:
    """Return two JVMs."""
    with ExitStack() as stack:
        yield [stack.enter_context(bare_gateway(*jars_of("s3"))).jvm for _ in range(2)]


@pytest.fixture
def version(server: S3Server) -> RemotePath:
    """Return the path of a commit."""
    return server.place(f"log-{next(_numbers)}/_delta_log") / f"{0:020d}.json"


class Store:
    """Delta's way to write a version, in a JVM."""

    def __init__(self, jvm: JVMView, server: S3Server, name: str = LOG_STORE, **settings: str) -> None:
        self._jvm = jvm
        self.hadoop = jvm.org.apache.hadoop.conf.Configuration()
        ours = {**server.storage.for_spark(), **server.storage.login_for_spark()}
        for key, value in {**ours, "spark.hadoop.fs.s3a.impl.disable.cache": "true", **settings}.items():
            self.hadoop.set(key.removeprefix("spark.hadoop."), value)
        of_class: Any = jvm
        for part in name.split("."):
            of_class = getattr(of_class, part)
        self._store = of_class(self.hadoop)

    def put_if_absent(self, file: RemotePath, line: str) -> bool:
        """Write if absent; return whether it was, as Delta sees it."""
        lines = self._jvm.java.util.ArrayList()
        lines.add(line)
        try:
            self._store.write(self._jvm.org.apache.hadoop.fs.Path(str(file)), lines.iterator(), False, self.hadoop)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.nio.file.FileAlreadyExistsException":
                raise
            return False
        return True


def race(server: S3Server, jvms: list[JVMView], file: RemotePath, name: str) -> list[bool]:
    """Return whether each of two writers believes to have committed, with both puts under way at one instant."""
    stores = [Store(jvm, server, name) for jvm in jvms]
    both = threading.Barrier(2, timeout=60)

    def wait_for_both(_path: str) -> None:
        both.wait()

    server.before_put = wait_for_both
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda each: each[1].put_if_absent(file, f"of {each[0]}"), enumerate(stores)))


@pytest.mark.long
def test_one_of_two_commits_a_version(server: S3Server, jvms: list[JVMView], version: RemotePath) -> None:
    for number in range(8):
        file = version.parent / f"{number:020d}.json"
        won = race(server, jvms, file, LOG_STORE)
        assert sorted(won) == [False, True]
        assert file.read_text("utf-8") == f"of {won.index(True)}\n"


@pytest.mark.long
def test_with_deltas_own_store_both_believe_it(server: S3Server, jvms: list[JVMView], version: RemotePath) -> None:
    """The test above sees this without our store."""
    assert race(server, jvms, version, DELTAS_OWN) == [True, True]


def test_an_answer_that_is_lost(server: S3Server, jvms: list[JVMView], version: RemotePath) -> None:
    """Hadoop repeats the put and is refused, as the first one was stored: the version is its own."""
    lost: list[str] = []

    def lose(path: str) -> bool:
        lost.append(path)
        return len(lost) == 1

    server.on_put = lose
    assert Store(jvms[0], server).put_if_absent(version, "mine")
    assert len(lost) >= 2
    server.on_put = lambda _path: False
    assert not Store(jvms[1], server).put_if_absent(version, "another's")
    assert version.read_text("utf-8") == "mine\n"


def test_a_put_that_never_arrives(server: S3Server, jvms: list[JVMView], version: RemotePath) -> None:
    """The put fails: no writer may believe that it was done."""
    place = RemotePath(str(version).replace("//tables/", "//none/"), version.storage)
    with pytest.raises(Py4JJavaError):
        Store(jvms[0], server).put_if_absent(place, "mine")


def test_a_store_that_is_safe_is_taken(server: S3Server, jvms: list[JVMView]) -> None:
    data = server.place("probed")
    prove(jvms[0], Store(jvms[0], server).hadoop, data)
    assert files_below(data) == {}


def test_hadoop_that_is_told_to_put_always_is_refused(server: S3Server, jvms: list[JVMView]) -> None:
    data = server.place("probed")
    hadoop = Store(jvms[0], server, **{"fs.s3a.create.conditional.enabled": "false"}).hadoop
    with pytest.raises(Py4JJavaError) as raised:
        prove(jvms[0], hadoop, data)
    assert isinstance(problem(data, raised.value), UsageError)
    assert "leave fs.s3a.create.conditional.enabled true" in str(problem(data, raised.value))


def test_a_scheme_without_jars(server: S3Server, jvms: list[JVMView]) -> None:
    data = RemotePath("gs://bucket/a")
    with pytest.raises(Py4JJavaError) as raised:
        prove(jvms[0], Store(jvms[0], server).hadoop, data)
    assert "Spark has no jars for gs://" in str(problem(data, raised.value))


def test_a_server_that_takes_both_is_refused() -> None:
    """The server does not know the condition."""
    store = SimpleNamespace(write=lambda *_: None)
    files = SimpleNamespace(delete=lambda *_: None)
    java = SimpleNamespace(
        org=SimpleNamespace(
            apache=SimpleNamespace(
                hadoop=SimpleNamespace(
                    fs=SimpleNamespace(Path=lambda _: SimpleNamespace(getFileSystem=lambda _: files))
                )
            )
        ),
        abcast=SimpleNamespace(ConditionalPutLogStore=lambda _: store),
        java=SimpleNamespace(
            util=SimpleNamespace(ArrayList=lambda: SimpleNamespace(add=lambda _: None, iterator=lambda: None))
        ),
    )
    with pytest.raises(UsageError, match="two ledger jobs could commit one version twice"):
        prove(cast(JVMView, java), None, RemotePath("s3a://bucket/a"))
