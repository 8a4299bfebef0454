"""build-dataset: sources -> dataset.h5, streamed, checked, float32, contiguous."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.config import DatasetConfig
from smodice_cli.console import console
from smodice_cli.data import Spool, Transitions, check, parse_dims
from smodice_cli.envs import registry
from smodice_cli.errors import InputError, UsageError
from smodice_cli.parallel import cores
from smodice_cli.sources import specs
from smodice_cli.stages.runner import Job, Options, Result, run

STAGE = "build-dataset"


def build_dataset(out: Path, config: DatasetConfig, seed: int, options: Options) -> Result:
    """Read or simulate the sources and write one dataset artifact."""
    if not config.env:
        raise UsageError("which environment? pass --env, e.g. --env pointmass-4direction")
    registry.spec(config.env)
    if not config.offline or not config.expert:
        raise UsageError(f"no {'offline' if not config.offline else 'expert'} source was given")
    parsed = [specs.parse(text) for text in (*config.offline, *config.expert)]
    for spec in parsed[: len(config.offline)]:
        if spec.selection in specs.STATE_SELECTIONS:
            raise UsageError(f"offline source '{spec.text}': #{spec.selection} selects states, not transitions")
    links = {spec.text: specs.linked_file(spec, out.parent) for spec in parsed}
    files = {text: link for text, link in links.items() if link}
    return run(Job(STAGE, "dataset", out, config, seed, options=options, files=files), _work)


def _work(job: Job, began: float) -> Header:
    config: DatasetConfig = job.config
    env = registry.spec(config.env)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(dir=job.out.parent, prefix=f".{job.out.name}.", suffix=".tmp.d") as folder:
        spool = Spool(Path(folder), env.obs_dim, env.act_dim, config.absorbing)
        described = [_offline(job, spool, index, specs.parse(text), notes) for index, text in enumerate(config.offline)]
        if spool.rows == 0:
            raise InputError("the offline sources hold no transitions")
        expert, dims, expert_return = _expert(job)
        limit = np.full(env.act_dim, env.act_limit, np.float32)
        arrays = spool.arrays() | {
            "expert/observations": expert[:, dims] if config.expert_dims else expert,
            "action_low": -limit,
            "action_high": limit,
        }
        if config.absorbing and not config.expert_dims:
            arrays["expert/observations"] = np.pad(expert, ((0, 0), (0, 1)))
            dims = [*dims, env.obs_dim]
        metrics: dict[str, Any] = {
            "rows": spool.rows,
            "episodes": len(arrays["episode_source"]),
            "expert_states": len(expert),
            "expert_dims": dims,
            "expert_return": expert_return,
            "sources": [entry["label"] for entry in described],
            "offline": described,
        }
        header = job.header(metrics=metrics, notes=notes, seconds=time.monotonic() - began)
        return artifacts.write_hdf5(job.out, header, arrays)


def _offline(job: Job, spool: Spool, index: int, spec: specs.Spec, notes: list[str]) -> dict[str, Any]:
    env = registry.spec(job.config.env)
    wanted = spec.count if spec.selection == "steps" else None
    rows = clipped = 0
    returns: list[float] = []
    seed = job.seed + 1000 * index  # two sources of one kind must not repeat each other
    with console.progress(f"{STAGE} {spec.label}", wanted or 0) as bar:
        for block in specs.episodes(spec, job.config.env, seed, cores()):
            _check_width(block, env, spec)
            check(block, spec.text)
            outside = (np.abs(block.actions) > env.act_limit).any(axis=1)
            clipped += int(outside.sum())
            np.clip(block.actions, -env.act_limit, env.act_limit, out=block.actions)
            spool.append(block, index)
            rows += block.rows
            returns += np.add.reduceat(block.rewards, block.offsets[:-1]).tolist()
            bar.update(rows, episodes=len(returns))
    if clipped:
        notes.append(
            f"{spec.text}: {clipped} of {rows} actions lay outside [-{env.act_limit:g}, {env.act_limit:g}] "
            "and were clipped to it"
        )
        console.warn(notes[-1])
    mean_return = float(np.mean(returns)) if returns else 0.0
    return {"label": spec.label, "rows": rows, "episodes": len(returns), "mean_return": mean_return}


def _check_width(block: Transitions, env: registry.EnvSpec, spec: specs.Spec) -> None:
    for what, width, wanted in (
        ("observations", block.observations.shape[1], env.obs_dim),
        ("actions", block.actions.shape[1], env.act_dim),
    ):
        if width != wanted:
            raise InputError(f"{spec.text}: {what} have {width} dimensions, but {env.name} has {wanted}")


def _expert(job: Job) -> tuple[np.ndarray, list[int], float | None]:
    """The expert's states, the dimensions that are matched, and its mean return where the source knows it."""
    config: DatasetConfig = job.config
    env = registry.spec(config.env)
    parts: list[np.ndarray] = []
    returns: list[float] = []
    for index, text in enumerate(config.expert):
        spec = specs.parse(text)
        seed = job.seed + 1000 * (index + 500)  # the expert's episodes are not the offline ones
        states, found = specs.expert_states(spec, config.env, seed, cores())
        if not len(states):
            raise InputError(f"expert source '{text}' holds no states")
        if not np.isfinite(states).all():
            raise InputError(f"expert source '{text}' holds NaN or infinite states")
        if states.shape[1] != env.obs_dim and not config.expert_dims:
            raise InputError(
                f"expert source '{text}' has {states.shape[1]} dimensions, the offline states {env.obs_dim}",
                "name the dimensions they share, e.g. --expert-dims 0:2",
            )
        parts.append(states)
        returns += found
    if len({part.shape[1] for part in parts}) > 1:
        raise InputError("the expert sources differ in their number of dimensions")
    dims = parse_dims(config.expert_dims, min(env.obs_dim, parts[0].shape[1]))
    return np.concatenate(parts).astype(np.float32), dims, float(np.mean(returns)) if returns else None
