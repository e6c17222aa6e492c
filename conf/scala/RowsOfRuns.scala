package abcast

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, Generator, GenericInternalRow, UnaryExpression}
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.catalyst.util.{ArrayData, GenericArrayData}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.types.UTF8String

/**
 * The rows of Spark's Kafka sink from runs, one for each record of a run, in their order.
 *
 * A run's records are in its arrays, or aside: in this task (`RecordsAside`) or in the run, as bytes (`PackedRecords`).
 * Then each is brought back by its own offset, once. What Spark's own functions would do for each record step by step is
 * one step here, without a row between them: their code copies each row that comes of an `explode`, with its payload.
 */
case class RowsOfRuns(child: Expression, version: String, header: String, nothing: String)
    extends UnaryExpression with Generator with CodegenFallback {
  private lazy val words = (UTF8String.fromString(version), UTF8String.fromString(header), UTF8String.fromString(nothing))

  override def prettyName: String = "rows_of_runs"

  override def elementSchema: StructType = RowsOfRuns.Schema

  override def eval(input: InternalRow): IterableOnce[InternalRow] =
    new Run(child.eval(input).asInstanceOf[InternalRow], words._1, words._2, words._3).rows

  override protected def withNewChildInternal(newChild: Expression): RowsOfRuns = copy(child = newChild)
}

object RowsOfRuns {

  /** Of Spark's Kafka sink. */
  private[abcast] val Schema: StructType = StructType.fromDDL(
    "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>")

  /** The columns, of one with structs as `Run` has them. `version`, `header` and `nothing`: of abcast's own header. */
  def of(run: Expression, version: String, header: String, nothing: String): Expression =
    RowsOfRuns(run, version, header, nothing)
}

/** A run's columns. Arrays have an element for each record. */
private class Run(run: InternalRow, version: UTF8String, header: UTF8String, nothing: UTF8String) {
  private val topic = run.getUTF8String(0)
  private val isData = run.getBoolean(1)
  private val kind = run.getUTF8String(2)
  private val behindSeqno = run.getUTF8String(3)
  private val group = run.getUTF8String(4)
  private val fromTopic = run.getUTF8String(5)
  private val fromPartition = run.getInt(6)
  private val firstOffset = run.getLong(7)
  private val firstSeqno = run.getLong(8)
  private val size = run.getInt(9)
  private val seqnos = run.getInt(10) // null if it is not DATA
  private val isAside = run.getBoolean(11)
  private val keys = run.getArray(12)
  private val values = run.getArray(13)
  private val headerNames = run.getArray(14)
  private val headerValues = run.getArray(15)
  private val records = run.getBinary(16)
  private var seqno = firstSeqno

  /** Each is read before the next one is made. */
  def rows: Iterator[InternalRow] = {
    val row = new GenericInternalRow(5)
    row.update(0, topic)
    row.update(1, 0) // readers of DATA and of dead letters read this partition only
    val write: Int => Unit = if (isAside) fromAside(row) else fromArrays(row)
    Iterator.range(0, size).map { index => write(index); row }
  }

  private def fromAside(row: InternalRow): Int => Unit = {
    val take = if (records == null) fromThisTask() else fromTheRun()
    index => {
      val (record, value) = take(firstOffset + index)
      val count = record.getInt(6)
      val taken = if (isData && size == 1) seqnos else count // a pack that is cut is a run of its own
      if (taken < 1 || taken > count)
        throw new IllegalStateException(s"The record at the offset ${firstOffset + index} has $count messages, not $taken.")
      row.update(2, record.getBinary(0))
      row.update(3, if (taken < count) Packs.rest(value, count, taken) else value)
      val headers = record.getArray(7)
      val own = if (isData) Array[Any](ownHeader(record, index, count - taken, taken)) else Array.empty[Any]
      seqno += taken
      val theirs = Array.range(own.length, headers.numElements()).map[Any](headers.getStruct(_, 2))
      row.update(4, new GenericArrayData(own ++ theirs ++ given(index)))
    }
  }

  private def fromThisTask(): Long => (InternalRow, Array[Byte]) = {
    val aside = RecordsAside.ofThisAttempt()
    offset => aside.take(group, fromTopic, fromPartition, offset)
  }

  private def fromTheRun(): Long => (InternalRow, Array[Byte]) = {
    val packed = new PackedRecords(records, size)
    offset => {
      val record = packed.take(offset)
      (record, record.getBinary(1))
    }
  }

  private def fromArrays(row: InternalRow)(index: Int): Unit = {
    row.update(2, binary(keys, index))
    row.update(3, binary(values, index))
    row.update(4, new GenericArrayData(given(index)))
  }

  private def ownHeader(record: InternalRow, index: Int, left: Int, taken: Int): InternalRow = {
    val line = new Line().join(version).blank().join(kind)
      .blank().join(record.getLong(2)).blank().join(record.getLong(3) + left).blank().join(seqno)
      .blank().join(behindSeqno).join(firstOffset + index).blank().join(record.getLong(4))
    if (!record.isNullAt(5)) line.blank().join(record.getUTF8String(5))
    else if (taken > 1) line.blank().join(nothing).blank().join(taken)
    new GenericInternalRow(Array[Any](header, line.bytes))
  }

  private def given(index: Int): Array[Any] =
    if (headerNames == null) Array.empty
    else {
      val names = headerNames.getArray(index)
      val values = headerValues.getArray(index)
      Array.tabulate[Any](names.numElements())(at =>
        new GenericInternalRow(Array[Any](names.getUTF8String(at), binary(values, at))))
    }

  private def binary(values: ArrayData, index: Int): Array[Byte] =
    if (values.isNullAt(index)) null else values.getBinary(index)
}
