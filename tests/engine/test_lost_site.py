"""A site that agrees is lost: the remedy that its error names restores the number of sites."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from connectors.testing.memory_kafka import MemoryConnection
from jobs.cli import app
from ordering.agreement.sites.other_logs import OUT_FOR_GOOD
from ordering.base.records import JOIN
from tests.engine.test_agreeing import SITES, all_have, effective, lose_log, running, send
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "sites.md"
NEW_SITES = ("nyc", "sfo", "fra")


def _way() -> str:
    """Return the section of the page that the error names."""
    [heading] = re.findall(r'docs/sites.md says \("(.+)"\)', OUT_FOR_GOOD)
    [section] = re.findall(rf"^### {heading}\n(.+?)(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(section)


@pytest.mark.slow
def test_the_commands_of_the_way_are_commands() -> None:
    """Each command exists, with each of its options."""
    named = re.findall(r"`abcast ([^`]+)`", _way() + OUT_FOR_GOOD)
    assert {line.partition(" -")[0] for line in named} == {"site exclude", "topics create", "run"}
    for line in named:
        words = shlex.split(line)
        command = [word for word in words if word.islower() and not word.startswith("-") and word != "isis"]
        told = CliRunner().invoke(app, [*command, "--help"])
        assert told.exit_code == 0
        assert all(word in told.output for word in words if word.startswith("--"))


def test_a_new_group_has_as_many_sites_as_before() -> None:
    """lax is lost. The others go on; fra replaces it in a new group, and the old group keeps its messages."""
    kafka = MemoryConnection()
    for site in SITES:
        kafka.create("g", site)
    with running(kafka, "nyc", "sfo"):
        with running(kafka, "lax"):
            send(kafka, "lax", range(1, 3))
            all_have(kafka, 2)
        lose_log(kafka, "lax", "data")
        lose_log(kafka, "lax", "epoch")
        with running(kafka, "lax") as (lost,):
            eventually(lambda: lost.failure, 20)
            assert OUT_FOR_GOOD in str(lost.failure)
    for site in NEW_SITES:
        kafka.create("new", site)
    with running(kafka, *NEW_SITES, names=NEW_SITES, groups=("new",)) as loops:
        for site in NEW_SITES:
            send(kafka, site, range(1, 2), JOIN, group="new")
            send(kafka, site, range(2, 30), group="new")
        eventually(lambda: all(len(effective(kafka, site, "new")) >= 3 * 29 + 3 for site in NEW_SITES), 60)
        assert [loop.failure for loop in loops] == [None] * 3
    first, *others = (effective(kafka, site, "new") for site in NEW_SITES)
    assert all(other == first for other in others)
    assert [len(effective(kafka, site)) for site in ("nyc", "sfo")] == [2, 2]
