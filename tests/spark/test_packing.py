"""The files and the output of `abcast package`. (`test_standalone` runs it.)"""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from connectors.local.jars import FOR_SPARK, check_hashes, locked_hashes
from connectors.spark.packing import LIBRARIES, UNPACKED, Manager, Package, manager_of, pack, submit_line
from connectors.spark.session import SETTINGS
from ordering.base.errors import UsageError
from tests.cli.here import abcast_here
from tests.waiting import WAIT

PACKAGE = Package(Path("/d d/python.tar.gz"), [Path("/d d/a.jar"), Path("/d d/b.jar")], Path("/d d/job.py"))


def words(line: str) -> list[str]:
    """Split the line as a shell does."""
    return shlex.split(line.replace("\\\n", " "))


def settings(line: str) -> dict[str, str]:
    parts = words(line)
    return dict(value.split("=", 1) for name, value in itertools.pairwise(parts) if name == "--conf")


@pytest.mark.slow
def test_what_is_written(tmp_path: Path) -> None:
    """The workers' daemon has the name that the driver uses; a second call replaces all files."""
    pack(tmp_path, with_libraries=False)
    (tmp_path / "jars" / "old.jar").touch()
    packed = pack(tmp_path, with_libraries=False)
    check_hashes(tmp_path / "jars", *FOR_SPARK)
    with tarfile.open(packed.archive) as archive:
        names = {member.name for member in archive}
        assert {member.uname for member in archive} == {""}
    assert f"{SETTINGS['spark.python.daemon.module'].replace('.', '/')}.py" in names
    assert "ordering/sequencer/sequencer.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(LIBRARIES)]
    assert {path.name for path in tmp_path.iterdir()} == {f"{UNPACKED}.tar.gz", "jars", "abcast_job.py"}


@pytest.mark.long
@pytest.mark.slow
def test_tables_on_s3_take_their_jars_along(tmp_path: Path) -> None:
    """The command names the jars and the tables' place, and no login."""
    url, secret = "s3a://tables/abcast", "not-to-be-seen"
    login = {"ABCAST_STORAGE_ACCESS_KEY_ID": "key", "ABCAST_STORAGE_SECRET_ACCESS_KEY": secret}
    asked = ("package", tmp_path / "packed", "--no-libraries", "--master", "spark://h:1")
    for by_option, variables in ((("--data", url), login), ((), {**login, "ABCAST_DATA": url})):
        done = abcast_here(*asked, *by_option, cwd=tmp_path, variables=variables)
        assert done.returncode == 0, done.stderr
        check_hashes(tmp_path / "packed" / "jars", *FOR_SPARK, "s3")
        parts = words(done.stdout)
        shipped = {Path(jar).name for jar in parts[parts.index("--jars") + 1].split(",")}
        assert shipped == {jar for each in (*FOR_SPARK, "s3") for jar in locked_hashes(each)}
        assert parts[-3:] == ["run", "--data", url]
        assert secret not in done.stdout + done.stderr
    done = abcast_here(*asked, "--data", "tables", cwd=tmp_path)
    check_hashes(tmp_path / "packed" / "jars", *FOR_SPARK)
    assert words(done.stdout)[-1] == "run"
    done = abcast_here(*asked, "--json", cwd=tmp_path)
    row = json.loads(done.stdout)
    assert (row["master"], words(row["command"])[-1]) == ("spark://h:1", "run")


@pytest.mark.parametrize("manager", Manager)
def test_a_line_for_each_manager(manager: Manager) -> None:
    line = submit_line(PACKAGE, manager.value, "python3.11")
    parts = words(line)
    assert parts[0].endswith("/spark-submit")
    assert Path(parts[0]).exists()
    assert parts[-2:] == ["/d d/job.py", "run"]
    assert manager_of(parts[parts.index("--master") + 1]) is manager
    assert parts[parts.index("--archives") + 1] == f"/d d/python.tar.gz#{UNPACKED}"
    assert parts[parts.index("--jars") + 1] == "/d d/a.jar,/d d/b.jar"
    told = settings(line)
    assert told["spark.executorEnv.PYTHONPATH"] == UNPACKED
    assert told["spark.pyspark.driver.python"] == sys.executable
    assert told["spark.pyspark.python"] == "python3.11"
    assert ("spark.kubernetes.container.image" in told) == (manager is Manager.kubernetes)


def test_a_masters_url_stands_in_the_line() -> None:
    assert "--master spark://h:1" in submit_line(PACKAGE, "spark://h:1", "python3")


@pytest.mark.parametrize("master", ["local", "local[2]", "mesos://h:1", "spark", ""])
def test_no_master_of_a_cluster(master: str) -> None:
    with pytest.raises(UsageError, match="is none of standalone, yarn"):
        manager_of(master)


NOT_ON_EXECUTORS = """
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"kafka", "confluent_kafka", "pydantic", "typer", "rich", "deltalake"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Lacking())
import connectors.ledger.one_pass, connectors.sequencer.agreeing_query, connectors.sequencer.python_workers
import connectors.sequencer.query
import connectors.spark.codec, connectors.spark.first_task
"""


@pytest.mark.slow
def test_what_executors_import_needs_nothing_else() -> None:
    """Executors have no Kafka client and none of the commands' libraries."""
    done = subprocess.run(
        [sys.executable, "-c", NOT_ON_EXECUTORS], capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert done.stderr == ""
