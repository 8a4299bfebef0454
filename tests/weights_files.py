"""Weights for the tests of views: made up, and written as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.data import Dataset


def some_weights(seed: int = 0, rows: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    w = rng.lognormal(sigma=1.5, size=rows) * (rng.random(rows) > 0.1)
    return w / w.mean()


def write_weights(path: Path, w: np.ndarray, beside: Path, **columns: np.ndarray) -> Path:
    """A weights file like another one, with other weights."""
    like = artifacts.load(beside, "weights")
    arrays = {name: np.array(array) for name, array in like.arrays.items()} | {"w": w} | columns
    header = Header("weights", "train-value", like.header.config, 7, dict(like.header.inputs))
    artifacts.write_hdf5(path, header, arrays)
    return path


def dataset_of(run: Path) -> Dataset:
    return Dataset.of(artifacts.load(run / "dataset.h5", "dataset"))
