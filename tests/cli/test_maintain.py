"""`abcast maintain` without a ledger: topics only, and no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from connectors.kafka.connection import Connection
from connectors.kafka.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from jobs.cli import app
from jobs.maintain import seconds
from ordering.errors import UsageError

SITE = "care"


@pytest.mark.broker
def test_a_dry_run(broker: EmbeddedBroker, tmp_path: Path) -> None:
    create_topics(Connection(broker.bootstrap_servers), "maintained", [SITE])
    options = ["maintain", "--bootstrap-servers", broker.bootstrap_servers, "--site", SITE, "--data", str(tmp_path)]
    done = CliRunner().invoke(app, [*options, "--dry-run", "--json"], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert told["dry_run"] is True
    assert told["tables"] == []
    assert [(each["topic"], each["records"]) for each in told["topics"]] == [("abcast.maintained.dead-letter.care", 0)]
    assert CliRunner().invoke(app, options).stdout == "nothing to do\n"


@pytest.mark.parametrize(("text", "number"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604_800)])
def test_durations(text: str, number: int) -> None:
    assert seconds(text, "--every") == number


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "0h", "1 h", "1w", "5s", "1.5h", "9999999d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="--every is"):
        seconds(text, "--every")
