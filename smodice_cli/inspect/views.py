"""What `smodice inspect` shows of an artifact: header, shapes, provenance chain, and the weights' health."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.artifacts import Artifact
from smodice_cli.errors import SmodiceError
from smodice_cli.inspect.diagnostics import weight_health

Table = tuple[str, list[str], list[list[str]]]


def describe(path: Path) -> dict[str, Any]:
    """Everything about one artifact as plain data."""
    artifact = artifacts.read_any(path)
    header = artifact.header
    view: dict[str, Any] = {
        "path": str(path),
        "kind": header.kind,
        "stage": header.stage,
        "seed": header.seed,
        "digest": header.digest,
        "key": header.key,
        "seconds": header.seconds,
        "config": header.config,
        "versions": header.versions,
        "notes": header.notes,
        "arrays": {name: [list(array.shape), array.dtype.name] for name, array in artifact.arrays.items()},
        "provenance": provenance(artifact),
        "metrics": header.metrics,
    }
    if header.kind == "weights":
        labels = _labels(artifact)
        view["health"] = weight_health(artifact.arrays["w"], artifact.arrays["source"], labels)
    return view


def provenance(artifact: Artifact) -> list[dict[str, Any]]:
    """The chain of inputs, nearest first, each with whether it is still the one this artifact was made from."""
    chain: list[dict[str, Any]] = []
    seen: set[str] = set()
    waiting = [(artifact.path.parent, name, link) for name, link in artifact.header.inputs.items()]
    while waiting:
        folder, name, link = waiting.pop(0)
        if link.digest in seen:
            continue
        seen.add(link.digest)
        place = Path(os.path.normpath(folder / link.path))
        entry = {"input": name, "path": str(place), "digest": link.digest, "state": "missing"}
        if place.exists():
            try:
                header = artifacts.read_header(place)
                entry["state"] = "ok" if header.digest == link.digest else "changed since"
                waiting += [(place.parent, deeper, link) for deeper, link in header.inputs.items()]
            except SmodiceError:
                entry["state"] = "a file, not an artifact"
        chain.append(entry)
    return chain


def _labels(artifact: Artifact) -> list[str]:
    try:
        return artifacts.follow(artifact, "dataset", "dataset").header.metrics["sources"]
    except SmodiceError:
        return [f"source {index}" for index in range(int(np.max(artifact.arrays["source"])) + 1)]


def tables(view: dict[str, Any]) -> list[Table]:
    """The same for people."""
    facts = [[name, str(view[name])] for name in ("kind", "stage", "seed", "digest", "key")]
    facts.append(["seconds", f"{view['seconds']:.1f}"])
    shown: list[Table] = [(view["path"], ["", ""], facts)]
    shown.append(("settings", ["", ""], [[name, str(value)] for name, value in view["config"].items()]))
    arrays = [[name, " x ".join(map(str, shape)) or "scalar", dtype] for name, (shape, dtype) in view["arrays"].items()]
    if arrays:
        shown.append(("arrays", ["name", "shape", "type"], arrays))
    if view["provenance"]:
        rows = [[entry["input"], entry["path"], entry["digest"][:12], entry["state"]] for entry in view["provenance"]]
        shown.append(("made from", ["input", "path", "digest", "state"], rows))
    if view["notes"]:
        shown.append(("notes", [""], [[note] for note in view["notes"]]))
    if "health" in view:
        shown += _health_tables(view["health"])
    elif view["metrics"]:
        shown.append(("figures", ["", ""], [[name, _short(value)] for name, value in view["metrics"].items()]))
    return shown


def _health_tables(health: dict[str, Any]) -> list[Table]:
    rows = [
        ["rows", f"{health['rows']:,}"],
        ["effective sample size", f"{health['effective_sample_size']:,.0f} ({100 * health['effective_share']:.1f} %)"],
        ["largest row's share", f"{100 * health['largest_share']:.4f} %"],
        ["exact zeros", f"{100 * health['zero_share']:.1f} %"],
        ["mean", f"{health['mean']:.4f}"],
        *[[f"quantile {q}", f"{value:.4g}"] for q, value in health["quantiles"].items()],
    ]
    sources = [
        [label, f"{entry['rows']:,}", f"{entry['mean']:.4g}", f"{100 * entry['share']:.1f} %"]
        for label, entry in health["by_source"].items()
    ]
    return [
        ("weights", ["", ""], rows),
        ("by source (labels never reach training)", ["source", "rows", "mean weight", "share of weight"], sources),
    ]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
