"""Recordings and policies that tests write, and how they read them back; no tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from safetensors.numpy import save_file

from smodice_cli import artifacts, envs, sources
from smodice_cli.algos.acting import POLICY_TENSORS
from smodice_cli.data import Transitions, concatenate
from smodice_cli.sources import layouts
from smodice_cli.sources.source import EVERYTHING, Choice

POINT, HOPPER = "pointmass-4direction", "hopper"


def write_file(path: Path, rows: int = 60, width: int = 4, **columns: np.ndarray) -> Path:
    """A recording in D4RL's layout: three episodes that end in timeouts; `columns` replace or add."""
    rng = np.random.default_rng(0)
    timeouts = np.arange(1, rows + 1) % max(rows // 3, 1) == 0
    whole = {
        "observations": rng.normal(size=(rows, width)),
        "actions": rng.uniform(-1, 1, (rows, 2)),
        "rewards": np.zeros(rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": timeouts,
    }
    with h5py.File(path, "w") as file:
        for name, column in (whole | columns).items():
            if column is not None:
                file[name] = column
    return path


def write_d4rl(path: Path, *, env: str = HOPPER, episodes: int = 4, length: int = 10, scale: float = 1.0) -> Path:
    """A small file in D4RL's layout; rewards are `scale` in every step."""
    spec, rows = envs.find(env), episodes * length
    rng = np.random.default_rng(episodes * 100 + length)
    states = rng.normal(size=(rows + 1, spec.obs_dim)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = states[:-1], states[1:]
        file["actions"] = rng.uniform(-1, 1, (rows, spec.act_dim)).astype(np.float32)
        file["rewards"] = np.full(rows, scale, np.float32)
        file["terminals"] = np.zeros(rows, bool)
        file["timeouts"] = np.arange(rows) % length == length - 1
    return path


def write_minari(path: Path, lengths: list[int], *, goal: bool = False, width: int = 4, act: int = 2) -> Path:
    """Minari's HDF5 layout; episode k's states start with k, so that their order shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"episode_{number}")
            states = rng.normal(size=(length + 1, width))
            states[:, 0] = number
            if goal:
                group["observations/observation"] = states
                group["observations/achieved_goal"] = states[:, :2]
                group["observations/desired_goal"] = np.ones((length + 1, 2))
            else:
                group["observations"] = states
            group["actions"] = rng.uniform(-1, 1, (length, act))
            group["rewards"] = np.ones(length)
            last = np.arange(length) == length - 1
            group["terminations"], group["truncations"] = last & (number % 2 == 0), last & (number % 2 == 1)
    return path


def policy_file(path: Path, env: str, header_env: str = "") -> Path:
    """A policy of the right shapes for `env`; with `header_env` it says that it was trained there."""
    spec, rng = envs.find(env), np.random.default_rng(0)
    shapes = {
        "normaliser.mean": (spec.obs_dim,), "normaliser.std": (spec.obs_dim,),
        "body.0.weight": (8, spec.obs_dim), "body.0.bias": (8,), "body.2.weight": (8, 8), "body.2.bias": (8,),
        "mean.weight": (spec.act_dim, 8), "mean.bias": (spec.act_dim,),
        "log_std.weight": (spec.act_dim, 8), "log_std.bias": (spec.act_dim,),
    }  # fmt: skip
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tensors["normaliser.std"] = np.ones(spec.obs_dim, np.float32)
    tensors |= {"action_low": -np.ones(spec.act_dim, np.float32), "action_high": np.ones(spec.act_dim, np.float32)}
    assert set(tensors) == set(POLICY_TENSORS)
    if not header_env:
        save_file(tensors, path)
        return path
    import torch

    header = artifacts.Header("policy", "train-policy", {}, 0, metrics={"env": header_env, "absorbing": False})
    artifacts.write_safetensors(path, header, {name: torch.from_numpy(array) for name, array in tensors.items()})
    return path


def rows_of(text: str, env: str, workers: int = 1, seed: int = 0) -> Transitions:
    """Every row that a source selects."""
    return concatenate(list(sources.parse(text).episodes(env, seed, workers)))


def read(path: Path, horizon: int, choice: Choice = EVERYTHING, **options: Any) -> Transitions:
    """Every row of a recording."""
    with layouts.opened(path, choice) as recording:
        return concatenate(list(recording.episodes(horizon, **options)))
