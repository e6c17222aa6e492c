"""Tables of 0.1.0 name the group in a column `group`, a keyword of SQL; this version names it `group_name`.

One commit renames the column of a table, so a crash leaves the table as it was or as it is to be. Where the table is
partitioned by the column, no file has it: the commit adds each file again, under the new name. The table of views is
small, and its files are written anew. The directories of older files keep their names (`group=…`), which say nothing:
a partition's value comes from Delta's log.

A commit of another writer between the read and the commit makes the commit fail: where no lock keeps an earlier version
away, that version may write until then. RESTORE to a version before the rename leaves files with the new
name in a table with the old one, as Delta compares only their paths. Renaming again mends that.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame, SparkSession

from connectors.ledger.row import GROUP, OLD_GROUP
from connectors.ledger.table_state import damaged
from connectors.storage.location import Location

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView


def rename_group_column(spark: SparkSession, path: Location, partitioned_by: list[str]) -> None:
    """Rename the column of the Delta table at `path`. The caller holds the lock of the tables, if there is one.

    Raises LedgerDamaged if the table is partitioned otherwise, and errors of Delta.
    """
    delta = cast("JVMView", spark._jvm).org.apache.spark.sql.delta  # noqa: SLF001
    transaction = delta.DeltaLog.forTable(spark._jsparkSession, str(path)).startTransaction()  # noqa: SLF001
    metadata = json.loads(transaction.metadata().json())
    if [*map(_new_name, metadata["metaData"]["partitionColumns"])] != partitioned_by:
        raise damaged(path, f"it is not partitioned by {partitioned_by or 'nothing'}")
    read = transaction.filterFiles()  # unlike the snapshot's files, these count as read: Delta looks for conflicts
    files = [json.loads(read.apply(place).json())["add"] for place in range(read.size())]
    transaction.updateMetadata(delta.actions.Action.fromJson(json.dumps(_renamed(metadata))), False)
    if partitioned_by:
        actions = [delta.actions.Action.fromJson(json.dumps({"add": _of_partition(each)})) for each in files]
    else:
        rows = spark.read.format("delta").load(str(path)).withColumnRenamed(OLD_GROUP, GROUP)
        actions = [*_written(transaction, rows, delta), *(_removed(each, delta) for each in files)]
    transaction.commit(_seq(spark, actions), getattr(delta, "DeltaOperations$ManualUpdate$").__getattr__("MODULE$"))


def _renamed(metadata: dict[str, Any]) -> dict[str, Any]:
    table = metadata["metaData"]
    schema = json.loads(table["schemaString"])
    fields = [{**each, "name": _new_name(each["name"])} for each in schema["fields"]]
    columns = [*map(_new_name, table["partitionColumns"])]
    return {
        "metaData": {**table, "schemaString": json.dumps({**schema, "fields": fields}), "partitionColumns": columns}
    }


def _new_name(column: str) -> str:
    """Return the name of a column of 0.1.0 in this version."""
    return GROUP if column == OLD_GROUP else column


def _of_partition(added: dict[str, Any]) -> dict[str, Any]:
    values = {_new_name(name): value for name, value in added["partitionValues"].items()}
    return {**added, "partitionValues": values, "dataChange": False}


def _written(transaction: JavaObject, rows: DataFrame, delta: JavaObject) -> list[JavaObject]:
    """Write the rows into new files, which belong to no version yet."""
    written = transaction.writeFiles(rows._jdf)  # noqa: SLF001
    added = [json.loads(written.apply(place).json())["add"] for place in range(written.size())]
    return [delta.actions.Action.fromJson(json.dumps({"add": {**each, "dataChange": False}})) for each in added]


def _removed(added: dict[str, Any], delta: JavaObject) -> JavaObject:
    removed = {"path": added["path"], "deletionTimestamp": round(time.time() * 1000), "dataChange": False}
    return delta.actions.Action.fromJson(json.dumps({"remove": removed}))


def _seq(spark: SparkSession, actions: list[JavaObject]) -> JavaObject:
    return spark._jvm.PythonUtils.toSeq(actions)  # type: ignore[union-attr]  # noqa: SLF001
