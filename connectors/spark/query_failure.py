"""The reason why a Spark query ended, in one sentence: the innermost cause, which Spark wraps in several errors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from connectors.spark.codec import LATER_FORMAT
from connectors.spark.data_directory import disk_full
from ordering.base.errors import (
    AbcastError,
    Disagreement,
    EnvironmentProblem,
    HistoryChanged,
    HistoryUnavailable,
    LaterVersion,
    ProtocolViolation,
)
from ordering.base.formats import Format, later_format
from ordering.base.names import Topic

REASON_CHARACTERS = 600
"""The length after which a reason is cut off."""


class QueryFailed(AbcastError):
    """A Spark query ended with an error that may pass: the job starts it again."""

    retriable = True


class BatchTooLarge(AbcastError):
    """A batch did not fit into memory: the job goes on with smaller ones."""


_NO_SPACE = ("No space left on device", "Disk quota exceeded")
_NO_MEMORY = (
    "cannot grow beyond",  # the JVM's buffer for Python, 2 GB
    "OversizedAllocation",  # Arrow in the JVM
    "ArrowCapacityError",  # Arrow in Python
    "Cannot grow BufferHolder",  # one row of Spark
    "MemoryError",  # Python, and the JVM's OutOfMemoryError
)
_TOO_LITTLE_SPACE = 1024 * 1024
"""The free bytes below which a full disk counts as the reason of a failure: Spark does not always say so."""
_OWN_ERROR = re.compile(rf"{re.escape(AbcastError.__module__)}\.(\w+): (.*)")
_LATER_FORMAT = re.compile(rf"{re.escape(LATER_FORMAT)} (\S+) (\d+) ?([0-9a-z.+-]*)")
_EXPIRED = re.compile(r"Expiring \d+ record\(s\) for (\S+)-\d+:")
_OF_GROUP = re.compile(r"group (\S+): ")
_OWN = {each.__name__: each for each in (EnvironmentProblem, HistoryUnavailable, Disagreement, LaterVersion)}
"""The errors of abcast's code inside a query that end the job. After any other, another query is tried."""
_OF_ONE_GROUP = {**_OWN, ProtocolViolation.__name__: ProtocolViolation, HistoryChanged.__name__: HistoryChanged}
"""The same for an error that names its group (`failed_group`): only that group is left out."""


def explain(error: Exception, data: Path) -> AbcastError:
    """Return abcast's error for an exception of Spark. `data`: a directory on the disk that may be full."""
    text = full_text(error)
    if any(words in text for words in _NO_SPACE) or _is_nearly_full(data):
        return disk_full()
    if any(words in text for words in _NO_MEMORY):
        return BatchTooLarge("a batch did not fit into memory.")
    reason = true_reason(text)
    if (met := _LATER_FORMAT.search(text)) is not None:
        return later_format(met[1], Format(int(met[2]), met[3]))
    own = _OWN_ERROR.match(reason)
    if own is not None:
        known = _OF_ONE_GROUP if _OF_GROUP.match(own[2]) else _OWN
        if own[1] in known:
            return known[own[1]](own[2])
    return QueryFailed(f"the query failed ({reason}).")


def failed_group(error: AbcastError) -> str:
    """Return the group that an error inside a query names as its own (`connectors.sequencer.query`); "" for none."""
    met = None if error.retriable else _OF_GROUP.match(str(error))
    return met[1] if met is not None else ""


def unwritten_topic(error: Exception) -> Topic | None:
    """Return the topic whose records Kafka did not take before the producer's timeout, if that ended the query."""
    met = _EXPIRED.search(full_text(error))
    return Topic.parse(met[1]) if met is not None else None


def full_text(error: Exception) -> str:
    """Return the text of an exception of Spark, with the causes that it knows."""
    return f"{error}\n{getattr(error, '_stackTrace', None) or ''}"


def _is_nearly_full(data: Path) -> bool:
    try:
        return shutil.disk_usage(data).free < _TOO_LITTLE_SPACE
    except OSError:
        return False


def true_reason(text: str) -> str:
    """Return the innermost cause in a stack trace, on one line: Python's own exception if there is one."""
    reason = _of_python(text) or _of_java(text) or text
    words = " ".join(reason.split())
    return words if len(words) <= REASON_CHARACTERS else words[: REASON_CHARACTERS - 2] + " …"


_TRACEBACK = "Traceback (most recent call last):\n"
"""The line before a traceback. Text of a message has it only with escapes, or with more behind it."""
_AFTER_MESSAGE = re.compile(r"^(\s*$|\s+at |\s*SQLSTATE|===|Caused by: |Driver stacktrace|JVM stacktrace)")
_WRAPPING = re.compile(
    r"^(.*?most recent failure: Lost task [^:]*: "
    r"|\[STREAM_FAILED\] Query \[.*?\] terminated with exception: "
    r"|An error occurred while calling [^:]*:? ?)",
    re.DOTALL,
)


def _of_python(text: str) -> str:
    """Return the message below the last traceback: its first line that is not indented, and its continuation."""
    _, found, below = text.rpartition(_TRACEBACK)
    if not found:
        return ""
    lines = below.splitlines()
    first = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), None)
    return "" if first is None else _message(lines[first:])


def _of_java(text: str) -> str:
    """Return the last cause, with the one around it, as the last alone may be no more than "error=2"."""
    lines = text.splitlines()
    starts = [0, *(number for number, line in enumerate(lines) if line.startswith("Caused by: "))]
    causes: list[str] = []
    for start in starts:
        cause = _WRAPPING.sub("", _message(lines[start:]).removeprefix("Caused by: ")).strip(" :")
        without_class = cause.partition(": ")[2] or cause
        if cause and not any(without_class in known for known in causes):
            causes.append(cause)
    return "; caused by: ".join(causes[-2:])


def _message(lines: list[str]) -> str:
    """Return the first line and its continuation lines, joined."""
    taken = lines[:1]
    for line in lines[1:]:
        if _AFTER_MESSAGE.match(line):
            break
        taken.append(line)
    return " ".join(taken)
