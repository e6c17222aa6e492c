"""`abcast package`: the package for the executors of a Spark cluster, and the command that starts a job there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from jobs.terminal.options import DEFAULT_DATA, AsJson, Data, new_directory, require

_MANAGERS = ("standalone", "yarn", "kubernetes")


def package(
    directory: Annotated[
        Path,
        typer.Argument(
            parser=new_directory, metavar="DIR", help="The directory to write to; created if it is missing."
        ),
    ],
    master: Annotated[
        list[str] | None,
        typer.Option(help="standalone, yarn, kubernetes, or a master's URL; repeat for more (all three)."),
    ] = None,
    python: Annotated[
        str, typer.Option(help="Name of Python on the executors, of the same minor version as here.")
    ] = f"python{sys.version_info.major}.{sys.version_info.minor}",
    libraries: Annotated[
        bool,
        typer.Option("--libraries/--no-libraries", help="Pack numpy, pandas and pyarrow, unless executors have them."),
    ] = True,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Write the files that executors of a Spark cluster need.

    DIR gets jars, abcast's code, and its libraries. Executors need nothing else of abcast. The printed line starts a
    job there with spark-submit; append the job's options to it. With --data s3a://… DIR gets the jars for tables on S3,
    too.
    """
    require("pyspark")
    from connectors.local.jars import FOR_SPARK
    from connectors.spark.packing import manager_of, pack, submit_line
    from connectors.storage.location import S3, RemotePath

    masters = master or list(_MANAGERS)
    for each in masters:
        manager_of(each)
    is_remote = isinstance(data, RemotePath)
    configurations = (*FOR_SPARK, "s3") if isinstance(data, RemotePath) and data.scheme == S3 else FOR_SPARK
    packed = pack(directory, with_libraries=libraries, configurations=configurations)
    size = packed.archive.stat().st_size + sum(jar.stat().st_size for jar in packed.jars)
    typer.echo(
        f"wrote {packed.archive.name}, {len(packed.jars)} jars, {packed.script.name} ({size >> 20} MiB)", err=True
    )
    job = ("run", "--data", str(data)) if is_remote else ("run",)
    for number, each in enumerate(masters):
        line = submit_line(packed, each, python, job)
        if as_json:
            typer.echo(json.dumps({"master": each, "command": line}))
            continue
        if len(masters) > 1:
            typer.echo(f"{'' if number == 0 else chr(10)}# {each}")
        typer.echo(line)
