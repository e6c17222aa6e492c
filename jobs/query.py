"""`abcast query`: SQL over the ledger and the views."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.options import DEFAULT_DATA, AsJson, Data, run_script
from ordering.errors import UsageError


def query(
    sql: Annotated[str, typer.Argument(help="Spark SQL over the tables `ledger` and `views`.")],
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows printed at most.")] = 1000,
) -> None:
    """Run SQL over the Delta tables `ledger` and `views`.

    `abcast query "SELECT sender, count(*) FROM ledger GROUP BY sender"`. Payloads are binary: `CAST(payload AS
    STRING)`, and `get_json_object(CAST(payload AS STRING), '$.field')` for JSON.
    """
    if not (data / "ledger" / "_delta_log").is_dir():
        raise UsageError(f"there is no ledger in {data}: point --data at the directory that `abcast run` was given.")
    typer.echo("starting Spark (about 5 s) …", err=True)
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    from jobs.streaming import session_of_command

    spark = session_of_command("abcast query")
    try:
        for name in ("ledger", "views"):
            spark.read.format("delta").load(str((data / name).absolute())).createOrReplaceTempView(name)
        try:
            result = spark.sql(sql).limit(limit)
            if as_json:
                as_text = result.select(functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"}))
                for (line,) in as_text.collect():
                    typer.echo(line)
            else:
                result.show(limit, truncate=False)
        except PySparkException as error:
            raise UsageError(f"Spark can't run this: {str(error).splitlines()[0]}") from error
    finally:
        spark.stop()


if __name__ == "__main__":
    run_script(query)
