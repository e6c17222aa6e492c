"""The ledger job: DATA topics to Delta, a query of its own so that no Delta commit is on the delivery path."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.groups.unservable_groups import START_ERRORS, raise_unservable
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.topics.topics import refusals
from connectors.kafka.transport import Consumer
from connectors.ledger.last_row import LedgerEnd, other_history
from connectors.ledger.table import LedgerWriter, create_tables, read_table_state
from connectors.spark.job import JobOptions, StreamingJob
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable, KafkaRefused, NoSnapshot
from ordering.base.names import Topic

TRIGGER_S = 1
"""The least seconds between two Delta commits: each makes a file."""


class LedgerJob(StreamingJob):
    """Writes the DATA of all groups at the site to `data/ledger`. Every start goes on after the table's last seqno.

    A group that can't go on there (`start_after`) is left out, and tried again now and then; the others are written. An
    error of the writer ends its query: the job starts anew if the error may pass, as when rows were skipped, and else
    ends with it.
    """

    name = "ledger"
    ends_alone_with: tuple[type[AbcastError], ...] = START_ERRORS
    """The errors of groups that end the job alone, if no group is left. The sequencer and the members go on."""
    waits_s = (10.0, 30.0, 60.0, 300.0)

    def __init__(self, spark: SparkSession, options: JobOptions) -> None:
        super().__init__(spark, options)
        self._writer: LedgerWriter | None = None

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the DATA topic, at this site, of every group that has one."""
        return {
            topic.group: [str(topic)] for topic in topics if topic.role == "data" and topic.site == self.options.site
        }

    def needs(self, topic: Topic) -> bool:
        """Whether the topic is EPOCH, which tells the offset of a seqno in DATA."""
        return (topic.role, topic.site) == ("epoch", self.options.site)

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """Return the refusals to read DATA of groups that have an EPOCH topic at the site."""
        site = self.options.site
        expected = {Topic(topic.group, "data", site) for topic in topics if (topic.role, topic.site) == ("epoch", site)}
        return refusals(self.options.connection, "READ", sorted(expected.difference(topics), key=str))

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Read on after the table's last seqno of each group."""
        if self._writer is not None:
            self._writer.check_tables()  # tables deleted while the job runs are not created again
        path = self.options.data / "ledger"
        create_tables(self.spark, self.options.data, self._stop.is_set)
        last_seqno = read_table_state(path).last_seqno
        starts = self._starts(topics, last_seqno)
        positions = {TopicPartition(name, 0): starts[group].offset for group, names in topics.items() for name in names}
        source = self.kafka_source([name for group in topics.values() for name in group], positions)
        self._writer = LedgerWriter(path, starts, self._beginning, self._query_ends.is_set)
        return (
            self.spark.readStream.format("kafka")
            .options(**source)
            .load()
            .writeStream.queryName(f"{self.name}-{self.options.site}")
            .foreachBatch(self._writer.write)
            .trigger(processingTime=f"{TRIGGER_S} seconds")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def _starts(self, groups: Collection[str], last_seqno: Mapping[str, int]) -> dict[str, Start]:
        """Return where each group goes on. Raises UnservableGroups, or the error itself if all groups have it."""
        starts, ledger = dict[str, Start](), LedgerEnd(self.options.data / "ledger")
        unservable: dict[str, AbcastError] = {}
        with contextlib.closing(SideBySide[Start](self.options.connection)) as asking:
            for group in groups:
                asking.ask(group, partial(start_after, last_seqno.get(group, 0), self.options, group, ledger))
            while asking.is_waiting:
                for group, found in asking.answers(1.0).items():
                    if isinstance(found, AbcastError):
                        unservable[group] = found
                    else:
                        starts[group] = found
        raise_unservable(dict(sorted(unservable.items())), groups)
        return starts

    def try_again(self, group: str) -> None:
        """Try whether the group can be written now."""
        path = self.options.data / "ledger"
        start_after(read_table_state(path).last_seqno.get(group, 0), self.options, group, LedgerEnd(path))

    def check(self) -> None:
        """Raise the error that keeps the writer from going on."""
        if self._writer is not None:
            self._writer.check()

    def _beginning(self, group: str) -> int:
        with DataLog(self.options.connection, group, self.options.site) as data:
            return data.beginning()


def start_after(
    seqno: int, options: JobOptions, group: str, ledger: LedgerEnd, consumer: Consumer | None = None
) -> Start:
    """Return the place in DATA where a ledger that has the group up to `seqno` goes on.

    Raises HistoryChanged if the ledger has the history of another log; HistoryUnavailable if retention has dropped the
    records that follow; NoSnapshot if DATA does not tell before a sequencer has started.
    """
    with DataLog(options.connection, group, options.site, consumer) as data:
        if why := other_history(data, ledger):
            raise HistoryChanged(why)
        try:
            return data.after(seqno)
        except NoSnapshot:
            raise  # only after a sequencer's start is it known whether records are missing
        except HistoryUnavailable as gone:
            content = f"ends at seqno {seqno} of group {group}" if seqno else f"has nothing of group {group}"
            raise HistoryUnavailable(
                f"the ledger {options.data / 'ledger'} {content}, and can't go on without a gap: "
                f"{str(gone).partition('. ')[0]}. Put a copy of the ledger and the views there that has later seqnos, "
                "and start again; or go on without a ledger (`abcast sequence` instead of `abcast run`)."
            ) from gone
