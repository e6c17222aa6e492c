"""The checker's findings at sites of a mesh that have, or lack, each other's messages."""

from __future__ import annotations

from ordering.base.records import JOIN, MESSAGE, Data, Link, MessageId, Source
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, LOST
from ordering.checker.checker import Checker
from ordering.checker.mesh_checker import MeshChecker, Shortfall
from ordering.sequencer.sequencer import seal

SOURCE = Source("t", 0, 0)


def own(site: str, seqno: int, local: int = 0, kind: str = MESSAGE) -> Data:
    return Data(kind, 1, seqno, 0, f"{site}/a", 1, local or seqno, b"%d" % seqno, SOURCE)


def brought(origin: str, seqno: int, origin_seqno: int, payload: bytes = b"") -> Data:
    text = payload or b"%d" % origin_seqno
    link = Link(0, 1, origin_seqno, origin_seqno)
    return Data(MESSAGE, 1, seqno, 0, f"{origin}/a", 1, origin_seqno, text, SOURCE, link=link)


def mesh(**logs: list[Data]) -> MeshChecker:
    checker = MeshChecker(logs)
    for site, records in logs.items():
        for record in [seal(1), *records]:
            checker.data(site, record)
    return checker


NYC = [own("nyc", 1, kind=JOIN), own("nyc", 2), own("nyc", 3), own("nyc", 4)]


def test_a_site_that_has_all() -> None:
    checker = mesh(nyc=NYC, sfo=[brought("nyc", n - 1, n) for n in (2, 3, 4)])
    assert (checker.anomalies(), checker.lacking()) == ([], [])


def test_what_is_under_way() -> None:
    checker = mesh(nyc=NYC, sfo=[brought("nyc", 1, 2)], lax=[])
    assert (checker.anomalies(), checker.lacking()) == (
        [],
        [Shortfall("sfo", "nyc", 2, 2), Shortfall("lax", "nyc", 0, 3)],
    )


def test_what_is_wrong_has_a_name() -> None:
    """A hole, a repeat, a foreign message, another text, a wrong order."""
    for numbers, expected in (
        ((2, 4), [LOST]),
        ((2, 3, 3, 4), [DUPLICATE]),
        ((1, 2, 3, 4), [DIVERGENT]),
        ((2, 4, 3), [FIFO_VIOLATION]),
    ):
        checker = mesh(nyc=NYC, sfo=[brought("nyc", seqno, n) for seqno, n in enumerate(numbers, 1)])
        assert [anomaly.name for anomaly in checker.anomalies()] == expected, numbers
    checker = mesh(nyc=NYC, sfo=[brought("nyc", 1, 2), brought("nyc", 2, 3, b"other")])
    assert [(anomaly.name, anomaly.seqnos) for anomaly in checker.anomalies()] == [(DIVERGENT, (3,))]


def test_without_the_origin_the_furthest_site_is_the_reference() -> None:
    checker = mesh(sfo=[brought("nyc", 1, 2)], lax=[brought("nyc", 1, 2), brought("nyc", 2, 3)])
    assert (checker.anomalies(), checker.lacking()) == ([], [Shortfall("sfo", "nyc", 2, 1)])


def test_a_sender_elsewhere_has_gaps_in_its_local_seqnos() -> None:
    """Its control records do not come here: neither DATA nor a delivery log breaks its order for that."""
    checker = Checker()
    records = [brought("nyc", 1, 2), brought("nyc", 2, 5), own("sfo", 3, 1)]
    for record in [seal(1), *records]:
        checker.data("sfo", record)
    for record in records:
        checker.delivery("sfo/b", record.seqno, record.id, record.payload)
    assert checker.finish() == []


def test_a_receipt_is_for_the_message_not_for_its_id() -> None:
    checker = Checker(causal=True)
    for record in [seal(1), own("nyc", 1), own("nyc", 2)]:
        checker.data("nyc", record)
    checker.sent(MessageId("nyc/a", 1, 1), payload=b"1")
    checker.sent(MessageId("nyc/a", 1, 2), payload=b"another")
    assert [anomaly.name for anomaly in checker.finish()] == [LOST]
