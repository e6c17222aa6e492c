"""`abcast restore`: mistakes are told in a sentence, before anything is asked of Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from ordering.base.errors import UsageError
from tests.ledger.ledger_of import decided, effective, write_ledger


def restore(data: Path, *more: str) -> None:
    options = ["restore", "--data", str(data), "--bootstrap-servers", "localhost:1", *more]
    CliRunner().invoke(app, options, catch_exceptions=False, standalone_mode=False)


def test_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no ledger in"):
        restore(tmp_path)
    with pytest.raises(UsageError, match="there is no ledger of group orders"):
        restore(tmp_path, "--group", "orders")


def test_no_group(tmp_path: Path) -> None:
    """A group of the table may have been deleted on purpose: none is restored unasked."""
    log = effective(decided(linked=False))
    write_ledger(tmp_path / "ledger", log)
    with pytest.raises(UsageError, match=rf"say with --group what to restore.*g \(up to seqno {log[-1].seqno}\)"):
        restore(tmp_path)
