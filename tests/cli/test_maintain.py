"""`abcast maintain` without a ledger: topics only, and no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.purge import Purged
from connectors.kafka.topics.topics import create_topics
from connectors.ledger import maintenance_job
from connectors.ledger.table_state import LedgerDamaged
from connectors.local.broker import EmbeddedBroker
from connectors.spark.job import JobOptions
from jobs.cli import app
from jobs.terminal.times import seconds
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryUnavailable, UsageError

SITE = "care"


@pytest.mark.broker
def test_a_dry_run(broker: EmbeddedBroker, tmp_path: Path) -> None:
    create_topics(Connection(broker.bootstrap_servers), "maintained", [SITE])
    options = ["maintain", "--bootstrap-servers", broker.bootstrap_servers, "--site", SITE, "--data", str(tmp_path)]
    done = CliRunner().invoke(app, [*options, "--dry-run", "--json"], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert told["dry_run"] is True
    assert told["tables"] == []
    assert [(each["topic"], each["records"]) for each in told["topics"]] == [
        ("abcast.maintained.dead-letter.care", 0),
        ("abcast.maintained.inbox.care", 0),
    ]
    assert CliRunner().invoke(app, options).stdout == "nothing to do\n"


@pytest.mark.slow
def test_again_and_again_though_the_broker_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that will not pass ends the command."""
    errors: list[AbcastError] = [BrokerUnreachable("no broker."), BrokerUnreachable("no broker."), UsageError("wrong.")]

    def fail(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr("connectors.ledger.maintenance_job.maintain", fail)
    monkeypatch.setattr("jobs.maintain.job_options", lambda *_: None)
    monkeypatch.setattr("jobs.maintain.time.sleep", lambda _: None)
    options = ["maintain", "--bootstrap-servers", "localhost:1", "--site", SITE, "--data", str(tmp_path)]
    with pytest.raises(UsageError, match="wrong"):
        CliRunner().invoke(app, [*options, "--every", "1h"], catch_exceptions=False, standalone_mode=False)
    assert errors == []
    errors.append(BrokerUnreachable("no broker."))
    with pytest.raises(BrokerUnreachable):
        CliRunner().invoke(app, options, catch_exceptions=False, standalone_mode=False)


class TestAGroupThatFails:
    """A failing group ends no other; each is named, and the exit code tells of it."""

    @pytest.fixture
    def purged(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        purged: list[str] = []

        def purge(_: Connection, group: str, *__: object, **___: object) -> list[Purged]:
            purged.append(group)
            if group in self.errors:
                raise self.errors[group]
            return [Purged(f"abcast.{group}.forward.{SITE}", 3, 100, 50)]

        monkeypatch.setattr(maintenance_job, "find_groups", lambda *_: ["a", "b", "c"])
        monkeypatch.setattr(maintenance_job, "purge_group", purge)
        monkeypatch.setattr(maintenance_job, "purge_letters", lambda *_, **__: [])
        monkeypatch.setattr(
            "jobs.maintain.job_options", lambda *_: JobOptions(Connection("localhost:1"), SITE, Path("nowhere"))
        )
        return purged

    errors: ClassVar[dict[str, AbcastError]] = {}

    @pytest.mark.parametrize(
        "error", [UsageError("a has 3 partitions."), BrokerUnreachable("no leader."), HistoryUnavailable("it is gone.")]
    )
    def test_the_others_are_done(
        self, purged: list[str], tmp_path: Path, error: AbcastError, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self.__class__, "errors", {"a": error})
        done = CliRunner().invoke(app, ["maintain", "--site", SITE, "--data", str(tmp_path)], standalone_mode=False)
        assert purged == ["a", "b", "c"]
        assert f"abcast.c.forward.{SITE}" in done.stdout
        assert done.stderr.strip().endswith(str(error))
        assert done.exit_code == 1 or done.return_value == 1

    def test_all_of_them(self, purged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.__class__, "errors", {name: UsageError(f"{name} is wrong.") for name in "abc"})
        options = JobOptions(Connection("localhost:1"), SITE, tmp_path)
        with pytest.raises(UsageError, match=r"(?s)a is wrong.*c is wrong"):
            maintenance_job.maintain(pytest.fail, options, maintenance_job.MaintenanceOptions())
        assert purged == ["a", "b", "c"]

    def test_nobody_answers(self, purged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not each group is waited for then."""
        monkeypatch.setattr(self.__class__, "errors", dict.fromkeys("abc", BrokerUnreachable("no broker.")))
        options = JobOptions(Connection("localhost:1"), SITE, tmp_path)
        with pytest.raises(BrokerUnreachable):
            maintenance_job.maintain(pytest.fail, options, maintenance_job.MaintenanceOptions())
        assert purged == ["a", "b"]

    def test_the_tables(self, purged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def damaged(_: object) -> None:
            raise LedgerDamaged("the table is damaged.")

        monkeypatch.setattr(maintenance_job, "plan_maintenance", damaged)
        options = JobOptions(Connection("localhost:1"), SITE, tmp_path)
        done = maintenance_job.maintain(pytest.fail, options, maintenance_job.MaintenanceOptions())
        assert list(done.failures) == ["the tables"]
        assert purged == ["a", "b", "c"]

    @pytest.mark.parametrize("failing", ["ab", "abc"])
    def test_the_tables_and_groups(
        self, purged: list[str], tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tables are no group: one group that was done is told of; with none, all errors are raised."""

        def damaged(_: object) -> None:
            raise LedgerDamaged("the table is damaged.")

        monkeypatch.setattr(maintenance_job, "plan_maintenance", damaged)
        monkeypatch.setattr(self.__class__, "errors", {name: UsageError(f"{name} is wrong.") for name in failing})
        options = JobOptions(Connection("localhost:1"), SITE, tmp_path)
        if failing == "abc":
            with pytest.raises(AbcastError, match=r"(?s)the table is damaged.*a is wrong.*c is wrong"):
                maintenance_job.maintain(pytest.fail, options, maintenance_job.MaintenanceOptions())
        else:
            done = maintenance_job.maintain(pytest.fail, options, maintenance_job.MaintenanceOptions())
            assert [each.topic for each in done.topics] == [f"abcast.c.forward.{SITE}"]
            assert list(done.failures) == ["the tables", "a", "b"]
        assert purged == ["a", "b", "c"]


@pytest.mark.parametrize(("text", "number"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604_800)])
def test_durations(text: str, number: int) -> None:
    assert seconds(text, "--every") == number


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "0h", "1 h", "1w", "5s", "1.5h", "9999999d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="--every is"):
        seconds(text, "--every")
