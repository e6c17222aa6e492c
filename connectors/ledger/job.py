"""The ledger job: DATA topics to Delta (`connectors.ledger.table_job`)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from functools import partial

from kafka.structs import TopicPartition

from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.transport import Consumer
from connectors.ledger.last_row import LedgerEnd, other_history
from connectors.ledger.table import LedgerWriter, create_tables, read_table_state
from connectors.ledger.table_job import TableJob
from connectors.spark.job import JobOptions
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable, NoSnapshot
from ordering.base.names import Topic


class LedgerJob(TableJob[LedgerWriter]):
    """Writes the DATA of all groups at the site to `data/ledger`. Every start goes on after the table's last seqno.

    A group that can't go on there (`start_after`) is left out.
    """

    name = "ledger"
    reads, tells = "data", "epoch"

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the DATA topic, at this site, of every group that has one."""
        return {
            topic.group: [str(topic)] for topic in topics if topic.role == "data" and topic.site == self.options.site
        }

    def needs(self, topic: Topic) -> bool:
        """Whether the topic is EPOCH, which tells the offset of a seqno in DATA."""
        return (topic.role, topic.site) == ("epoch", self.options.site)

    def open_writer(self, topics: Mapping[str, list[str]]) -> LedgerWriter:
        """Create missing tables; return a writer that goes on after the table's last seqno of each group."""
        path = self.options.data / "ledger"
        create_tables(self.spark, self.options.data, self._stop.is_set)
        starts = self._starts(topics, read_table_state(path).last_seqno)
        return LedgerWriter(path, starts, self._beginning, self._query_ends.is_set)

    def positions(self, topics: Mapping[str, list[str]], writer: LedgerWriter) -> dict[TopicPartition, int]:
        """Return the offset where each group goes on."""
        return {TopicPartition(name, 0): writer.starts[group].offset for group in topics for name in topics[group]}

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
