"""Files that appear whole or not at all, and locks: written beside the target, synced and renamed into place."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from smodice_cli.errors import OutputError

if TYPE_CHECKING:
    from filelock import BaseFileLock

PICTURES = (".mp4", ".avi", ".mkv", ".webm", ".png", ".jpg", ".jpeg", ".gif")  # which no layout reads
BLOCK = 1 << 24  # bytes hashed or copied at a time, so that memory stays flat


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]


def natural(path: Path) -> list[tuple[int, str]]:
    """How paths are ordered: by the numbers in them, so that episode_2 comes before episode_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def matching(path: Path) -> list[Path]:
    """What a path stands for: itself, or, as a pattern such as `logs/*.hdf5`, all that it matches, in order."""
    return [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)), key=natural)


def file_digest(path: Path) -> str:
    """Hash of a whole file: how an input that is no artifact, a user's recording say, is told from a changed one.

    Of a folder, or a pattern: of the names and contents of all files in it but hidden ones and pictures.
    """
    if path.is_file():
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()[:32]
    whole = hashlib.sha256()
    for member in matching(path):
        for file in sorted(member.rglob("*")) if member.is_dir() else [member]:
            if file.is_file() and file.suffix.lower() not in PICTURES:
                whole.update(f"{os.path.relpath(file, path.parent)} {file_digest(file)}\n".encode())
    return whole.hexdigest()[:32]


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failed write (no room, no permission, no such place) into one sentence about `target`."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or first_line(error)}") from error


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success sync it and rename it into place, on failure remove it."""
    temporary = target.with_name(f".{target.name.lstrip('.')}.{os.getpid()}.tmp")
    with writing(target):
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, target)
            _sync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_remains(target: Path) -> None:
    """Delete what killed writers of `target` left beside it; call it with the lock held, when nobody else writes."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def locked(target: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of `target`; a second process says who has it (`on_wait`) and waits. A kill releases it.

    The lock file goes when the lock does, and so does a folder made for it that stayed empty: a stage that fails leaves
    no trace.
    """
    path = target.with_name(f".{target.name}.lock")
    missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        with writing(target):
            lock = _acquire(path, on_wait)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is held: whoever waits for it sees that the file is gone
            lock.release()
    finally:
        with suppress(OSError):  # not empty, or never made
            for folder in missing:
                folder.rmdir()


def _acquire(path: Path, on_wait: Callable[[str], None]) -> BaseFileLock:
    from filelock import FileLock, Timeout

    lock = FileLock(path, poll_interval=0.02)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                lock.acquire(blocking=False)
            except Timeout:
                with suppress(OSError):
                    on_wait(path.read_text().strip() or "unknown")
                lock.acquire()
            path.write_text(str(os.getpid()))
            return lock
        except FileNotFoundError:  # whoever made the folder has just removed it
            lock.release(force=True)
