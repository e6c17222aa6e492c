"""The daemon that forks Spark's Python workers (`spark.python.daemon.module`): pyspark's own, with a head start.

It imports the workers' modules before it forks one. It takes pyspark from its installation, with its bytecode, not from
the zip of the same version that Spark puts first: Python would compile that anew in every process.

Workers ignore a SIGTERM that is sent to all processes of a job: the current batch needs them. A worker whose task was
cut off ends without a stack trace.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
import sysconfig

_INSTALLED = sysconfig.get_path("purelib")
sys.path[:] = [entry for entry in sys.path if not (entry.startswith(_INSTALLED) and entry.endswith(".zip"))]

import pyspark.worker  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

from connectors.ledger import one_pass  # noqa: E402, F401
from connectors.sequencer import agreeing_query, query  # noqa: E402, F401

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    """Run the JVM's task; return 0 if the worker can be used again."""
    try:
        return _work(sock, authenticated)
    except ConnectionError:  # the task was cut off, and the JVM has reported why
        return 1


if __name__ == "__main__":
    # A worker collects garbage after every batch: without the objects of these imports, that takes 1 ms instead of 40.
    gc.freeze()
    # Blocked, since pyspark sets handlers. Spark ends this process by closing its standard input.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    daemon.worker = work
    daemon.manager()
