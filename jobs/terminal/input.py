"""The input of commands that send: lines, or the whole of it, as payloads; and the headers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Annotated

import typer

from connectors.kafka.codec.headers import check_application_headers
from ordering.base.errors import UsageError
from ordering.base.records import MAX_PAYLOAD_BYTES, Headers

Header = Annotated[
    list[str] | None, typer.Option("--header", metavar="KEY=VALUE", help="A header of each message; may be repeated.")
]
Whole = Annotated[bool, typer.Option("--whole", help="The whole input is one message, whatever its bytes, even none.")]


def opened(file: Path | None) -> IO[bytes]:
    """Open the file, or standard input if it is `-` or None. Raises UsageError."""
    try:
        return sys.stdin.buffer if file is None or str(file) == "-" else file.open("rb")
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from error


def payloads_of(lines: IO[bytes], *, is_whole: bool) -> Iterable[bytes]:
    """Return each line without its end, or the whole input. Raises UsageError if that is too large."""
    if not is_whole:
        return (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)
    payload = lines.read(MAX_PAYLOAD_BYTES + 1)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"the input has more than {MAX_PAYLOAD_BYTES:,} bytes, the most of a message.")
    return [payload]


def parsed_headers(texts: Sequence[str]) -> Headers:
    """Return the headers that `KEY=VALUE` texts give. Raises UsageError."""
    return check_application_headers(map(_parsed, texts))


def _parsed(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--header {text!r}: write KEY=VALUE.")
    return name, value.encode("utf-8", "surrogateescape")
