"""Create a group's topics with the settings that the promises need, check them, and find them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import ALLOWED, MetadataClient
from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.log.data_log import too_many_partitions, topic_missing
from connectors.kafka.login.refusals import may_not
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, KafkaRefused, TopicMissing, UsageError, counted
from ordering.base.names import ROLES, Role, Topic, check_group, check_site
from ordering.base.records import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, MAX_RECORD_BYTES

_logger = logging.getLogger(__name__)

_MAX_FORWARD_RECORD_BYTES = MAX_RECORD_BYTES // 2
"""The limit of a forward topic: lower, so that a dead letter with its reason always fits into the dead-letter topic."""

# Timestamps are the broker's (LogAppendTime): time is data, and a producer's clock may be off. Nothing is dropped by
# time or size unless the operator says so: DATA is the history.
_SETTINGS = {
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}

_COMPRESSION = {"compression.type": "producer"}
"""With any other setting, a broker inflates a compressed batch as a whole before it looks at the size: a few kilobytes
may end the broker. With `producer` the broker inspects a batch piece by piece, and so do abcast's readers.
"""
_WRITTEN_BY_CLIENTS: tuple[Role, ...] = ("forward", "inbox", "cast", "memory")

_SEGMENT_BYTES: Mapping[Role, int] = {
    **dict.fromkeys(("forward", "dead-letter", "inbox"), 64 * 1024 * 1024),
    "data": 256 * 1024 * 1024,  # a long history has many segments, and each takes open files
}
"""Segment sizes. Purged records leave the disk by whole segments, and never the newest one, by default 1 GiB."""

_MIN_FORWARD_RECORD_BYTES = MAX_PAYLOAD_BYTES + MAX_HEADERS_BYTES + 16 * 1024
_LOGS: tuple[Role, ...] = ("data", "epoch")
_RETENTION = {"retention.ms", "retention.bytes"}
_PURGE_INSTEAD = " `abcast maintain --data-retention 30d` deletes what is older, as far as the ledger has it."
_READ: tuple[Role, ...] = ("forward", "relayed", "data", "epoch")
_WRITTEN: tuple[Role, ...] = ("data", "epoch", "dead-letter", "forward", "relayed")


def create_topics(
    connection: Connection,
    group: str,
    sites: Iterable[str],
    partitions: int = 1,
    replication_factor: int = 1,
    roles: Collection[Role] = ROLES,
) -> list[str]:
    """Create the missing topics of the group at the sites, of these roles; return the created names.

    `partitions` is for the forward, the inbox and the cast topics (the last two keep that number for good); a data
    topic has one, since its log seals and orders. With replication 3 a write needs two in-sync replicas. Existing
    topics keep their settings, except for a compression that endangers brokers. Raises UsageError, BrokerUnreachable,
    KafkaRefused.
    """
    check_group(group)
    checked_sites = [check_site(site) for site in sites]
    created, there = [], list[Topic]()
    with connection.admin() as admin:
        _check_copies(connection, admin, replication_factor)
        with connection.reachable():
            _check_no_double(admin.list_topics(), group, checked_sites)
        for site in checked_sites:
            # FORWARD and DATA last: a job that finds a group by them needs the others.
            for topic, count in (
                (Topic(group, "epoch", site), 1),
                (Topic(group, "dead-letter", site), 1),
                (Topic(group, "inbox", site), partitions),
                (Topic(group, "memory", site), 1),
                (Topic(group, "cast", site), partitions),
                (Topic(group, "data", site), 1),
                (Topic(group, "forward", site), partitions),
            ):
                if topic.role not in roles:
                    continue
                try:
                    with connection.reachable("CREATE", str(topic)):
                        admin.create_topics([new_topic(topic, count, replication_factor)])
                except TopicAlreadyExistsError:
                    there.append(topic)
                    continue
                created.append(str(topic))
        if created:
            admin.wait_for_topics(created)
        _mend_compression(connection, admin, there)
    return created


def _mend_compression(connection: Connection, admin: KafkaAdminClient, topics: Iterable[Topic]) -> None:
    """Mend the compression of existing topics, which an earlier version may have set. Raises KafkaRefused."""
    found = _read_settings(admin, topics)
    wrong = [topic for topic in topics if _is_inflated_by_brokers(topic, found.get(str(topic), {}))]
    if wrong:
        with connection.reachable("ALTER_CONFIGS", ", ".join(map(str, wrong))):
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, str(topic), _COMPRESSION) for topic in wrong])


def _is_inflated_by_brokers(topic: Topic, found: Mapping[str, str]) -> bool:
    return topic.role in _WRITTEN_BY_CLIENTS and found.get("compression.type", "producer") != "producer"


def _check_no_double(names: Iterable[str], group: str, sites: Iterable[str]) -> None:
    """Raise UsageError for a group whose topics Kafka takes for another's: it does not distinguish `.` and `_`."""
    known = {name.replace(".", "_"): name for name in names}
    for site in sites:
        ours = str(Topic(group, "data", site))
        there = known.get(ours.replace(".", "_"), ours)
        if there != ours:
            raise UsageError(
                f"Kafka has the topic {there}, beside which it takes no {ours}, as they differ in . and _ alone: "
                "choose another name."
            )


def check_layout(
    connection: Connection, group: str, sites: Iterable[str], partitions: int | None, copies: int | None
) -> None:
    """Raise UsageError if a group's existing forward topics have another number of partitions, or of replicas.

    None fits any number. Another partition would be no gain. A sender's key would move to it, and partitions are read
    in no order: a record that is read too early is dropped until its sender sends it again. Not every sender does that,
    nor at once.
    """
    topics = [str(Topic(check_group(group), "forward", check_site(site))) for site in sites]
    with connection.admin() as admin:
        known = {each["name"]: each["partitions"] for each in admin.describe_topics()}
    for topic in topics:
        found = known.get(topic)
        if found and partitions not in (None, len(found)):
            raise UsageError(
                f"{topic} has {counted(len(found), 'partition')}, not {partitions}, and keeps that number: "
                "with more, senders move to other partitions, and their messages overtake each other. Go on in a new "
                "group."
            )
        held = len(found[0]["replica_nodes"]) if found else 0
        if found and copies not in (None, held):
            raise UsageError(
                f"{topic} has {counted(held, 'copy', 'copies')}, not {copies}: `kafka-reassign-partitions` changes "
                "that."
            )


def delete_topics(connection: Connection, topics: Iterable[Topic]) -> None:
    """Delete topics with all their records; Kafka also drops positions in them. Raises BrokerUnreachable."""
    with connection.admin() as admin:
        names = [str(topic) for topic in topics]
        with connection.reachable("DELETE", ", ".join(names)):
            admin.delete_topics(names)


def _check_copies(connection: Connection, admin: KafkaAdminClient, copies: int) -> None:
    brokers = len(admin.describe_cluster()["brokers"])
    if copies > brokers:
        raise UsageError(
            f"{copies} copies of a topic need as many brokers, and the Kafka at {connection.bootstrap_servers} has "
            f"{brokers}: take --replication-factor {brokers} or less."
        )


def new_topic(topic: Topic, partitions: int = 1, replication_factor: int = 1) -> NewTopic:
    """Return the request for a new topic, with the settings that its role needs."""
    settings = _settings(topic)
    if replication_factor > 2:
        settings["min.insync.replicas"] = "2"
    return NewTopic(
        str(topic), num_partitions=partitions, replication_factor=replication_factor, topic_configs=settings
    )


def _settings(topic: Topic) -> dict[str, str]:
    """Return the settings of a new topic."""
    # A memory topic keeps one note a key (`connectors.client.memory.position_notes`).
    policy = "compact" if topic.role == "memory" else "delete"
    settings = {**_SETTINGS, "cleanup.policy": policy, "max.message.bytes": str(_limit(topic))}
    settings |= _COMPRESSION
    settings |= {"segment.bytes": str(_SEGMENT_BYTES[topic.role])} if topic.role in _SEGMENT_BYTES else {}
    return settings


def _limit(topic: Topic) -> int:
    return _MAX_FORWARD_RECORD_BYTES if topic.role == "forward" else MAX_RECORD_BYTES


def ensure_topic(connection: Connection, topic: Topic, partitions: int) -> None:
    """Create a topic for a relay, with as many replicas as the group's others. If it exists, add missing partitions.

    Raises BrokerUnreachable, KafkaRefused.
    """
    name = str(topic)
    with connection.admin() as admin:
        known = {each["name"]: each["partitions"] for each in admin.describe_topics()}
        if name not in known:
            check_may(connection, "WRITE", [topic])  # it may exist, hidden from this user
            of_group = [found for found in map(Topic.parse, known) if found and found.group == topic.group]
            copies = max((len(known[str(found)][0]["replica_nodes"]) for found in of_group), default=1)
            with contextlib.suppress(TopicAlreadyExistsError), connection.reachable("CREATE", name):  # or another did
                admin.create_topics([new_topic(topic, partitions, copies)])
            admin.wait_for_topics([name])
        elif len(known[name]) < partitions:
            with connection.reachable("ALTER", name):
                admin.create_partitions({name: partitions})


def check_topics(connection: Connection, groups: Iterable[str], site: str) -> None:
    """Check that the groups' topics at the site are as the promises need, and that this user has the rights.

    Call it before a sequencer claims anything. Settings hidden from this user are no failure, nor are dangers to
    brokers: the log names them. Raises UsageError or TopicMissing if no group can be served, UnservableGroups if some
    can't; BrokerUnreachable.
    """
    wanted = set(groups)
    with connection.admin() as admin:
        described = {Topic.parse(each["name"]): each for each in admin.describe_topics()}
        of_site = {
            topic: each for topic, each in described.items() if topic and topic.group in wanted and topic.site == site
        }
        settings = _read_settings(admin, of_site)
    with closing(connection.metadata_client()) as metadata:
        for group in sorted(wanted):
            try:
                check_relayed_is_seen(metadata, group, site, "READ")
            except KafkaRefused as error:
                _logger.warning("what relays bring would not be seen, and not ordered: %s", error)
    problems: dict[str, list[str]] = {}
    for topic in sorted(of_site, key=str):
        of_group = problems.setdefault(topic.group, [])
        if topic.role == "data" and (count := len(of_site[topic]["partitions"])) > 1:
            of_group.append(too_many_partitions(topic, count))
        of_group += _missing_rights(connection, topic, of_site[topic].get(ALLOWED))
        if (found := settings.get(str(topic))) is not None:
            of_group += _wrong_settings(connection, topic, found)
            for danger in _dangers(topic, found):
                _logger.warning("%s", danger)
    errors: dict[str, AbcastError] = {group: UsageError("\n".join(found)) for group, found in problems.items() if found}
    for group in wanted:
        for role in ("data", "epoch", "forward", "dead-letter"):
            if Topic(group, role, site) not in of_site:
                errors[group] = topic_missing(str(Topic(group, role, site)), group, site)
                break
    raise_unservable(dict(sorted(errors.items())), wanted)


def check_relayed_is_seen(metadata: MetadataClient, group: str, site: str, operation: str = "DESCRIBE") -> None:
    """Check that this user would see topics that relays fill at the site: a hidden topic looks like a missing one.

    The question is about a topic that never exists, by which a site would relay to itself. Raises KafkaRefused,
    BrokerUnreachable.
    """
    metadata.partitions_of(str(Topic(group, "relayed", site, site)), operation)


def check_may(connection: Connection, operation: str, topics: Iterable[Topic]) -> None:
    """Check the right to an operation on the topics that exist. Raises KafkaRefused, BrokerUnreachable."""
    for refusal in refusals(connection, operation, topics):
        raise refusal


def refusals(connection: Connection, operation: str, topics: Iterable[Topic]) -> list[KafkaRefused]:
    """Return a refusal for each existing topic on which this user may not perform the operation.

    Raises BrokerUnreachable.
    """
    found = []
    with closing(connection.metadata_client()) as metadata:
        for topic in topics:
            try:
                metadata.partitions_of(str(topic), operation)
            except KafkaRefused as error:
                found.append(error)
    return found


class TopicsFound(NamedTuple):
    """A group's topics at a site, as a user sees them.

    `missing`: FORWARD, DATA and EPOCH topics that the user does not see. `operations`: the allowed ones on each other
    topic, None if unknown. `wrong`: a sentence for each topic whose settings break promises, or endanger brokers.
    `unknown`: topics whose settings are hidden.
    """

    missing: list[str]
    operations: dict[str, Collection[str] | None]
    wrong: list[str]
    unknown: list[str]

    def allows(self, topic: str, operation: str) -> bool:
        """Whether the user may perform the operation there, as far as Kafka says."""
        allowed = self.operations[topic]
        return allowed is None or operation in allowed


def look_at_topics(connection: Connection, group: str, site: str) -> TopicsFound:
    """Return what this user sees; nothing wrong with a topic raises. Raises BrokerUnreachable, KafkaRefused."""
    with connection.admin() as admin:
        described = {Topic.parse(each["name"]): each for each in admin.describe_topics()}
        of_site = {
            topic: each for topic, each in described.items() if topic and (topic.group, topic.site) == (group, site)
        }
        settings = _read_settings(admin, of_site)
    seen = {str(topic): each.get(ALLOWED) for topic, each in of_site.items()}
    needed = [str(Topic(group, role, site)) for role in ("forward", "data", "epoch")]
    wrong = [
        problem
        for topic in sorted(of_site, key=str)
        if (found := settings.get(str(topic))) is not None
        for problem in (*_wrong_settings(connection, topic, found), *_dangers(topic, found))
    ]
    unknown = [name for name in seen if name not in settings]
    return TopicsFound([name for name in needed if name not in seen], seen, wrong, unknown)


def _read_settings(admin: KafkaAdminClient, topics: Iterable[Topic]) -> dict[str, dict[str, str]]:
    """Return the topics' settings, except hidden ones; the log names these."""
    answers = _known_settings(admin, topics)
    if unknown := sorted(name for name, found in answers.items() if not found):
        _logger.warning(
            "the settings of %s were not checked: this Kafka user lacks the right DESCRIBE_CONFIGS.",
            ", ".join(unknown),
        )
    return {name: found for name, found in answers.items() if found}


def _known_settings(admin: KafkaAdminClient, topics: Iterable[Topic]) -> dict[str, dict[str, str]]:
    """Return the settings of each topic; {} where they are hidden from this user."""
    names = list(map(str, topics))
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    try:
        answers = admin.describe_configs(resources, config_filter="all").get("topic", {}) if resources else {}
    except KafkaError as error:
        if error.retriable:
            raise
        answers = {}
    return {name: {key: str(each["value"]) for key, each in answers.get(name, {}).items()} for name in names}


def _missing_rights(connection: Connection, topic: Topic, operations: Collection[str] | None) -> list[str]:
    """Return a sentence for each right that this user lacks on the topic. `operations`: the allowed ones, None if
    unknown.
    """
    if operations is None:
        return []
    needed = [("READ", _READ), ("WRITE", _WRITTEN)]
    missing = [operation for operation, roles in needed if topic.role in roles and operation not in operations]
    return [may_not(connection.security, operation, str(topic)) for operation in missing]


def _wrong_settings(connection: Connection, topic: Topic, found: Mapping[str, str]) -> list[str]:
    """Return a sentence on the topic's settings that break promises, with the command that mends them."""
    wrong = {
        name: found[name] for name, is_right in _rules(topic).items() if name in found and not is_right(found[name])
    }
    if not wrong:
        return []
    right = _settings(topic)
    return [
        f"{topic} has {', '.join(f'{name}={value}' for name, value in wrong.items())}, with which promises break: "
        f"`kafka-configs --bootstrap-server {connection.bootstrap_servers} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {','.join(f'{name}={right[name]}' for name in wrong)}` mends that."
        + (_PURGE_INSTEAD if topic.role == "data" and wrong.keys() & _RETENTION else "")
    ]


def wrong_in_logs(connection: Connection, groups: Iterable[str], site: str) -> dict[str, str]:
    """Return, for each group whose DATA or EPOCH has settings that break promises, a sentence with what mends them.

    Settings hidden from this user are passed over. Raises BrokerUnreachable.
    """
    topics = {group: [Topic(group, role, site) for role in _LOGS] for group in groups}
    with connection.admin() as admin:
        known = _known_settings(admin, [topic for of_group in topics.values() for topic in of_group])
    wrong = {
        group: " ".join(each for topic in of_group for each in _wrong_settings(connection, topic, known[str(topic)]))
        for group, of_group in topics.items()
    }
    return {group: sentence for group, sentence in wrong.items() if sentence}


def least_in_sync(connection: Connection, topics: Iterable[str]) -> dict[str, int]:
    """Return the replicas in sync that each topic takes for a write; 0 if that is hidden. Raises BrokerUnreachable."""
    with connection.admin() as admin:
        known = _known_settings(admin, map(Topic.of, topics))
    return {name: int(found.get("min.insync.replicas", 0)) for name, found in known.items()}


def _dangers(topic: Topic, found: Mapping[str, str]) -> list[str]:
    """Return a sentence on a setting that breaks no promise, but lets one small record end a broker."""
    if not _is_inflated_by_brokers(topic, found):
        return []
    return [
        f"{topic} has compression.type={found['compression.type']}, with which one small record may end a broker: "
        f"`abcast topics create --group {topic.group} --site {topic.site}` mends that."
    ]


def _rules(topic: Topic) -> dict[str, Callable[[str], bool]]:
    """Return, for each setting that a promise depends on, a test of its value."""
    rules: dict[str, Callable[[str], bool]] = {
        "cleanup.policy": lambda value: value == _settings(topic)["cleanup.policy"],
        "max.message.bytes": lambda value: (
            _MIN_FORWARD_RECORD_BYTES <= int(value) <= _MAX_FORWARD_RECORD_BYTES
            if topic.role == "forward"
            else int(value) >= _limit(topic)
        ),
        "unclean.leader.election.enable": lambda value: value == "false",
    }
    if topic.role in ("forward", "relayed", "data"):
        rules["message.timestamp.type"] = lambda value: value == "LogAppendTime"
    if topic.role in ("data", "epoch", "entries"):
        rules["retention.ms"] = rules["retention.bytes"] = lambda value: int(value) < 0
    return rules


def count_partitions(connection: Connection, topic: Topic) -> int:
    """Return how many partitions a topic has, 0 if there is no such topic. Raises BrokerUnreachable."""
    with closing(connection.consumer()) as consumer, connection.reachable():
        return len(consumer.partitions_for_topic(str(topic)) or ())


def find_topics(connection: Connection) -> list[Topic]:
    """Return all of abcast's topics in the cluster, sorted by name. Raises BrokerUnreachable."""
    with connection.admin() as admin:
        names = admin.list_topics()
    return sorted((topic for topic in map(Topic.parse, names) if topic), key=str)


def find_groups(connection: Connection, site: str) -> list[str]:
    """Return the groups that have a DATA topic at the site, sorted. Raises BrokerUnreachable."""
    return [topic.group for topic in find_topics(connection) if topic.role == "data" and topic.site == site]


def inbox_partitions(connection: Connection, consumer: Consumer, group: str, site: str) -> list[TopicPartition]:
    """Return the partitions of a site's inbox topic in this Kafka, sorted. Raises TopicMissing, BrokerUnreachable."""
    topic = str(Topic(group, "inbox", site))
    with connection.reachable():
        found = consumer.partitions_for_topic(topic)
    if not found:
        raise TopicMissing(
            f"topic {topic} does not exist in the Kafka at {connection.bootstrap_servers}: is {site} a site of the "
            f"group? Then create it there with `abcast topics create --group {group} --site {site}`."
        )
    return [TopicPartition(topic, number) for number in sorted(found)]
