"""The doctor: checks each thing that abcast needs, one after the other, and says what to do about a failure."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.liveness import SecondLook, judge
from connectors.kafka.log.open_transactions import open_transactions
from connectors.kafka.log.sign_of_life import read_signs
from connectors.kafka.login.probe import Finding, ProbeStep, probe
from connectors.kafka.login.refusals import may_not
from connectors.kafka.topics.rights import Who, rights_of
from connectors.kafka.topics.topics import TopicsFound, find_groups, look_at_topics
from connectors.kafka.transport import LIBRARIES
from connectors.ledger.last_row import LedgerEnd, other_history
from connectors.ledger.table_state import read_table_state
from connectors.storage.location import Location
from ordering.base.errors import AbcastError, counted
from ordering.base.names import Topic


class Check(NamedTuple):
    """The result of a check. `is_ok`: None if it is not needed, or not known. `detail`: the finding, or what to do."""

    name: str
    is_ok: bool | None
    detail: str


def examine(connection: Connection, site: str, group: str | None, who: Who, ledger: Location) -> Iterator[Check]:
    """Yield each check as it is made, unless an earlier failure makes it impossible. Raises UsageError.

    `group`: None for all groups that are visible at the site. `who`: the role whose rights are checked.
    """
    yield _library(connection)
    findings = probe(connection.bootstrap_servers, connection.security, connection.timeout)
    lets_in = False
    for found in findings:
        passed = " → ".join(step.value for step in found.passed)
        for step in ProbeStep:
            if step in found.passed:
                yield Check(f"{step.value} of {found.server}", True, _passed(connection, step))
            elif step is found.failed:
                yield Check(f"{step.value} of {found.server}", False, _what_to_do(found) or f"after {passed}")
        lets_in = lets_in or found.failed is None
    if lets_in:
        try:
            yield from _inside(connection, site, group, who)
        except AbcastError as error:
            yield Check("Kafka", False, str(error))
        except KafkaError as error:
            yield Check("Kafka", False, str(connection.refused(error)))
    yield _ledger(ledger)
    if lets_in:
        yield from _histories(connection, site, group, ledger)


def _library(connection: Connection) -> Check:
    name = connection.transport_in_use
    version = importlib.metadata.version(LIBRARIES[name])
    return Check("library", True, f"{LIBRARIES[name]} {version} (ABCAST_TRANSPORT={name})")


def _what_to_do(found: Finding) -> str:
    if found.failed not in (ProbeStep.NAME, ProbeStep.TCP):
        return found.sentence  # it says what to do
    start = "`abcast broker start` starts one here; " if found.failed is ProbeStep.TCP else ""
    return f"{found.sentence} {start}ABCAST_BOOTSTRAP_SERVERS names another"


def _passed(connection: Connection, step: ProbeStep) -> str:
    security = connection.security
    if step is ProbeStep.TLS:
        return f"trusted by {security.ca_file or 'this system'}"
    if step is ProbeStep.LOGIN:
        return f"as {security.principal}" if security.logs_in else "none asked for"
    return ""


def _inside(connection: Connection, site: str, group: str | None, who: Who) -> Iterator[Check]:
    groups = [group] if group else find_groups(connection, site)
    if not groups:
        yield Check(
            "topics", False, f"site {site} has no visible group: `abcast topics create --group G --site {site}`"
        )
    for name in groups:
        found = look_at_topics(connection, name, site)
        yield from _topics(connection, name, site, who, found)
        if not found.missing:
            yield _sequencer(connection, name, site)
            yield _transactions(connection, name, site)


def _topics(connection: Connection, group: str, site: str, who: Who, found: TopicsFound) -> Iterator[Check]:
    if found.missing:
        missing = ", ".join(found.missing)
        todo = f"`abcast topics create --group {group} --site {site}`, or DESCRIBE is not allowed"
        yield Check(f"topics of {group}", False, f"not seen: {missing}: {todo}")
    else:
        yield Check(f"topics of {group}", True, f"{len(found.operations)} are there")
    lacks = [
        may_not(connection.security, right.operation, right.name)
        for right in rights_of(who, group, site)
        if right.kind == "topic" and right.name in found.operations and not found.allows(right.name, right.operation)
    ]
    todo = f"`abcast acl apply --group {group} --site {site} --role {who} --principal {connection.security.principal}`"
    detail = f"{lacks[0]} {todo}" if lacks else f"those of a {who}"
    yield Check(f"rights in {group}", not lacks, f"{detail}{f' ({len(lacks)} are missing)' if len(lacks) > 1 else ''}")
    if found.wrong:
        yield Check(f"settings of {group}", False, " ".join(found.wrong))
    elif found.unknown:
        yield Check(f"settings of {group}", None, "this user may not read them (DESCRIBE_CONFIGS)")
    else:
        yield Check(f"settings of {group}", True, "as the promises need them")


def _sequencer(connection: Connection, group: str, site: str) -> Check:
    try:
        with DataLog(connection, group, site) as data:
            sign = read_signs(connection, [group], site).of_groups.get(group)
            look = SecondLook(connection, [group], site)
            found = judge(data, sign, partial(look.gives_another, group))
    except AbcastError as error:
        return Check(f"sequencer of {group}", False, str(error))
    return Check(f"sequencer of {group}", found.works, str(found))


def _transactions(connection: Connection, group: str, site: str) -> Check:
    name = f"transactions in {group}"
    try:
        with closing(connection.consumer()) as consumer:
            topic = str(Topic(group, "forward", site))
            places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            found = next(open_transactions(connection, consumer, places), None)
    except (AbcastError, KafkaError) as error:
        return Check(name, None, str(error))
    return Check(name, found is None, "none is left open" if found is None else str(found))


def _histories(connection: Connection, site: str, group: str | None, ledger: Location) -> Iterator[Check]:
    """Yield a failed check for each group whose ledger rows are not of the group that Kafka has."""
    unknown = (AbcastError, KafkaError, ModuleNotFoundError)  # the checks above report these
    names: list[str] = []
    end = LedgerEnd(ledger)
    with suppress(*unknown):
        names = ([group] if group else find_groups(connection, site)) if ledger.exists() else []
    for name in names:
        with suppress(*unknown), DataLog(connection, name, site) as data:
            if why := other_history(data, end):
                yield Check(f"ledger of {name}", False, why)


def _ledger(ledger: Location) -> Check:
    try:
        if not ledger.exists():
            return Check("ledger", None, f"there is none at {ledger} (--data names its place)")
        held = read_table_state(ledger)
    except AbcastError as error:
        return Check("ledger", False, str(error))
    except ModuleNotFoundError:
        return Check("ledger", None, "reading one needs `pip install 'abcast[jobs]'`")
    return Check("ledger", True, f"{counted(len(held.last_seqno), 'group')} at {ledger}")
