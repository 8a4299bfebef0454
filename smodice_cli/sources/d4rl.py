"""`d4rl:ID`: D4RL's files, from its own cache folder or from its server, resumable and checked before use.

A download goes to NAME.part beside the target; a stopped one goes on from where it was, and only a whole file that
opens and has D4RL's columns gets the target's name.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from smodice_cli.console import console
from smodice_cli.envs import d4rl_tables
from smodice_cli.errors import InputError, UsageError, nearest

CHUNK = 1 << 20
ATTEMPTS = 3  # connections tried in one run when the server stops half-way
TIMEOUT = 30.0  # seconds without a byte
NEEDED = ("observations", "actions", "rewards", "terminals")
MEGABYTE = 1e6


def folder() -> Path:
    """D4RL's cache folder: D4RL_DATASET_DIR, or its default in the home folder."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")


def known(dataset: str) -> bool:
    """Whether this is an id of D4RL's."""
    return dataset in d4rl_tables.urls()


def check_id(dataset: str, source: str) -> None:
    """Refuse an unknown id, naming the nearest ones."""
    if not known(dataset):
        raise UsageError(f"source '{source}': D4RL has no data set '{dataset}'", nearest(dataset, list_ids()))


def list_ids() -> list[str]:
    """Every known id."""
    return sorted(d4rl_tables.urls())


def path_of(dataset: str) -> Path:
    """Where the file of a data set lies or would lie: under the name D4RL itself gives it."""
    return folder() / d4rl_tables.urls()[dataset].rsplit("/", 1)[1]


def fetch(dataset: str) -> Path:
    """The local file of a data set, downloaded first if it is not there."""
    target = path_of(dataset)
    if not target.is_file():
        _download(dataset, d4rl_tables.urls()[dataset], target)
    return target


def _download(dataset: str, url: str, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    answer = _open(dataset, url, target, part)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            answer.close()
            raise InputError(f"{target.name} is being downloaded by another process", "wait for it to end") from error
        for attempt in range(ATTEMPTS):
            if attempt:
                answer = _open(dataset, url, target, part)
            total = _receive(answer, file, dataset)
            if total is None or _size(file) == total:
                break
    done = part.stat().st_size
    if total is not None and done != total:
        if not done:
            part.unlink()
        raise InputError(
            f"the download of {target.name} stopped after {done / MEGABYTE:.1f} of {total / MEGABYTE:.1f} MB",
            "run the same command again: it goes on from there",
        )
    problem = unusable(part)
    if problem:
        part.unlink()
        raise InputError(f"what {url} sent is no D4RL file: {problem}", _by_hand(target))
    with open(part, "rb") as whole:
        os.fsync(whole.fileno())
    os.replace(part, target)


def _open(dataset: str, url: str, target: Path, part: Path) -> Any:
    """The server's answer, from where the part ends; every way to fail is one sentence."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is as long as the file or longer
            return error
        raise InputError(f"{url} answered {error.code} ({error.reason})", _by_hand(target)) from error
    except (OSError, http.client.HTTPException) as error:
        host = url.split("/")[2]
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{dataset} is not on this machine and {host} cannot be reached ({reason}): "
            f"put {target.name} into {target.parent}",
            "or make the data instead: sources that start with sim: need no network",
        ) from error


def _by_hand(target: Path) -> str:
    return f"get {target.name} elsewhere and put it into {target.parent}"


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _receive(answer: Any, file: IO[bytes], dataset: str) -> int | None:
    """Append the answer to the part; returns the size of the whole file where the server says it.

    A part that is not a beginning of the server's file is emptied, so that the next attempt starts anew.
    """
    with answer:
        place, _, whole = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        total = int(whole) if whole.isdigit() else None
        if answer.status == 416:
            if total != _size(file):
                file.truncate(0)
            return total
        if answer.status == 206 and place.partition("-")[0] != str(_size(file)):
            file.truncate(0)
            return total
        if answer.status != 206:
            file.truncate(0)
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
        with console.progress(f"download {dataset}", round((total or 0) / MEGABYTE), unit="MB") as bar:
            try:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    bar.update(round(file.tell() / MEGABYTE))
            except (OSError, http.client.HTTPException):
                pass  # what has come is kept; the caller compares sizes
        file.flush()
        return total


def unusable(path: Path) -> str:
    """Why a file cannot be a D4RL data set, or ''."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            missing = [name for name in NEEDED if name not in file]
            return f"it has no '{missing[0]}'" if missing else ""
    except OSError as error:
        return f"it does not open as HDF5 ({str(error).splitlines()[0]})"
