"""Views of ISIS processes: kept and purged messages of a flush, ballots, minorities, and returning processes."""

from __future__ import annotations

import random

import pytest

from ordering.agreement.codec import decode, encode
from ordering.agreement.flush import is_quorum, next_view, settle
from ordering.agreement.formation import Formation, Hello, ProcessIncarnation, View, first_view
from ordering.agreement.hold_back import Key, Places, Run, RunId
from ordering.agreement.messages import (
    Accept,
    Ballot,
    BallotPromise,
    DecidedView,
    DeliverRun,
    Exclude,
    From,
    Hindrance,
    Installed,
    Missing,
    NotExcluded,
    Output,
    Outside,
    Prepare,
    Stuck,
    To,
    ViewReport,
)
from ordering.agreement.process import ProcessState, fresh, member
from ordering.agreement.state import Finals, Known, Placed, Propose, Proposed, Send, Submit, Tick
from ordering.agreement.suspicion import MAX_JOINERS
from ordering.agreement.views import Process
from ordering.base.errors import ProtocolViolation
from tests.simulator.isis import World

SUSPECT_AFTER_MS = 200


class Sites:
    """Sites of one view that keep their memory; `cut` ones are unreachable, and nothing passes a `cut_way`."""

    def __init__(self, names: str) -> None:
        self.view = first_view(ProcessIncarnation(name) for name in names)
        self.processes = {
            name: Process(member(ProcessIncarnation(name), self.view, suspect_after_ms=SUSPECT_AFTER_MS))
            for name in names
        }
        self.said: dict[str, list[Output]] = {name: [] for name in names}
        self.letters: list[tuple[str, To]] = []
        self.cut: set[str] = set()
        self.cut_ways: set[tuple[str, str]] = set()
        self.now_ms = 0

    @property
    def states(self) -> dict[str, ProcessState]:
        return {name: process.state for name, process in self.processes.items()}

    def take(self, name: str, *events: From | Submit | Tick | Exclude) -> tuple[Output, ...]:
        for event in events:
            self.processes[name].take(event)
        outputs = self.processes[name].end_batch()
        self.letters += [(name, output) for output in outputs if isinstance(output, To)]
        self.said[name] += [output for output in outputs if not isinstance(output, To)]
        return outputs

    def carry(self) -> None:
        while self.letters:
            self.carry_one()

    def carry_one(self) -> None:
        sender, to = self.letters.pop(0)
        if (sender, to.receiver.name) in self.cut_ways:
            return
        if sender not in self.cut and to.receiver.name in self.processes.keys() - self.cut:
            self.take(to.receiver.name, From(ProcessIncarnation(sender), to.message))

    def wait(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.now_ms += 20
            for name in self.processes:
                self.take(name, Tick(self.now_ms))
            self.carry()

    def delivered(self, name: str) -> list[tuple[int, str, bytes]]:
        found = [output for output in self.said[name] if isinstance(output, DeliverRun)]
        return [(output.seqno, output.sender.name, output.run.reference) for output in found]

    def members(self, name: str) -> str:
        return "".join(member.name for member in self.states[name].view.members)


def placed(seqno: int, sender: int, number: int, key: int) -> Placed:
    return Placed(seqno, RunId(sender, number), 1, Key(key, 0))


def proposed(sender: int, number: int, key: int, known: int, proposer: int) -> Proposed:
    return Proposed(RunId(sender, number), 1, Key(key, proposer), Places(known))


# The flush


def test_a_number_that_any_of_them_knows_is_kept_behind_all_that_was_delivered() -> None:
    reports = [
        ViewReport(2, (placed(2, 0, 1, 5),), (placed(0, 1, 2, 9),), (1, 1)),
        ViewReport(1, (), (placed(0, 0, 1, 5), placed(0, 1, 2, 9), placed(0, 0, 2, 7)), (0, 1)),
    ]
    assert settle(reports) == (placed(2, 0, 1, 5), placed(3, 0, 2, 7), placed(4, 1, 2, 9))


def test_a_number_that_all_of_them_can_tell_together_is_kept() -> None:
    """The sender is gone, and may have delivered a run whose number only its proposal and the survivors' tell
    together.
    """
    reports = [
        ViewReport(0, (), (), (0, 0, 0), (proposed(0, 1, 3, 0b011, 1), proposed(0, 2, 8, 0b001, 0))),
        ViewReport(0, (), (), (0, 0, 0), (proposed(0, 1, 4, 0b101, 2), proposed(0, 2, 9, 0b001, 0))),
    ]
    assert settle(reports) == (Placed(1, RunId(0, 1), 1, Key(4, 2)),)


def test_a_run_is_not_kept_without_the_one_before_it() -> None:
    """The first run lacks a proposal that the second one has: no process can have delivered either."""
    runs = proposed(0, 1, 3, 0b011, 1), proposed(0, 2, 4, 0b111, 1)
    assert settle([ViewReport(0, (), (), (0, 0, 0), runs)]) == ()
    assert settle([ViewReport(1, (), (), (1, 0, 0), runs[1:])]) == (Placed(2, RunId(0, 2), 1, Key(4, 1)),)


def test_the_next_view_says_up_to_where_each_life_was_ordered() -> None:
    view = View(
        7,
        3,
        (ProcessIncarnation("a"), ProcessIncarnation("b"), ProcessIncarnation("c", 4)),
        10,
        ((ProcessIncarnation("a"), 2), (ProcessIncarnation("z", 9), 6)),
    )
    report = ViewReport(11, (placed(11, 0, 3, 5),), (placed(0, 2, 1, 6),), (3, 0, 0))
    value = next_view(view, {0: report, 1: report}, [ProcessIncarnation("c", 5), ProcessIncarnation("d")])
    assert value.view.members == (
        ProcessIncarnation("a"),
        ProcessIncarnation("b"),
        ProcessIncarnation("c", 5),
        ProcessIncarnation("d"),
    )
    assert value.view.base == 12
    assert dict(value.view.rows) == {
        ProcessIncarnation("a"): 3,
        ProcessIncarnation("b"): 0,
        ProcessIncarnation("c", 5): 0,
        ProcessIncarnation("d"): 0,
        ProcessIncarnation("z", 9): 6,
    }


@pytest.mark.parametrize(
    "report",
    [
        ViewReport(0, (), (), (0, 0)),
        ViewReport(0, (placed(1, 3, 1, 5),), (), (0, 0, 0)),
        ViewReport(0, (), (Placed(0, RunId(0, 1), 1, Key(5, 3)),), (0, 0, 0)),
        ViewReport(0, (), (), (0, 0, 0), (Proposed(RunId(0, 1), 1, Key(5, 0), Places(0b1001)),)),
    ],
    ids=["size", "sender", "proposer", "proposers"],
)
def test_a_promise_about_another_view_is_ignored(report: ViewReport) -> None:
    """A faulty process may have a view of that number with other members."""
    sites = Sites("abc")
    for now_ms in (SUSPECT_AFTER_MS + 1, SUSPECT_AFTER_MS + 3):
        sites.take("a", Tick(now_ms))
    attempt = sites.states["a"].attempt
    assert attempt is not None
    promise = BallotPromise(sites.view.id, attempt.ballot, None, report)
    sites.take("a", From(ProcessIncarnation("b"), promise), From(ProcessIncarnation("c"), promise))
    assert sites.states["a"].attempt == attempt
    assert sites.states["a"].ignored == 2


def test_those_who_join_are_at_most_as_many_as_those_who_stay() -> None:
    view = first_view(map(ProcessIncarnation, "ab"))
    report = ViewReport(0, (), (), (0, 0))
    assert next_view(view, {0: report}, map(ProcessIncarnation, "xyz")).view.members == (
        ProcessIncarnation("a"),
        ProcessIncarnation("x"),
    )
    again = [ProcessIncarnation("b", 1), ProcessIncarnation("x"), ProcessIncarnation("y")]
    assert next_view(view, {0: report, 1: report}, again).view.members == (
        ProcessIncarnation("a"),
        ProcessIncarnation("b", 1),
    )


def test_a_number_known_to_one_survivor_is_kept_and_a_run_without_one_is_sent_again() -> None:
    """c is cut off after it has told b, but not a, the number of its run; a's run has no proposal of c."""
    sites = Sites("abc")
    sites.take("c", Submit(Run(b"final")))
    sites.letters = [letter for letter in sites.letters if letter[0] != "c" or isinstance(letter[1].message, Send)]
    while sites.letters:
        sender, to = sites.letters.pop(0)
        if not (isinstance(to.message, Finals) and to.receiver.name == "a"):
            sites.take(to.receiver.name, From(ProcessIncarnation(sender), to.message))
    sites.cut = {"c"}
    sites.take("a", Submit(Run(b"not final")))
    sites.wait(1_000)
    assert sites.members("a") == sites.members("b") == "ab"
    assert sites.delivered("a") == sites.delivered("b") == [(1, "c", b"final"), (2, "a", b"not final")]
    sites.cut = set()
    sites.wait(1_000)
    assert sites.members("c") == "abc"
    assert sites.delivered("c")[:1] == sites.delivered("a")[:1]


def test_proposals_of_an_old_view_are_ignored() -> None:
    sites = Sites("abc")
    sites.cut = {"c"}
    sites.wait(1_000)
    assert sites.states["a"].view.id == 2
    sites.take("a", Submit(Run(b"m")))
    sites.letters.clear()
    sites.take("a", From(ProcessIncarnation("b"), Propose(1, 0, 1, (50,))))
    agreement = sites.states["a"].agreement
    assert agreement is not None
    assert agreement.own[1].missing == 0b10


# Ballots


def test_two_coordinators_of_one_view_change_install_the_same() -> None:
    """b suspects a live a: both open ballots; the lower one is refused, or its value is taken over."""
    sites = Sites("abc")
    sites.take("a", Tick(SUSPECT_AFTER_MS), Tick(SUSPECT_AFTER_MS + 5))
    sites.take("b", Tick(2 * SUSPECT_AFTER_MS), Tick(4 * SUSPECT_AFTER_MS))
    ballots = {to.message.ballot for _, to in sites.letters if isinstance(to.message, Prepare)}
    assert len(ballots) == 2
    sites.now_ms = 4 * SUSPECT_AFTER_MS
    sites.wait(2_000)
    assert len({sites.states[name].view for name in "abc"}) == 1


@pytest.mark.parametrize("way_ms", [0.1 * SUSPECT_AFTER_MS, 0.5 * SUSPECT_AFTER_MS, 0.9 * SUSPECT_AFTER_MS])
def test_a_view_comes_also_where_a_way_takes_nearly_as_long_as_a_suspicion(way_ms: float) -> None:
    """A ballot is four ways long. Coordinators that cut each other off before that give each other more time."""
    sites, dice = Sites("abcde"), random.Random(7)
    on_their_way: list[tuple[float, str, To]] = []
    alive = "abcd"
    while any(sites.states[name].view.id == 1 for name in alive):
        sites.now_ms += 10
        assert sites.now_ms < 30 * SUSPECT_AFTER_MS, "they outbid each other for ever"
        for name in alive:
            sites.take(name, Tick(sites.now_ms))
        on_their_way += [(sites.now_ms + way_ms * dice.uniform(0.8, 1.2), *letter) for letter in sites.letters]
        sites.letters = []
        for _, sender, to in [each for each in on_their_way if each[0] <= sites.now_ms]:
            if to.receiver.name in alive:
                sites.take(to.receiver.name, From(ProcessIncarnation(sender), to.message))
        on_their_way = [each for each in on_their_way if each[0] > sites.now_ms]
    assert len({sites.states[name].view for name in alive}) == 1


def test_a_value_that_may_be_decided_is_taken_over() -> None:
    """b accepted a's value, and neither knows whether it is decided: the next ballot brings the same."""
    sites = Sites("abc")
    report = ViewReport(0, (), (), (0, 0, 0))
    value = next_view(sites.view, {0: report, 1: report}, [ProcessIncarnation("x")])
    sites.take("b", From(ProcessIncarnation("a"), Accept(1, Ballot(3, 0), value)))
    sites.letters.clear()
    sites.cut = {"a"}
    sites.wait(1_500)
    for name in "bc":
        views = [output.view for output in sites.said[name] if isinstance(output, Installed | Outside)]
        assert views[0] == value.view


def test_a_promise_is_kept_after_a_crash() -> None:
    sites = Sites("abc")
    sites.take("b", From(ProcessIncarnation("c"), Prepare(1, Ballot(5, 2))))
    sites.processes["b"] = Process(decode(ProcessState, encode(sites.states["b"])))
    sites.letters.clear()
    outputs = sites.take("b", From(ProcessIncarnation("a"), Prepare(1, Ballot(4, 0))))
    assert [output.message.promised for output in outputs if isinstance(output, To)] == [Ballot(5, 2)]  # type: ignore[union-attr]


# Minorities, and the operator


def test_a_minority_waits_and_says_so() -> None:
    sites = Sites("abc")
    sites.cut = {"b", "c"}
    sites.take("a", Submit(Run(b"m")))
    sites.wait(2_000)
    assert sites.said["a"] == [Stuck(sites.view, (ProcessIncarnation("a"),), 2)]
    sites.cut = set()
    sites.wait(2_000)
    assert sites.delivered("a") == [(1, "a", b"m")]
    assert [sites.states[name].delivered for name in "abc"] == [1, 1, 1]


def test_with_two_only_the_operator_goes_on_without_one() -> None:
    sites = Sites("ab")
    sites.take("a", Submit(Run(b"m")))
    sites.letters.clear()
    sites.cut = {"b"}
    sites.wait(1_000)
    assert sites.delivered("a") == []
    sites.take("a", Exclude(("b",)))
    sites.wait(1_000)
    assert sites.members("a") == "a"
    assert sites.delivered("a") == [(1, "a", b"m")]
    sites.cut = set()
    sites.take("b", Submit(Run(b"accepted while it was cut off")))
    sites.wait(2_000)
    assert sites.members("b") == "ab"
    assert Missing(1, 1) in sites.said["b"]
    assert sites.delivered("a")[1:] == sites.delivered("b") == [(2, "b", b"accepted while it was cut off")]


def test_who_is_excluded_has_promised_and_does_not_accept() -> None:
    """The ballot's view still has the process: its value is decided, and the next decision removes the process."""
    sites = Sites("ab")
    while (attempt := sites.states["a"].attempt) is None or attempt.value is None:
        if attempt is not None and sites.letters:
            sites.carry_one()
            continue
        sites.letters.clear()  # it hears nothing until it asks
        sites.now_ms += 20
        sites.take("a", Tick(sites.now_ms))
    sites.letters.clear()
    sites.cut = {"b"}
    sites.wait(1_000)
    assert sites.states["a"].view.id == 1
    sites.take("a", Exclude(("b",)))
    sites.wait(20)
    assert (sites.states["a"].view.id, sites.members("a")) == (2, "ab")
    sites.take("a", Exclude(("b",)))
    sites.wait(1_000)
    assert (sites.states["a"].view.id, sites.members("a")) == (3, "a")


def test_too_many_can_not_be_excluded() -> None:
    sites = Sites("abc")
    assert sites.take("a", Exclude(("b", "c"))) == (NotExcluded(("b", "c"), Hindrance.TOO_FEW),)
    assert sites.take("a", Exclude(("nobody",))) == (NotExcluded(("nobody",), Hindrance.NOT_OTHERS),)
    assert sites.take("a", Exclude(("a",))) == (NotExcluded(("a",), Hindrance.NOT_OTHERS),)
    assert sites.take("a", Exclude(("b",))) == ()
    assert sites.take("a", Exclude(("c",))) == (NotExcluded(("c",), Hindrance.TOO_FEW),)


def test_a_process_outside_the_view_excludes_nobody() -> None:
    process = Process(fresh(ProcessIncarnation("c")))
    process.take(Exclude(("b",)))
    assert NotExcluded(("b",), Hindrance.OUTSIDE) in process.end_batch()


@pytest.mark.parametrize(
    ("who", "size", "excluded", "expected"),
    [({0, 1}, 3, (), True), ({0}, 3, (), False), ({0}, 2, (), False), ({0}, 2, {1}, True), ({0}, 3, {1, 2}, False)],
)
def test_quorums(who: set[int], size: int, excluded: set[int], expected: bool) -> None:
    assert is_quorum(who, size, excluded) is expected


# Returning processes


def test_what_a_site_accepted_while_it_was_away_is_ordered_once_in_the_new_view() -> None:
    sites = Sites("abc")
    sites.take("c", Submit(Run(b"before")))
    sites.carry()
    sites.cut = {"c"}
    sites.take("c", Submit(Run(b"cut off")))
    sites.wait(1_000)
    sites.take("a", Submit(Run(b"without c")))
    sites.carry()
    sites.cut = set()
    sites.wait(2_000)
    assert sites.members("c") == "abc"
    assert sites.delivered("a") == [(1, "c", b"before"), (2, "a", b"without c"), (3, "c", b"cut off")]
    assert sites.delivered("c") == [(1, "c", b"before"), (3, "c", b"cut off")]
    assert Missing(2, 2) in sites.said["c"]


@pytest.mark.parametrize("ways", [{("a", "c"), ("c", "a")}, {("a", "c")}, {("a", "b")}], ids=["both", "one", "other"])
def test_who_joins_waits_until_all_hear_it(ways: set[tuple[str, str]]) -> None:
    """Two processes can't hear each other, and a third hears both. One of the two stays outside: the others go
    on, and do not take it in again and again, to wait for it and exclude it.
    """
    sites = Sites("abc")
    sites.cut_ways = ways
    for number in range(40):
        sites.wait(SUSPECT_AFTER_MS)
        for name in "abc":
            sites.take(name, Submit(Run(b"%d" % number)))
    inside = [name for name in "abc" if sites.states[name].agreement is not None]
    assert len(inside) == 2
    assert max(sites.states[name].view.id for name in "abc") == 2
    assert len(sites.delivered(inside[0])) > 2 * 30
    sites.cut_ways = set()
    sites.wait(2_000)
    assert [sites.members(name) for name in "abc"] == ["abc"] * 3
    assert len({sites.states[name].delivered for name in "abc"}) == 1
    assert sites.states["a"].delivered == 3 * 40


def test_a_joiner_tells_the_view_to_a_member_that_missed_it() -> None:
    """The only member that told others of the view is gone. In the earlier view, the joiner is no member."""
    sites = Sites("abc")
    sites.cut = {"c"}
    sites.wait(1_000)
    assert sites.members("a") == sites.members("b") == "ab"
    sites.cut = set()
    for _ in range(1_000):
        if sites.states["c"].view.id == 3:
            break
        _, to = sites.letters[0] if sites.letters else ("", None)
        if to is None:
            sites.now_ms += 20
            for name in "abc":
                sites.take(name, Tick(sites.now_ms))
        elif isinstance(to.message, DecidedView) and to.message.value.view.id == 3 and to.receiver.name == "b":
            sites.letters.pop(0)
        else:
            sites.carry_one()
    assert [sites.members(name) for name in "abc"] == ["abc", "ab", "abc"]
    sites.cut = {"a"}
    sites.take("b", Submit(Run(b"on")))
    sites.wait(2_000)
    assert sites.members("b") == sites.members("c") == "bc"
    assert sites.delivered("b") == sites.delivered("c") == [(1, "b", b"on")]


@pytest.mark.parametrize("view", [0, 9])
def test_outsiders_that_are_told_a_view_or_asked_for_theirs_are_bounded(view: int) -> None:
    sites = Sites("ab")
    message = Known(view, (0, 0), 0)
    for incarnation in range(1, 300):
        sites.take("a", From(ProcessIncarnation("x", incarnation), message))
    assert len(sites.states["a"].told) <= MAX_JOINERS


def test_a_process_without_memory_is_another_one() -> None:
    """Its new incarnation is not bound by the promises of the old one, whose messages are dropped."""
    sites = Sites("abc")
    sites.take("a", From(ProcessIncarnation("b", 3), Send(1, 1, (Run(b"x"),), (1,))))
    agreement = sites.states["a"].agreement
    assert agreement is not None
    assert not len(agreement.held)


# The first view of processes that remember nothing


def test_the_first_view_needs_everybody_to_have_said_the_same() -> None:
    names = "abc"
    formations = {name: Formation(ProcessIncarnation(name, 1), names) for name in names}
    a, b, c = formations.values()
    assert a.hear(ProcessIncarnation("b", 1), b.hello()) is None
    assert a.hear(ProcessIncarnation("c", 1), c.hello()) is None  # they have not heard of all
    for one in (b, c):
        for other in "abc":
            one.hear(ProcessIncarnation(other, 1), formations[other].hello()) if other != one.me.name else None
    a.hear(ProcessIncarnation("b", 1), b.hello())
    view = a.hear(ProcessIncarnation("c", 1), c.hello())
    assert view is not None
    assert view.members == (ProcessIncarnation("a", 1), ProcessIncarnation("b", 1), ProcessIncarnation("c", 1))


def test_an_earlier_life_has_nothing_to_say() -> None:
    a = Formation(ProcessIncarnation("a", 1), "ab")
    a.hear(ProcessIncarnation("b", 5), Hello((ProcessIncarnation("b", 5),)))
    assert a.hear(ProcessIncarnation("b", 4), Hello((ProcessIncarnation("a", 1), ProcessIncarnation("b", 4)))) is None
    assert a.hello() == Hello((ProcessIncarnation("a", 1), ProcessIncarnation("b", 5)))
    assert not a.may_take_over(ProcessIncarnation("b", 4), (ProcessIncarnation("a", 1), ProcessIncarnation("b", 4)))


# States


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_codec_round_trips(seed: int) -> None:
    """The states are from the middle of histories, some with ballots."""
    world = World(seed)
    for _ in range(60):
        world._act()
        for node in world.nodes.values():
            if node.is_up:
                node.process.end_batch()
                raw = encode(node.process.state)
                assert decode(ProcessState, raw) == node.process.state
                assert encode(decode(ProcessState, raw)) == raw


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"null", b"[[", b"\xff\xff"])
def test_what_is_not_a_state_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(ProcessState, raw)


def test_a_decided_view_of_another_group_is_ignored() -> None:
    sites = Sites("abc")
    other = View(1, 9, (ProcessIncarnation("a"), ProcessIncarnation("x")))
    sites.take(
        "a", From(ProcessIncarnation("x"), DecidedView(next_view(other, {0: ViewReport(0, (), (), (0, 0))}, [])))
    )
    assert sites.states["a"].view == sites.view


@pytest.mark.parametrize("names", ["abc", "abcd"])
def test_a_cut_of_one_link_under_load_heals_by_itself(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of the link answer the sender, and never learn of each other's deliveries."""
    monkeypatch.setattr("ordering.agreement.state.window_for", lambda _: 4)
    sites, sent = Sites(names), 0
    bound = 4 * len(names)
    sites.cut_ways = {("b", "c"), ("c", "b")}
    for _ in range(3 * SUSPECT_AFTER_MS // 5):
        sites.take("a", Submit(Run(b"%d" % sent)))
        sent += 1
        sites.carry()
        sites.now_ms += 5
        for name in names:
            sites.take(name, Tick(sites.now_ms))
        agreements = [state.agreement for state in sites.states.values() if state.agreement is not None]
        assert max((len(each.recent) for each in agreements), default=0) <= bound
    sites.cut_ways.clear()
    sites.wait(10 * SUSPECT_AFTER_MS)
    assert {len(state.view.members) for state in sites.states.values()} == {len(names)}
    sites.take("c", Submit(Run(b"last")))
    sites.wait(2 * SUSPECT_AFTER_MS)
    orders = [[run for _, _, run in sites.delivered(name)] for name in names]
    assert all(order[-1] == b"last" for order in orders)
    assert orders[0][:-1] == [b"%d" % n for n in range(sent)]
