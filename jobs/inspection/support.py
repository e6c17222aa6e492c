"""`abcast support`: files for somebody who helps: versions, configuration, the doctor's checks, status, ends of logs.

It writes what the other commands print. A part that can't be had, say since no broker answers, is its sentence.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.config import read_configuration
from jobs.inspection.status import read_with_ledger
from jobs.terminal.options import (
    DEFAULT_DATA,
    AsJson,
    BootstrapServers,
    Data,
    KafkaConfig,
    Site,
    connection_to,
    new_directory,
)
from ordering.base.errors import AbcastError, UsageError
from ordering.base.names import DEFAULT_SITE

LOG_BYTES = 1_000_000
"""The end of a log that is kept."""


def support(
    directory: Annotated[
        Path, typer.Argument(parser=new_directory, metavar="DIR", help="A directory that is new, or empty.")
    ],
    log: Annotated[
        list[Path] | None, typer.Option(help="A log whose last megabyte to add; may be repeated. Read it first.")
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Write files for somebody who helps. Secrets of the configuration are masked, and no payload is read.

    The files have versions, the configuration, the doctor's checks and the status, with names of hosts, groups and
    senders. Look at them before you give them away.
    """
    connection = connection_to(bootstrap_servers, kafka_config, "support")
    ends = {f"log-{number}-{path.name}": _end_of(path) for number, path in enumerate(log or (), 1)}

    def configuration() -> Iterator[Any]:
        for row in read_configuration(bootstrap_servers, kafka_config):
            yield {"name": row.name, "value": row.value, "from": row.source}

    def doctor() -> Iterator[Any]:
        from connectors.diagnosis.doctor import examine

        for check in examine(connection, site, None, "member", data / "ledger"):
            yield {"check": check.name, "ok": check.is_ok, "detail": check.detail}

    def status() -> Iterator[Any]:
        said: list[str] = []
        yield read_with_ledger(connection, site, data, say=said.append).to_json(site)
        yield from ({"ledger": sentence} for sentence in said)

    parts: dict[str, Callable[[], Iterator[Any]]] = {
        "versions": _versions,
        "configuration": configuration,
        "doctor": doctor,
        "status": status,
    }

    def tell(file: Path) -> None:
        typer.echo(json.dumps({"file": str(file)}) if as_json else file)

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise UsageError(f"{directory} has files: name a directory that is new, or empty.")
    for name, part in parts.items():
        file = directory / f"{name}.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            for line in _or_its_sentence(part):
                lines.write(f"{json.dumps(line)}\n")
        tell(file)
    for name, end in ends.items():
        (directory / name).write_bytes(end)
        tell(directory / name)


def _or_its_sentence(part: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    try:
        yield from part()
    except (AbcastError, OSError, ModuleNotFoundError) as error:
        yield {"error": str(error)}


def _versions() -> Iterator[Any]:
    yield {"name": "Python", "version": sys.version}
    yield {"name": "platform", "version": platform.platform()}
    yield {"name": "abcast", "version": version("abcast")}
    for package in sorted({re.split(r"[^\w.-]", each)[0] for each in requires("abcast") or ()}):
        with suppress(PackageNotFoundError):  # of an extra
            yield {"name": package, "version": version(package)}


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
