"""Share one S3 server among all tests of tables on S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def server(running_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Yield the server, with variables that let this process in; at first no put waits and no answer is lost."""
    for name, value in running_server.variables.items():
        monkeypatch.setenv(name, value)
    yield running_server
    running_server.before_put = running_server.before_get = lambda _path: None
    running_server.on_put = lambda _path: False
