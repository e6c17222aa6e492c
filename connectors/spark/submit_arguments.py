"""The variable PYSPARK_SUBMIT_ARGS, which has arguments as on spark-submit's command line."""

from __future__ import annotations

import argparse
import shlex

from ordering.base.errors import UsageError


def other_arguments(text: str) -> list[str]:
    """Return the arguments in PYSPARK_SUBMIT_ARGS that are no settings (`user_settings`). Raises UsageError."""
    return submit_arguments(text)[1]


def submit_arguments(text: str) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed settings, and all other arguments unchanged. Raises UsageError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    for name in ("--master", "--driver-memory", "--executor-memory", "--total-executor-cores", "--name"):
        parser.add_argument(name)
    parser.add_argument("--properties-file")
    try:
        return parser.parse_known_args(shlex.split(text))
    except (argparse.ArgumentError, ValueError) as error:
        raise UsageError(f"PYSPARK_SUBMIT_ARGS can't be read: {error}.") from error
