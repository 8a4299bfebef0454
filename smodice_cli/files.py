"""Files that appear whole or not at all, and locks: written beside the target, synced and renamed into place.

Whoever makes a temporary file or folder, or holds the lock of a target, holds an flock on it. A kill lets go of it, so
what nobody holds is provably dead: whoever comes next removes it.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from smodice_cli.console import console
from smodice_cli.errors import InputError, OutputError, nearest

PICTURES = (".mp4", ".avi", ".mkv", ".webm", ".png", ".jpg", ".jpeg", ".gif")  # which no layout reads
MAX_TEXT = 1 << 26  # bytes of text that are read at once
BLOCK = 1 << 24  # bytes hashed or copied at a time, so that memory stays flat
TEMPORARY = ".*.tmp"  # what temporary files and folders are called ...
LOCK = ".*.lock"  # ... and locks
ATTEMPTS = 100  # at a lock whose file or folder goes while we look at it
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # what file systems without flock say


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]


def natural(path: Path) -> list[tuple[int, str]]:
    """How paths are ordered: by the numbers in them, so that episode_2 comes before episode_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def matching(path: Path) -> list[Path]:
    """What a path stands for: itself, or, as a pattern such as `logs/*.hdf5`, all that it matches, in order."""
    found = [str(path)] if os.path.exists(path) else filter(os.path.exists, glob.glob(str(path), recursive=True))
    return sorted(map(Path, found), key=natural)


def nearby(path: Path, scheme: str = "") -> str:
    """A `did you mean` clause for a file that is not there, of those beside it; empty where none is near."""
    folder = "" if path.parent == Path() else f"{path.parent}/"
    with suppress(OSError):
        hint = nearest(path.name, [entry.name for entry in path.parent.iterdir()], f"{scheme}{folder}")
        return hint if hint.startswith("did") else ""
    return ""


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a socket as input: reading one may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is no regular file, but a pipe, a device or a socket")


def read_bytes(path: Path, start: int = 0) -> bytes:
    """A small file that anyone may have put there, from some place on: no pipe or device, and only so much of it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{path} is no regular file")
        with open(handle, "rb", closefd=False) as file:
            file.seek(start)
            return file.read(MAX_TEXT)
    finally:
        os.close(handle)


def read_text(path: Path) -> str:
    """The text of such a file."""
    return read_bytes(path).decode(errors="replace")


def members(path: Path) -> list[Path]:
    """The files that a path stands for: itself, or those of a folder or pattern, but for pictures."""
    found = [file for place in matching(path) for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return [file for file in found if file == path or (file.is_file() and file.suffix.lower() not in PICTURES)]


def file_digest(path: Path) -> str:
    """Hash of a whole file: how an input that is no artifact, a user's recording say, is told from a changed one.

    Of a folder, or a pattern: of the names and contents of the files in it.
    """
    if not path.is_dir() and os.path.exists(path):
        return sha256(path)[:32]
    whole = hashlib.sha256()
    for file in members(path):
        whole.update(f"{os.path.relpath(file, path.parent)} {sha256(file)[:32]}\n".encode())
    return whole.hexdigest()[:32]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as other tools print it."""
    check_regular(path)
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failed write (no room, no permission, no such place) into one sentence about `target`."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or first_line(error)}") from error


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """Yield a new empty file beside `target`; on success sync it and rename it into place, on failure remove it."""
    with writing(target):
        remove_remains(target)
        temporary, handle = _new_temporary(target, folder=False)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)
        _sync(target.parent)


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder beside `target` that goes in the end."""
    with writing(target):
        folder, handle = _new_temporary(target, folder=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they outlast a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with suppress(FileNotFoundError):  # whoever also made it has just removed it
            _sync(path.parent)


def _new_temporary(target: Path, *, folder: bool) -> tuple[Path, int]:
    """A new file or folder with a name that nobody can guess, and the handle that holds it."""
    while True:
        path = target.with_name(f".{target.name.lstrip('.')}.{os.urandom(4).hex()}.tmp")
        if folder:
            path.mkdir()
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        else:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # without locks nobody can tell that it is dead, and it stays
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(handle, path):
            return path, handle
        os.close(handle)  # removed as dead before it was held


def _is_at(handle: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- what killed processes leave ------------------------------------------------------------------------------------


def remove_remains(target: Path) -> None:
    """Delete what killed writers of `target` left beside it: temporary files and folders, and its lock."""
    name = glob.escape(target.name.lstrip("."))
    for path in target.parent.glob(f".{name}.*"):
        if path.match(TEMPORARY) or path == lock_of(target):
            remove_dead(path)


def remains(folder: Path) -> list[Path]:
    """Everything in a folder and below it that killed processes left."""
    found = sorted({*folder.rglob(TEMPORARY), *folder.rglob(LOCK)})
    return [path for path in found if not set(path.parents) & set(found) and is_dead(path)]


def is_dead(path: Path) -> bool:
    """Whether nobody holds a temporary file or folder, or a lock; no, where that cannot be told."""
    return _with_dead(path, lambda: None)


def remove_dead(path: Path) -> bool:
    """Delete such a thing if nobody holds it; returns whether it was."""
    return _with_dead(path, lambda: shutil.rmtree(path) if path.is_dir() else path.unlink())


def _with_dead(path: Path, action: Callable[[], None]) -> bool:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if stat.S_IFMT(os.fstat(handle).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                action()
                return True
        finally:
            os.close(handle)
    return False


# --- locks ----------------------------------------------------------------------------------------------------------


def lock_of(target: Path) -> Path:
    """Where the lock of a target lies."""
    return target.with_name(f".{target.name}.lock")


@contextmanager
def locked(target: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of `target`; a second process says who has it (`on_wait`) and waits. A kill releases it.

    The lock file goes when the lock does, and so does a folder made for it that stayed empty: a stage that fails leaves
    no trace.
    """
    path = lock_of(target)
    missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        with writing(target):
            handle = _acquire(path, on_wait)
        try:
            yield
        finally:
            with suppress(OSError):  # while it is held: whoever waits for it sees that the file is gone
                path.unlink()
            os.close(handle)
    finally:
        with suppress(OSError):  # not empty, or never made
            for folder in missing:
                folder.rmdir()


def _acquire(path: Path, on_wait: Callable[[str], None]) -> int:
    for attempt in range(ATTEMPTS):
        try:
            make_folder(path.parent)
            handle = _open_lock(path)
        except FileNotFoundError:  # whoever made the folder has just removed it, or no file can be made there
            if attempt == ATTEMPTS - 1:
                raise
            continue
        try:
            _wait_for(handle, path, on_wait)
            if _is_at(handle, path):
                with suppress(OSError):  # another user's, which may be held but not written
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise OutputError(f"{path}: this lock is taken and removed again and again", "run it again")


def _open_lock(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except PermissionError:
        if not path.exists():
            raise
        handle = _open_lock_of_another(path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OutputError(f"{path}, where the lock belongs, is a symbolic link", "remove it") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OutputError(f"{path}, where the lock belongs, is no regular file", "remove it")
    return handle


def _open_lock_of_another(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        hint = f"ask them whether smodice still runs; if not, remove {path}, or choose another --out"
        raise OutputError(f"{path}, the lock of another user (number {path.stat().st_uid}), is there", hint) from error


def _wait_for(handle: int, path: Path, on_wait: Callable[[str], None]) -> None:
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(OSError):
                on_wait(read_text(path).strip() or "unknown")
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        console.warn(f"the file system of {path.parent} has no locks: start no second process on the same files")
