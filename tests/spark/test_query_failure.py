"""Find the reason of a failure in Spark's error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from connectors.spark.query_failure import REASON_CHARACTERS, QueryFailed, explain, true_reason
from ordering.base.errors import HistoryUnavailable

FAILED = "[STREAM_FAILED] Query [id = 86f21880-753c, runId = 8fb91f3e-a9d9] terminated with exception: "
STATE = "\n=== Streaming Query ===\nIdentifier: [id = 86f21880-753c]\nCurrent Committed Offsets: {}\n"
PYTHON = f"""{FAILED}[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 3622, in main
    process()
  File "/abcast/connectors/sequencer/query.py", line 45, in decide
    raise ValueError("in a task")
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: in a task
 SQLSTATE: 38000 SQLSTATE: XXKST{STATE}"""
NO_PYTHON = f"""{FAILED}Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 1.0 (TID 1) (10.77.99.2 executor 0): java.io.IOException: Cannot run program \
"{"/a" * 150}/venv/bin/python3": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:346)
Caused by: java.io.IOException: error=2, No such file or directory
\tat java.base/java.lang.ProcessImpl.forkAndExec(Native Method)
\t... 22 more

Driver stacktrace: SQLSTATE: XXKST{STATE}"""
AT_START = """An error occurred while calling o9530.start.
: java.io.IOException: Mkdirs failed to create file:/proc/x/y
\tat org.apache.hadoop.fs.RawLocalFileSystem.create(RawLocalFileSystem.java:626)
"""
BY_PROXY = f"""{FAILED}[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/abcast/connectors/ledger/table.py", line 166, in write
    raise HistoryUnavailable(
ordering.base.errors.HistoryUnavailable: the ledger lacks seqno 7: retention has dropped it.
 SQLSTATE: 39000 SQLSTATE: XXKST{STATE}"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PYTHON, "ValueError: in a task"),
        (AT_START, "java.io.IOException: Mkdirs failed to create file:/proc/x/y"),
        ("something else", "something else"),
    ],
)
def test_the_innermost_cause_is_told(text: str, reason: str) -> None:
    assert true_reason(text) == reason


@pytest.mark.parametrize(
    "quoted", ["Traceback (most recent call last):\n a\nb", "Traceback (most recent call last): x"]
)
def test_a_traceback_that_a_message_quotes_is_none(quoted: str) -> None:
    assert true_reason(PYTHON.replace("ValueError: in a task", f"KeyError: {quoted!r}")) == f"KeyError: {quoted!r}"


def test_a_program_that_is_missing_is_named() -> None:
    """Its name was behind the 300th character, where the reason was cut off."""
    reason = true_reason(NO_PYTHON)
    assert reason.startswith("java.io.IOException: Cannot run program")
    assert reason.endswith('/venv/bin/python3": error=2, No such file or directory')


def test_a_reason_is_one_line_of_bounded_length() -> None:
    reason = true_reason(f"{FAILED}java.lang.Exception: " + "word\n" * 1000)
    assert "\n" not in reason
    assert len(reason) <= REASON_CHARACTERS


def test_a_failure_of_the_query_is_worth_another(tmp_path: Path) -> None:
    error = explain(StreamingQueryException(PYTHON), tmp_path)
    assert type(error) is QueryFailed
    assert error.retriable


def test_what_the_ledger_raises_comes_through(tmp_path: Path) -> None:
    error = explain(StreamingQueryException(BY_PROXY), tmp_path)
    assert type(error) is HistoryUnavailable
    assert str(error) == "the ledger lacks seqno 7: retention has dropped it."


def test_a_data_directory_that_is_gone_hides_no_reason(tmp_path: Path) -> None:
    assert "in a task" in str(explain(StreamingQueryException(PYTHON), tmp_path / "gone"))
