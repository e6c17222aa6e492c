"""The variable PYSPARK_SUBMIT_ARGS: what spark-submit would be told on its command line."""

from __future__ import annotations

import argparse
import shlex

from ordering.base.errors import UsageError


def other_arguments(text: str) -> list[str]:
    """What PYSPARK_SUBMIT_ARGS has besides that which `given_settings` tells. Raises UsageError."""
    return submit_arguments(text)[1]


def submit_arguments(text: str) -> tuple[argparse.Namespace, list[str]]:
    """What it says of settings, and all else, as it was. Raises UsageError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    for name in ("--master", "--driver-memory", "--executor-memory", "--total-executor-cores", "--name"):
        parser.add_argument(name)
    parser.add_argument("--properties-file")
    try:
        return parser.parse_known_args(shlex.split(text))
    except (argparse.ArgumentError, ValueError) as error:
        raise UsageError(f"PYSPARK_SUBMIT_ARGS can't be read: {error}.") from error
