"""The checker names each broken promise, and nothing where none is broken."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from ordering.base.reader import Reader
from ordering.base.records import Data, MessageId
from ordering.checker.anomalies import (
    ANOMALIES,
    CAUSAL_VIOLATION,
    DIVERGENT,
    DUPLICATE,
    FIFO_VIOLATION,
    GAP,
    LISTED_SEQNOS,
    LOST,
    NONMONOTONIC_DELIVER,
    VIEW_VIOLATION,
)
from ordering.checker.checker import Checker
from ordering.sequencer.sequencer import seal, snapshot
from ordering.sequencer.state import SequencerState


def data(seqno: int, sender: str = "s/a", local: int | None = None, epoch: int = 1, incarnation: int = 1) -> Data:
    local = seqno if local is None else local
    return Data("message", epoch, seqno, 0, sender, incarnation, local, f"{sender} {local}".encode())


LOG = [seal(1), snapshot(SequencerState("g", epoch=1)), *(data(seqno) for seqno in range(1, 7))]


def names(checker: Checker) -> list[str]:
    return [anomaly.name for anomaly in checker.finish()]


def fed(log: Iterable[Data] = LOG, *, causal: bool = False) -> Checker:
    checker = Checker(causal=causal)
    for record in log:
        checker.data("nyc", record)
    return checker


def deliver(checker: Checker, *seqnos: int, member: str = "s/b") -> Checker:
    for seqno in seqnos:
        checker.delivery(member, seqno, data(seqno).id, data(seqno).payload)
    return checker


def test_a_clean_run_has_no_anomaly() -> None:
    """Repeats, leftovers of a fenced sequencer, an interrupted write that was repeated: all are normal."""
    checker = Checker(causal=True)
    log = [
        seal(1),
        data(1),
        data(2),
        data(1),
        data(2),
        data(4),
        data(3),
        data(4),
        seal(2),
        data(5, "s/z", 1),
        data(5, epoch=2),
    ]
    for record in log:
        checker.data("nyc", record)
        checker.data("sfo", record)
    deliver(checker, 1, 2, 3, 4, 5)
    deliver(checker, 3, 4, 5, member="s/late")
    for seqno in (5, 1, 2, 4, 3):
        checker.ledger(seqno, data(seqno).id, data(seqno).payload)
    for seqno in range(1, 6):
        checker.sent(data(seqno).id, after_seqno=seqno - 1)
    assert checker.finish() == []


def test_lost() -> None:
    checker = fed()
    for local in range(1, 9):
        checker.sent(MessageId("s/a", 1, local))
    checker.sent(MessageId("s/quiet", 3, 1))
    lost = checker.finish()
    assert {anomaly.name for anomaly in lost} == {LOST}
    assert "s/a, incarnation 1" in lost[0].detail
    assert lost[0].detail.endswith("local seqno 7, 8.")
    assert "s/quiet, incarnation 3" in lost[1].detail


def test_lost_in_a_hole() -> None:
    checker = fed([data(1), data(2, local=3)])
    for local in (1, 2, 3):
        checker.sent(MessageId("s/a", 1, local))
    assert names(checker) == [LOST, FIFO_VIOLATION]


def plant_ledger_row_twice(checker: Checker) -> None:
    checker.ledger(1, data(1).id)
    checker.ledger(2, data(2).id)
    checker.ledger(2, data(2).id)


def plant_other_ledger_row(checker: Checker) -> None:
    checker.ledger(1, data(1).id, b"something else")


def plant_other_id(checker: Checker) -> None:
    checker.ledger(1, data(2).id)


def plant_message_twice(checker: Checker) -> None:
    checker.data("nyc", data(7, local=3))


def plant_other_site(checker: Checker) -> None:
    checker.data("sfo", data(1, "s/b", 1))


def plant_other_repeat(checker: Checker) -> None:
    checker.data("nyc", data(6, "s/b", 1))


def plant_ledger_gap(checker: Checker) -> None:
    for seqno in (1, 2, 5):
        checker.ledger(seqno, data(seqno).id)


def plant_missing_first_rows(checker: Checker) -> None:
    checker.ledger(3, data(3).id)


def plant_data_gap(checker: Checker) -> None:
    checker.data("nyc", data(9))


def plant_wrong_incarnation(checker: Checker) -> None:
    checker.data("nyc", data(7, local=1, incarnation=2))
    checker.data("nyc", data(8, local=7, incarnation=1))


def plant_overtaking(checker: Checker) -> None:
    checker.data("nyc", data(7, "s/b", 2))
    checker.data("nyc", data(8, "s/b", 1))


@pytest.mark.parametrize(
    ("plant", "expected", "seqnos"),
    [
        (plant_ledger_row_twice, DUPLICATE, (2,)),
        (plant_other_ledger_row, DIVERGENT, (1,)),
        (plant_other_id, DIVERGENT, (1,)),
        (plant_message_twice, DUPLICATE, (7,)),
        (plant_other_site, DIVERGENT, (1,)),
        (plant_other_repeat, DIVERGENT, (6,)),
        (plant_ledger_gap, GAP, (3, 4)),
        (plant_missing_first_rows, GAP, (1, 2)),
        (plant_data_gap, GAP, (7, 8)),
        (plant_wrong_incarnation, FIFO_VIOLATION, (8,)),
        (plant_overtaking, FIFO_VIOLATION, (7, 8)),
        (lambda checker: deliver(checker, 1, 2, 2, 3), DUPLICATE, (2,)),
        (lambda checker: deliver(checker, 1, 3, 2), NONMONOTONIC_DELIVER, (2,)),
        (lambda checker: deliver(checker, 3, 5), GAP, (4,)),
        (lambda checker: checker.delivery("s/b", 4, data(5).id), DIVERGENT, (4,)),
    ],
)
def test_each_anomaly_is_named(plant: Callable[[Checker], None], expected: str, seqnos: tuple[int, ...]) -> None:
    checker = fed()
    plant(checker)
    assert [(anomaly.name, anomaly.seqnos) for anomaly in checker.finish()] == [(expected, seqnos)]


def test_causal_violation() -> None:
    """b sent its message after delivering seqno 3, but the message came before it."""
    checker = fed([data(1), data(2, "s/b", 1), data(3, "s/a", 2)], causal=True)
    checker.sent(MessageId("s/b", 1, 1), after_seqno=3)
    found = checker.finish()
    assert [(anomaly.name, anomaly.seqnos) for anomaly in found] == [(CAUSAL_VIOLATION, (2,))]


def test_a_source_may_come_first_or_last() -> None:
    """The first source that has a seqno is the reference; the disagreement is found all the same."""
    checker = Checker()
    checker.delivery("s/b", 1, data(1, "s/z").id)
    checker.data("nyc", data(1))
    assert names(checker) == [DIVERGENT]


def test_a_log_whose_beginning_retention_has_dropped() -> None:
    checker = Checker()
    checker.start("nyc", Reader(epoch=2, last_seqno=6))
    for record in (data(6, epoch=1), data(7, epoch=2), data(8, epoch=2)):
        checker.data("nyc", record)
    assert checker.finish() == []


def test_what_stood_ahead_when_the_epoch_ended_is_no_gap() -> None:
    assert names(fed([seal(1), data(1), data(3), seal(2), data(2, epoch=2)])) == []


def test_detail_is_bounded() -> None:
    """A wild number from a foreign writer costs neither memory nor time."""
    checker = fed([data(1), data(10**17)])
    (gap,) = checker.finish()
    assert len(gap.seqnos) == LISTED_SEQNOS
    assert gap.detail.endswith(f"and {10**17 - 2 - LISTED_SEQNOS} more.")
    checker = deliver(Checker(), 1, 10**17)
    assert names(checker) == [GAP]


def test_the_names_are_the_designs() -> None:
    assert ANOMALIES == (
        "lost",
        "duplicate",
        "gap",
        "divergent",
        "nonmonotonic-deliver",
        "fifo-violation",
        "causal-violation",
        "view-violation",
    )


@pytest.mark.long
@pytest.mark.slow
def test_memory_is_the_documented_index() -> None:
    """8 bytes a seqno, and one bit for each ledger and delivery log."""
    count = 65_535
    tracemalloc.start()
    checker = Checker()
    for seqno in range(1, count + 1):
        record = data(seqno)
        checker.data("nyc", record)
        checker.ledger(seqno, record.id)
        checker.delivery("s/b", seqno, record.id)
    # Other threads of the process may take memory, too.
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/ordering/*")]).statistics("filename")
    tracemalloc.stop()
    used = sum(each.size for each in kept)
    assert checker.finish() == []
    assert 8 < used / count < 9.5


def test_any_order_of_ledger_rows() -> None:
    rows = list(range(1, 200))
    random.Random(1).shuffle(rows)
    checker = Checker()
    for seqno in rows:
        checker.ledger(seqno, data(seqno).id)
    assert checker.finish() == []


def _view(seqno: int, view_id: int, *members: str, flush: int = 0) -> Data:
    body = {"members": [[name, 1] for name in members], "joined": [], "left": [], "suspected": [], "flush": flush}
    return Data("view", 1, seqno, view_id, payload=json.dumps(body).encode())


def _settings(seqno: int) -> Data:
    return Data("settings", 1, seqno, 0, "s/admin", 1, 1, b'{"flush":true}')


def test_a_message_of_another_view_than_the_one_in_force() -> None:
    late = [_view(1, 1, "s/a"), replace(data(2, local=1), view=0)]
    assert names(fed(late)) == [VIEW_VIOLATION]
    assert names(fed([_view(1, 1, "s/a"), replace(data(2, local=1), view=1), _view(3, 2, "s/a")])) == []
    assert names(fed([_view(1, 1, "s/a"), _view(2, 3, "s/a")])) == [VIEW_VIOLATION]


def test_with_flush_on_a_view_stands_in_a_flush() -> None:
    alone = [_settings(1), _view(2, 1, "s/a"), _view(3, 2, "s/a", "s/b")]
    assert names(fed(alone)) == [VIEW_VIOLATION]
    start = Data("start-flush", 1, 3, 1, payload=b'{"requester":"s/a"}')
    answer = Data("flush-ok", 1, 4, 1, "s/a", 1, 1, b"3")
    flushed = [_settings(1), _view(2, 1, "s/a"), start, answer]
    assert names(fed([*flushed, _view(5, 2, "s/a", "s/b", flush=3)])) == []
    assert names(fed([*flushed, _view(5, 2, "s/a", "s/b", flush=2)])) == [VIEW_VIOLATION]
    assert names(fed([*flushed[:3], _view(4, 2, "s/a", "s/b", flush=3)])) == [VIEW_VIOLATION]
    assert names(fed([*flushed[:3], _view(4, 2, "s/b", flush=3)])) == []


def test_a_message_behind_its_senders_flush_ok() -> None:
    start = Data("start-flush", 1, 2, 1, payload=b'{"requester":"s/a"}')
    answer = Data("flush-ok", 1, 3, 1, "s/a", 1, 2, b"2")
    message = replace(data(4), view=1, sender="s/a")
    stop = Data("stop-flush", 1, 4, 1, payload=b'{"flush":2,"reason":"x"}')
    assert VIEW_VIOLATION in names(fed([_view(1, 1, "s/a"), start, answer, message]))
    assert VIEW_VIOLATION not in names(fed([_view(1, 1, "s/a"), start, answer, stop, replace(message, seqno=5)]))


def test_a_record_of_a_life_that_was_over() -> None:
    """With flush on, a suspected member's message must not be delivered in a view after its own."""
    for settings, expected in (((_settings(1),), [VIEW_VIOLATION]), ((), [])):
        last = len(settings)
        log = [*settings, _view(last + 1, 1, "s/a", "s/b")]
        start = Data("start-flush", 1, last + 2, 1, payload=b'{"requester":"s/a"}')
        answer = Data("flush-ok", 1, last + 3, 1, "s/a", 1, 1, b"%d" % start.seqno)
        view = _view(last + 4, 2, "s/a", flush=start.seqno)
        payload = json.loads(view.payload) | {"suspected": ["s/b"]}
        stop = Data("stop-flush", 1, last + 5, 2, payload=b'{"flush":0,"reason":"x"}')
        late = replace(data(last + 6, local=1), sender="s/b", view=2)
        log += [start, answer, replace(view, payload=json.dumps(payload).encode()), stop, late]
        assert names(fed(log)) == expected


def test_an_answer_to_another_flush_is_none() -> None:
    start = Data("start-flush", 1, 3, 1, payload=b'{"requester":"s/a"}')
    answer = Data("flush-ok", 1, 4, 1, "s/a", 1, 1, b"2")
    log = [_settings(1), _view(2, 1, "s/a"), start, answer, _view(5, 2, "s/a", "s/b", flush=3)]
    assert names(fed(log)) == [VIEW_VIOLATION]


def test_survivors_that_disagree_on_the_set_of_a_view() -> None:
    checker = Checker()
    for member, views in (("s/a", (1, 1, 2)), ("s/b", (1, 2, 2))):
        for seqno, view_id in enumerate(views, 1):
            checker.delivery(member, seqno, data(seqno).id, view_id=view_id)
    assert names(checker) == [VIEW_VIOLATION]


def test_a_delivery_log_lacks_control_records_rightly() -> None:
    """Control records take a seqno and a local seqno, and reach no application."""
    log = [Data("join", 1, 1, 0, "s/a", 1, 1), _view(2, 1, "s/a"), replace(data(3, local=2), view=1)]
    log += [Data("refused", 1, 4, 1, "s/a", 1, 3), replace(data(5, local=4), view=1), replace(data(6, local=5), view=1)]
    checker = fed(log)
    for seqno, local in ((3, 2), (5, 4), (6, 5)):
        checker.delivery("s/b", seqno, data(seqno, local=local).id, view_id=1)
    assert names(checker) == []
    checker = fed(log)
    for seqno, local in ((3, 2), (6, 5)):
        checker.delivery("s/b", seqno, data(seqno, local=local).id, view_id=1)
    assert names(checker) == [GAP]
