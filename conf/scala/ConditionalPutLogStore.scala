package abcast

import java.io.IOException
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.FileAlreadyExistsException
import java.util.{Arrays, Iterator => JavaIterator}

import scala.jdk.CollectionConverters._
import scala.util.{Try, Using}

import io.delta.storage.S3SingleDriverLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, FSDataOutputStream, Path}

/**
 * Delta's log on S3, where a commit is a conditional put: "make this object, if there is none" (If-None-Match: *).
 *
 * Delta's own store for S3 looks whether a commit is there, and puts it then. That is one step inside a JVM only: of two
 * JVMs, the second may replace the first's commit, and both believe that they have committed.
 *
 * Invariant. A `write` without `overwrite` returns only if the object holds what was to be written, and it replaces
 * nothing. It rests on this: the store takes one conditional put for a name, as nothing deletes a commit that can still
 * be written; and each commit of Delta's has an identifier of its own (`txnId`). So where a put was refused, or its
 * answer was lost, what stands there tells whose commit it is. Hadoop refuses the option where it does not know it
 * (before 3.4.2), or was told not to use it.
 *
 * A crash at any point leaves the whole object, or none. An answer that was lost is looked for once; if the put comes
 * later than that, it still replaces nothing, and who commits next finds it.
 */
class ConditionalPutLogStore(configuration: Configuration) extends S3SingleDriverLogStore(configuration) {
  override def write(
      path: Path, actions: JavaIterator[String], overwrite: java.lang.Boolean, configuration: Configuration): Unit =
    if (overwrite) super.write(path, actions, overwrite, configuration)
    else {
      val content = actions.asScala.map(_ + "\n").mkString.getBytes(UTF_8)
      val files = path.getFileSystem(configuration)
      try putIfAbsent(files, path, content)
      catch {
        case failure: IOException =>
          val present = Try(Using.resource(files.open(path))(_.readAllBytes())).getOrElse(throw failure)
          if (!Arrays.equals(present, content)) throw new FileAlreadyExistsException(path.toString)
      }
    }

  private def putIfAbsent(files: FileSystem, path: Path, content: Array[Byte]): Unit = {
    val builder = files.createFile(path).create().overwrite(false).recursive()
    val stream = builder.must("fs.option.create.conditional.overwrite", true).build().asInstanceOf[FSDataOutputStream]
    try stream.write(content)
    catch {
      case failure: Throwable =>
        stream.abort() // to close it would put what has been written of it
        throw failure
    }
    stream.close()
  }
}
