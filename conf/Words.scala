package abcast

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.Arrays

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Expression, GenericInternalRow, Literal}
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
import org.apache.spark.sql.catalyst.util.{ArrayData, GenericArrayData}
import org.apache.spark.sql.types.{ArrayType, BinaryType, BooleanType, DataType, LongType, ObjectType, StringType, StructType}
import org.apache.spark.unsafe.types.UTF8String

/** Words with blanks between them, as the header `abcast` has them: Spark's own functions make a text of each. */
object Words {
  /** The column of words in a column of bytes, null where it is null: as Spark's `split` by a blank. */
  def apart(bytes: Expression): Expression =
    StaticInvoke(getClass, ArrayType(StringType, containsNull = false), "split", Seq(bytes))

  /** The column of numbers in a column of texts: null but for the decimals from 1 on, of so many digits, 18 at most. */
  def number(word: Expression, mostDigits: Int): Expression =
    StaticInvoke(getClass, LongType, "parse", Seq(word, Literal(mostDigits)))

  /** Whether a text, not null, is of ASCII only. */
  def ascii(text: Expression): Expression = StaticInvoke(getClass, BooleanType, "isAscii", Seq(text), returnNullable = false)

  /** The column of texts of ASCII without so many characters at the begin and at the end, as there are at least. */
  def inner(text: Expression, atBegin: Int, atEnd: Int): Expression =
    StaticInvoke(getClass, StringType, "cut", Seq(text, Literal(atBegin), Literal(atEnd)))

  /** The column of bytes with a text to begin with; `next` puts a word behind it, and `bytes` ends it. */
  def first(word: Expression): Expression = call("begin", ofLine, word)

  /** A word behind a blank. A text that is null is left out; behind a number that is null (Spark sees to it), all is. */
  def next(line: Expression, word: Expression): Expression = call("add", ofLine, line, word)

  /** The same without a blank. */
  def joined(line: Expression, word: Expression): Expression = call("join", ofLine, line, word)

  /** What stands there then. */
  def bytes(line: Expression): Expression = call("end", BinaryType, line)

  /**
   * The column of headers with the header `name` as the first one, in which the text `said` stands in the place of the
   * words from `begin` to below `end`. The other words and the other headers stay as they are; a header that lacks words
   * before `begin`, or is not there, gets `nothing` for each of them.
   */
  def marked(headers: Expression, name: String, said: Expression, begin: Int, end: Int, nothing: String): Expression = {
    val arguments = Seq(headers, Literal(name), said, Literal(begin), Literal(end), Literal(nothing))
    StaticInvoke(getClass, Headers, "mark", arguments, propagateNull = false, returnNullable = false)
  }

  private val Headers = ArrayType(StructType.fromDDL("key string, value binary"))

  private def ofLine: DataType = ObjectType(classOf[Line])

  private def call(function: String, result: DataType, arguments: Expression*): Expression =
    StaticInvoke(getClass, result, function, arguments, propagateNull = false)

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
  def parse(word: UTF8String, mostDigits: Int): java.lang.Long = {
    val digits = word.numBytes
    if (digits == 0 || digits > mostDigits || word.getByte(0) == '0') return null
    var number = 0L
    var at = 0
    while (at < digits) {
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

  def cut(text: UTF8String, atBegin: Int, atEnd: Int): UTF8String =
    UTF8String.fromAddress(
      text.getBaseObject, text.getBaseOffset + atBegin, math.max(0, text.numBytes - atBegin - atEnd))

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

  def begin(word: UTF8String): Line = new Line().join(word)
  def add(line: Line, word: UTF8String): Line =
    if (line == null || word == null) line else line.blank().join(word)
  def add(line: Line, number: Long): Line = if (line == null) null else line.blank().join(number)
  def join(line: Line, word: UTF8String): Line = if (line == null || word == null) line else line.join(word)
  def join(line: Line, number: Long): Line = if (line == null) null else line.join(number)
  def end(line: Line): Array[Byte] = if (line == null) null else line.bytes
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
