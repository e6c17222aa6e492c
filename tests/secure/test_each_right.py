"""`abcast acl` gives no right too many: without any one of them, some operation fails and names it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from connectors import Member
from connectors.diagnosis.dead_letters import read_dead_letters
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import SignsOfLife
from connectors.kafka.topics.data_purge import lacking_unknown_sites, purge_data
from connectors.kafka.topics.letter_purge import purge_letters
from connectors.kafka.topics.purge import purge_group
from connectors.kafka.topics.rights import Right, Who, grant, rights_of
from connectors.kafka.topics.topics import check_topics, create_topics, ensure_topic, look_at_topics
from connectors.local.broker import EmbeddedBroker
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError
from ordering.base.names import Topic
from ordering.sequencer import sequencer
from tests.secure.users import login
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SITE = "each"
ATTEMPTS = 3
Work = Callable[[Connection, str], None]
"""A role's work, with its connection and a name of its own."""


class Trial:
    """A group at the secure broker, and users with some of a role's rights."""

    def __init__(self, broker: EmbeddedBroker, group: str, who: Who) -> None:
        self.admin, self.group, self.who = login(broker), group, who
        self.rights = rights_of(who, group, SITE)
        self._broker = broker
        create_topics(self.admin, group, [SITE])

    def user(self, rights: list[Right], name: str) -> Connection:
        """Return the connection of a user with these rights."""
        user = f"{self.group}-{name}"
        connection = login(self._broker, user)
        if rights:
            grant(self.admin, f"User:{user}", rights)
        return connection

    def lacking(self) -> Iterator[tuple[Right, Connection]]:
        """Yield, for each right, a user with all the others."""
        for number, right in enumerate(self.rights):
            yield right, self.user([each for each in self.rights if each != right], str(number))

    def check(self, work: Work, caplog: pytest.LogCaptureFixture, unneeded: set[str]) -> None:
        """The rights together suffice; without a needed one, the error or the log names it."""
        everything = self.user(self.rights, "all")
        eventually(lambda: what_fails(lambda: work(everything, "all")) == "", what="the rights are known")
        silent = []
        for number, (right, connection) in enumerate(self.lacking()):
            if right.name not in unneeded and not self._is_named(right, connection, work, caplog, number):
                silent.append(right)
        assert silent == []

    def _is_named(
        self, right: Right, connection: Connection, work: Work, caplog: pytest.LogCaptureFixture, number: int
    ) -> bool:
        """A position that can't be kept in time is logged without a reason; the next try may have one."""
        for attempt in range(ATTEMPTS):
            caplog.clear()
            says = what_fails(lambda: work(connection, f"lacks-{number}-{attempt}"))  # noqa: B023
            if right.name in says + caplog.text:
                return True
        return False


def what_fails(work: Callable[[], object]) -> str:
    """Return its error's text."""
    try:
        work()
    except AbcastError as error:
        return str(error)
    return ""


@pytest.mark.long
def test_a_maintainer(secure_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge that may not see a topic does not take it for a missing one."""
    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 1)
    monkeypatch.setattr(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 0)
    trial = Trial(secure_broker, "each-care", "maintainer")
    append(trial.admin, str(Topic(trial.group, "dead-letter", SITE)), (None, b"x", []))
    with (
        SequencerThread(trial.admin, trial.group, SITE),
        Member(trial.group, f"{SITE}/a", connection=trial.admin) as alice,
    ):
        for _ in range(2):
            alice.broadcast(b"x").result(WAIT)
        alice.send(f"{SITE}/a", b"x").result(WAIT)
        assert next(iter(alice.inbox(timeout=WAIT))).payload == b"x"
    time.sleep(0.01)

    def purged(connection: Connection) -> int:
        found = purge_group(connection, trial.group, SITE, dead_letters_s=0.001)
        found += purge_letters(connection, trial.group, SITE, letters_s=0.001)
        return sum(each.records for each in found)

    for right, connection in trial.lacking():
        says = what_fails(lambda: purged(connection))  # noqa: B023
        assert right.operation in says, right
        assert right.name in says, right
    everything = trial.user(trial.rights, "all")
    eventually(lambda: what_fails(lambda: purged(everything)) == "", what="the rights are known")


@pytest.mark.long
def test_an_archivist(secure_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archivist that does not see relays' records takes no group for one without other sites."""
    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 1)
    monkeypatch.setattr(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 0)
    trial = Trial(secure_broker, "each-archive", "archivist")
    everything = trial.user(trial.rights, "all")
    last = 0

    def purged(connection: Connection) -> int:
        lacking = lacking_unknown_sites(connection)
        found = purge_data(connection, trial.group, SITE, kept_s=0.0, in_ledger=last, lacking=lacking)
        return sum(each.records for each in found)

    with (
        SequencerThread(trial.admin, trial.group, SITE),
        Member(trial.group, f"{SITE}/a", connection=trial.admin) as alice,
    ):
        for right, connection in trial.lacking():
            for _ in range(3):  # there is a message to delete that EPOCH has no note of yet
                last = alice.broadcast(b"x").result(WAIT)
            says = what_fails(lambda: purged(connection))  # noqa: B023
            assert right.operation in says, right
            assert right.name in says, right
    eventually(lambda: what_fails(lambda: purged(everything)) == "", what="the rights are known")
    with DataLog(trial.admin, trial.group, SITE) as data:
        assert data.beginning() > 0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_member(secure_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Messages in both orders, letters, and a position that is kept. An error that is not raised is logged."""
    trial = Trial(secure_broker, "each-member", "member")

    def work(connection: Connection, name: str) -> None:
        with Member(trial.group, f"{SITE}/{name}", connection=connection, casts=True, resend_after_s=60) as member:
            assert member.broadcast(b"total").result(WAIT)
            assert member.broadcast(b"cast", order="fifo").result(WAIT)
            member.send(f"{SITE}/{name}", b"letter").result(WAIT)
            assert next(iter(member.inbox(timeout=20))).payload == b"letter"
            assert len(list(itertools.islice(member.deliveries(timeout=20), 2))) == 2

    with SequencerThread(trial.admin, trial.group, SITE):
        trial.check(work, caplog, unneeded={f"abcast.sequencer.{SITE}"})  # it tells why a message waits


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_observer(secure_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial(secure_broker, "each-observer", "observer")
    with (
        SequencerThread(trial.admin, trial.group, SITE),
        Member(trial.group, f"{SITE}/a", connection=trial.admin) as alice,
    ):
        alice.broadcast(b"x").result(WAIT)

    def work(connection: Connection, name: str) -> None:
        with Member(trial.group, f"{SITE}/{name}", connection=connection, casts=True) as member:
            assert next(iter(member.deliveries(timeout=20))).payload == b"x"
        assert look_at_topics(connection, trial.group, SITE).missing == []

    trial.check(work, caplog, unneeded={f"abcast.sequencer.{SITE}"})


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_sequencer(secure_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The checks of a start, a sign of life, and the newest dead letter for a page."""
    trial = Trial(secure_broker, "each-sequencer", "sequencer")
    append(trial.admin, str(Topic(trial.group, "dead-letter", SITE)), (None, b"x", []))

    def work(connection: Connection, name: str) -> None:
        check_topics(connection, [trial.group], SITE)
        signs = SignsOfLife(connection, SITE, "process")
        signs.give({trial.group: 1}, {}, now=0.0)
        signs.close()
        list(read_dead_letters(connection, trial.group, SITE, last=1))

    ensure_topic(trial.admin, Topic(trial.group, "relayed", SITE, "far"), 1)
    # Where sites agree, a sequencer reads entries.
    trial.check(work, caplog, unneeded={f"abcast.{trial.group}.entries-"})
