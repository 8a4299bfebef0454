"""Files that people ask a view to be written to: never over a file that smodice did not write (exit code 5)."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smodice_cli import files
from smodice_cli.errors import ForeignFileError, OutputError, UsageError

MARK = "made with smodice"  # in a picture's text chunk, a page's generator tag, a table's first line
HEAD, TAIL = 2048, 65536  # bytes in which it is found; at the end in a PDF


def is_ours(path: Path, mark: str = MARK) -> bool:
    """Whether smodice wrote a file."""
    with open(path, "rb") as handle:
        head = handle.read(HEAD)
        if head.startswith(b"%PDF"):
            handle.seek(max(0, path.stat().st_size - TAIL))
            head = handle.read()
        return mark.encode() in head


def check(path: Path, endings: Sequence[str], force: bool = False, mark: str = MARK) -> None:
    """Refuse a wrong ending, a folder, a file where a folder must be, and a file that is not ours, before any work."""
    if path.suffix.lower() not in endings:
        raise UsageError(f"{path}: the name must end in {' or '.join(endings)}")
    if path.is_dir():
        raise ForeignFileError(f"{path} is a folder", "name a file")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OutputError(f"cannot write {path}: {above} is no folder to write in")
    if path.exists() and not path.is_file():
        raise ForeignFileError(f"{path} is no regular file", "choose another name")
    if path.exists() and path.stat().st_size and not force and not is_ours(path, mark):
        raise ForeignFileError(f"{path} exists and smodice did not write it", "choose another name, or --force")


def write(path: Path, content: bytes | str) -> Path:
    """Write a whole file or none, in a folder that is made where it is missing."""
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_tables(path: Path, tables: dict[str, list[dict[str, Any]]], origin: str, force: bool = False) -> list[Path]:
    """Each table as CSV to `path` with its own ending, `x.curve.csv` beside `x.csv` say; none where one is refused."""
    for ending in tables:
        check(path.with_suffix(ending), (".csv",), force)
    return [write(path.with_suffix(ending), _csv(records, origin)) for ending, records in tables.items()]


def _csv(records: list[dict[str, Any]], origin: str) -> str:
    text = io.StringIO()
    text.write(f"# {MARK} from {origin}\n")
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for record in records for name in record)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
