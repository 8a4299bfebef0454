"""Files that people ask a view to be written to: never over a file that smodice did not write (exit code 5)."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.errors import ForeignFileError, OutputError, UsageError
from smodice_cli.inspect.subject import Subject
from smodice_cli.inspect.views import usable
from smodice_cli.inspect.weights import trajectories

MARK = "made with smodice"  # in a picture's text chunk, a page's generator tag, a table's first line
HEAD = 2048  # bytes in which it is found


def check(path: Path, ending: str, force: bool = False) -> None:
    """Refuse a wrong ending, a folder, a file where a folder must be, and a file that is not ours, before any work."""
    if path.suffix.lower() != ending:
        raise UsageError(f"{path}: the name must end in {ending}")
    if path.is_dir():
        raise ForeignFileError(f"{path} is a folder", "name a file")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OutputError(f"cannot write {path}: {above} is no folder to write in")
    if path.exists() and path.stat().st_size and not force:
        with open(path, "rb") as handle:
            if MARK.encode() not in handle.read(HEAD):
                raise ForeignFileError(f"{path} exists and smodice did not write it", "choose another name, or --force")


def write(path: Path, content: bytes | str) -> Path:
    """Write a whole file or none, in a folder that is made where it is missing."""
    with artifacts.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with artifacts.atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_csv(path: Path, subject: Subject, view: dict[str, Any], force: bool = False) -> list[Path]:
    """The table behind a view: trajectories, one trajectory, episodes, ranges, or the training curves.

    Scores have two: the returns over training lie beside the episodes, in NAME.curve.csv.
    """
    tables = {path: table(subject, view)}
    if "curve" in view:
        second = path.with_suffix(".curve.csv")
        check(second, ".csv", force)
        tables[second] = _records(view["curve"])
    return [_write_table(place, view, *content) for place, content in tables.items()]


def _write_table(path: Path, view: dict[str, Any], columns: list[str], rows: list[Sequence[Any]]) -> Path:
    text = io.StringIO()
    text.write(f"# {MARK} from {view['path']} ({view['digest'][:12]})\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return write(path, text.getvalue())


def table(subject: Subject, view: dict[str, Any]) -> tuple[list[str], list[Sequence[Any]]]:
    """Columns and rows for a spreadsheet."""
    if "trajectory" in view:
        named = {name: values for name, values in view["trajectory"].items() if name != "id"}
        return list(named), list(zip(*named.values(), strict=True))
    if view["kind"] == "weights" and subject.dataset:
        return _records(trajectories(usable(subject.artifact.arrays["w"]), subject.dataset))
    if view["kind"] == "eval":
        return _records([{"episode": index, **episode} for index, episode in enumerate(view["per_episode"])])
    if view["kind"] == "dataset":
        return _records([_flat(source) for source in view["sources"]])
    if subject.log:
        return _records(subject.log)
    raise UsageError(f"{view['path']}: there is no table to write: its dataset and its training log are not there")


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= {f"{name}_{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _records(records: list[dict[str, Any]]) -> tuple[list[str], list[Sequence[Any]]]:
    columns = list(dict.fromkeys(name for record in records for name in record))
    return columns, [[record.get(name, "") for name in columns] for record in records]
