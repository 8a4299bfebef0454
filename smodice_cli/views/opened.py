"""An artifact opened for looking at, with what lies around it: its dataset, its training log, its inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.artifacts import Artifact
from smodice_cli.data import Dataset
from smodice_cli.errors import InputError, SmodiceError, UsageError, nearest
from smodice_cli.files import matching
from smodice_cli.lazy import np

NEED_DATASET = ("expert against the rest", "top and bottom trajectories", "state map", "names of the sources")
LARGEST = sys.float_info.max  # a log may hold any number of digits, or NaN
Facts = dict[str, Any]  # what is known about an artifact, as plain data
Records = list[dict[str, Any]]  # rows of a table
Curves = Mapping[str, Mapping[str, list[float]]]  # figure of a training log -> steps, values


@dataclass(frozen=True)
class Request:
    """What was asked for beyond the usual."""

    trajectory: int | None = None
    compare: Path | None = None
    dims: tuple[str, str] | None = None  # numbers, or names where the dataset has them
    top: int = 5
    frames: bool = False


def parse_plane(text: str) -> tuple[str, str]:
    """`0,1` or `elbow,wrist` as two dimensions of the state."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise UsageError(f"--dims {text}: expected two dimensions of the state, e.g. 0,1")
    return parts[0], parts[1]


def plane_of(dims: tuple[str, str] | None, dataset: Dataset) -> tuple[int, int] | None:
    """The numbers of two dimensions of the state, by number or by name."""
    if dims is None:
        return None
    width, found = dataset["observations"].shape[1], []
    for word in dims:
        dim = dataset.names.index(word) if word in dataset.names else int(word) if word.isdecimal() else width
        if dim >= width:
            hint = nearest(word, dataset.names) if dataset.names else ""
            raise UsageError(f"--dims {','.join(dims)}: the state has dimensions 0 to {width - 1}, no '{word}'", hint)
        found.append(dim)
    return found[0], found[1]


@dataclass(frozen=True)
class Opened:
    """What a view is about."""

    artifact: Artifact
    dataset: Dataset | None
    missing: str = ""  # why there is no dataset
    log: Records = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.artifact.header.kind

    @property
    def labels(self) -> list[str]:
        """Names of the sources; numbers where the dataset that knows them is not there."""
        if self.dataset:
            return self.dataset.sources
        source = self.artifact.arrays.get("source")
        return [f"source {index}" for index in range(int(np.max(source)) + 1)] if source is not None else []

    def check(self, request: Request) -> None:
        """Refuse what needs the dataset where it is not there, and dimensions that the state does not have."""
        for flag, given in (("--dims", request.dims), ("--frames", request.frames)):
            if given and self.dataset is None:
                raise InputError(f"{flag} needs the dataset: {self.missing or 'this artifact names none'}")
        if request.dims and self.dataset:
            plane_of(request.dims, self.dataset)


def read_log(path: Path) -> Records:
    """The lines of a training log; none where there is no log, and a last line that was cut short is left out."""
    rows: Records = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _is_figure(row.get("step")):
            rows.append(row)
    return rows


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < LARGEST


def curve(log: Records, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one figure of a log."""
    points = [(row["step"], row[name]) for row in log if _is_figure(row.get(name))]
    return [float(step) for step, _ in points], [float(value) for _, value in points]


def curves(log: Records) -> Curves:
    """Every figure of a log."""
    names = [name for name in dict.fromkeys(name for row in log for name in row) if name != "step"]
    return {name: dict(zip(("steps", "values"), curve(log, name), strict=True)) for name in names}


def provenance(artifact: Artifact) -> Records:
    """The chain of inputs, nearest first, each with whether it is still the one this artifact was made from."""
    chain: Records = []
    seen: set[str] = set()
    waiting = [(artifact.path, name, link) for name, link in artifact.header.inputs.items()]
    while waiting:
        path, name, link = waiting.pop(0)
        if link.digest in seen:
            continue
        seen.add(link.digest)
        place = artifacts.linked(path, link)
        entry = {"input": name, "path": str(place), "digest": link.digest, "state": "missing"}
        if matching(place):
            try:
                header = artifacts.read_header(place)
                entry["state"] = "ok" if header.digest == link.digest else "changed since"
                waiting += [(place, deeper, link) for deeper, link in header.inputs.items()]
            except SmodiceError:
                entry["state"] = "a file"
        chain.append(entry)
    return chain
