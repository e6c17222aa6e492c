package abcast

import java.lang.ref.SoftReference
import java.nio.{ByteBuffer, ByteOrder}
import java.util.{Arrays, HashMap => JavaMap}
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedDeque}

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, Expression, GenericInternalRow, Literal, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
import org.apache.spark.sql.types.{BooleanType, DataType, ObjectType, StructType}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * Records that need not go to Python: set aside in the task that has read them, and brought back by their offset.
 *
 * Invariant. What `take` returns for an offset of a partition of a topic is what `aside` was given for that offset, in
 * the same attempt of the same task; each record is brought back once at most. All else is an exception, which fails the
 * task. It rests on this: a record is found by its own name, never by its place among others. So whatever is lost,
 * repeated, or put in another order between the two, no offset gets another's record. Each attempt of a task has records
 * of its own: what an attempt before has left, failed or killed, can't be found, and is given up when that attempt ends.
 *
 * To sort a row and to take it to Python is dear. So a record with a sender joins the one that was put before it, if that
 * has the offset before its own: only the first one's row goes on, and `block` has what Python needs of all of them. A
 * block is found as a record is. So nothing rests on the order in which records are put: they only make more blocks.
 *
 * Spark evaluates all of them once a row, where they stand: it takes them for functions that may give something else each time.
 */
object RecordsAside {
  private val ofAttempts = new ConcurrentHashMap[Long, RecordsOfAttempt]

  /**
   * Whether the row goes on. The record (a struct) is set aside on its way; one that is null stays away. What has a
   * sender may join another then, and the row of such a one does not go on; `numbers` are those that a block has.
   */
  def aside(
      group: Expression,
      topic: Expression,
      partition: Expression,
      offset: Expression,
      record: Expression,
      sender: Expression,
      incarnation: Expression,
      localSeqno: Expression,
      forwardedAtMs: Expression,
      schema: String): Expression =
    call(
      "put",
      BooleanType,
      Seq(group, topic, partition, offset, record, sender, incarnation, localSeqno, forwardedAtMs, literal(schema)): _*)

  /** The column of blocks, for rows that went on with a sender. */
  def block(group: Expression, topic: Expression, partition: Expression, offset: Expression): Expression =
    call("takeBlock", StructType.fromDDL("senders string, numbers binary"), group, topic, partition, offset)

  /** The same, with the records in it (`PackedRecords`): so they can leave the task, with the row. */
  def blockWithRecords(group: Expression, topic: Expression, partition: Expression, offset: Expression): Expression = {
    val schema = StructType.fromDDL("senders string, numbers binary, records binary")
    call("takeBlockWithRecords", schema, group, topic, partition, offset)
  }

  private def literal(schema: String): Expression =
    Literal.fromObject(StructType.fromDDL(schema), ObjectType(classOf[StructType]))

  private def call(function: String, result: DataType, arguments: Expression*): Expression =
    StaticInvoke(
      getClass, result, function, arguments, propagateNull = false, returnNullable = false, isDeterministic = false)

  /** Put a record aside. `topic` may be null, and is a name like any other then. */
  def put(
      group: UTF8String,
      topic: UTF8String,
      partition: Int,
      offset: Long,
      record: InternalRow,
      sender: UTF8String,
      incarnation: Long,
      localSeqno: Long,
      forwardedAtMs: Long,
      schema: StructType): Boolean =
    if (record == null) true
    else {
      val records = ofThisAttempt(schema)
      records.synchronized {
        records.put(group, topic, partition, offset, record)
        sender == null || records.beginsBlock(offset, sender, incarnation, localSeqno, forwardedAtMs)
      }
    }

  /** Take the block whose first record has that name. */
  def takeBlock(group: UTF8String, topic: UTF8String, partition: Int, offset: Long): InternalRow =
    ofThisAttempt(null).takeBlock(group, topic, partition, offset).row()

  /** The same, and all its records. */
  def takeBlockWithRecords(group: UTF8String, topic: UTF8String, partition: Int, offset: Long): InternalRow = {
    val records = ofThisAttempt(null)
    val block = records.takeBlock(group, topic, partition, offset)
    block.row(records.packed(group, topic, partition, offset, block.size))
  }

  /** What was put aside in this task; `take` a record of it. */
  private[abcast] def ofThisAttempt(): RecordsOfAttempt = ofThisAttempt(null)

  /** How many attempts of tasks have records aside in this JVM. */
  def attempts: Int = ofAttempts.size

  private def ofThisAttempt(schema: StructType): RecordsOfAttempt = {
    val task = TaskContext.get()
    if (task == null) throw new IllegalStateException("Records are set aside in a task of Spark's only.")
    val known = ofAttempts.get(task.taskAttemptId())
    if (known != null) known
    else if (schema == null) throw new IllegalStateException("No record is, or no longer, set aside in this task.")
    else {
      val records = new RecordsOfAttempt(schema)
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
private[abcast] class RecordsOfAttempt(schema: StructType) {
  private val FirstPageBytes = 1 << 12 // of a small batch; the ninth and those behind it are of Pages
  private val FirstPages = 8
  private val LargeBytes = 1 << 14
  private val valueAt = schema.fieldIndex("value")
  private lazy val toBytes = UnsafeProjection.create(schema)
  private lazy val withoutValue = UnsafeProjection.create(schema.fields.toSeq.zipWithIndex.map {
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
        page =
          if (8 + bytes > Pages.PageBytes) new Array[Byte](8 + bytes)
          else if (pages.length >= FirstPages) Pages.next()
          else new Array[Byte](math.max(FirstPageBytes << pages.length, 8 + bytes))
        pages += page
        end = 0
      }
      val number = if (value != null) large.length.toLong else 0L
      lastBytes = bytes + (if (value != null) value.length else 0)
      Platform.putLong(page, Platform.BYTE_ARRAY_OFFSET + end, number << 32 | bytes)
      row.writeToMemory(page, Platform.BYTE_ARRAY_OFFSET + end + 8)
      offsets.add(offset, (pages.length - 1L) << 32 | end)
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
    val row = new UnsafeRow(schema.length)
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
  def beginsBlock(
      offset: Long, sender: UTF8String, incarnation: Long, localSeqno: Long, forwardedAtMs: Long): Boolean = {
    val begins = block == null || !block.goesOn(offsets, offset, lastBytes)
    if (begins) block = offsets.begin(offset, place)
    block.add(sender, incarnation, localSeqno, forwardedAtMs, lastBytes)
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
    val fields = row.toSeq(schema).toArray[Any]
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
  private val Numbers = 4
  private val Between = '\u0080'
  private val indices = new JavaMap[UTF8String, Integer]
  private val senders = new StringBuilder
  private var numbers = new Array[Long](8 * Numbers)
  private var end = 0
  private var bytes = 0

  def size: Int = end / Numbers

  def goesOn(of: Offsets, offset: Long, more: Int): Boolean =
    (of eq partition) && offset == first + size && size < MostRecords && bytes + more <= MostBytes

  def add(sender: UTF8String, incarnation: Long, localSeqno: Long, forwardedAtMs: Long, more: Int): Unit = {
    bytes += more
    if (end == numbers.length) numbers = Arrays.copyOf(numbers, 2 * end)
    numbers(end) = indexOf(sender)
    numbers(end + 1) = incarnation
    numbers(end + 2) = localSeqno
    numbers(end + 3) = forwardedAtMs
    end += Numbers
  }

  def row(more: Any*): InternalRow = {
    val written = ByteBuffer.allocate(8 * end).order(ByteOrder.LITTLE_ENDIAN)
    written.asLongBuffer.put(numbers, 0, end)
    new GenericInternalRow(Array[Any](UTF8String.fromString(senders.toString), written.array) ++ more)
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
  private var known = new Array[Long](16)
  private var places = new Array[Long](16)
  private var size = 0
  private var next = 0 // the one behind the last that was taken, which is nearly always wanted next
  private var isSorted = true // as Kafka gives them
  private val blocks = mutable.Map.empty[Long, Block] // by their first offset

  def begin(offset: Long, partition: Any): Block = {
    val block = new Block(this, offset)
    if (blocks.put(offset, block).nonEmpty) fail(partition, offset, "is set aside a second time")
    block
  }

  def takeBlock(offset: Long, partition: Any): Block =
    blocks.remove(offset).getOrElse(fail(partition, offset, "begins no block, or no longer, in this task"))

  def add(offset: Long, at: Long): Unit = {
    if (size == known.length) {
      known = Arrays.copyOf(known, 2 * size)
      places = Arrays.copyOf(places, 2 * size)
    }
    if (size > 0 && offset <= known(size - 1)) isSorted = false
    known(size) = offset
    places(size) = at
    size += 1
  }

  def take(offset: Long, partition: Any): Long = {
    if (!isSorted) sort(partition)
    if (next >= size || known(next) != offset) next = Arrays.binarySearch(known, 0, size, offset)
    if (next < 0 || places(next) == Taken) {
      next = 0
      fail(partition, offset, "is not, or no longer, set aside in this task")
    }
    val at = places(next)
    places(next) = Taken
    next += 1
    at
  }

  private def sort(partition: Any): Unit = {
    val order = Array.range(0, size).sortBy(known(_))
    val sorted = order.map(known(_))
    for (index <- 1 until size if sorted(index) == sorted(index - 1))
      fail(partition, sorted(index), "is set aside a second time")
    places = order.map(places(_))
    known = sorted
    isSorted = true
    next = 0
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
private[abcast] class PackedRecords(packed: Array[Byte], count: Int, fields: Int) {
  private var index = 0
  private var begin = Platform.BYTE_ARRAY_OFFSET + count.toLong * PackedRecords.IndexBytes

  /** The next one, which is of this offset. */
  def take(offset: Long): InternalRow = {
    val at = Platform.BYTE_ARRAY_OFFSET + index.toLong * PackedRecords.IndexBytes
    if (index >= count || Platform.getLong(packed, at) != offset)
      throw new IllegalStateException(s"The record number $index is not that of the offset $offset.")
    val row = new UnsafeRow(fields)
    row.pointTo(packed, begin, Platform.getLong(packed, at + 8).toInt)
    begin += row.getSizeInBytes
    index += 1
    row
  }
}
