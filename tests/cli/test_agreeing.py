"""Commands that need no answer of Kafka to refuse a request for sites that agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from ordering.base.errors import UsageError

AGREEING = 'mode = "isis"\n'
SHARED = 'mode = "isis"\n[sites.lax]\nbootstrap_servers = "127.0.0.1:1"\n'
TABLES = '[sites.nyc]\nbootstrap_servers = "127.0.0.1:1"\n[sites.sfo]\nbootstrap_servers = "127.0.0.1:2"\n'


@pytest.mark.parametrize(
    ("head", "arguments", "says"),
    [
        (AGREEING, ("sequence", "--site", "lax"), "'lax' is not configured"),
        (AGREEING, ("sequence", "--site", "lax", "--engine", "process"), "'lax' is not configured"),
        ("", ("sequence", "--site", "nyc", "--agreement", "isis"), 'mode "mesh"'),
        ('home = "nyc"\n', ("run", "--site", "nyc", "--agreement", "isis"), 'mode "hub"'),
        (AGREEING, ("site", "add", "sfo", "--group", "g"), "create a new group"),
        (AGREEING, ("site", "promote", "sfo", "--group", "g"), "home"),
        (AGREEING, ("site", "exclude", "lax", "--group", "g", "--at", "nyc"), "'lax' is not configured"),
        (AGREEING, ("site", "exclude", "sfo", "--group", "g", "--at", "lax"), "'lax' is not configured"),
        (SHARED, ("relay", "--from", "lax", "--to", "nyc"), "they need no relay"),
        ("", ("site", "exclude", "sfo", "--group", "g", "--at", "nyc"), "only sites that agree"),
        ('mode = "isis"\nlinks = []\n', ("site", "list"), "leave links out"),
    ],
)
def test_what_a_user_is_told(tmp_path: Path, head: str, arguments: tuple[str, ...], says: str) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(head + TABLES, encoding="utf-8")
    done = CliRunner().invoke(app, [*arguments, "--sites", str(file)])
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
