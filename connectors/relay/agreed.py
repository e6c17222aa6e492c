"""The relays between sites that agree on one order: their FORWARD, and their logs."""

from __future__ import annotations

from pyspark.sql import DataFrame

from connectors.relay.columns import relay_agreed_forward, relay_entries
from connectors.relay.hub import SiteForward
from connectors.relay.job import Relay
from ordering.names import Topic


class AgreedForward(SiteForward):
    """FORWARD of a site to another one that agrees with it on the order."""

    carries = "agreed-forward"

    def carry(self, rows: DataFrame) -> DataFrame:
        """Marked with where it came from, and when it was there."""
        return relay_agreed_forward(rows, self.direction)


class Entries(Relay):
    """The log of a site to another one that agrees with it: entries and seals, out of DATA."""

    carries = "entries"

    def is_read(self, topic: Topic) -> bool:
        """DATA of the site."""
        return topic.role == "data" and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """The other site's topic for this neighbour."""
        return Topic(topic.group, "entries", self.direction.target, self.direction.source)

    def carry(self, rows: DataFrame) -> DataFrame:
        """As they stand, marked with where they came from."""
        return relay_entries(rows, self.direction)
