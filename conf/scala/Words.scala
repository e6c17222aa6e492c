package abcast

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.Arrays

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, GenericInternalRow}
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
import org.apache.spark.sql.catalyst.util.{ArrayData, GenericArrayData}
import org.apache.spark.sql.types.{ArrayType, StringType}
import org.apache.spark.unsafe.types.UTF8String

/** Words with blanks between them, as the header `abcast` has them: Spark's own functions make a text of each. */
object Words {
  /** The column of words in a column of bytes, null where it is null: as Spark's `split` by a blank. */
  def apart(bytes: Expression): Expression =
    StaticInvoke(getClass, ArrayType(StringType, containsNull = false), "split", Seq(bytes))

  def split(bytes: Array[Byte]): ArrayData = {
    var blanks, at = 0
    while (at < bytes.length) { if (bytes(at) == ' ') blanks += 1; at += 1 }
    val words = new Array[Any](blanks + 1)
    var word, begin = 0
    at = 0
    while (at < bytes.length) {
      if (bytes(at) == ' ') { words(word) = UTF8String.fromBytes(bytes, begin, at - begin); word += 1; begin = at + 1 }
      at += 1
    }
    words(word) = UTF8String.fromBytes(bytes, begin, bytes.length - begin)
    new GenericArrayData(words)
  }

  /** As `Long.toString` writes it, or null: no sign, blank, zero in front or digit of another alphabet. */
  def parse(word: UTF8String, mostDigits: Int): java.lang.Long = parse(word, 0, word.numBytes, mostDigits)

  /** The same of a part of its bytes. */
  def parse(word: UTF8String, from: Int, until: Int, mostDigits: Int): java.lang.Long = {
    val digits = until - from
    if (digits <= 0 || digits > mostDigits || word.getByte(from) == '0') return null
    var number = 0L
    var at = from
    while (at < until) {
      val digit = word.getByte(at) - '0'
      if (digit < 0 || digit > 9) return null
      number = 10 * number + digit
      at += 1
    }
    number
  }

  def isAscii(text: UTF8String): Boolean = {
    var at = text.numBytes - 1
    while (at >= 0 && text.getByte(at) >= 0) at -= 1
    at < 0
  }

  /** The headers with the names that all clients of Kafka can read: librdkafka sees none behind a zero byte. */
  def named(headers: ArrayData): ArrayData = {
    var at = if (headers == null) 0 else headers.numElements()
    while (at > 0) {
      at -= 1
      val name = headers.getStruct(at, 2).getUTF8String(0)
      if (name != null && name.contains(Zero))
        return new GenericArrayData(Array.tabulate[Any](headers.numElements())(beforeZero(headers, _)))
    }
    headers
  }

  private def beforeZero(headers: ArrayData, at: Int): InternalRow = {
    val header = headers.getStruct(at, 2)
    val name = header.getUTF8String(0)
    val end = if (name == null) -1 else name.indexOf(Zero, 0)
    if (end < 0) header
    else new GenericInternalRow(Array[Any](name.substring(0, end), if (header.isNullAt(1)) null else header.getBinary(1)))
  }

  private val Zero = UTF8String.fromString("\u0000")

  /**
   * The headers with the header `name` as the first one, in which the text `said` stands in the place of the words from
   * `begin` to below `end`. The other words and the other headers stay as they are; a header that lacks words before
   * `begin`, or is not there, gets `nothing` for each of them. `headers` may be null: none.
   */
  def mark(
      headers: ArrayData, name: UTF8String, said: UTF8String, begin: Int, end: Int, nothing: UTF8String): ArrayData = {
    val given = if (headers == null) Array.empty[InternalRow]
      else Array.tabulate(headers.numElements())(headers.getStruct(_, 2))
    val own = given.indexWhere(_.getUTF8String(0) == name)
    val bytes = if (own < 0 || given(own).isNullAt(1)) Array.emptyByteArray else given(own).getBinary(1)
    val line = new Line().join(bytes, 0, endOfWords(bytes, begin))
    for (_ <- 1 + bytes.count(_ == ' ') until begin) line.blank().join(nothing)
    line.blank().join(said).join(bytes, endOfWords(bytes, end), bytes.length)
    val header: InternalRow = new GenericInternalRow(Array[Any](name, line.bytes))
    new GenericArrayData(header +: (if (own < 0) given else given.patch(own, Nil, 1)))
  }

  /** Where the first so many words end: at the blank behind them, or with the line. */
  private def endOfWords(bytes: Array[Byte], count: Int): Int = {
    var words, at = 0
    while (at < bytes.length && { if (bytes(at) == ' ') words += 1; words < count }) at += 1
    at
  }
}

/** A line that grows. */
final class Line {
  private var written = new Array[Byte](128)
  private var length = 0

  def bytes: Array[Byte] = Arrays.copyOf(written, length)

  def blank(): Line = {
    room(1)
    written(length) = ' '
    length += 1
    this
  }

  def join(word: UTF8String): Line = {
    room(word.numBytes)
    word.writeToMemory(written, org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET + length)
    length += word.numBytes
    this
  }

  def join(bytes: Array[Byte], from: Int, until: Int): Line = join(UTF8String.fromBytes(bytes, from, until - from))

  def join(number: Long): Line =
    if (number < 0) join(UTF8String.fromBytes(number.toString.getBytes(US_ASCII)))
    else {
      var digits = 1
      var rest = number / 10
      while (rest > 0) { digits += 1; rest /= 10 }
      room(digits)
      rest = number
      var at = length + digits
      length = at
      do { at -= 1; written(at) = ('0' + rest % 10).toByte; rest /= 10 } while (rest > 0)
      this
    }

  private def room(more: Int): Unit =
    if (length + more > written.length) written = Arrays.copyOf(written, 2 * (length + more))
}
