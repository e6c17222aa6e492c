"""S3Proxy on 127.0.0.1: a third party's S3 server, which checks logins and knows conditional puts; its objects are in
memory.

A gate before it passes all bytes on, and can withhold the answer to a put from its client.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow.fs import S3FileSystem

from connectors.local.cluster import HOST, free_ports
from connectors.local.jars import jars_directory, retrieve
from connectors.local.java import require_java
from connectors.storage.location import RemotePath
from connectors.storage.settings import Storage
from tests.waiting import eventually

SHA_256 = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
KEY, SECRET = "abcast", "not-a-secret"
BUCKET = "tables"
_HEAD = re.compile(rb"(PUT|GET|HEAD) (\S+) HTTP/1.1\r\n")

Answered = Callable[[str], bool]
"""Called with a put's path once its answer has come; True: the answer is lost."""


@dataclass
class S3Server:
    """A running server. `before_put` is called for each put, which waits for it; `on_put` is asked about each answer.

    `before_get` is called for each get.
    """

    endpoint: str
    before_put: Callable[[str], None] = field(default=lambda _path: None)
    before_get: Callable[[str], None] = field(default=lambda _path: None)
    on_put: Answered = field(default=lambda _path: False)

    @property
    def storage(self) -> Storage:
        return Storage(endpoint=self.endpoint, access_key_id=KEY, secret_access_key=SECRET)  # type: ignore[arg-type]

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that let a process in."""
        return {
            "ABCAST_STORAGE_ENDPOINT": self.endpoint,
            "ABCAST_STORAGE_ACCESS_KEY_ID": KEY,
            "ABCAST_STORAGE_SECRET_ACCESS_KEY": SECRET,
        }

    def place(self, name: str) -> RemotePath:
        return RemotePath(f"s3a://{BUCKET}/{name}", self.storage)


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """Run a server with one bucket for the length of the block."""
    [port] = free_ports(HOST, 1)
    settings = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        "jclouds.provider": "transient-nio2",
        "jclouds.identity": "none",
        "jclouds.credential": "none",
    }
    file, log = directory / "s3proxy.conf", directory / "s3proxy.log"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="ascii")
    options = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(require_java()), *options, "-jar", str(_jar()), "--properties", str(file)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: _answers(port) or process.poll() is not None, 90, "S3Proxy answers")
        assert process.poll() is None, log.read_text(encoding="utf-8")
        with _gate(port) as server:
            arguments = server.storage.for_arrow()
            S3FileSystem(allow_bucket_creation=True, **arguments).create_dir(BUCKET)
            yield server
    finally:
        process.kill()
        process.wait(30)


def _jar() -> Path:
    """Return the path of its jar, which is fetched the first time and checked against the release's hash."""
    target = jars_directory() / "tests-s3-server"
    jars_directory().mkdir(parents=True, exist_ok=True)
    with (jars_directory() / ".tests-s3-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(target.glob("*.jar")):
            retrieve(Path(__file__).with_name("ivy.xml"), "s3-server", target)
        [jar] = target.glob("*.jar")
        if hashlib.sha256(jar.read_bytes()).hexdigest() != SHA_256:
            shutil.rmtree(target)
            raise AssertionError("S3Proxy has another SHA-256 than expected")
    return jar


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def _gate(port: int) -> Iterator[S3Server]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = S3Server(f"http://127.0.0.1:{listening.getsockname()[1]}")

        def accept() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=_serve, args=(server, client, port), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _serve(server: S3Server, client: socket.socket, port: int) -> None:
    """Serve a connection: requests pass as they come; `on_put` is asked about answers to puts."""
    with client, socket.create_connection(("127.0.0.1", port)) as proxied:
        puts: list[str] = []

        def requests() -> None:
            with suppress(OSError):
                while data := client.recv(65536):
                    found = _HEAD.match(data)
                    if found and found[1] == b"PUT":
                        puts.append(found[2].decode())
                        server.before_put(puts[-1])
                    elif found:
                        server.before_get(found[2].decode())
                    proxied.sendall(data)
            with suppress(OSError):
                proxied.shutdown(socket.SHUT_WR)

        threading.Thread(target=requests, daemon=True).start()
        with suppress(OSError):
            while data := proxied.recv(65536):
                if puts and not data.startswith(b"HTTP/1.1 100") and server.on_put(puts.pop()):
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
