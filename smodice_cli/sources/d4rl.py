"""`d4rl:ID`: D4RL's files, from its own cache folder or from its server, resumable and checked before use.

A download goes to NAME.part beside the target; a stopped one goes on from where it was, and only a whole file that
opens and has D4RL's columns gets the target's name. D4RL publishes no sums: that of the first use is kept in
NAME.sha256 (as sha256sum writes it), and a file that differs from it later is refused.
"""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from smodice_cli.console import console
from smodice_cli.containers import DAMAGE, open_hdf5
from smodice_cli.envs import d4rl_tables
from smodice_cli.errors import InputError, OutputError, UsageError, nearest
from smodice_cli.files import atomic, first_line, locked, sha256
from smodice_cli.sources.file import Recorded

CHUNK = 1 << 20
ATTEMPTS = 3  # connections tried in one run when the server stops half-way
TIMEOUT = 30.0  # seconds without a byte
NEEDED = ("observations", "actions", "rewards", "terminals")
MEGABYTE = 1e6


class D4rl(Recorded):
    """One of D4RL's data sets, by its id."""

    @property
    def path(self) -> Path:
        """In D4RL's own cache folder, under the name that D4RL itself gives it."""
        folder = Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")
        return folder / self.url.rsplit("/", 1)[1]

    @property
    def record(self) -> Path:
        """Where the sum of its first use is kept."""
        return self.path.with_name(f"{self.path.name}.sha256")

    @property
    def url(self) -> str:
        """Where D4RL's server keeps it."""
        return d4rl_tables.urls()[self.name]

    def check(self, example: str) -> None:
        known = sorted(d4rl_tables.urls())
        if self.name not in known:
            raise UsageError(f"source '{self.text}': D4RL has no data set '{self.name}'", nearest(self.name, known))

    def file(self, *, fetch: bool = True) -> Path | None:
        if fetch and not self.path.is_file():
            with locked(self.path, self._refuse_to_wait):
                if not self.path.is_file():  # another process may just have finished
                    self._download(self.path.with_name(f"{self.path.name}.part"))
        return self.path if self.path.is_file() else None

    def check_sum(self, sha256: str) -> None:
        record = self.record
        if not record.is_file():
            console.note(
                f"{self.path.name}: {self.path.stat().st_size:,} bytes, SHA-256 {sha256}, kept in {record.name}"
            )
            with suppress(OutputError), atomic(record) as temporary:  # a folder of others may be read-only
                temporary.write_text(f"{sha256}  {self.path.name}\n")
        elif record.read_text(errors="replace").split()[:1] != [sha256]:
            raise InputError(
                f"{self.path} is not what it was when it was first used: its SHA-256 is {sha256}",
                f"get it again, or accept it: remove {record}",
            )

    def _refuse_to_wait(self, _process: str) -> None:
        raise InputError(f"{self.path.name} is being downloaded by another process", "wait for it to end")

    def _download(self, part: Path) -> None:
        for _ in range(ATTEMPTS):
            answer = self._ask(part)
            with open(part, "ab") as file:
                total = _receive(answer, file, self.name)
            done = part.stat().st_size
            if total is None or done == total:
                break
        if total is not None and done != total:
            if not done:
                part.unlink()
            raise InputError(
                f"the download of {self.path.name} stopped after {done / MEGABYTE:.1f} of {total / MEGABYTE:.1f} MB",
                "run the same command again: it goes on from there",
            )
        if problem := unusable(part):
            part.unlink()
            raise InputError(f"what {self.url} sent is no D4RL file: {problem}", self._by_hand)
        if self.record.is_file():
            self.check_sum(sha256(part))
        with open(part, "rb") as whole:
            os.fsync(whole.fileno())
        os.replace(part, self.path)

    def _ask(self, part: Path) -> Any:
        """The server's answer, from where the part ends; every way to fail is one sentence."""
        have = part.stat().st_size if part.exists() else 0
        try:
            return _connect(self.url, {"Range": f"bytes={have}-"} if have else {})
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the part is as long as the file or longer
                return error
            raise InputError(f"{self.url} answered {error.code} ({error.reason})", self._by_hand) from error
        except (OSError, http.client.HTTPException) as error:
            host = self.url.split("/")[2]
            reason = getattr(error, "reason", None) or error
            raise InputError(
                f"{self.name} is not on this machine and {host} cannot be reached ({reason}): "
                f"put {self.path.name} into {self.path.parent}",
                "or make the data instead: sources that start with sim: need no network",
            ) from error

    @property
    def _by_hand(self) -> str:
        return f"get {self.path.name} elsewhere and put it into {self.path.parent}"


def addresses(url: str) -> list[str]:
    """Where to ask: encrypted first, on a server's usual port; D4RL's table knows only http."""
    parts = urllib.parse.urlsplit(url)
    return [url] if parts.scheme == "https" or parts.port else [parts._replace(scheme="https").geturl(), url]


def _connect(url: str, headers: dict[str, str]) -> Any:
    *encrypted, plain = addresses(url)
    for address in encrypted:
        with suppress(urllib.error.URLError, http.client.HTTPException, TimeoutError):
            return urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
        console.warn(f"{urllib.parse.urlsplit(url).netloc} is not reached by https: what comes by http may be changed")
    return urllib.request.urlopen(urllib.request.Request(plain, headers=headers), timeout=TIMEOUT)


def _receive(answer: Any, file: IO[bytes], dataset: str) -> int | None:
    """Append the answer to the part; returns the size of the whole file where the server says it.

    A part that is not a beginning of the server's file is emptied, so that the next attempt starts anew.
    """
    with answer:
        have = os.fstat(file.fileno()).st_size
        place, _, whole = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if answer.status not in (206, 416):  # the whole file
            file.truncate(0)
            whole = answer.headers.get("Content-Length", "")
        total = int(whole) if re.fullmatch("[0-9]{1,18}", whole) else None
        if answer.status == 416 and total == have:
            return total
        if answer.status == 416 or (answer.status == 206 and place.partition("-")[0] != str(have)):
            file.truncate(0)
            return total
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
    try:
        with open_hdf5(path) as file:
            missing = [name for name in NEEDED if name not in file]
            return f"it has no '{missing[0]}'" if missing else ""
    except DAMAGE as error:
        return f"it does not open as HDF5 ({first_line(error)})"
