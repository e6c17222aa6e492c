package abcast

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.fs.{Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/**
 * The local file system, as Hadoop has it, but for permissions: it starts a process to set them, `chmod`, for every file
 * that is made. A batch makes three, and each process takes some milliseconds.
 */
class LocalFiles extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    val file = pathToFile(path)
    // Of a directory there is a bit more, which Java does not know and `chmod` keeps; and these are few.
    if (file.isDirectory || permission.getStickyBit) super.setPermission(path, permission)
    else Files.setPosixFilePermissions(file.toPath, PosixFilePermissions.fromString(permission.toString))
  }
}
