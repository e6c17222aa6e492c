package abcast

import java.util.Arrays
import java.util.regex.Pattern

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.catalyst.util.{ArrayData, GenericArrayData}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.types.UTF8String

/**
 * Records of FORWARD, judged and taken apart: `connectors.spark.forward_rows` says which columns `columns` has.
 *
 * No record is taken for plain that breaks a rule. Some are not that break none: Python reads them.
 */
case class ForwardReader(columns: String, json: String) extends RecordReader {
  private[abcast] type Topic = ForwardTopic
  @transient private lazy val rules = new ForwardRules(said)

  override def schema: StructType = StructType.fromDDL(columns).add("record", RecordsAside.Record)

  private[abcast] override def topic(name: UTF8String): ForwardTopic = new ForwardTopic(rules, name)

  private[abcast] override def row(topic: ForwardTopic, raw: Raw): InternalRow = {
    val fields = raw.fields(rules.header)
    topic.input match {
      case ForwardTopic.Copy => ofCopy(topic, raw, fields)
      case ForwardTopic.Forward => judged(topic, raw, fields, raw.offset + 1)
      case input if fields != null && fields.is(0, rules.version) && rules.kindsOf(input).contains(fields.text(1)) =>
        odd(topic, raw, raw.offset + 1)
      case _ => null
    }
  }

  /** As the record that it was made from. What no relay has made of one is left out. */
  private def ofCopy(topic: ForwardTopic, raw: Raw, fields: Fields): InternalRow = {
    if (fields == null) return null
    val begin = UTF8String.fromString(s"${topic.neighbour}/${topic.home}-${raw.partition}:")
    val offset = fields.number(rules.relayedFrom, behind = begin)
    val atMs = fields.number(rules.atMs)
    if (offset == null || offset < 0 || atMs == null || atMs > rules.latestMs) return null
    val own = fields.first(rules.ownFields)
    val header: InternalRow = new GenericInternalRow(Array[Any](rules.header, own.line))
    val headers = new GenericArrayData(header +: rules.applications(raw))
    judged(topic, new Raw(raw.partition, offset, atMs, raw.key, raw.value, headers), own, raw.offset + 1)
  }

  private def judged(topic: ForwardTopic, raw: Raw, fields: Fields, next: Long): InternalRow = {
    if (fields == null || !fields.is(0, rules.version) || raw.key == null) return odd(topic, raw, next)
    val sender = UTF8String.fromBytes(raw.key)
    val kind = rules.plainKinds.get(fields.text(1))
    val incarnation = fields.from1(rules.incarnation, rules.mostDigits)
    val isPack = kind.contains(rules.packAt)
    val numbers = fields.text(rules.localSeqno)
    val localSeqno = if (isPack) rules.firstOf(numbers) else Words.parse(numbers, rules.mostDigits)
    val count = if (isPack && localSeqno != null) rules.countOf(numbers, localSeqno) else 1
    val link = rules.linkOf(topic, fields)
    val isPlain = kind.nonEmpty && incarnation != null && localSeqno != null && rules.mayBeASender(sender) &&
      fields.line.length <= rules.mostHeadersBytes && topic.canHave(sender, fields, link) &&
      (link != null || rules.isOfItsTime(incarnation, raw.atMs)) &&
      raw.value != null && raw.value.length <= rules.mostPayloadBytes && rules.areTheApplications(raw, count) &&
      (!isPack || (topic.isLocal && !rules.isAgreed && rules.isPack(raw.value, count)))
    if (isPlain) plain(topic, raw, next, sender, kind.get, incarnation, localSeqno, count, link)
    else odd(topic, raw, next)
  }

  private def plain(
      topic: ForwardTopic,
      raw: Raw,
      next: Long,
      sender: UTF8String,
      kind: Int,
      incarnation: Long,
      localSeqno: Long,
      count: Int,
      link: UTF8String): InternalRow = {
    val record = if (kind == rules.heartbeatAt) null else
      new GenericInternalRow(Array[Any](raw.key, raw.value, incarnation, localSeqno, raw.atMs, link, count, raw.headers))
    row(topic, raw, next, Array(true, sender, incarnation, localSeqno, kind, count), link, record)
  }

  private def odd(topic: ForwardTopic, raw: Raw, next: Long): InternalRow =
    row(topic, raw, next, ForwardReader.Nothing, null, null)

  /** The record in one column, or its key, value and headers in others. */
  private def row(
      topic: ForwardTopic,
      raw: Raw,
      next: Long,
      decided: Array[Any],
      link: UTF8String,
      record: InternalRow): InternalRow = {
    val links = if (link == null) ForwardReader.NoLink else link.toString.split('.').map(_.toLong)
    val place = Array[Any](topic.group, topic.foreign, raw.partition, raw.offset)
    val whole = if (record == null) Array[Any](raw.key, rules.cut(raw.value), raw.headers) else new Array[Any](3)
    new GenericInternalRow(
      place ++ decided ++ Array[Any](raw.atMs) ++ whole ++ links ++ Array[Any](next, topic.number, record))
  }
}

private object ForwardReader {
  val Nothing: Array[Any] = Array(false, null, 0L, 0L, 0, 1)
  val NoLink: Array[Long] = Array(-1L, 0L, 0L, 0L)
}

/** The rules, as Python has them. */
private[abcast] class ForwardRules(said: JsonNode) {
  private def text(name: String): UTF8String = UTF8String.fromString(said.get(name).asText)
  private def texts(name: String): Seq[UTF8String] =
    said.get(name).elements.asScala.map(each => UTF8String.fromString(each.asText)).toSeq
  private val copied = texts("copied_fields")
  private def position(name: String): Int = copied.indexOf(UTF8String.fromString(name))

  val site: String = said.get("site").asText
  val isRelayed: Boolean = said.get("relayed").asBoolean
  val isAgreed: Boolean = said.get("agreed").asBoolean

  val header: UTF8String = text("header")
  val version: UTF8String = text("version")
  val nothing: UTF8String = text("nothing")
  val ownFields: Int = said.get("forward_fields").asInt
  val relayedFields: Int = said.get("relayed_fields").asInt
  val incarnation: Int = position("INCARNATION")
  val localSeqno: Int = position("LOCAL_SEQNO")
  val relayedFrom: Int = position("RELAYED_FROM")
  val atMs: Int = position("AT_MS")
  val mostDigits: Int = said.get("most_digits").asInt
  private val linkAt = position("LINK")
  private val link = Pattern.compile(said.get("link").asText)
  private val hasSite = Pattern.compile(said.get("site_of_sender").asText)

  private val kinds = texts("kinds")
  private val skip = text("skip")
  private val heartbeat = text("heartbeat")
  private val message = text("message")
  val heartbeatAt: Int = kinds.indexOf(heartbeat)
  val plainKinds: Map[UTF8String, Int] = kinds.zipWithIndex.toMap
  val packAt: Int = kinds.indexOf(text("messages"))
  private val ofLog = texts("of_log").toSet
  private val ofEpoch = texts("of_epoch").toSet

  private val reserved = UTF8String.fromString("/" + said.get("reserved").asText)
  private val slash = UTF8String.fromString("/")
  private val tick = UTF8String.fromString("/" + said.get("tick").asText)
  val relay: String = said.get("relay").asText

  val mostPayloadBytes: Int = said.get("most_payload_bytes").asInt
  val mostHeadersBytes: Int = said.get("most_headers_bytes").asInt
  private val mostPackMessages = said.get("most_pack_messages").asInt
  private val mostPackBytes = said.get("most_pack_bytes").asInt
  private val mostPackHeadersBytes = said.get("most_pack_headers_bytes").asInt
  private val layout = said.get("layout").asInt
  private val mostRecordBytes = said.get("most_record_bytes").asInt
  private val mostSenderBytes = said.get("most_sender_bytes").asInt
  private val depends = text("depends")
  private val replacement = text("replacement")
  private val clockAheadMs = said.get("clock_ahead_ms").asLong
  private val incarnationsAMs = said.get("incarnations_a_ms").asLong
  val latestMs: Long = said.get("latest_ms").asLong

  def kindsOf(input: Int): Set[UTF8String] = if (input == ForwardTopic.Epoch) ofEpoch else ofLog

  /** The headers behind the first one. */
  def applications(raw: Raw): Array[Any] = Array.tabulate[Any](raw.headerCount - 1)(at => raw.header(at + 1))

  /** Whether they are so, have names, and are not too large for so many messages. */
  def areTheApplications(raw: Raw, count: Int): Boolean = {
    val most = if (count > 1) Math.min(mostHeadersBytes, mostPackHeadersBytes / count) else mostHeadersBytes
    var size = raw.headerCount - 1
    (1 until raw.headerCount).forall { at =>
      val (name, value) = (raw.header(at).getUTF8String(0), raw.header(at).getBinary(1))
      size += (if (name == null) 0 else name.numBytes) + (if (value == null) 0 else value.length)
      size <= most && (name == null || isTheApplications(name))
    }
  }

  /** The first local seqno of `FIRST-LAST`, the local seqnos of a pack; or null. */
  def firstOf(numbers: UTF8String): java.lang.Long =
    Words.parse(numbers, 0, hyphenOf(numbers), mostDigits)

  /** How many they are; or 0, if a pack can't have so many. */
  def countOf(numbers: UTF8String, first: Long): Int = {
    val last = Words.parse(numbers, hyphenOf(numbers) + 1, numbers.numBytes, mostDigits)
    if (last == null || last <= first || last - first >= mostPackMessages) 0 else (last - first + 1).toInt
  }

  private def hyphenOf(numbers: UTF8String): Int = {
    var at = 0
    while (at < numbers.numBytes && numbers.getByte(at) != '-') at += 1
    at
  }

  def isPack(value: Array[Byte], count: Int): Boolean =
    count > 0 && value.length <= mostPackBytes && Packs.isOne(value, layout, count)

  /** Of a value that no topic takes, only so much that this is seen: it may have hundreds of megabytes. */
  def cut(value: Array[Byte]): Array[Byte] =
    if (value == null || value.length <= mostRecordBytes) value else Arrays.copyOf(value, mostRecordBytes + 1)

  private def isTheApplications(name: UTF8String): Boolean =
    name == depends || !(name.contains(header) || name.contains(replacement))

  /** Whether it is no longer than one, and ASCII: whether it is one, the core asks. */
  def mayBeASender(sender: UTF8String): Boolean = sender.numBytes <= mostSenderBytes && Words.isAscii(sender)

  def isOfItsTime(incarnation: Long, atMs: Long): Boolean =
    try incarnation <= Math.multiplyExact(Math.addExact(atMs, clockAheadMs), incarnationsAMs)
    catch { case _: ArithmeticException => false }

  /** What a link says of a record that it has brought; null where none has. */
  def linkOf(topic: ForwardTopic, fields: Fields): UTF8String =
    if (!isRelayed || topic.isLocal || fields.size != relayedFields || fields.is(linkAt, nothing)) null
    else fields.text(linkAt)

  /** Whether no link has brought a record: what a relay writes in its own name says no time. */
  def isCopied(fields: Fields): Boolean =
    fields.is(linkAt, nothing) && (fields.size == relayedFields || fields.size == copied.length)

  /** Whether the sender has a member's name, or that of ticks and writes one. */
  def mayHaveItsName(sender: UTF8String, kind: UTF8String): Boolean =
    !sender.contains(reserved) || (kind == heartbeat && isTick(sender))

  /** A sender is ASCII. */
  private def isTick(sender: UTF8String): Boolean =
    sender.endsWith(tick) && sender.indexOf(slash, 0) == sender.numBytes - tick.numBytes

  def isSkip(kind: UTF8String): Boolean = kind == skip

  def isMessage(kind: UTF8String): Boolean = kind == message

  def isLink(text: UTF8String): Boolean = link.matcher(text.toString).matches

  def hasSite(sender: UTF8String): Boolean = hasSite.matcher(sender.toString).lookingAt
}

/** A topic, and what its name says: `abcast.GROUP.ROLE.SITE`. */
private[abcast] class ForwardTopic(rules: ForwardRules, val name: UTF8String) extends RecordTopic {
  private val words = name.toString.split('.')
  private val role = words(words.length - 2)
  private val ofSite = words.last
  private val ofGroup = words.slice(1, words.length - 2).mkString(".")
  private val ofRelay = "relayed-"

  val isLocal: Boolean = role == "forward" && ofSite == rules.site
  private val isFilled = role.startsWith(ofRelay)
  val neighbour: String = if (isFilled) role.drop(ofRelay.length) else ""
  val home: String = s"abcast.$ofGroup.forward.$neighbour"

  val input: Int =
    if (!rules.isAgreed) ForwardTopic.Forward
    else if (isFilled) ForwardTopic.Copy
    else if (role == "forward") ForwardTopic.Forward
    else if (role == "epoch") ForwardTopic.Epoch
    else ForwardTopic.Log

  /** As Python numbers it, to which a copy of FORWARD is FORWARD. */
  val number: Int = if (input == ForwardTopic.Copy) ForwardTopic.Forward else input

  val group: UTF8String = UTF8String.fromString(ofGroup)

  /** The topic that its records are of; null for the site's own. */
  val foreign: UTF8String =
    if (isLocal) null else if (input == ForwardTopic.Copy) UTF8String.fromString(home) else name

  private val ofTheSite = UTF8String.fromString(s"${rules.site}/")
  private val ofItsSite = UTF8String.fromString((if (input == ForwardTopic.Copy) neighbour else ofSite) + "/")
  private val ofNeighbour = UTF8String.fromString(neighbour + "/")
  private val relayOfNeighbour = UTF8String.fromString(neighbour + rules.relay)

  /** Whether a plain record can stand there: what a member has sent, or what the neighbour's relay brings. */
  def canHave(sender: UTF8String, fields: Fields, link: UTF8String): Boolean = {
    val kind = fields.text(1)
    if (isLocal || rules.isAgreed) fields.size == rules.ownFields && isMembers(sender, kind, ofItsSite)
    else if (!rules.isRelayed || !isFilled) false
    else if (link == null) rules.isCopied(fields) && isMembers(sender, kind, ofNeighbour)
    else rules.isLink(link) && (isSkip(sender, kind, fields) || isMessage(sender, kind))
  }

  private def isMembers(sender: UTF8String, kind: UTF8String, of: UTF8String): Boolean =
    sender.startsWith(of) && !rules.isSkip(kind) && rules.mayHaveItsName(sender, kind)

  private def isSkip(sender: UTF8String, kind: UTF8String, fields: Fields): Boolean =
    rules.isSkip(kind) && sender == relayOfNeighbour && fields.is(rules.relayedFrom, rules.nothing)

  private def isMessage(sender: UTF8String, kind: UTF8String): Boolean =
    rules.isMessage(kind) && !sender.startsWith(ofTheSite) && rules.hasSite(sender) &&
      rules.mayHaveItsName(sender, kind)
}

private object ForwardTopic {
  val Forward = 0
  val Log = 1
  val Epoch = 2
  val Copy = -1
}
