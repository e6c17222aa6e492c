"""The ledger job: DATA topics to Delta (`connectors.ledger.table_job`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka.structs import TopicPartition

from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.log.data_log import DataLog, Start
from connectors.ledger.last_row import LedgerEnd, start_after, starts_of
from connectors.ledger.table import LedgerWriter, create_tables, read_table_state
from connectors.ledger.table_job import TableJob
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
        options = self.options
        starts, errors = starts_of(options.connection, options.site, options.data / "ledger", groups, last_seqno)
        raise_unservable(dict(sorted(errors.items())), groups)
        return starts

    def try_again(self, group: str) -> None:
        """Try whether the group can be written now."""
        path = self.options.data / "ledger"
        last_seqno = read_table_state(path).last_seqno.get(group, 0)
        start_after(last_seqno, self.options.connection, self.options.site, group, path, LedgerEnd(path))

    def _beginning(self, group: str) -> int:
        with DataLog(self.options.connection, group, self.options.site) as data:
            return data.beginning()
