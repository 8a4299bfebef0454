"""What `smodice inspect` knows about an artifact, as plain data; `terminal`, `figures` and `page` show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.errors import InputError, UsageError
from smodice_cli.inspect import others, weights
from smodice_cli.inspect.diagnostics import findings, flow_residual, verdict, weight_health
from smodice_cli.inspect.subject import Subject, curves, open_subject, provenance

NEED_DATASET = ("expert against the rest", "top and bottom trajectories", "state map", "names of the sources")
ALIKE = "rows counted alike"
NO_LABELS = "no labels: the data come from one source, and the task has no success test that tells its episodes apart"


@dataclass(frozen=True)
class Wish:
    """What was asked for beyond the usual."""

    trajectory: int | None = None
    compare: Path | None = None
    dims: tuple[int, int] | None = None
    top: int = 5
    frames: bool = False


def parse_plane(text: str) -> tuple[int, int]:
    """`0,1` as two dimensions of the state."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or parts[0] == parts[1]:
        raise UsageError(f"--dims {text}: expected two dimensions of the state, e.g. 0,1")
    return int(parts[0]), int(parts[1])


def describe(path: Path | Subject, wish: Wish | None = None) -> dict[str, Any]:
    """Everything about one artifact as plain data."""
    subject = path if isinstance(path, Subject) else open_subject(path)
    wish = wish or Wish()
    artifact, header = subject.artifact, subject.artifact.header
    if subject.kind != "weights" and (wish.compare or wish.trajectory is not None or wish.frames):
        asked = "--compare, --trajectory and --frames look at weights"
        raise UsageError(f"{artifact.path} is a {subject.kind} artifact: {asked}")
    check_dims(subject, wish)
    if wish.frames and subject.dataset is None:
        raise InputError(f"--frames needs the dataset: {subject.missing or 'this artifact names none'}")
    view: dict[str, Any] = {
        "path": str(artifact.path),
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
    if subject.log:
        view["curves"] = curves(subject.log)
    if subject.missing:
        view["without_dataset"] = {"why": subject.missing, "views": list(NEED_DATASET)}
    more = {
        "weights": lambda: weights_view(subject, wish),
        "dataset": lambda: others.dataset_view(subject),
        "disc": lambda: others.disc_view(subject),
        "value": lambda: others.value_view(subject),
        "policy": lambda: others.policy_view(subject),
        "eval": lambda: others.eval_view(subject),
    }.get(header.kind)
    return view | (more() if more else {})


def check_dims(subject: Subject, wish: Wish) -> None:
    """Refuse dimensions that the state does not have, or that cannot be drawn for want of the dataset."""
    if wish.dims is None:
        return
    if subject.dataset is None:
        raise InputError(f"--dims needs the dataset: {subject.missing or 'this artifact names none'}")
    width = subject.dataset["observations"].shape[1]
    if max(wish.dims) >= width:
        raise UsageError(f"--dims {wish.dims[0]},{wish.dims[1]}: the state has dimensions 0 to {width - 1}")


def weights_view(subject: Subject, wish: Wish) -> dict[str, Any]:
    """The health card and everything that tells what the weights chose."""
    artifact, dataset = subject.artifact, subject.dataset
    arrays, metrics = artifact.arrays, artifact.header.metrics
    source = np.asarray(arrays["source"])
    health = weight_health(np.asarray(arrays["w"]), source, subject.labels)
    recorded = ("raw_mean", "held_out_objective", "flow_residual")
    health |= {name: metrics[name] for name in recorded if name in metrics}
    w = usable(arrays["w"])
    config = artifact.header.config
    alike = weights.on_rows_alike(w, np.asarray(arrays["t"]), config) if w.any() else None
    if dataset and w.any() and not health["non_finite"]:
        health["flow_residual"] = flow_residual(dataset, w if alike is None else alike, config.get("gamma", 0.99))
    found = findings(health, config)
    view: dict[str, Any] = {
        "health": health,
        "verdict": {"level": verdict(found), "findings": [finding._asdict() for finding in found]},
    }
    if not w.any():
        return view
    chosen = weights.chosen_rows(dataset) if dataset else None
    view |= {
        "histogram": weights.histogram(w, weights.groups(source, subject.labels, chosen)),
        "lorenz": weights.lorenz(w),
        "what_if": weights.what_if(w),
    }
    if dataset:
        view["expert"] = weights.against_the_rest(w, chosen) if chosen else {"absent": NO_LABELS}
        ordered = weights.trajectories(w, dataset)
        view["trajectories"] = {"count": len(ordered), "top": ordered[: wish.top], "bottom": ordered[-wish.top :]}
        view["along"] = profiles(subject, w, chosen)
        if alike is not None:
            first = next(iter(view["along"]))
            rows = chosen.rows if chosen else None
            view["along"][f"{first}, {ALIKE}"] = weights.profile(alike, np.asarray(arrays["t"]), rows)
    if wish.trajectory is not None:
        count = int(np.max(arrays["episode"])) + 1
        if not 0 <= wish.trajectory < count:
            raise UsageError(f"--trajectory {wish.trajectory}: the data hold trajectories 0 to {count - 1}")
        view["trajectory"] = {"id": wish.trajectory, **weights.along_time(arrays, wish.trajectory, dataset)}
    if wish.compare:
        view["compare"] = comparison(subject, wish.compare)
    return view


def usable(column: np.ndarray) -> np.ndarray:
    """Weights as views use them: what is no number, or negative, counts as no weight (and is reported as such)."""
    w = np.asarray(column, np.float64)
    return np.where(np.isfinite(w) & (w > 0), w, 0.0)


def profiles(subject: Subject, w: np.ndarray, chosen: weights.Chosen | None) -> dict[str, dict[str, list[float]]]:
    """The weights against time in the episode: of the labelled rows and of the rest, or of all."""
    t = np.asarray(subject.artifact.arrays["t"])
    if chosen is None:
        return {"all rows": weights.profile(w, t)}
    return {chosen.name: weights.profile(w, t, chosen.rows), "the rest": weights.profile(w, t, ~chosen.rows)}


def comparison(subject: Subject, other: Path) -> dict[str, Any]:
    """These weights against others of the same dataset."""
    second = artifacts.load(other, "weights")
    mine, theirs = (header.inputs.get("dataset") for header in (subject.artifact.header, second.header))
    if mine is None or theirs is None or mine.digest != theirs.digest:
        digests = [link.digest[:12] if link else "none" for link in (mine, theirs)]
        raise InputError(
            f"{other} weighs another dataset (digest {digests[1]}) than {subject.artifact.path} (digest {digests[0]}): "
            "row by row they have nothing in common",
            "compare weights of one dataset, e.g. two values of --f with the same build-dataset output",
        )
    a, b = usable(subject.artifact.arrays["w"]), usable(second.arrays["w"])
    changed = {
        name: [subject.artifact.header.config.get(name), second.header.config.get(name)]
        for name in sorted({*subject.artifact.header.config, *second.header.config})
        if subject.artifact.header.config.get(name) != second.header.config.get(name)
    }
    if subject.artifact.header.seed != second.header.seed:
        changed["seed"] = [subject.artifact.header.seed, second.header.seed]
    return {"with": str(other), "settings": changed, **weights.compare(a, b)}
