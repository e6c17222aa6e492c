package abcast

import java.nio.ByteBuffer

/** Values of packs (`ordering.base.packs`): the version of the layout, the length of each payload, the payloads. */
private[abcast] object Packs {
  private val LengthBytes = 4

  private def endOfLengths(count: Int): Int = 1 + LengthBytes * count

  private def payloads(value: Array[Byte], from: Int, until: Int): Long = {
    val lengths = ByteBuffer.wrap(value)
    var (sum, at) = (0L, from)
    while (at < until) { sum += Integer.toUnsignedLong(lengths.getInt(endOfLengths(at))); at += 1 }
    sum
  }

  /** Whether it is one of so many messages. */
  def isOne(value: Array[Byte], layout: Int, count: Int): Boolean =
    value.length >= endOfLengths(count) && value(0) == layout &&
      endOfLengths(count) + payloads(value, 0, count) == value.length

  /** The pack with its last messages only, so many. */
  def rest(value: Array[Byte], count: Int, taken: Int): Array[Byte] = {
    val left = count - taken
    val begin = endOfLengths(count) + payloads(value, 0, left).toInt
    val rest = new Array[Byte](endOfLengths(taken) + value.length - begin)
    rest(0) = value(0)
    System.arraycopy(value, endOfLengths(left), rest, 1, LengthBytes * taken)
    System.arraycopy(value, begin, rest, endOfLengths(taken), value.length - begin)
    rest
  }
}
