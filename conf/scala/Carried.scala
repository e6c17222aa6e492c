package abcast

import java.nio.charset.StandardCharsets.ISO_8859_1
import java.util.Arrays
import java.util.regex.Pattern

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.catalyst.util.{ArrayData, GenericArrayData}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.types.UTF8String

/** What a relay writes of records: `connectors.relay.rules` says how. */
case class CarriedReader(json: String) extends RecordReader {
  private[abcast] type Topic = CarriedTopic
  @transient private lazy val rules = new CarriedRules(said)

  override def schema: StructType = RowsOfRuns.Schema

  private[abcast] override def topic(name: UTF8String): CarriedTopic = new CarriedTopic(rules, name)

  private[abcast] override def row(topic: CarriedTopic, raw: Raw): InternalRow = topic.row(raw)
}

/** The rules, as Python has them. */
private[abcast] class CarriedRules(said: JsonNode) {
  private def text(name: String): UTF8String = UTF8String.fromString(said.get(name).asText)

  val site: String = said.get("site").asText
  val header: UTF8String = text("header")
  val nothing: UTF8String = text("nothing")
  val ways: Seq[Way] = said.get("ways").elements.asScala.map(new Way(_)).toSeq
  private val mostPayloadBytes = said.get("most_payload_bytes").asInt
  private val mostAddressBytes = said.get("most_address_bytes").asInt
  private val mostLineBytes = said.get("most_line_bytes").asInt
  private val depends = text("depends")
  private lazy val tooLarge: InternalRow =
    new GenericInternalRow(Array[Any](UTF8String.fromString("cut"), new Array[Byte](mostPayloadBytes + 1)))

  private val data = Pattern.compile(said.get("data").asText)
  private val address = Pattern.compile(said.get("address").asText)
  private val kind = said.get("kind_at").asInt
  private val source = said.get("source_at").asInt
  private val entry = text("entry")
  private val epoch = text("epoch")

  /** Whether a record of DATA is no stray. */
  def isData(raw: Raw): Boolean = isData(raw, raw.fields(header))

  /** Whether a record of DATA is an entry or a seal. */
  def isOfLog(raw: Raw): Boolean = {
    val fields = raw.fields(header)
    fields != null && (fields.is(kind, entry) || (fields.is(kind, epoch) && isEmpty(raw.value))) && isData(raw, fields)
  }

  private def isData(raw: Raw, fields: Fields): Boolean =
    fields != null && fits(data, fields.line) &&
      (if (fields.is(source, nothing)) raw.key == null else raw.key != null && fits(address, raw.key))

  private def isEmpty(value: Array[Byte]): Boolean = value == null || value.length == 0

  /** Bytes fit where their text does: what is not ASCII fits nothing but what takes all there is. */
  private def fits(pattern: Pattern, bytes: Array[Byte]): Boolean =
    pattern.matcher(new String(bytes, ISO_8859_1)).matches

  /** Of a key, a value or headers that are larger than those of any good record, only so much that this is seen. */
  def cut(raw: Raw): Raw =
    new Raw(
      raw.partition,
      raw.offset,
      raw.atMs,
      cut(raw.key, mostAddressBytes),
      cut(raw.value, mostPayloadBytes),
      cut(raw.headers))

  private def cut(bytes: Array[Byte], most: Int): Array[Byte] =
    if (bytes == null || bytes.length <= most) bytes else Arrays.copyOf(bytes, most + 1)

  private def cut(headers: ArrayData): ArrayData =
    if (size(headers, _ => true) <= mostPayloadBytes) headers
    else {
      val given = Array.tabulate(headers.numElements())(headers.getStruct(_, 2))
      val (own, others) = given.partition(isOwn)
      val line = own.find(_.getUTF8String(0) == header).map(each =>
        new GenericInternalRow(Array[Any](header, cut(each.getBinary(1), mostLineBytes))))
      val isBad = own.length > 1 || size(headers, !isOwn(_)) > mostPayloadBytes
      new GenericArrayData((line ++ (if (isBad) Seq(tooLarge) else others.toSeq)).toArray[Any])
    }

  /** As Python counts it. */
  private def size(headers: ArrayData, counts: InternalRow => Boolean): Long = {
    var (at, sum) = (if (headers == null) 0 else headers.numElements(), 0L)
    while (at > 0) {
      at -= 1
      val each = headers.getStruct(at, 2)
      if (counts(each)) {
        val (name, value) = (each.getUTF8String(0), each.getBinary(1))
        sum += math.max(1, (if (name == null) 0 else name.numBytes) + (if (value == null) 0 else value.length))
      }
    }
    sum
  }

  private def isOwn(each: InternalRow): Boolean = {
    val name = each.getUTF8String(0)
    name != null && name.startsWith(header) && name != depends
  }
}

/** How records are carried of the topics whose names end with `source`: to those that end with `target` instead. */
private[abcast] class Way(said: JsonNode) {
  val source: UTF8String = UTF8String.fromString(said.get("source").asText)
  val target: String = said.get("target").asText
  val takes: String = said.get("takes").asText
  val begin: Int = said.get("begin").asInt
  val end: Int = said.get("end").asInt
  val behind: UTF8String = UTF8String.fromString(said.get("behind").asText)
  val saysWhen: Boolean = said.get("says_when").asBoolean
}

/** A topic, and how its records are carried, if they are. */
private[abcast] class CarriedTopic(rules: CarriedRules, val name: UTF8String) extends RecordTopic {
  private val way = rules.ways.find(way => name.endsWith(way.source)).orNull
  private val target =
    if (way == null) null else UTF8String.fromString(name.toString.dropRight(way.source.numChars) + way.target)
  private val place = UTF8String.fromString(s"${rules.site}/$name-")

  def row(raw: Raw): InternalRow =
    if (way == null) null
    else way.takes match {
      case "all" =>
        val cut = rules.cut(raw)
        row(cut, cut.key, cut.value, marked(cut))
      case "data" => if (rules.isData(raw)) row(raw, raw.key, raw.value, raw.headers) else null
      case "log" => if (rules.isOfLog(raw)) row(raw, raw.key, raw.value, marked(raw)) else null
    }

  private def row(raw: Raw, key: Array[Byte], value: Array[Byte], headers: ArrayData): InternalRow =
    new GenericInternalRow(Array[Any](target, raw.partition, key, value, headers))

  /** The headers, with which record it is in the place of some fields of the header `abcast`. */
  private def marked(raw: Raw): ArrayData = {
    val mark = new Line().join(place).join(raw.partition).join(CarriedTopic.Colon).join(raw.offset).join(way.behind)
    if (way.saysWhen) mark.join(raw.atMs)
    Words.mark(raw.headers, rules.header, UTF8String.fromBytes(mark.bytes), way.begin, way.end, rules.nothing)
  }
}

private object CarriedTopic {
  val Colon: UTF8String = UTF8String.fromString(":")
}
