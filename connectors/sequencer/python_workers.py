"""What Spark forks its Python workers from (`spark.python.daemon.module`): pyspark's own daemon, with a head start.

It imports what a worker needs before there is one, so that each worker begins with it; and it takes pyspark from where
it is installed, with its bytecode, not from the zip of the same version that Spark puts first, which Python would
compile anew in every process.

A SIGTERM that is sent to all processes of a job is not for the workers: the batch in hand needs them. And a worker
whose task was cut off ends without a stack trace.
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

from connectors.sequencer import agreeing_query, query  # noqa: E402, F401

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    """Do what the JVM asks for; return 0 if it may ask again."""
    try:
        return _work(sock, authenticated)
    except ConnectionError:  # the task was cut off, and the JVM has told why
        return 1


if __name__ == "__main__":
    # A worker collects garbage after every batch: without what is imported here, that takes 1 ms instead of 40.
    gc.freeze()
    # Blocked, since pyspark sets handlers. Spark ends this process by closing its standard input.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    daemon.worker = work
    daemon.manager()
