"""A user's Spark settings go before ours, except where a promise needs ours."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from connectors.spark.session import LOCAL_SETTINGS, SETTINGS, default_settings, readers_kept, what_tasks_need
from connectors.spark.user_settings import REQUIRED, check_settings, user_settings
from ordering.base.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    """Return a directory with a spark-defaults.conf."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\n\nspark.ui.enabled true\nspark.eventLog.dir=hdfs://a:1/logs\n  spark.driver.memory :  3g \n"
        "other.setting 1\nspark.executor.extraJavaOptions -Da=b -Dc=d\n",
        encoding="utf-8",
    )
    return tmp_path


def test_spark_defaults_and_submit_arguments(defaults: Path) -> None:
    """The arguments go before the file, as with spark-submit."""
    arguments = "--master spark://h:7077 --conf spark.ui.enabled=false -c 'spark.a=b c' --driver-memory 5g --verbose"
    settings = user_settings({"SPARK_CONF_DIR": str(defaults), "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell"})
    assert settings == {
        "spark.ui.enabled": "false",
        "spark.eventLog.dir": "hdfs://a:1/logs",
        "spark.driver.memory": "5g",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
        "spark.a": "b c",
        "spark.master": "spark://h:7077",
    }


def test_another_file_of_properties(defaults: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text("spark.ui.enabled=1\n", encoding="utf-8")
    arguments = f"--properties-file {file} pyspark-shell"
    assert user_settings({"SPARK_CONF_DIR": str(defaults), "PYSPARK_SUBMIT_ARGS": arguments}) == {
        "spark.ui.enabled": "1"
    }


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("--conf spark.a", "not NAME=VALUE"),
        ("--conf 'spark.a=b", "can't be read"),
        ("--master", "can't be read"),
        ("--properties-file /nowhere", "/nowhere can't be read"),
    ],
)
def test_arguments_that_can_not_be_read(arguments: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=what):
        user_settings({"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": arguments})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        *(({name: "4"}, f"{name} is 4, and must be {value}: ") for name, (value, _) in REQUIRED.items()),
        ({"spark.sql.extensions": "org.other.Extension"}, "must name io.delta"),
        ({"spark.delta.logStore.class": "io.delta.storage.S3SingleDriverLogStore"}, "commit one version twice"),
        ({"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}, "commit one version twice"),
        ({"spark.master": "local[2,4]"}, r"local\[2,4\] tries a task 4 times"),
    ],
)
def test_what_breaks_a_promise_is_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_settings(settings)


def test_what_breaks_no_promise(defaults: Path) -> None:
    """Settings equal to ours, settings with a default of ours, and any others."""
    check_settings({name: value.upper() for name, (value, _) in REQUIRED.items()})
    check_settings({"spark.sql.extensions": f"org.other.Extension, {SETTINGS['spark.sql.extensions']}"})
    check_settings({"spark.master": "local[*,1]"})
    check_settings(dict.fromkeys(SETTINGS.keys() - REQUIRED.keys() - {"spark.sql.extensions"}, "anything"))
    assert all(SETTINGS[name] == value for name, (value, _) in REQUIRED.items())


def test_who_waits_for_a_task_is_asked_the_right_question() -> None:
    """An executor that can't reach the driver looks like no executor."""
    context = SimpleNamespace(master="spark://h:7077", getConf=lambda: {"spark.driver.host": "d.example"})
    asked = what_tasks_need(context)  # type: ignore[arg-type]
    assert "Does spark://h:7077 have a free core" in asked
    assert "reach the driver, d.example?" in asked
    assert what_tasks_need(SimpleNamespace(master="local[2]")) == "Does Spark have a free core?"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("master", "is_loopback"),
    [(None, True), ("local", True), ("local[4]", True), ("spark://h:7077", False), ("k8s://h", False), ("yarn", False)],
)
def test_the_driver_is_on_loopback_in_local_mode_only(master: str | None, is_loopback: bool) -> None:
    settings = default_settings("abcast", 2, master)
    assert (settings.items() >= LOCAL_SETTINGS.items()) is is_loopback
    assert settings["spark.master"] == (master or "local[2]")


_SESSION = """
import json
from connectors.spark.session import build_session
session = build_session("abcast settings", cores=1)
conf = session.sparkContext.getConf()
names = ("spark.ui.enabled", "spark.driver.memory", "spark.master", "spark.driver.host", "spark.task.maxFailures")
print(json.dumps({**{name: conf.get(name) for name in names}, "url": session.sparkContext.uiWebUrl}))
session.stop()
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_a_session_of_the_users(defaults: Path) -> None:
    """The settings of a real JVM."""
    arguments = "--conf spark.ui.port=0 --driver-memory 900m pyspark-shell"
    environment = {**os.environ, "SPARK_CONF_DIR": str(defaults), "PYSPARK_SUBMIT_ARGS": arguments}
    done = subprocess.run(
        [sys.executable, "-c", _SESSION],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("url").startswith("http://127.0.0.1:")
    assert told == {
        "spark.ui.enabled": "true",
        "spark.driver.memory": "900m",
        "spark.master": "local[1]",
        "spark.driver.host": "127.0.0.1",
        "spark.task.maxFailures": "1",
    }


@pytest.mark.parametrize(
    ("most_files", "readers"), [(100, 64), (1024, 128), (20_000, 2500), (100_000, 4096), (resource.RLIM_INFINITY, 4096)]
)
def test_readers_of_kafka_leave_files_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, most_files: int, readers: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, most_files))
    assert readers_kept() == readers
