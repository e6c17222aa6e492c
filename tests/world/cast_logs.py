"""Delivery logs of a history's hubs, for `CastChecker`. Nobody lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from connectors.kafka.codec.cast_codec import decode_cast
from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import NO_VIEW, Cast, OrderedRecord
from ordering.checker.anomalies import Anomaly
from ordering.checker.cast_checker import CastChecker
from ordering.membership.membership import MemberIncarnation
from tests.simulator.mutation import Mutation
from tests.world.casts import CastWorld, playing

Line = Cast | OrderedRecord
NOBODY_LIES = Mutation("nobody-lies", "Every rule holds", ())


class LoggedCasts:
    """The deliveries of each life of a history, from its first view on: casts, total messages and views."""

    def __init__(self, seed: int) -> None:
        with playing(seed, NOBODY_LIES) as world:
            assert world.run() == []
        hubs = [seen for seen in world.judge.readers if seen.who.startswith("the hub") and seen.lines]
        self.logs: dict[MemberIncarnation, list[Line]] = {
            seen.life: seen.lines for seen in hubs if seen.life is not None
        }
        self.past = [message.past for message in world.judge.messages]
        """The messages before each message, as a set of bits."""
        self.data = {line.seqno: line for seen in hubs for line in seen.lines if isinstance(line, OrderedRecord)}
        self.casts = list(_casts(world))

    def checked(self, logs: Mapping[MemberIncarnation, Sequence[Line]], *, marked: bool = True) -> list[Anomaly]:
        """Return the checker's findings for these logs. `marked`: they say where they begin."""
        checker = CastChecker()
        for _, record in sorted(self.data.items()):
            if record.kind == VIEW:
                checker.view(record.view, record.members)
            elif record.kind == MESSAGE:
                checker.total(record.seqno, record.depends)
        for cast in self.casts:
            checker.cast(cast)
        for life, lines in logs.items():
            view = NO_VIEW
            if marked:
                checker.begins(str(life), life)
            for line in lines:
                if isinstance(line, Cast):
                    checker.delivered_cast(str(life), line.member, line.local_seqno, line.view)
                elif line.kind == VIEW:
                    view = line.view
                    checker.delivered_view(str(life), view)
                else:
                    checker.delivered_total(str(life), line.seqno, view)
        return checker.finish()


def _casts(world: CastWorld) -> Iterator[Cast]:
    for at, place in world.cast_places():
        for record in at.kafka.topics.partitions[place]:
            cast = decode_cast(record.key, record.value, record.headers, 0, at.name) if record.headers else ""
            if isinstance(cast, Cast):
                yield cast
