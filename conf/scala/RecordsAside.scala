package abcast

import java.lang.ref.SoftReference
import java.nio.{ByteBuffer, ByteOrder}
import java.util.{Arrays, HashMap => JavaMap, List => JavaList}
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedDeque}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, Expression, GenericInternalRow, Literal, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * Records that need not go to Python: set aside in the task that has read them, and brought back by their offset.
 *
 * Invariant. What `take` returns for an offset of a partition of a topic is what `put` was given for that offset, in
 * the same attempt of the same task; each record is brought back once at most. All else is an exception, which fails the
 * task. It rests on this: a record is found by its own name, never by its place among others. So whatever is lost,
 * repeated, or put in another order between the two, no offset gets another's record. Each attempt of a task has records
 * of its own: what an attempt before has left, failed or killed, can't be found, and is given up when that attempt ends.
 *
 * To sort a row and to take it to Python is dear. So a message joins the one that was put before it, if that has
 * the offset before its own: only the first one's row goes on, and the block has what Python needs of all of them. A
 * block is found as a record is. So nothing rests on the order in which records are put: they only make more blocks.
 *
 * Spark evaluates all of them once a row, where they stand: it takes them for functions that may give something else each time.
 */
object RecordsAside {
  /** The columns of a record. */
  val Record: StructType = StructType.fromDDL(
    "key binary, value binary, incarnation long, local_seqno long, at_ms long, link string, count int, " +
      "headers array<struct<key: string, value: binary>>")
  private val ofAttempts = new ConcurrentHashMap[Long, RecordsOfAttempt]

  /** The column of what a function below returns. */
  def call(function: String, result: String, arguments: JavaList[Expression]): Expression =
    StaticInvoke(
      getClass,
      DataType.fromDDL(result),
      function,
      arguments.asScala.toSeq,
      propagateNull = false,
      returnNullable = false,
      isDeterministic = false)

  /**
   * Whether the row goes on. The record is set aside on its way; one that is null stays away. One that `mayJoin` another
   * may be a part of its block then, and its row does not go on. `topic` may be null, and is a name like any other then.
   */
  def put(
      group: UTF8String,
      topic: UTF8String,
      partition: Int,
      offset: Long,
      record: InternalRow,
      mayJoin: Boolean): Boolean =
    record == null || {
      val records = ofThisAttempt(isFirst = true)
      records.synchronized {
        records.put(group, topic, partition, offset, record)
        !mayJoin || records.beginsBlock(offset, record)
      }
    }

  /** Take the block whose first record has that name; and all its records (`PackedRecords`), to leave the task with it. */
  def takeBlock(
      group: UTF8String, topic: UTF8String, partition: Int, offset: Long, withRecords: Boolean): InternalRow = {
    val records = ofThisAttempt()
    val block = records.takeBlock(group, topic, partition, offset)
    block.row(if (withRecords) records.packed(group, topic, partition, offset, block.size) else null)
  }

  /** How many attempts of tasks have records aside in this JVM. */
  def attempts: Int = ofAttempts.size

  /** What was put aside in this task. */
  private[abcast] def ofThisAttempt(isFirst: Boolean = false): RecordsOfAttempt = {
    val task = TaskContext.get()
    if (task == null) throw new IllegalStateException("Records are set aside in a task of Spark's only.")
    val known = ofAttempts.get(task.taskAttemptId())
    if (known != null) known
    else if (!isFirst) throw new IllegalStateException("No record is, or no longer, set aside in this task.")
    else {
      val records = new RecordsOfAttempt
      ofAttempts.put(task.taskAttemptId(), records)
      task.addTaskCompletionListener[Unit] { ended =>
        ofAttempts.remove(ended.taskAttemptId())
        records.close()
      }
      records
    }
  }
}

/**
 * Of one attempt of a task. Spark may read a task's rows in another thread than it writes them.
 *
 * Records lie one behind the other in pages, each behind a word that says its size: many objects would be much work to
 * the collector. A row that was taken lies there, too, and is read before the task ends, as all rows of Spark's are. A
 * large value is copied nowhere: it stays the object that it is, and the word has its number, from 1 on, above the size.
 */
private[abcast] class RecordsOfAttempt {
  private val LargeBytes = 1 << 14
  private val valueAt = RecordsAside.Record.fieldIndex("value")
  private lazy val toBytes = UnsafeProjection.create(RecordsAside.Record)
  private lazy val withoutValue = UnsafeProjection.create(RecordsAside.Record.fields.toSeq.zipWithIndex.map {
    case (field, `valueAt`) => Literal(null, field.dataType)
    case (field, at) => BoundReference(at, field.dataType, nullable = true)
  })
  private val large = mutable.ArrayBuffer.empty[Array[Byte]]
  private val pages = mutable.ArrayBuffer.empty[Array[Byte]]
  private var page = new Array[Byte](0) // the last of them, once there is one
  private var end = 0
  private val partitions = mutable.Map.empty[(UTF8String, UTF8String, Int), Offsets]
  // Nearly every row is of the same partition as the one before it.
  private var place: (UTF8String, UTF8String, Int) = _
  private var offsets: Offsets = _
  private var block: Block = _ // the last that was begun
  private var lastBytes = 0 // of the record that was put last
  private var isOpen = true

  def close(): Unit = synchronized {
    isOpen = false
    for (page <- pages if page.length == Pages.PageBytes) Pages.giveBack(page)
    pages.clear()
    large.clear()
    partitions.clear()
  }

  def put(group: UTF8String, topic: UTF8String, partition: Int, offset: Long, record: InternalRow): Unit =
    synchronized {
      checkOpen()
      turnTo(group, topic, partition)
      val value = largeOf(record)
      if (value != null) large += value
      val row = record match {
        case _ if value != null => withoutValue(record)
        case already: UnsafeRow => already
        case other => toBytes(other)
      }
      val bytes = row.getSizeInBytes // a multiple of 8
      if (end + 8 + bytes > page.length) {
        page = if (8 + bytes > Pages.PageBytes) new Array[Byte](8 + bytes) else Pages.next()
        pages += page
        end = 0
      }
      val number = if (value != null) large.length.toLong else 0L
      lastBytes = bytes + (if (value != null) value.length else 0)
      Platform.putLong(page, Platform.BYTE_ARRAY_OFFSET + end, number << 32 | bytes)
      row.writeToMemory(page, Platform.BYTE_ARRAY_OFFSET + end + 8)
      offsets.add(offset, (pages.length - 1L) << 32 | end, place)
      end += 8 + bytes
    }

  /** The record's value, if it is a large one; or null. */
  private def largeOf(record: InternalRow): Array[Byte] = record match {
    case row: UnsafeRow if row.getSizeInBytes < LargeBytes => null
    case _ =>
      val value = record.getBinary(valueAt)
      if (value != null && value.length >= LargeBytes) value else null
  }

  /** The record, and its value, which the row may lack. */
  def take(group: UTF8String, topic: UTF8String, partition: Int, offset: Long): (InternalRow, Array[Byte]) = synchronized {
    checkOpen()
    turnTo(group, topic, partition)
    val at = offsets.take(offset, place)
    val page = pages((at >> 32).toInt)
    val begin = Platform.BYTE_ARRAY_OFFSET + at.toInt
    val word = Platform.getLong(page, begin)
    val row = new UnsafeRow(RecordsAside.Record.length)
    row.pointTo(page, begin + 8, word.toInt)
    val number = (word >> 32).toInt
    if (number == 0) (row, row.getBinary(valueAt))
    else {
      val value = large(number - 1)
      large(number - 1) = null // it is taken once
      (row, value)
    }
  }

  /** Of the record that was put last: whether its block begins with it, as no other goes on with it. */
  def beginsBlock(offset: Long, record: InternalRow): Boolean = {
    val begins = block == null || !block.goesOn(offsets, offset, lastBytes)
    if (begins) block = offsets.begin(offset)
    block.add(record, lastBytes)
    begins
  }

  def takeBlock(group: UTF8String, topic: UTF8String, partition: Int, offset: Long): Block = synchronized {
    checkOpen()
    turnTo(group, topic, partition)
    offsets.takeBlock(offset, place)
  }

  /** So many records, which are not here any more after that. */
  def packed(group: UTF8String, topic: UTF8String, partition: Int, first: Long, count: Int): Array[Byte] = {
    val rows = Array.tabulate(count) { index =>
      take(group, topic, partition, first + index) match {
        case (row: UnsafeRow, value) if row.isNullAt(valueAt) && value != null => whole(row, value)
        case (row: UnsafeRow, _) => row
      }
    }
    PackedRecords.pack(first, rows)
  }

  private def whole(row: UnsafeRow, value: Array[Byte]): UnsafeRow = {
    val fields = row.toSeq(RecordsAside.Record).toArray[Any]
    fields(valueAt) = value
    toBytes(new GenericInternalRow(fields)).copy()
  }

  private def checkOpen(): Unit =
    if (!isOpen) throw new IllegalStateException("The task has ended, and its records with it.")

  private def turnTo(group: UTF8String, topic: UTF8String, partition: Int): Unit =
    if (place == null || place._3 != partition || place._1 != group || place._2 != topic) {
      // The texts that Spark gives lie in a row that it writes again.
      place = (group.clone(), if (topic == null) null else topic.clone(), partition)
      offsets = partitions.getOrElseUpdate(place, new Offsets)
    }
}

/**
 * Records with consecutive offsets of one partition: of each, the index of its sender, and the numbers. `senders` has
 * the senders by index, with a character between them that none of them has, as those of plain records are ASCII.
 */
private[abcast] class Block(partition: Offsets, first: Long) {
  private val MostRecords = 20000
  private val MostBytes = 16 << 20
  private val Numbers = 4 // the sender's index; incarnation, local seqno and time as a record has them
  private val Between = '\u0080'
  private val indices = new JavaMap[UTF8String, Integer]
  private val senders = new StringBuilder
  private var numbers = new Array[Long](8 * Numbers)
  private var end = 0
  private var bytes = 0

  def size: Int = end / Numbers

  def goesOn(of: Offsets, offset: Long, more: Int): Boolean =
    (of eq partition) && offset == first + size && size < MostRecords && bytes + more <= MostBytes

  def add(record: InternalRow, more: Int): Unit = {
    bytes += more
    if (end == numbers.length) numbers = Arrays.copyOf(numbers, 2 * end)
    numbers(end) = indexOf(UTF8String.fromBytes(record.getBinary(0)))
    for (at <- 1 until Numbers) numbers(end + at) = record.getLong(1 + at)
    end += Numbers
  }

  def row(records: Array[Byte]): InternalRow = {
    val written = ByteBuffer.allocate(8 * end).order(ByteOrder.LITTLE_ENDIAN)
    written.asLongBuffer.put(numbers, 0, end)
    new GenericInternalRow(Array[Any](UTF8String.fromString(senders.toString), written.array, records))
  }

  private def indexOf(sender: UTF8String): Int = {
    val known = indices.get(sender)
    if (known != null) known
    else {
      val index = indices.size
      indices.put(sender.clone(), index)
      if (index > 0) senders.append(Between)
      senders.append(sender)
      index
    }
  }
}

/** Pages that tasks use one after the other: each batch anew, they would be what the collector moves around most. */
private object Pages {
  val PageBytes: Int = 1 << 20
  private val idle = new ConcurrentLinkedDeque[SoftReference[Array[Byte]]]

  def next(): Array[Byte] = {
    var known = idle.pollFirst()
    while (known != null) {
      val page = known.get
      if (page != null) return page
      known = idle.pollFirst()
    }
    new Array[Byte](PageBytes)
  }

  def giveBack(page: Array[Byte]): Unit = idle.addFirst(new SoftReference(page))
}

/** The offsets of a partition of which records are aside, and where these are. */
private[abcast] class Offsets {
  private val Taken = -1L
  private val places = mutable.LongMap.empty[Long]
  private val blocks = mutable.LongMap.empty[Block] // by their first offset

  def begin(offset: Long): Block = {
    val block = new Block(this, offset)
    blocks(offset) = block
    block
  }

  def takeBlock(offset: Long, partition: Any): Block =
    blocks.remove(offset).getOrElse(fail(partition, offset, "begins no block, or no longer, in this task"))

  def add(offset: Long, at: Long, partition: Any): Unit = {
    val before = places.size
    places(offset) = at
    if (places.size == before) fail(partition, offset, "is set aside a second time")
  }

  def take(offset: Long, partition: Any): Long = {
    val at = places.getOrElse(offset, Taken)
    if (at == Taken) fail(partition, offset, "is not, or no longer, set aside in this task")
    places(offset) = Taken
    at
  }

  private def fail(partition: Any, offset: Long, what: String): Nothing =
    throw new IllegalStateException(s"The record at the offset $offset of (group, topic, partition) $partition $what.")
}

/**
 * Records in bytes, to be kept and brought back elsewhere: of each its offset and its size, in 8 bytes each, then the
 * rows one behind the other. So a part of them is a part of both.
 */
private[abcast] object PackedRecords {
  val IndexBytes = 16

  def pack(first: Long, rows: Array[UnsafeRow]): Array[Byte] = {
    val packed = new Array[Byte](rows.length * IndexBytes + rows.map(_.getSizeInBytes).sum)
    var (at, end) = (Platform.BYTE_ARRAY_OFFSET.toLong, Platform.BYTE_ARRAY_OFFSET + rows.length.toLong * IndexBytes)
    for ((row, index) <- rows.zipWithIndex) {
      Platform.putLong(packed, at, first + index)
      Platform.putLong(packed, at + 8, row.getSizeInBytes)
      row.writeToMemory(packed, end)
      at += IndexBytes
      end += row.getSizeInBytes
    }
    packed
  }
}

/** So many of them, to be read one after the other. */
private[abcast] class PackedRecords(packed: Array[Byte], count: Int) {
  private var index = 0
  private var begin = Platform.BYTE_ARRAY_OFFSET + count.toLong * PackedRecords.IndexBytes

  /** The next one, which is of this offset. */
  def take(offset: Long): InternalRow = {
    val at = Platform.BYTE_ARRAY_OFFSET + index.toLong * PackedRecords.IndexBytes
    if (index >= count || Platform.getLong(packed, at) != offset)
      throw new IllegalStateException(s"The record number $index is not that of the offset $offset.")
    val row = new UnsafeRow(RecordsAside.Record.length)
    row.pointTo(packed, begin, Platform.getLong(packed, at + 8).toInt)
    begin += row.getSizeInBytes
    index += 1
    row
  }
}
