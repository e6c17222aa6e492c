"""Parse the place of tables, and read the store's login from the configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connectors.storage.location import RemotePath, explain, files_below, parse_location
from connectors.storage.settings import Storage, configured_storage, storage_settings
from ordering.base.errors import AbcastError, EnvironmentProblem, StoreUnreachable, UsageError
from tests.cli.here import abcast_here

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove each setting."""
    import os

    for name in os.environ:
        if name.startswith(("AWS_", "ABCAST_STORAGE_", "ABCAST_CONFIG")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_path_is_local_and_a_url_is_not() -> None:
    assert parse_location("data/here") == Path("data/here")
    assert parse_location(Path("/data")) == Path("/data")
    assert str(parse_location("s3a://bucket/a")) == str(parse_location("S3://bucket/a/")) == "s3a://bucket/a"
    assert str(parse_location("abfss://box@account/a")) == "abfss://box@account/a"


@pytest.mark.parametrize(
    "text",
    [
        "ftp://a/b",
        "http://a/b",
        "s3a://",
        "s3a:///",
        "s3a:///a/b",
        "hdfs:///a",
        "s3a://a//b",
        "s3a://a/b?c",
        "gs://a b",
    ],
)
def test_a_url_that_names_no_place(text: str) -> None:
    with pytest.raises(UsageError, match=r"URL with s3a, abfss, gs, hdfs|names no place"):
        parse_location(text)


@pytest.mark.parametrize("text", ["s3a:/b/x", "S3:/b", "hdfs:/x", Path("gs://b/x")])
def test_one_slash_is_no_directory(text: str | Path) -> None:
    with pytest.raises(UsageError, match="two slashes"):
        parse_location(text)
    assert parse_location("./s3a:/b") == Path("./s3a:/b")


@pytest.mark.parametrize("text", ["s3:/key:hush@b/x", "s3a://b/x?token=hush", "s3a://b/x#hush"])
def test_what_may_be_a_login_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_location(text)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("text", ["s3a://key:hush@b/x", "s3://hush@b", "http://a:hush@b/x", "abfss://c:hush@b/x"])
def test_a_login_in_a_url_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(UsageError, match="a URL can't contain a login") as refused:
        parse_location(text)
    monkeypatch.setenv("AWS_ENDPOINT_URL", text)
    with pytest.raises(UsageError, match="a URL can't contain a login") as of_endpoint:
        storage_settings()
    assert "hush" not in f"{refused.value}{of_endpoint.value}"


def test_it_is_asked_as_a_path_is() -> None:
    place = RemotePath("s3a://bucket/a")
    assert (str(place / "b"), (place / "b").name, (place / "b").parent) == ("s3a://bucket/a/b", "b", place)


def test_files_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "below" / "b").write_bytes(b"123")
    assert files_below(tmp_path) == {"a": 2, "below/b": 3}
    assert files_below(tmp_path, deep=False) == {"a": 2}
    assert files_below(tmp_path / "none") == {}


def test_what_counts_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our own variables, then the file, then AWS's. A login is of one place: no token of another goes with a key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-aws")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-aws")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-aws")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert configured_storage().for_delta()["aws_session_token"] == "token-of-aws"
    (tmp_path / "abcast.toml").write_text(
        '[storage]\nendpoint = "https://one:9000"\naccess_key_id = "of-file"\nsecret_access_key = "secret-of-file"\n'
    )
    assert "session_token" not in storage_settings()
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    storage = configured_storage()
    assert (storage.access_key_id, storage.endpoint, storage.region) == ("of-file", "https://one:9000", "eu-central-1")
    assert "aws_session_token" not in storage.for_delta()
    monkeypatch.setenv("ABCAST_STORAGE_ENDPOINT", "http://two:9000")
    assert storage_settings()["endpoint"] == ("http://two:9000", "ABCAST_STORAGE_ENDPOINT")
    assert configured_storage().for_delta()["aws_allow_http"] == "true"


def test_a_token_of_aws_goes_with_no_key_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs takes the token from the environment by itself, whatever key it is given."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"ABCAST_STORAGE_{name}", "ours")
    for token in ("of-aws", ""):  # of an empty one, delta-rs makes an empty header
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
        with pytest.raises(UsageError, match="does not belong to the access_key_id of ABCAST_STORAGE_ACCESS_KEY_ID"):
            configured_storage()
    monkeypatch.setenv("ABCAST_STORAGE_SESSION_TOKEN", "ours")
    assert configured_storage().for_delta()["aws_session_token"] == "ours"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('bucket = "x"', "bucket in [storage] of abcast.toml is unknown"),
        ("endpoint = 9000", "endpoint in [storage] of abcast.toml is a text"),
        ('endpoint = "one:9000"', "the endpoint 'one:9000' is no URL"),
        ('endpoint = "http://[::1"', "is no URL"),
        ('endpoint = "https://one:9000/bucket"', "is no URL of a store"),
        ('endpoint = "https://one?x"', "is no URL of a store"),
        ('endpoint = "ftp://one"', "is no URL of a store"),
        ('access_key_id = "a"', "belong together"),
    ],
)
def test_settings_that_can_not_be(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "abcast.toml").write_text(f"[storage]\n{table}\n")
    with pytest.raises(UsageError, match=re.escape(said)):
        configured_storage()


def test_a_variable_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABCAST_STORAGE_BUCKET", "x")
    with pytest.raises(UsageError, match="ABCAST_STORAGE_BUCKET is unknown"):
        configured_storage()


def test_secrets_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "abcast.toml").write_text('[storage]\naccess_key_id = "a"\nsecret_access_key = "hush-1"\n')
    monkeypatch.setenv("ABCAST_STORAGE_SESSION_TOKEN", "hush-2")
    monkeypatch.setenv("ABCAST_STORAGE_ACCESS_KEY_ID", "b")
    monkeypatch.setenv("ABCAST_STORAGE_SECRET_ACCESS_KEY", "hush-3")
    shown = abcast_here("config", "show", cwd=tmp_path, variables={"ABCAST_STORAGE_SESSION_TOKEN": "hush-2"})
    assert "storage.session_token" in shown.stdout
    storage = configured_storage()
    place = parse_location("s3a://bucket/a")
    assert "hush" not in f"{shown.stdout}{shown.stderr}{storage!r}{storage}{place!r}{place}{storage.for_spark()}"
    assert "hush-3" in storage.login_for_spark().values()


_OF_HEAD = "When getting information for key 'a' in bucket 'bucket': AWS Error {} during HeadObject: No response body."
_OF_GET = (
    "Kernel error -> Error performing GET http://one:9000/bucket/a in 403.533632ms, after 3 retries, max_retries: 3"
)


@pytest.mark.parametrize(
    ("told", "error", "said"),
    [
        ("<Code>NoSuchBucket</Code>", UsageError, "there is no bucket bucket at the object store"),
        ("AWS Error ACCESS_DENIED during HeadObject", UsageError, "does not let us in at s3a://bucket/a"),
        ("<Code>SignatureDoesNotMatch</Code>", UsageError, "does not let us in"),
        (f"{_OF_GET} - status code \u21b3 403 Forbidden", UsageError, "access_key_id and secret_access_key"),
        (_OF_HEAD.format("UNKNOWN (HTTP status 400)"), UsageError, "session_token may have expired"),
        (f"{_OF_GET} - code \u21b3 400 \u21b3 <Code>ExpiredToken</Code>", UsageError, "session_token may have expired"),
        *(
            (_OF_HEAD.format(f"UNKNOWN (HTTP status {code})"), StoreUnreachable, f"status {code}")
            for code in (429, 500, 503)
        ),
        *((_OF_HEAD.format(name), StoreUnreachable, name) for name in ("SLOW_DOWN", "INTERNAL_FAILURE")),
        (f"{_OF_GET} - Server returned error status \u21b3 500 : ", StoreUnreachable, "500"),
        ("org.apache.x: (Service: S3, Status Code: 503, Request ID: 403)", StoreUnreachable, "503"),
        ("client error (Connect) \x1b[31m tcp connect error", StoreUnreachable, "does not answer"),
        (_OF_HEAD.format("NETWORK_CONNECTION"), StoreUnreachable, "does not answer"),
        (_OF_HEAD.format("UNKNOWN (HTTP status 501)"), EnvironmentProblem, "can't be read"),
        ("something else", EnvironmentProblem, "s3a://bucket/a can't be read: something else"),
    ],
)
def test_what_a_store_tells_is_one_sentence(told: str, error: type[AbcastError], said: str) -> None:
    explained = explain(RemotePath("s3a://bucket/a", Storage()), told)
    assert (type(explained), said in str(explained)) == (error, True), explained


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("client error (404): <Code>NoSuchBucket</Code>", UsageError),
        ("client error (400): <Code>ExpiredToken</Code>", UsageError),
        ("(Service: S3, Status Code: 503, Request ID: 1)", StoreUnreachable),
        ("something else", EnvironmentProblem),
    ],
)
def test_the_reason_may_stand_behind_much_text(told: str, error: type[AbcastError]) -> None:
    explained = explain(RemotePath("s3a://bucket/a", Storage()), "at org.apache.x\n" * 40 + told)
    assert type(explained) is error
    assert len(str(explained)) < 400


@pytest.mark.parametrize("told", ["status code 403 Forbidden", "Failed to connect", "ExpiredToken"])
@pytest.mark.parametrize("url", ["gs://bucket/a", "abfss://box@account/a", "hdfs://host:1/a"])
def test_other_stores_have_no_login_of_ours(url: str, told: str) -> None:
    """The section [storage] is for S3."""
    explained = str(explain(RemotePath(url, Storage(endpoint="http://one:9000")), told))
    assert url.rpartition("/")[0] in explained
    assert not {"access_key_id", "[storage]", "session_token", "http://one:9000"}.intersection(explained.split())


@pytest.mark.parametrize(
    ("url", "told", "error"),
    [
        ("kafka-connect/a", "s3a://kafka-connect/a: AWS Error UNKNOWN (HTTP status 405) of 'x'", EnvironmentProblem),
        ("kafka-connect/a", "<BucketName>kafka-connect</BucketName> MalformedXML", EnvironmentProblem),
        ("kafka-connect/a", "kafka-connect.s3.eu.amazonaws.com: MalformedXML", EnvironmentProblem),
        (
            "b/credential-team",
            "When reading key 'credential-team/x' in bucket 'b': AWS Error SLOW_DOWN",
            StoreUnreachable,
        ),
        ("b/credential-team", "at credential-team: MalformedXML in 403.53ms, of 403 bytes", EnvironmentProblem),
        ("b/status-503", "GET http://h/b/status-503/x: status code 403 Forbidden", UsageError),
        ("connect/a", "<BucketName>connect</BucketName> MalformedXML", EnvironmentProblem),
        ("b/connect", "s3a://b/connect/ledger: MalformedXML", EnvironmentProblem),
        ("credential/a", "of key 'a' in bucket 'credential': AWS Error UNKNOWN (HTTP status 405)", EnvironmentProblem),
        ("connect/a", "Failed to connect, connect timed out", StoreUnreachable),
    ],
)
def test_no_name_and_no_time_is_taken_for_a_reason(url: str, told: str, error: type[AbcastError]) -> None:
    assert type(explain(RemotePath(f"s3a://{url}", Storage()), told)) is error
