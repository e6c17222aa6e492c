"""The user's settings of Spark, which override abcast's defaults.

Under spark-submit the JVM knows all of them (`--conf`, `--master`, `--driver-memory`, spark-defaults). Otherwise abcast
starts the JVM, and reads where Spark itself reads: spark-defaults.conf and the variable PYSPARK_SUBMIT_ARGS.

Some settings can't be changed: with another value a promise breaks, or no table can be read. A user who sets one gets
an error before anything starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pyspark

from connectors.kafka.login.properties import parse_properties
from connectors.spark.submit_arguments import submit_arguments
from connectors.storage.settings import LOG_STORE, LOG_STORE_SETTING
from ordering.base.errors import UsageError

_ONCE = "a task that runs twice in an epoch would decide its messages twice, perhaps differently"
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
"""The only value that a setting may have, and the reason."""

_LOG_STORES = (LOG_STORE_SETTING, "spark.delta.logStore.class")

_LOCAL_RETRIES = re.compile(r"local\[[^,\]]*,\s*([^\]]*)\]")


def user_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of spark-defaults and PYSPARK_SUBMIT_ARGS. Raises UsageError if they can't be read."""
    variables = os.environ if environment is None else environment
    arguments, _ = submit_arguments(variables.get("PYSPARK_SUBMIT_ARGS", ""))
    settings = _properties(Path(arguments.properties_file)) if arguments.properties_file else _defaults(variables)
    settings |= dict(_pair(text) for text in arguments.conf)
    named = {
        "spark.master": arguments.master,
        "spark.driver.memory": arguments.driver_memory,
        "spark.executor.memory": arguments.executor_memory,
        "spark.cores.max": arguments.total_executor_cores,
        "spark.app.name": arguments.name,
    }
    return settings | {name: value for name, value in named.items() if value}


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise UsageError for a setting with which a promise breaks."""
    for name, (value, why) in REQUIRED.items():
        if settings.get(name, value).strip().lower() != value.lower():
            raise UsageError(f"Spark's setting {name} is {settings[name]}, and must be {value}: {why}.")
    for name in _LOG_STORES:
        if settings.get(name, LOG_STORE) != LOG_STORE:
            raise UsageError(
                f"Spark's setting {name} is {settings[name]}, and must not be set: with it, two ledger jobs could "
                "commit one version twice."
            )
    extensions = settings.get("spark.sql.extensions", _DELTA_EXTENSION)
    if _DELTA_EXTENSION not in (part.strip() for part in extensions.split(",")):
        raise UsageError(
            f"Spark's setting spark.sql.extensions is {extensions}, and must name {_DELTA_EXTENSION}, too: the ledger "
            "is a Delta table."
        )
    retries = _LOCAL_RETRIES.fullmatch(settings.get("spark.master", ""))
    if retries is not None and retries[1].strip() != "1":
        raise UsageError(f"Spark's master {settings['spark.master']} tries a task {retries[1]} times: {_ONCE}.")


def is_local(master: str) -> bool:
    """Whether driver and executors are one process, which no other has to reach."""
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
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Spark's settings in {file} can't be read: {error}.") from error
    return {name: value.strip() for name, value in parse_properties(text) if name.startswith("spark.")}
