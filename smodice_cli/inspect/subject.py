"""An artifact opened for looking at, with what lies around it: its dataset, its training log, its provenance."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.artifacts import Artifact
from smodice_cli.data import Dataset
from smodice_cli.errors import SmodiceError

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """What a view is about."""

    artifact: Artifact
    dataset: Dataset | None
    missing: str = ""  # why there is no dataset
    log: Rows = field(default_factory=list)

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


def open_subject(path: Path) -> Subject:
    """Open any artifact and, where it can be found unchanged, its dataset."""
    artifact = artifacts.read_any(path)
    log = read_log(log_path(path, artifact.header.kind))
    if artifact.header.kind == "dataset":
        return Subject(artifact, Dataset.of(artifact), log=log)
    if "dataset" not in artifact.header.inputs:
        return Subject(artifact, None, log=log)
    try:
        return Subject(artifact, Dataset.of(artifacts.follow(artifact, "dataset", "dataset")), log=log)
    except SmodiceError as error:
        return Subject(artifact, None, error.message, log)


def log_path(path: Path, kind: str) -> Path:
    """The training log of an artifact; the weights share V's: value.log.jsonl lies beside weights.h5."""
    if kind == "weights":
        stem = "value" if path.name == "weights.h5" else path.name.removesuffix(".weights.h5")
        return path.with_name(f"{stem}.log.jsonl")
    return path.with_suffix(".log.jsonl")


def read_log(path: Path) -> Rows:
    """The lines of a training log; none where there is no log, and a last line that was cut short is left out."""
    rows: Rows = []
    if path.is_file():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "step" in row:
                rows.append(row)
    return rows


def curve(log: Rows, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one figure of a log."""
    points = [(row["step"], row[name]) for row in log if isinstance(row.get(name), int | float)]
    return [float(step) for step, _ in points], [float(value) for _, value in points]


def curves(log: Rows) -> dict[str, dict[str, list[float]]]:
    """Every figure of a log."""
    names = [name for name in dict.fromkeys(name for row in log for name in row) if name != "step"]
    return {name: dict(zip(("steps", "values"), curve(log, name), strict=True)) for name in names}


def provenance(artifact: Artifact) -> list[dict[str, Any]]:
    """The chain of inputs, nearest first, each with whether it is still the one this artifact was made from."""
    chain: list[dict[str, Any]] = []
    seen: set[str] = set()
    waiting = [(artifact.path, name, link) for name, link in artifact.header.inputs.items()]
    while waiting:
        path, name, link = waiting.pop(0)
        if link.digest in seen:
            continue
        seen.add(link.digest)
        place = artifacts.linked(path, link)
        entry = {"input": name, "path": str(place), "digest": link.digest, "state": "missing"}
        if place.exists():
            try:
                header = artifacts.read_header(place)
                entry["state"] = "ok" if header.digest == link.digest else "changed since"
                waiting += [(place, deeper, link) for deeper, link in header.inputs.items()]
            except SmodiceError:
                entry["state"] = "a file, not an artifact"
        chain.append(entry)
    return chain
