"""Files that appear in one piece: whoever looks sees the earlier file or the whole new one, whenever the process ends.

Everything that the library writes goes through `writing`: models, runs, tables, pictures, downloads.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link that leads back to itself",
}


@contextmanager
def writing(path: PathLike) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the `with` ends and it is on disk; else nothing has changed.

    It is written beside its target. A link is followed, and stays one. The permissions of an earlier file stay, too.

    Raises:
        OSError: with the path; because there is no room, no folder or no permission, or `path` is no regular file.
    """
    target = target_of(path)
    kept = "; the earlier file is as it was" if target.exists() else ""
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(draft, "xb") as file:
            if target.exists():
                os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
        _sync_folder(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}; the file was not written{kept}", str(target)) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def target_of(path: PathLike) -> Path:
    """Where a file of this name goes: behind a link, its target. An OSError if its folder is missing, or if there is
    something other than a file.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {str(target.parent)!r} does not exist; create it first")
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return target
    if not stat.S_ISREG(mode):
        what = KINDS.get(stat.S_IFMT(mode), "no file")
        fault = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise fault(f"{os.fspath(path)!r} is {what}, expected a file to write, or a name that is free; choose another")
    return target


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk, too, where the system can (not on Windows)."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
