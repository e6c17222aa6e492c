package abcast

import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
import org.apache.spark.sql.types.{DataType, LongType, StructType}
import org.apache.spark.unsafe.types.UTF8String

/**
 * Records that need not go to Python: set aside in the task that has read them, and brought back by their offset.
 *
 * Invariant. What `back` returns for an offset of a partition of a topic is what `aside` was given for that offset, in
 * the same attempt of the same task; each record is brought back once at most. All else is an exception, which fails the
 * task. It rests on this: a record is found by its own name, never by its place among others. So whatever is lost,
 * repeated, or put in another order between the two, no offset gets another's record. Each attempt of a task has records
 * of its own: what an attempt before has left, failed or killed, can't be found, and is given up when that attempt ends.
 *
 * Spark evaluates both once a row, where they stand: it takes them for functions that may give something else each time.
 */
object RecordsAside {
  private val ofAttempts = new ConcurrentHashMap[Long, RecordsOfAttempt]

  /** The column `offset`, which has the record (a struct) set aside on its way; a record that is null stays away. */
  def aside(
      group: Expression, topic: Expression, partition: Expression, offset: Expression, record: Expression): Expression =
    call("put", LongType, group, topic, partition, offset, record)

  /** The column of records, which were structs with this schema. */
  def back(
      group: Expression, topic: Expression, partition: Expression, offset: Expression, schema: String): Expression =
    call("take", StructType.fromDDL(schema), group, topic, partition, offset)

  private def call(function: String, result: DataType, arguments: Expression*): Expression =
    StaticInvoke(getClass, result, function, arguments, propagateNull = false, returnNullable = false,
      isDeterministic = false)

  /** Put a record aside; returns its offset. `topic` may be null, and is a name like any other then. */
  def put(group: UTF8String, topic: UTF8String, partition: Int, offset: Long, record: InternalRow): Long = {
    if (record != null) ofThisAttempt().put(group, topic, partition, offset, record)
    offset
  }

  /** Take a record that was put aside. */
  def take(group: UTF8String, topic: UTF8String, partition: Int, offset: Long): InternalRow =
    ofThisAttempt().take(group, topic, partition, offset)

  /** How many attempts of tasks have records aside in this JVM. */
  def attempts: Int = ofAttempts.size

  private def ofThisAttempt(): RecordsOfAttempt = {
    val task = TaskContext.get()
    if (task == null) throw new IllegalStateException("Records are set aside in a task of Spark's only.")
    val known = ofAttempts.get(task.taskAttemptId())
    if (known != null) known
    else {
      val records = new RecordsOfAttempt
      ofAttempts.put(task.taskAttemptId(), records)
      task.addTaskCompletionListener[Unit](ended => ofAttempts.remove(ended.taskAttemptId()))
      records
    }
  }
}

/** Of one attempt of a task. Spark may read a task's rows in another thread than it writes them. */
private class RecordsOfAttempt {
  private val partitions = mutable.Map.empty[(UTF8String, UTF8String, Int), mutable.LongMap[InternalRow]]
  // Nearly every row is of the same partition as the one before it.
  private var place: (UTF8String, UTF8String, Int) = _
  private var ofPlace: mutable.LongMap[InternalRow] = _

  def put(group: UTF8String, topic: UTF8String, partition: Int, offset: Long, record: InternalRow): Unit =
    synchronized {
      turnTo(group, topic, partition)
      if (ofPlace.put(offset, record.copy()).isDefined) fail("is set aside a second time", offset)
    }

  def take(group: UTF8String, topic: UTF8String, partition: Int, offset: Long): InternalRow = synchronized {
    turnTo(group, topic, partition)
    val record = ofPlace.getOrNull(offset)
    if (record == null) fail("is not, or no longer, set aside in this task", offset)
    ofPlace -= offset
    record
  }

  private def turnTo(group: UTF8String, topic: UTF8String, partition: Int): Unit =
    if (place == null || place._3 != partition || place._1 != group || place._2 != topic) {
      // The texts that Spark gives lie in a row that it writes again.
      place = (group.clone(), if (topic == null) null else topic.clone(), partition)
      ofPlace = partitions.getOrElseUpdate(place, mutable.LongMap.empty[InternalRow])
    }

  private def fail(what: String, offset: Long): Nothing = throw new IllegalStateException(
    s"group ${place._1}: the record ${Option(place._2).getOrElse("of its own topic")}-${place._3}:$offset $what.")
}
