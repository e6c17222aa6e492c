"""The beats of a sequencer: between two signs of life it repeats the sign of one group every BEAT_S.

A standby takes the sign of any group for one of the sequencer. So one group's is enough: a small request, however many
groups there are. A thread and a connection of their own give the beats. A sequencer that waits for a slow broker, or
for Spark, does not look dead.

Invariant. A beat repeats a sign that Kafka has taken, at most SILENT_AFTER_S after it. So a process that is killed or
suspended falls silent at once. One that hangs, or fails again and again, does after SILENT_AFTER_S. A beat may
overwrite the sign of a newer sequencer, until this one sees the newer claim. No promise depends on it.
"""

from __future__ import annotations

import logging
import threading
import time

from kafka.errors import KafkaError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.log.sign_of_life import BEAT_S, SILENT_AFTER_S, Sign, commit_sign
from ordering.base.errors import AbcastError

_logger = logging.getLogger(__name__)


class Beats:
    """Repeats a sign. Close it."""

    def __init__(self, connection: Connection, site: str) -> None:
        """Repeat nothing yet."""
        self._connection, self._site = connection, site
        self._metadata: MetadataClient | None = None
        self._repeated: tuple[str, Sign, float] | None = None  # replaced by another thread than the one that reads it
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="abcast-beats", daemon=True)

    def repeat(self, group: str, sign: Sign, now: float) -> None:
        """Repeat this sign from now on. `now`: seconds of a steady clock."""
        self._repeated = group, sign, now

    def drop(self, group: str) -> None:
        """Repeat the group's sign no longer."""
        if self._repeated is not None and self._repeated[0] == group:
            self._repeated = None

    def start(self) -> None:
        """Start the thread that beats, once."""
        if self._thread.ident is None:
            self._thread.start()

    def beat(self, now: float) -> None:
        """Repeat the sign, if there is one that is not too old. A failure is left to the next beat."""
        repeated = self._repeated
        if repeated is None or now - repeated[2] > SILENT_AFTER_S:
            return
        group, sign, _ = repeated
        try:
            self._metadata = self._metadata or self._connection.metadata_client()
            commit_sign(self._metadata, group, self._site, sign._replace(at_ms=time.time_ns() // 1_000_000))
        except (AbcastError, KafkaError) as error:
            _logger.debug("no beat: %s", error)
        except Exception:
            # Without beats a standby would take over from a sequencer that lives.
            _logger.exception("a beat of group %s has failed", group)

    def _run(self) -> None:
        while not self._ends.wait(BEAT_S):
            self.beat(time.monotonic())
        self._disconnect()

    def close(self) -> None:
        """Beat no more. A beat that has begun ends first, and the thread then closes its connection."""
        self._ends.set()
        if self._thread.ident is None:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._metadata is not None:
            self._metadata.close()
