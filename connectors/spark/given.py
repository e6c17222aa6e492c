"""What the user has set of Spark: it goes before our own settings, which are defaults.

Under spark-submit the JVM knows all of it (`--conf`, `--master`, `--driver-memory`, spark-defaults). Otherwise we start
the JVM, and look where Spark itself looks: into spark-defaults.conf and the variable PYSPARK_SUBMIT_ARGS.

Some settings are no matter of taste: with others in their place a promise breaks, or no table can be read. Who sets
those is told so before anything starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pyspark

from connectors.spark.submit_arguments import submit_arguments
from connectors.storage.settings import LOG_STORE, LOG_STORE_SETTING
from ordering.base.errors import UsageError

_ONCE = "a task that runs a second time inside an epoch decides what was decided already, perhaps otherwise"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

REQUIRED = {
    "spark.task.maxFailures": ("1", _ONCE),
    "spark.stage.maxConsecutiveAttempts": ("1", _ONCE),
    "spark.speculation": ("false", _ONCE),
    "spark.sql.streaming.unsupportedOperationCheck": (
        "false",
        "the sequencer sorts a stream",
    ),
    "spark.sql.catalog.spark_catalog": (
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "the ledger is a Delta table",
    ),
}
"""The one value that a setting may have, and why."""

_LOG_STORES = (LOG_STORE_SETTING, "spark.delta.logStore.class")

_LOCAL_RETRIES = re.compile(r"local\[[^,\]]*,\s*([^\]]*)\]")
_PROPERTY = re.compile(r"([^\s=:]+)\s*[\s=:]\s*(.*)")


def given_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What spark-defaults and PYSPARK_SUBMIT_ARGS say. Raises UsageError for a file that can't be read."""
    variables = os.environ if environment is None else environment
    told, _ = submit_arguments(variables.get("PYSPARK_SUBMIT_ARGS", ""))
    given = _properties(Path(told.properties_file)) if told.properties_file else _defaults(variables)
    given |= dict(_pair(text) for text in told.conf)
    named = {
        "spark.master": told.master,
        "spark.driver.memory": told.driver_memory,
        "spark.executor.memory": told.executor_memory,
        "spark.cores.max": told.total_executor_cores,
        "spark.app.name": told.name,
    }
    return given | {name: value for name, value in named.items() if value}


def check_given(given: Mapping[str, str]) -> None:
    """Raise UsageError for a setting that a promise needs otherwise."""
    for name, (value, why) in REQUIRED.items():
        if given.get(name, value).strip().lower() != value.lower():
            raise UsageError(f"Spark's setting {name} is {given[name]}, and must be {value}: {why}.")
    for name in _LOG_STORES:
        if given.get(name, LOG_STORE) != LOG_STORE:
            raise UsageError(
                f"Spark's setting {name} is {given[name]}, and must not be set: with it, two ledger jobs could commit "
                "one version twice."
            )
    extensions = given.get("spark.sql.extensions", _DELTA_EXTENSION)
    if _DELTA_EXTENSION not in (part.strip() for part in extensions.split(",")):
        raise UsageError(
            f"Spark's setting spark.sql.extensions is {extensions}, and must name {_DELTA_EXTENSION}, too: the ledger "
            "is a Delta table."
        )
    retries = _LOCAL_RETRIES.fullmatch(given.get("spark.master", ""))
    if retries is not None and retries[1].strip() != "1":
        raise UsageError(f"Spark's master {given['spark.master']} tries a task {retries[1]} times: {_ONCE}.")


def is_local(master: str) -> bool:
    """Whether driver and executors are one process, so that nobody else has to reach it."""
    return master == "local" or master.startswith("local[")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"PYSPARK_SUBMIT_ARGS: --conf {text} is not NAME=VALUE.")
    return name, value


def _defaults(variables: Mapping[str, str]) -> dict[str, str]:
    home = Path(variables.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    file = Path(variables.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return _properties(file) if file.is_file() else {}


def _properties(file: Path) -> dict[str, str]:
    """Java's properties, as far as spark-defaults use them: a name, a value, comments."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Spark's settings in {file} can't be read: {error}.") from error
    found = (_PROPERTY.fullmatch(line.strip()) for line in lines if not line.lstrip().startswith(("#", "!")))
    return {match[1]: match[2].strip() for match in found if match is not None and match[1].startswith("spark.")}
