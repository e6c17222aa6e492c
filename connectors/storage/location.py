"""Places for tables: a local directory (`Path`), or a URL (`RemotePath`) with the same reading interface.

Only the text decides: SCHEME://… is remote. `s3://` becomes `s3a://`, Spark's name for it.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from connectors.storage.settings import Storage, configured_storage
from ordering.base.errors import AbcastError, EnvironmentProblem, StoreUnreachable, UsageError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_Answer = TypeVar("_Answer")
_ASKING = "abcast-store"

S3 = "s3a"
SCHEMES = (S3, "abfss", "gs", "hdfs")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}|s3n?):/(?!/)", re.IGNORECASE)
_NO_NAME = re.compile(r"%[0-9A-Fa-f]{2}|[\\*?]")
_FIRST = {"hdfs": "HOST", "abfss": "CONTAINER@ACCOUNT.dfs.core.windows.net"}
TABLES = ("ledger", "views", "casts")
"""The Delta tables below --data. The table `casts` exists once there was a cast."""

_SHOWN = 300
"""Characters of a library's message in a sentence of ours."""
_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x1f\x7f]+")

# Errors of the stores' clients: each words them differently, and quotes the store's own.
_NAMES = re.compile(
    r"(?:key|bucket|path|file) '[^']*'"
    r"|<(?!Code\b|Message\b)(\w+)>[^<]*</\1>"
    r"|[^\s<>]*/[^\s<>]*"
)
_NO_BUCKET = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist", re.IGNORECASE)
_BUSY = re.compile(
    r"(?i:status)\D{0,16}(429|5(?!01)\d\d)\b|SLOW_DOWN|SlowDown|INTERNAL_FAILURE|InternalError"
    r"|SERVICE_UNAVAILABLE|ServiceUnavailable|TooManyRequests|THROTTLING|Throttl(?:ed|ing)|REQUEST_TIMEOUT|RequestTimeout"
)
_EXPIRED = re.compile(
    r"ExpiredToken|TokenRefreshRequired|(?i:token\b.{0,30}\bexpired)|HTTP status 400\b.*No response body"
)
_REFUSED = re.compile(
    r"InvalidAccessKeyId|INVALID_ACCESS_KEY|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|AccessDenied"
    r"|ACCESS_DENIED|(?i:status)\D{0,16}40[13]\b|\b40[13] (?:Forbidden|Unauthorized)|Forbidden"
    r"|NoAuthWithAWSException|[Cc]redential|InvalidClientTokenId|necessary privileges"
)
_SILENT = re.compile(
    r"[Cc]onnect|NETWORK_CONNECTION|[Tt]imed? ?out|curlCode|dns error|UnknownHost|unreachable|max_retries"
    r"|error sending request|error decoding response body"
)

_LOGIN_TO_S3 = "access_key_id and secret_access_key ([storage] in abcast.toml, ABCAST_STORAGE_* or AWS_* variables) are"
_ENDPOINT_OF_S3 = "the endpoint ([storage] in abcast.toml, ABCAST_STORAGE_ENDPOINT, AWS_ENDPOINT_URL)"


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A place in an object store or in HDFS, with the reading methods of a `Path`.

    A store that refuses or does not answer raises UsageError, StoreUnreachable or EnvironmentProblem, with what to do.
    """

    url: str
    storage: Storage = field(default_factory=Storage, repr=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}", self.storage)

    @property
    def scheme(self) -> str:
        """The name before `://`."""
        return self.url.partition("://")[0]

    @property
    def where(self) -> str:
        """A description of the store."""
        return self.storage.where if self.scheme == S3 else f"the store of {self.bucket}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The place that contains this one."""
        return RemotePath(self.url.rpartition("/")[0], self.storage)

    @property
    def bucket(self) -> RemotePath:
        """The whole bucket."""
        return RemotePath("/".join(self.url.split("/")[:3]), self.storage)

    def absolute(self) -> RemotePath:
        """Return the place itself, which is always absolute."""
        return self

    def read_bytes(self) -> bytes:
        """Return the file's bytes. Raises FileNotFoundError."""
        with in_a_sentence(self):
            return interruptibly(self._content)

    def _content(self) -> bytes:
        files, path = self.arrow()
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
            return content

    def read_text(self, encoding: str) -> str:
        """Return the file's text."""
        return self.read_bytes().decode(encoding)

    def exists(self) -> bool:
        """Whether a file or a directory is there.

        Raises UsageError if the bucket does not exist (on S3), or the store refuses; StoreUnreachable,
        EnvironmentProblem.
        """
        if self._is_there():
            return True
        _have_seen_bucket(self.bucket)
        return False

    def _is_there(self) -> bool:
        with in_a_sentence(self):
            return interruptibly(self._is_found)

    def _is_found(self) -> bool:
        from pyarrow.fs import FileType

        files, path = self.arrow()
        return bool(files.get_file_info(path).type != FileType.NotFound)

    is_dir = exists

    def arrow(self) -> tuple[FileSystem, str]:
        """Return Arrow's file system for the store, and the path in it."""
        beyond = self.url.partition("://")[2]
        if self.scheme == S3:
            return _s3(self.storage), beyond
        root, _, path = beyond.partition("/")
        return _of_delta(f"{self.scheme}://{root}"), path


Location = Path | RemotePath


def parse_location(text: str | os.PathLike[str]) -> Location:
    """Return a path, or a URL. Raises UsageError for a place that can't be used, and for impossible settings."""
    found = _URL.fullmatch(os.fspath(text))
    if found is None:
        if one := _ONE_SLASH.match(os.fspath(text)):
            # The rest may contain a login.
            raise UsageError(f"{one[0]}… is neither a directory nor a URL: write two slashes after the colon.")
        return _readable(Path(text))
    scheme, beyond = found[1].lower(), found[2].rstrip("/")
    if "@" in beyond.partition("/")[0] and (scheme != "abfss" or ":" in beyond.partition("@")[0]):
        raise UsageError(f"a URL can't contain a login ({scheme}://…@…): give it in [storage] or in variables.")
    scheme = S3 if scheme == "s3" else scheme
    if scheme not in SCHEMES:
        raise UsageError(f"{text} can't be used: give a directory, or a URL with {', '.join(SCHEMES)}.")
    if not beyond or "//" in beyond or beyond.startswith("/") or re.search(r"[\s?#%]", beyond):
        shown = re.split(r"[?#]", os.fspath(text))[0]  # the rest may contain a login
        raise UsageError(
            f"{shown} names no place, or more than that: write {scheme}://{_FIRST.get(scheme, 'BUCKET')}/DIRECTORY."
        )
    return RemotePath(f"{scheme}://{beyond}", configured_storage() if scheme == S3 else Storage())


def _readable(directory: Path) -> Path:
    """Return a directory whose name every reader of tables takes literally. Raises UsageError for any other.

    To delta-rs a path is a URL, and to DuckDB it is a pattern.
    """
    if found := _NO_NAME.search(str(directory.absolute())):
        raise UsageError(f"no table can be read below {directory.absolute()}, for its {found[0]}: choose another name.")
    return directory


def files_below(place: Location, *, deep: bool = True) -> dict[str, int]:
    """Return the sizes in bytes of the files below a place, by relative name; {} if it does not exist."""
    if isinstance(place, Path):
        return dict(_local_files(place, deep=deep))
    with in_a_sentence(place):
        return interruptibly(lambda: _remote_files(place, deep=deep))


def _remote_files(place: RemotePath, *, deep: bool) -> dict[str, int]:
    from pyarrow.fs import FileSelector, FileType

    files, path = place.arrow()
    found = files.get_file_info(FileSelector(path, allow_not_found=True, recursive=deep))
    return {each.path.removeprefix(f"{path}/"): each.size for each in found if each.type == FileType.File}


def _local_files(place: Path, *, deep: bool) -> Iterator[tuple[str, int]]:
    for where, below, names in os.walk(place):
        for name in names:
            file = Path(where, name)
            try:
                yield str(file.relative_to(place)), file.stat().st_size
            except OSError:  # deleted since it was listed
                continue
        if not deep:
            below.clear()


@functools.lru_cache
def _s3(storage: Storage) -> FileSystem:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    return S3FileSystem(retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3), **storage.for_arrow())


@functools.lru_cache
def _of_delta(root: str) -> FileSystem:
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(root))


def delta_options(place: Location) -> dict[str, str] | None:
    """Return the options with which delta-rs logs in to S3; None for any other place."""
    if isinstance(place, RemotePath) and place.scheme == S3:
        return place.storage.for_delta()
    return None


@contextmanager
def in_a_sentence(place: Location) -> Iterator[None]:
    """Turn errors of a store's client into ours, which say what to do. A missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(place, Path):
            raise
        raise explain(place, str(error)) from error


def interruptibly(call: Callable[[], _Answer]) -> _Answer:
    """Call a store's client; in the main thread, by another thread: the client blocks Ctrl-C, and the wait does not."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    answer: Future[_Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            answer.set_exception(error)

    threading.Thread(target=ask, name=_ASKING, daemon=True).start()
    return answer.result()


def is_asking() -> bool:
    """Whether a store's client is still busy with a call of `interruptibly`, such as one that Ctrl-C has cut off."""
    return any(thread.name == _ASKING for thread in threading.enumerate())


def explain(place: RemotePath, message: str) -> AbcastError:
    """Return our error for a message of the store's client."""
    reason = _without_names(place, _one_line(message))
    if _NO_BUCKET.search(reason):
        return no_bucket(place)
    where, is_s3 = place.where, place.scheme == S3
    if busy := _BUSY.search(reason):
        return StoreUnreachable(f"{where} has too much to do, or is in trouble (it says {busy[0]}): ask again later.")
    if is_s3 and _EXPIRED.search(reason):
        return UsageError(
            f"{where} does not let us in at {place}: session_token may have expired, or region may be "
            "wrong ([storage] in abcast.toml, ABCAST_STORAGE_* or AWS_* variables)."
        )
    if _EXPIRED.search(reason) or _REFUSED.search(reason):
        login = _LOGIN_TO_S3 if is_s3 else f"the login to {place.scheme}://, which its own variables and files tell, is"
        return UsageError(
            f"{where} does not let us in at {place}: see that {login} right, and may read and write there."
        )
    if _SILENT.search(reason):
        name = _ENDPOINT_OF_S3 if is_s3 else place.bucket
        return StoreUnreachable(f"{where} does not answer: see that it runs, and that {name} is right.")
    return EnvironmentProblem(f"{place} can't be read: {in_a_line(message)}.")


def in_a_line(message: str) -> str:
    """Return the beginning of a library's message without colours, line breaks, and a full stop."""
    return _one_line(message)[:_SHOWN].rstrip(".")


def _one_line(message: str) -> str:
    return " ".join(_CONTROL.sub(" ", message).split())


def _without_names(place: RemotePath, text: str) -> str:
    """Remove the names in a message: they may contain any word, and only the other words show what went wrong."""
    rest = _NAMES.sub(" ", text)
    for name in place.url.partition("://")[2].split("/"):
        if not name.isalpha():  # a plain word may be one of the store's own
            rest = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", " ", rest)
    return rest


def no_bucket(place: RemotePath) -> UsageError:
    """Return the error for a place in a bucket that does not exist."""
    bucket = place.url.partition("://")[2].partition("/")[0]
    return UsageError(f"there is no bucket {bucket} at {place.where}: create it, or name another.")


def check_bucket(place: RemotePath) -> None:
    """Raise UsageError or StoreUnreachable if a store of S3 refuses, does not answer, or has no such bucket.

    Other stores are not asked.
    """
    if place.scheme == S3 and not place.bucket._is_there():  # noqa: SLF001 - of its own class
        raise no_bucket(place)


@functools.lru_cache
def _have_seen_bucket(bucket: RemotePath) -> None:
    """Check the bucket, once: after that it is known to exist."""
    check_bucket(bucket)
