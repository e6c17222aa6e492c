"""The log of a command on standard error: as text, or each line as JSON with the fields that log shippers search for.

Text is for people. A line of JSON has `time`, `level`, `logger`, `message`, and where they are known `job`, `site`,
`group`, `epoch` and other figures. They come from the arguments of the message: `group %s: epoch %d` has two of them.
A warning that repeats is counted, not repeated: the next line with that text says how many were left out.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from datetime import datetime, timezone
from typing import Any

import typer

from ordering.base.errors import UsageError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMATS = ("text", "json")
LEVEL, FORMAT = "ABCAST_LOG_LEVEL", "ABCAST_LOG_FORMAT"
REPEATED_S = 60.0
"""The time in which the same warning is not written again."""
_MOST_TEXTS = 1_000
_FIELD = re.compile(r"(?:\b(group|groups|epoch|seqno|site|batch|records|ms|offset)[ =])?%[.\d]*([sdrfg])")
_JOB = re.compile(r"(sequence|ledger|maintain|relay)[\w-]*(?=[: ])")
_LOGGERS = {"engine": "sequence", "sequencer": "sequence", "takeover": "sequence", "ledger": "ledger", "relay": "relay"}
"""The job of each room of `connectors`, for messages that do not begin with it."""

_logger = logging.getLogger(__name__)
_known: dict[str, str] = {}


class _ToStandardError(logging.StreamHandler[Any]):
    """Writes to the standard error of the moment: while a progress line is shown, above that line."""

    def __init__(self) -> None:
        super().__init__()
        self._repetitions = Repetitions()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless it repeats a warning. Called under the handler's lock; raises nothing."""
        try:
            passes = self._repetitions.filter(record)
        except Exception:  # noqa: BLE001 - arguments that do not fit the message
            self.handleError(record)
            return
        if passes:
            super().emit(record)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None: ...


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {"time": at.isoformat(timespec="milliseconds"), "level": record.levelname}
        line |= {"logger": record.name, "message": record.getMessage()} | fields_of(record)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the job, the site, the group and further figures that a record tells."""
    fields: dict[str, Any] = dict(_known)
    room = record.name.split(".")[1:2]
    job = _JOB.match(record.getMessage())
    if job is not None:
        fields["job"] = job[0]
    elif room and room[0] in _LOGGERS:
        fields["job"] = _LOGGERS[room[0]]
    if isinstance(record.args, tuple):
        named = [match[1] for match in _FIELD.finditer(str(record.msg))]
        fields |= {name: value for name, value in zip(named, record.args, strict=False) if name}
    if (group := getattr(record, "group", None)) is not None:
        fields["group"] = group
    return fields


class Repetitions:
    """Passes a warning once in REPEATED_S; the next one with its text says how many were left out."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record."""
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        key, now = (record.name, record.getMessage(), repr(error) if error is not None else ""), time.monotonic()
        at, left_out = self._written.pop(key, (float("-inf"), 0))
        if now - at < REPEATED_S:
            self._written[key] = at, left_out + 1
            return False
        self._written[key] = now, 0
        while len(self._written) > _MOST_TEXTS:
            del self._written[next(iter(self._written))]
        if left_out:
            record.msg, record.args = f"{key[1]} ({left_out} more like it were left out)", ()
        return True


def set_up_logging() -> None:
    """Log to standard error as the variables LEVEL and FORMAT say. Raises UsageError."""
    level = os.environ.get(LEVEL, "INFO").upper()
    if level not in LEVELS:
        raise UsageError(f"{LEVEL} is one of {', '.join(LEVELS)}, not {level!r}.")
    handler = _ToStandardError()
    handler.setFormatter(_formatter(os.environ.get(FORMAT, FORMATS[0])))
    logging.basicConfig(level=level, handlers=[handler])
    # Kafka's clients log each attempt, which few users need; errors are reported in a sentence.
    of_kafka = logging.WARNING if level == "DEBUG" else logging.CRITICAL
    for noisy, least in (("kafka", of_kafka), ("librdkafka", of_kafka), ("py4j", logging.CRITICAL)):
        logging.getLogger(noisy).setLevel(least)
    # py4j logs a lost JVM on the root logger, with its stack trace; the job reports it in a sentence.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def _formatter(name: str) -> logging.Formatter:
    if name not in FORMATS:
        raise UsageError(f"{FORMAT} (--log-format) is one of {', '.join(FORMATS)}, not {name!r}.")
    return JsonLines() if name == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def use_format(name: str | None) -> str | None:
    """Log in this format from now on, also in child processes: the callback of `--log-format`. Raises UsageError."""
    if name is not None:
        formatter = _formatter(name)
        os.environ[FORMAT] = name
        for handler in logging.getLogger().handlers:
            if isinstance(handler, _ToStandardError):
                handler.setFormatter(formatter)
    return name


def is_json() -> bool:
    """Whether lines are JSON."""
    return os.environ.get(FORMAT) == "json"


def log_with(**known: str) -> None:
    """Add these fields to each line of JSON of this process."""
    _known.update(known)


def say(text: str) -> None:
    """Tell a person how the command comes along; in JSON it is a line of the log."""
    if is_json():
        _logger.info("%s", text)
    else:
        typer.echo(text, err=True)
