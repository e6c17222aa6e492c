"""A silent store, and the number of questions to a store."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connectors.storage.location import RemotePath, delta_options
from connectors.storage.settings import Storage
from tests.cli.process import ABCAST, environment
from tests.storage.s3_server import S3Server


@pytest.mark.slow
def test_ctrl_c_ends_a_command_at_a_silent_store(tmp_path: Path) -> None:
    """The command ends at once, without a wait for the question or for Arrow's end."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(60)
        where = environment(
            ABCAST_STORAGE_ENDPOINT=f"http://127.0.0.1:{store.getsockname()[1]}",
            ABCAST_STORAGE_ACCESS_KEY_ID="a",
            ABCAST_STORAGE_SECRET_ACCESS_KEY="b",
        )
        asking = subprocess.Popen(
            [ABCAST, "query", "--data", "s3a://bucket/a", "SELECT 1"], env=where, cwd=tmp_path, stderr=subprocess.PIPE
        )
        try:
            client, _ = store.accept()
            with client:
                assert client.recv(4) == b"HEAD"
                asking.send_signal(signal.SIGINT)
                told = asking.communicate(timeout=4)[1]  # the client itself gives up after 5 s, and tries again
        finally:
            asking.kill()
            asking.wait(30)
    assert (asking.returncode, told) == (130, b"Aborted.\n")


@pytest.mark.slow
def test_ctrl_c_ends_a_query_whose_store_falls_silent(server: S3Server, tmp_path: Path) -> None:
    """The query is cut in the middle: the table's log was read, and DuckDB waits for its rows."""
    data, falls_silent, is_over = server.place("silent"), threading.Event(), threading.Event()
    for name in ("ledger", "views"):
        columns = {"group_name": ["g"], "view_id": [0], "seqno": [1], "site": ["nyc"]}
        write_deltalake(str(data / name), pa.table(columns), storage_options=delta_options(data / name))

    def before_get(path: str) -> None:
        if ".parquet" in path:
            falls_silent.set()
            is_over.wait(60)

    server.before_get = before_get
    asking = subprocess.Popen(
        [ABCAST, "query", "--data", str(data), "SELECT sum(seqno) FROM views"],
        env=environment(**server.variables),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    try:
        assert falls_silent.wait(60)
        asking.send_signal(signal.SIGINT)
        told = asking.communicate(timeout=4)[1]  # as above
    finally:
        is_over.set()
        asking.kill()
        asking.wait(30)
    assert (asking.returncode, told) == (130, b"Aborted.\n")


@pytest.mark.slow
def test_who_asks_for_many_files_asks_for_the_bucket_once() -> None:
    with _empty_store() as (endpoint, asked):
        data = RemotePath("s3a://bucket/a", Storage(endpoint=endpoint, access_key_id="a", secret_access_key="b"))  # type: ignore[arg-type]
        assert [(data / str(number)).exists() for number in range(5)] == [False] * 5
    assert [path for path in asked if path == "HEAD /bucket"] == ["HEAD /bucket"]
    assert len([path for path in asked if path.startswith("HEAD /bucket/a/")]) == 5


@contextmanager
def _empty_store() -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a store with one empty bucket, and the list of its requests."""
    asked: list[str] = []

    class Store(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(f"HEAD {self.path.partition('?')[0].rstrip('/')}")
            self.send_response(200 if asked[-1] == "HEAD /bucket" else 404)
            self.end_headers()

        def do_GET(self) -> None:
            body = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
