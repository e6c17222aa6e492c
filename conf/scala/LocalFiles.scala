package abcast

import java.nio.file.Files
import java.nio.file.attribute.{PosixFileAttributeView, PosixFilePermission}

import org.apache.hadoop.fs.{Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/**
 * The local file system, as Hadoop has it, but for permissions: it starts a process to set them, `chmod`, for every file
 * that is made. A batch makes three, and each process takes some milliseconds.
 */
class LocalFiles extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    val file = pathToFile(path)
    val view = Files.getFileAttributeView(file.toPath, classOf[PosixFileAttributeView])
    // Of a directory there is a bit more, which Java does not know and `chmod` keeps; and these are few.
    if (view == null || file.isDirectory || permission.getStickyBit) super.setPermission(path, permission)
    else view.setPermissions(LocalFiles.permissions(permission.toShort))
  }
}

private object LocalFiles {
  private val InOrder = Array(
    PosixFilePermission.OTHERS_EXECUTE, PosixFilePermission.OTHERS_WRITE, PosixFilePermission.OTHERS_READ,
    PosixFilePermission.GROUP_EXECUTE, PosixFilePermission.GROUP_WRITE, PosixFilePermission.GROUP_READ,
    PosixFilePermission.OWNER_EXECUTE, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_READ)

  /** Of the bits of a mode, from the lowest on. */
  private def permissions(mode: Short): java.util.Set[PosixFilePermission] = {
    val set = java.util.EnumSet.noneOf(classOf[PosixFilePermission])
    for (bit <- InOrder.indices if (mode & (1 << bit)) != 0) set.add(InOrder(bit))
    set
  }
}
