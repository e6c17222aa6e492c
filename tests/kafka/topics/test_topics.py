"""A sequencer's start names each fault of the topics, and the command that it names mends it."""

from __future__ import annotations

import itertools
import re

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import _missing_rights, check_topics, create_topics, wrong_in_logs
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import TopicMissing, UsageError
from ordering.base.names import Topic
from tests.waiting import eventually

_numbers = itertools.count(1)


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Connection:
    return Connection(broker.bootstrap_servers)


@pytest.fixture
def group(connection: Connection) -> str:
    name = f"topics-{next(_numbers)}"
    create_topics(connection, name, ["nyc"], partitions=2)
    return name


def alter(connection: Connection, topic: Topic, **settings: str) -> None:
    changes = {name.replace("_", "."): value for name, value in settings.items()}
    with connection.admin() as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, str(topic), changes)
        admin.alter_configs([resource])

        def is_there() -> bool:
            told = admin.describe_configs([resource], config_filter="all")["topic"][str(topic)]
            return all(told[name]["value"] == value for name, value in changes.items())

        eventually(is_there, what="the broker tells what was changed")


@pytest.mark.broker
class TestSettings:
    def test_what_we_create_is_right(self, connection: Connection, group: str) -> None:
        check_topics(connection, [group], "nyc")

    @pytest.mark.parametrize(
        ("role", "name", "value"),
        [
            ("data", "cleanup.policy", "compact"),
            ("data", "message.timestamp.type", "CreateTime"),
            ("data", "max.message.bytes", "1048588"),
            ("data", "retention.ms", "604800000"),
            ("data", "retention.bytes", "1000000"),
            ("epoch", "retention.ms", "604800000"),
            ("epoch", "retention.bytes", "1000000"),
            ("forward", "message.timestamp.type", "CreateTime"),
            ("forward", "max.message.bytes", "1048588"),
            ("forward", "max.message.bytes", "8388608"),
            ("inbox", "cleanup.policy", "compact"),
            ("dead-letter", "unclean.leader.election.enable", "true"),
        ],
    )
    def test_what_breaks_a_promise(self, connection: Connection, group: str, role: str, name: str, value: str) -> None:
        topic = Topic(group, role, "nyc")  # type: ignore[arg-type]
        alter(connection, topic, **{name: value})
        with pytest.raises(UsageError, match=rf"^{topic} has {re.escape(name)}={value}, with which") as found:
            check_topics(connection, [group], "nyc")
        mend = re.search(rf"--entity-name {topic} --add-config {re.escape(name)}=([^` ]+)`", str(found.value))
        assert mend is not None
        alter(connection, topic, **{name: mend[1]})
        check_topics(connection, [group], "nyc")

    def test_everything_at_once(self, connection: Connection, group: str) -> None:
        alter(connection, Topic(group, "data", "nyc"), cleanup_policy="compact", message_timestamp_type="CreateTime")
        alter(connection, Topic(group, "epoch", "nyc"), retention_ms="1")
        with pytest.raises(UsageError) as found:
            check_topics(connection, [group], "nyc")
        lines = str(found.value).splitlines()
        assert [line.count("kafka-configs") for line in lines] == [1, 1]
        assert "--add-config cleanup.policy=delete,message.timestamp.type=LogAppendTime`" in lines[0]

    def test_a_retention_that_is_set_while_a_job_runs(self, connection: Connection, group: str) -> None:
        assert wrong_in_logs(connection, [group], "nyc") == {}
        alter(connection, Topic(group, "data", "nyc"), retention_ms="604800000", retention_bytes="1000000000")
        [sentence] = wrong_in_logs(connection, [group], "nyc").values()
        assert "has retention.ms=604800000, retention.bytes=1000000000, with which promises break" in sentence
        assert "--add-config retention.ms=-1,retention.bytes=-1` mends that" in sentence
        assert "`abcast maintain --data-retention 30d` deletes" in sentence

    def test_data_with_two_partitions(self, connection: Connection, group: str) -> None:
        with connection.admin() as admin:
            admin.create_partitions({f"abcast.{group}.data.nyc": 2})
        with pytest.raises(UsageError, match=rf"abcast\.{group}\.data\.nyc has 2 partitions"):
            check_topics(connection, [group], "nyc")

    def test_a_topic_that_is_not_there(self, connection: Connection, group: str) -> None:
        with pytest.raises(TopicMissing, match=rf"abcast\.{group}\.data\.sfo does not exist"):
            check_topics(connection, [group], "sfo")

    def test_nobody(self, connection: Connection) -> None:
        check_topics(connection, [], "nyc")

    def test_of_a_stranger(self, connection: Connection) -> None:
        """A company's defaults: a topic that Kafka created by itself has all of Kafka's own settings."""
        name = f"topics-{next(_numbers)}"
        with connection.admin() as admin:
            names = [f"abcast.{name}.{role}.nyc" for role in ("data", "epoch", "forward", "dead-letter")]
            admin.create_topics([NewTopic(each, num_partitions=1, replication_factor=1) for each in names])
            admin.wait_for_topics(names)
        with pytest.raises(UsageError) as found:
            check_topics(connection, [name], "nyc")
        wrong = [line.partition(" has ")[0] for line in str(found.value).splitlines()]
        assert wrong == [f"abcast.{name}.{role}.nyc" for role in ("data", "epoch", "forward")]


class TestRights:
    """Rights as Kafka reports them to their user. (tests/secure/test_rights.py has a real broker.)"""

    READ_AND_DESCRIBE = ("READ", "DESCRIBE")

    @pytest.mark.parametrize("operations", [(*READ_AND_DESCRIBE, "WRITE"), None])
    def test_enough_or_unknown(self, operations: tuple[str, ...] | None) -> None:
        assert _missing_rights(Connection("b:1"), Topic("g", "data", "nyc"), operations) == []

    def test_a_sequencer_that_may_only_read(self) -> None:
        [problem] = _missing_rights(Connection("b:1"), Topic("g", "data", "nyc"), self.READ_AND_DESCRIBE)
        assert problem == (
            "User:ANONYMOUS may not WRITE abcast.g.data.nyc: `abcast acl` gives each role the rights that it needs."
        )


@pytest.mark.broker
def test_names_that_kafka_takes_for_one(broker: EmbeddedBroker) -> None:
    """The sentence names the other topic; no topic is created, and the same group again is no clash."""
    connection = Connection(broker.bootstrap_servers)
    create_topics(connection, "double.name", ["local"])
    assert create_topics(connection, "double.name", ["local"]) == []
    with pytest.raises(UsageError, match=r"has the topic abcast\.double\.name\.data\.local, .* choose another name"):
        create_topics(connection, "double_name", ["local"])
    with connection.admin() as admin:
        assert not [name for name in admin.list_topics() if "double_name" in name]
