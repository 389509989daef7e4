"""The folder of a run: locked by one training run at a time, with space for its checkpoints.

log.jsonl              the log
curve.png              the loss curve, drawn at the end
step-00000500/         checkpoints, the newest few
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from limelight.errors import FileError, UnavailableError
from limelight.files import PARTIAL, check_path
from limelight.models.loading.checkpoints import checkpoint_folder, checkpoint_steps


class RunFolder:
    """A folder and the checkpoints in it."""

    def __init__(self, path: str | Path) -> None:
        self.path = check_path(path)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        return checkpoint_steps(self.path)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return checkpoint_folder(self.path, step)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the folder's lock; the partial files of a killed run are removed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FileError(
                f"folder {self.path} cannot be written: {error.strerror}; nothing was started"
            ) from error
        try:
            _lock(self.path, lock)
            for partial in self.path.glob(f"{PARTIAL}*"):
                if partial.is_dir():
                    shutil.rmtree(partial, ignore_errors=True)
                else:
                    partial.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def check_space(self, sizes: Sequence[int], checkpoints: int) -> None:
        """Raise unless this many checkpoints, each with files of these sizes, fit on the disk.

        Where the system can, the space is allocated and freed again, which also detects quotas and
        limits on file size.
        """
        needed, free = checkpoints * sum(sizes), shutil.disk_usage(self.path).free
        trial = self.path / f"{PARTIAL}space"
        try:
            if needed > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not hasattr(os, "posix_fallocate"):  # macOS
                return
            trial.mkdir(exist_ok=True)
            for number in range(checkpoints * len(sizes)):
                with (trial / str(number)).open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, max(1, sizes[number % len(sizes)]))
        except OSError as error:
            raise FileError(
                f"folder {self.path} has no space for {checkpoints} checkpoints of "
                f"{_megabytes(sum(sizes))} (together {_megabytes(needed)}, free "
                f"{_megabytes(free)}): {error.strerror}; nothing was started"
            ) from error
        finally:
            shutil.rmtree(trial, ignore_errors=True)


def _lock(folder: Path, handle: int) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:
        raise UnavailableError(
            f"training needs Linux or macOS, which can lock a folder; found {sys.platform}"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise FileError(f"folder {folder}: another training run is using it") from error


@contextmanager
def atomic_folder(folder: Path) -> Generator[Path]:
    """A new folder that gets its name only once everything in it is on disk.

    If the process is killed, there is either the folder with all its files or none of that name.
    """
    partial = folder.parent / f"{PARTIAL}{folder.name}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        for entry in [*partial.iterdir(), partial]:
            _fsync(entry)
        partial.rename(folder)
        _fsync(folder.parent)
    except OSError as error:
        raise FileError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_atomically(folder: Path) -> None:
    """Remove a folder, by renaming it first: if the process is killed, no half is left."""
    partial = folder.parent / f"{PARTIAL}{folder.name}"
    shutil.rmtree(partial, ignore_errors=True)
    folder.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
