"""Checkpoints: the last files of a run in a folder, so that a run that was killed can go on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bayesmp.basics import checks, persistence
from bayesmp.basics.telling import warn_user

EVERY = 10  # epochs
KEEP = 2  # files: one more than needed, should the disk damage one
NAME = re.compile(r"epoch-(\d+)\.safetensors")
DRAFT = re.compile(r"\.epoch-\d+\.safetensors\.[0-9a-f]+\.tmp")  # what a run leaves that is killed while it writes

T = TypeVar("T")


class Checkpoints:
    """A folder of one run: `epoch-00000010.safetensors` and so on, each a file as `Trainer.save` writes it.

    Args:
        folder: made if it is not there.
        every: epochs between two files.
        keep: how many of them stay.
    """

    def __init__(self, folder: persistence.PathLike, *, every: int = EVERY, keep: int = KEEP) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise ValueError(f"checkpoint must be the path of a folder, got {folder!r}")
        self.folder = Path(folder)
        self.every = checks.check_positive_int(every, "every")
        self.keep = checks.check_positive_int(keep, "keep")
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint must be the path of a folder, and {str(folder)!r} is a file")

    def paths(self) -> list[Path]:
        """The files in the folder, newest first."""
        found = self._epochs()
        return sorted(found, key=lambda path: found[path], reverse=True)

    def make_folder(self) -> None:
        """Make the folder, so that a run that cannot write there says so before it starts."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, f"checkpoints cannot be written: {error.strerror}", str(self.folder)) from error
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"checkpoints cannot be written: the folder {str(self.folder)!r} is read-only")

    def is_due(self, epoch: int) -> bool:
        """Whether a checkpoint belongs to the end of this epoch."""
        return epoch % self.every == 0

    def write(self, epoch: int, save: Callable[[Path], None]) -> None:
        """Write the file of this epoch, then remove the oldest ones; if it fails, warn, and leave the others alone.

        Training is worth more than a file of it: it goes on, and the next checkpoint may find room.

        Args:
            epoch: after which the run is.
            save: writes it to a path.
        """
        failed = f"the checkpoint of epoch {epoch} could not be written"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(self.folder / f"epoch-{epoch:08d}.safetensors")
            failed = "old checkpoints could not be removed"
            self._tidy(epoch)
        except OSError as error:
            warn_user(f"{failed}: {error}; training goes on, and earlier checkpoints are as they were")

    def read_newest(self, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of the newest file that is whole, None if there is none; a warning names damaged ones.

        A file that is whole but does not fit (other data, other settings, a later format) is an error, not skipped.
        """
        for path in self.paths():
            try:
                return read(path)
            except persistence.DamagedFileError as error:
                warn_user(f"skipped a checkpoint: {error}")
        return None

    def _epochs(self) -> dict[Path, int]:
        if not self.folder.is_dir():
            return {}
        matches = ((path, NAME.fullmatch(path.name)) for path in self.folder.iterdir())
        return {path: int(match[1]) for path, match in matches if match is not None}

    def _tidy(self, epoch: int) -> None:
        """Remove all but the last files up to this epoch (a later one is damaged, and was skipped), and what killed
        runs have left of files they were writing."""
        found = self._epochs()
        passed = [path for path in self.paths() if found[path] <= epoch]
        drafts = [path for path in self.folder.iterdir() if DRAFT.fullmatch(path.name)]
        for path in passed[self.keep :] + drafts:
            if not path.is_dir():
                path.unlink(missing_ok=True)
