"""The heaviest trajectories, as the data loaders of robomimic and LeRobot take a choice of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.containers import open_hdf5
from smodice_cli.errors import InputError, SmodiceError
from smodice_cli.exports import Export
from smodice_cli.files import read_text
from smodice_cli.lazy import h5py, np
from smodice_cli.steering import RowWeights

MADE_FROM = "made_from"  # where a list tells of the weights behind it


def heaviest(weights: RowWeights, top: int, artifact: Path) -> list[dict[str, Any]]:
    """The heaviest trajectories of all sources."""
    found = weights.trajectories()
    if top > len(found):
        raise InputError(f"--top {top}: {artifact} has only {len(found)} trajectories")
    return found[:top]


class FilterKey(Export):
    """An HDF5 file that links to robomimic's `data` and adds the filter key `mask/smodice_N`; nothing is copied."""

    ending, chooses = ".hdf5", True

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        weights = RowWeights.load(artifact)
        chosen = heaviest(weights, top, artifact)
        places = {(one["source"], one["file"]) for one in chosen}
        source, file = next(iter(places))
        if len(places) > 1 or not weights.names[source]:
            found = f"come from {len(places)} files" if len(places) > 1 else f"come from {weights.sources[source]}"
            raise InputError(f"{artifact}: the {top} heaviest trajectories {found}, not from one robomimic file")
        recording = Path(weights.files[source][file])
        if not recording.is_file():
            raise InputError(f"{recording}, which the weights were made from, is not there")
        names = [weights.names[source].format(one["episode"]) for one in chosen]
        with open_hdf5(recording) as original, h5py.File(target, "w", locking=False) as linked:
            linked["data"] = h5py.ExternalLink(os.path.relpath(recording.resolve(), target.resolve().parent), "/data")
            for name in original.get("mask", {}):
                linked[f"mask/{name}"] = original["mask"][name][:]
            linked[f"mask/smodice_{top}"] = np.array(names, dtype="S")
        return {"filter_key": f"smodice_{top}", "recording": str(recording), "demos": names}


class Episodes(Export):
    """A JSON list of episode numbers, as LeRobotDataset(..., episodes=...) takes it, beside the whole choice."""

    ending, chooses = ".json", True

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        weights = RowWeights.load(artifact)
        chosen = [
            {
                "source": weights.sources[one["source"]],
                "file": (weights.files[one["source"]] or [""])[one["file"]],
                "episode": one["episode"],
                "mean_weight": one["mean_weight"],
            }
            for one in heaviest(weights, top, artifact)
        ]
        found = {"episodes": [one["episode"] for one in chosen], "trajectories": chosen}
        origin = {"weights": os.path.relpath(artifact, target.parent), "digest": artifacts.read_header(artifact).digest}
        target.write_text(json.dumps({MADE_FROM: origin, **found}, indent=2) + "\n")
        return found


def made_from(path: Path) -> str:
    """Whether a list of episodes that was exported is of the weights that are there; '' where it is no such list."""
    try:
        origin = json.loads(read_text(path))[MADE_FROM] if path.suffix == Episodes.ending else {}
        weights, digest = path.parent / origin["weights"], origin["digest"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError, SmodiceError):
        return ""
    try:
        now = artifacts.read_header(weights).digest
    except SmodiceError:
        return f"ok; the weights that it was made from, {weights}, are not there"
    return "ok" if now == digest else f"of earlier weights than {weights}: export it again"
