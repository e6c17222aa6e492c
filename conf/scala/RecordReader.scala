package abcast

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.Arrays

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, Literal}
import org.apache.spark.sql.catalyst.expressions.objects.Invoke
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.sql.types.{ObjectType, StructType}
import org.apache.spark.unsafe.types.UTF8String

/**
 * What makes a row of a record of Kafka, by one call: Spark plans some expressions anew for each batch, where it would
 * plan up to two hundred. `json`: the rules, as Python has them.
 */
abstract class RecordReader extends Product with Serializable {
  private[abcast] type Topic <: RecordTopic

  def json: String

  /** The rows that it makes. */
  def schema: StructType

  /** What it has to know of a topic. */
  private[abcast] def topic(name: UTF8String): Topic

  /** The row of a record; null if it is left out. */
  private[abcast] def row(topic: Topic, raw: Raw): InternalRow

  private[abcast] def said: JsonNode = new ObjectMapper().readTree(json)

  // Nearly every record is of the same topic as the one before it.
  @transient private var known: Topic = _

  /** The column of rows that it makes of records of Kafka, as Spark's source has them. */
  final def read(
      topic: Expression,
      partition: Expression,
      offset: Expression,
      timestamp: Expression,
      key: Expression,
      value: Expression,
      headers: Expression): Expression =
    Invoke(
      Literal.fromObject(this, ObjectType(classOf[RecordReader])),
      "rowOf",
      schema,
      Seq(topic, partition, offset, timestamp, key, value, headers),
      propagateNull = false,
      // Spark must not take it for a function whose value it may ask for twice.
      isDeterministic = false)

  final def rowOf(
      name: UTF8String,
      partition: Int,
      offset: Long,
      timestampUs: Long,
      key: Array[Byte],
      value: Array[Byte],
      headers: ArrayData): InternalRow = {
    if (known == null || known.name != name) known = topic(name.clone())
    row(known, new Raw(partition, offset, Math.floorDiv(timestampUs, 1000L), key, value, Words.named(headers)))
  }
}

/** A topic, and what its name says. */
private[abcast] abstract class RecordTopic {
  def name: UTF8String
}

/** A record, but for its topic. A value of another place may stand in it where it is a copy of what is there. */
private[abcast] class Raw(
    val partition: Int,
    val offset: Long,
    val atMs: Long,
    val key: Array[Byte],
    val value: Array[Byte],
    val headers: ArrayData) {
  def headerCount: Int = if (headers == null) 0 else headers.numElements()
  def header(at: Int): InternalRow = headers.getStruct(at, 2)

  /** Those of the header of this name, if it is the first one, as our clients, relays and sequencers have it; or null. */
  def fields(name: UTF8String): Fields =
    if (headerCount == 0) null
    else {
      val first = header(0)
      if (first.getUTF8String(0) != name || first.isNullAt(1)) null else new Fields(first.getBinary(1))
    }
}

/** The words of a line of bytes, between each two of which is a blank. */
private[abcast] class Fields(val line: Array[Byte]) {
  private var ends = new Array[Int](8)
  private var count = 0
  locally {
    var at = 0
    while (at <= line.length) {
      if (at == line.length || line(at) == ' ') {
        if (count == ends.length) ends = Arrays.copyOf(ends, 2 * count)
        ends(count) = at
        count += 1
      }
      at += 1
    }
  }

  def size: Int = count

  /** The empty one where there are not so many. */
  def text(at: Int): UTF8String = {
    if (at >= count) return UTF8String.EMPTY_UTF8
    val begin = if (at == 0) 0 else ends(at - 1) + 1
    UTF8String.fromBytes(line, begin, ends(at) - begin)
  }

  def is(at: Int, word: UTF8String): Boolean = at < count && text(at) == word

  def first(most: Int): Fields = if (count <= most) this else new Fields(line.take(ends(most - 1)))

  /** A decimal from 1 on, of so many digits at most; or null. */
  def from1(at: Int, mostDigits: Int): java.lang.Long = Words.parse(text(at), mostDigits)

  /** A decimal from 0 on, or -1, behind so much text; or null. */
  def number(at: Int, behind: UTF8String = UTF8String.EMPTY_UTF8): java.lang.Long = {
    val word = text(at)
    if (!word.startsWith(behind)) return null
    new String(word.getBytes.drop(behind.numBytes), US_ASCII) match {
      case Fields.Number(digits) => digits.toLong
      case _ => null
    }
  }
}

private object Fields {
  private val Number = "(0|-?1|[1-9][0-9]{0,17})".r
}
